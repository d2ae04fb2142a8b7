// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestHostPorts reaches pods through ports of the node: from outside, from the node, and from pods,
// including the pod itself.
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
	}{{"outside", s.outside}, {"another pod", client.NS}, {"the pod itself", p.NS}, {"the node itself", s.node}} {
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

// TestHostPortOfAnother: a second pod with the same host port does not get it, even after restarts,
// until the first pod is deleted.
func TestHostPortOfAnother(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	ports := map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	first, second := s.newPod("first"), s.newPod("a-second") // its NAT's name sorts first
	first.rt.CapabilityArgs, second.rt.CapabilityArgs = ports, ports
	if err := s.tryAdd(list, first); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var told *types.Error
		if err := s.tryAdd(list, second); !errors.As(err, &told) || told.Code != types.ErrTryAgainLater || !strings.Contains(err.Error(), "hostPort 8080/tcp belongs to eth0 of pod shop/first") {
			t.Errorf("a second one: %v", err)
		}
		s.del(list, second) // as runtimes do after a failed ADD
		s.Stop()
		s.Start()
	}
	first.ServeTCP(t, ":80", "first")
	reaches := func(want string) {
		t.Helper()
		for _, node := range []string{"192.0.2.1", "2001:db8:2::1"} {
			if got, err := testtraffic.TalkTCP(s.outside, "", net.JoinHostPort(node, "8080"), []byte("hello")); err != nil || got != want {
				t.Errorf("%s: %q, %v; want %q", node, got, err, want)
			}
		}
	}
	reaches("first")
	s.del(list, first)
	if err := s.tryAdd(list, second); err != nil {
		t.Fatal(err)
	}
	second.ServeTCP(t, ":80", "second")
	reaches("second")
}

// TestHostPortOfAnAddress: a pod has a host port at all addresses and, at one address, the same
// host port for a different port of the pod, which takes precedence there.
func TestHostPortOfAnAddress(t *testing.T) {
	s := newSite(t)
	p := s.newPod("server")
	p.rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostIP": "192.0.2.1", "hostPort": 8080, "containerPort": 81, "protocol": "tcp"},
	}}
	if err := s.tryAdd(s.list("1.0.0", nil), p); err != nil {
		t.Fatal(err)
	}
	p.ServeTCP(t, ":80", "all")
	p.ServeTCP(t, ":81", "one")
	for node, want := range map[string]string{"192.0.2.1": "one", "2001:db8:2::1": "all"} {
		if got, err := testtraffic.TalkTCP(s.outside, "", net.JoinHostPort(node, "8080"), []byte("hello")); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", node, got, err, want)
		}
	}
}

// TestHostPortsOfTheLoopback reaches a pod through host ports at loopback addresses, which only the
// node itself can use, while another pod has the same ports at the node's other addresses.
func TestHostPortsOfTheLoopback(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	nodes := []string{"192.0.2.1", "2001:db8:2::1"}
	for _, of := range []struct {
		name  string
		hosts []string
	}{{"inner", []string{"127.0.0.1", "::1"}}, {"outer", nodes}} {
		p := s.newPod(of.name)
		var ports []map[string]any
		for _, host := range of.hosts {
			ports = append(ports, map[string]any{"hostIP": host, "hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
				map[string]any{"hostIP": host, "hostPort": 5353, "containerPort": 53, "protocol": "udp"})
		}
		p.rt.CapabilityArgs = map[string]any{"portMappings": ports}
		if err := s.tryAdd(list, p); err != nil {
			t.Fatal(err)
		}
		p.ServeTCP(t, ":80", of.name)
		p.ServeUDP(t, ":53", of.name)
	}
	for i, loopback := range []string{"127.0.0.1", "::1"} {
		for _, to := range []struct{ host, want string }{{loopback, "inner"}, {nodes[i], "outer"}} {
			if got, err := testtraffic.TalkTCP(s.node, net.JoinHostPort(nodes[i], "0"), net.JoinHostPort(to.host, "8080"), []byte("hello")); err != nil || got != to.want {
				t.Errorf("TCP from %s to %s: %q, %v", nodes[i], to.host, got, err)
			}
			if got, err := testtraffic.TalkUDP(s.node, net.JoinHostPort(nodes[i], "0"), net.JoinHostPort(to.host, "5353"), []byte("hello")); err != nil || got != to.want {
				t.Errorf("UDP from %s to %s: %q, %v", nodes[i], to.host, got, err)
			}
		}
	}
}

// TestBandwidth sends as fast as possible to and from a pod that is limited to 8 Mbit/s each way.
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
		defer c.Close() // no longer needed
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
