// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestHostPorts reaches pods by ports of the node: from outside, and from pods
// themselves, the very one included.
func TestHostPorts(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	p := s.newPod("server")
	p.rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
	}}
	if err := s.tryAdd(list, p); err != nil {
		t.Fatal(err)
	}
	client := s.addPod(list, "client")
	p.ServeTCP(t, ":80", "server")
	p.ServeUDP(t, ":53", "server")
	for _, from := range []struct {
		name string
		ns   *testnet.NS
	}{{"outside", s.outside}, {"another pod", client.NS}, {"the pod itself", p.NS}} {
		for _, node := range []string{"192.0.2.1", "2001:db8:2::1"} {
			if got, err := testtraffic.TalkTCP(from.ns, "", net.JoinHostPort(node, "8080"), []byte("hello")); err != nil || got != "server" {
				t.Errorf("TCP from %s to %s: %q, %v", from.name, node, got, err)
			}
			if got, err := testtraffic.TalkUDP(from.ns, "", net.JoinHostPort(node, "5353"), []byte("hello")); err != nil || got != "server" {
				t.Errorf("UDP from %s to %s: %q, %v", from.name, node, got, err)
			}
		}
	}
	s.del(list, p)
	if got, err := testtraffic.TalkTCP(s.outside, "", "192.0.2.1:8080", []byte("hello")); err == nil {
		t.Errorf("after DEL %q answers still", got)
	}
	if out := s.LLCLI("get", "nats", "-o", "json"); strings.Contains(out, "8080") {
		t.Errorf("after DEL: %s", out)
	}
}

// TestBandwidth sends as fast as it can to a pod that may receive and send 8 Mbit/s.
func TestBandwidth(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	slow := s.newPod("slow")
	slow.rt.CapabilityArgs = map[string]any{"bandwidth": map[string]int{
		"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000,
	}}
	if err := s.tryAdd(list, slow); err != nil {
		t.Fatal(err)
	}
	other := s.addPod(list, "other")
	for name, way := range map[string][2]*pod{"to the pod": {other, slow}, "from the pod": {slow, other}} {
		from, to := way[0], way[1]
		addr := net.JoinHostPort(to.address(true).String(), "9")
		l := to.Listen(t, addr)
		var c net.Conn
		from.Do(t, func() (err error) {
			c, err = net.DialTimeout("tcp", addr, 5*time.Second)
			return err
		})
		defer c.Close() // has done what it is for
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close() // likewise
		go func() {
			b := make([]byte, 64<<10)
			for err := error(nil); err == nil; {
				_, err = c.Write(b)
			}
		}()
		got, begin := 0, time.Now()
		for b := make([]byte, 64<<10); got < 2_000_000; {
			n, err := server.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		if rate := float64(got-100_000) * 8 / time.Since(begin).Seconds() / 1e6; rate > 9.5 {
			t.Errorf("%s: %.1f Mbit/s, want 8", name, rate)
		}
	}
}
