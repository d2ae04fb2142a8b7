// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestHairpinFromTheSamePort: a pod reaches itself through a Service again and again from the same
// source port, as after an ended connection. Each time, the source address is translated.
func TestHairpinFromTheSamePort(t *testing.T) {
	s := newSite(t)
	p := s.addPod(s.list("1.1.0", nil), "web")
	for i, source := range []string{"auto", "snat"} {
		for _, is4 := range []bool{true, false} {
			pod, frontend := p.address(is4), netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", 7+i))
			if !is4 {
				frontend = netip.MustParseAddr(fmt.Sprintf("fd96::%d", 7+i))
			}
			at, local := netip.AddrPortFrom(frontend, 80), netip.AddrPortFrom(pod, 47000)
			t.Run(fmt.Sprintf("%s %s", source, frontend), func(t *testing.T) {
				p.ServeTCP(t, netip.AddrPortFrom(pod, uint16(8080+i)).String(), "web")
				s.Apply(fmt.Sprintf("kind: Service\nname: web%d-%t\nspec: {frontends: [%q], backends: [{address: %q}], source: %s}",
					i, is4, at.String()+"/tcp", netip.AddrPortFrom(pod, uint16(8080+i)), source))
				for round := range 5 {
					if err := p.greet(local, at, "web\n"); err != nil {
						t.Fatalf("round %d: %v", round+1, err)
					}
				}
			})
		}
	}
}

// greet connects from a source port, reads the answer, sends something, and resets the connection.
func (p *pod) greet(local, at netip.AddrPort, want string) error {
	c, err := p.Dial("tcp", local.String(), at.String(), 3*time.Second)
	if err != nil {
		return err
	}
	defer c.Close() // the result is known
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetDeadline(time.Now().Add(5*time.Second))); err != nil {
		return err
	}
	in := bufio.NewReader(c)
	for _, text := range []string{want, "hello\n", "again\n"} {
		got, err := in.ReadString('\n')
		if err != nil || got != text {
			return fmt.Errorf("%q, %w; want %q", got, err, text)
		}
		if _, err := c.Write([]byte(map[string]string{want: "hello\n", "hello\n": "again\n"}[text])); err != nil {
			return err
		}
	}
	return nil
}
