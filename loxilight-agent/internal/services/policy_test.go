// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	corev1 "k8s.io/api/core/v1"
)

// TestPolicyUnderConnections: connections to endpoints on another node continue when the policies
// change from Cluster to Local, and when this node has no endpoint left. They end when their own
// endpoint is removed.
func TestPolicyUnderConnections(t *testing.T) {
	p := newPlace(t)
	p.tell(t, newWorld(false, false, "", ""))
	clients := map[netip.Addr][]string{
		addr("10.244.3.9"): {"10.96.0.7:80"}, addr("192.0.2.99"): {"192.0.2.13:30080", "203.0.113.9:80", "203.0.113.20:80"},
		addr("2001:db8:3::9"): {"[2001:db8:96::7]:80"}, addr("2001:db8::99"): {"[2001:db8:113::9]:80"},
	}
	var held []net.Conn
	for client, frontends := range clients {
		for _, to := range frontends {
			c := p.hold(client, to, "4::6]:8080", "10.244.4.6:8080")
			t.Cleanup(func() { _ = c.Close() }) // may have ended
			held = append(held, c)
		}
	}
	for _, w := range []*world{newWorld(true, true, "", ""), newWorld(true, true, "-", ""), newWorld(true, true, "unready", "unready"), newWorld(false, false, "", "")} {
		p.tell(t, w)
		for i, c := range held {
			if !echoes(c, fmt.Sprint("line ", i)) {
				t.Errorf("the connection %s to %s ended", c.LocalAddr(), c.RemoteAddr())
			}
		}
		for client, frontends := range clients {
			for _, to := range frontends {
				p.check(w, question{client, netip.MustParseAddrPort(to), corev1.ProtocolTCP})
			}
		}
	}
	p.tell(t, newWorld(true, true, "", ""))
	p.tell(t, newWorld(true, true, "", "-"))
	for _, c := range held {
		testnet.Eventually(t, placePatience, "a connection whose endpoint is gone ends", func() bool { return !echoes(c, "still there") })
	}
}

// hold connects until the server's name has one of these suffixes.
func (p *place) hold(client netip.Addr, to string, servers ...string) net.Conn {
	p.t.Helper()
	for range 100 {
		c, err := p.clients[client].Dial("tcp", netip.AddrPortFrom(client, 0).String(), to, placePatience)
		if err != nil {
			p.t.Fatalf("%s to %s: %v", client, to, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(placePatience))
		line := make([]byte, 128)
		n, err := c.Read(line)
		if err != nil {
			p.t.Fatalf("%s to %s: %v", client, to, err)
		}
		name, _, _ := strings.Cut(string(line[:n]), " ")
		if slices.ContainsFunc(servers, func(s string) bool { return strings.HasSuffix(name, s) }) {
			return c
		}
		_ = c.Close()
	}
	p.t.Fatalf("%s to %s met none of %v", client, to, servers)
	return nil
}

// echoes reports whether a server still echoes text.
func echoes(c net.Conn, text string) bool {
	_ = c.SetDeadline(time.Now().Add(placePatience / 10))
	if _, err := io.WriteString(c, text); err != nil {
		return false
	}
	got := make([]byte, len(text))
	_, err := io.ReadFull(c, got)
	return err == nil && string(got) == text
}
