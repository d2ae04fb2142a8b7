// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// mirrorService puts a Service for TCP and UDP of both families in force.
func (n *mirrorNetwork) mirrorService() {
	n.t.Helper()
	n.serveOnce()
	for _, a := range []string{"[2001:db8:2::11]", "[2001:db8:2::12]"} {
		n.backends.ServeTCP(n.t, a+":8080", "tcp6")
		n.backends.ServeUDP(n.t, a+":8080", "udp6")
	}
	s := datapath.Service{IdleTimeout: datapath.DefaultIdleTimeout(), Backends: append(backendAddrs(8080, "10.0.1.11", "10.0.1.12"), backendAddrs(8080, "2001:db8:2::11", "2001:db8:2::12")...)}
	for _, p := range []datapath.Protocol{datapath.TCP, datapath.UDP} {
		s.Frontends = append(s.Frontends, frontend("198.51.100.10:80", p), frontend("[2001:db8:f::10]:80", p))
	}
	n.ok(n.d.Services().Update(n.t.Context(), "web", s))
}

// useService talks to the Service, and to its backends directly.
func (n *mirrorNetwork) useService(from *testnet.NS) {
	n.t.Helper()
	for _, addr := range []string{"198.51.100.10:80", "[2001:db8:f::10]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			n.exchange(from, network, addr)
		}
	}
	n.exchange(from, "tcp", "10.0.1.11:8080")
	n.settle()
}

// exchange sends some words to a server and reads an answer to each.
func (n *mirrorNetwork) exchange(from *testnet.NS, network, addr string) {
	n.t.Helper()
	var c net.Conn
	from.Do(n.t, func() (err error) {
		c, err = net.DialTimeout(network, addr, 3*time.Second)
		return err
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // the next read reports an error
	for i := range 4 {
		var b [256]byte
		_, err := fmt.Fprintf(c, "word %d", i)
		if err == nil {
			_, err = c.Read(b[:])
		}
		if err != nil {
			n.t.Fatalf("%s %s: %v", network, addr, err)
		}
	}
}

// TestMirrorOfService: the packets of a Service's connections are copied where they arrive, once each,
// in the chosen directions.
func TestMirrorOfService(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirrorService()
		client, backends := n.client.MAC(t, "eth0"), n.backends.MAC(t, "eth0")
		direct := map[netip.AddrPort]bool{} // client ports of connections that do not use the Service
		toService := func(f []byte) bool {
			p := testpkt.Parse(f)
			if p.Destination() == netip.MustParseAddrPort("10.0.1.11:8080") && sentBy(client)(f) {
				direct[p.Source()] = true
			}
			return sentBy(client)(f) && p.Destination().Port() == 80
		}
		fromBackend := func(f []byte) bool {
			p := testpkt.Parse(f)
			return sentBy(backends)(f) && p.Source().Port() == 8080 && !direct[p.Destination()]
		}
		for direction, name := range map[datapath.MirrorDirection]string{datapath.MirrorIn: "in", datapath.MirrorOut: "out", bothDirections: "both"} {
			n.mirror("m", datapath.Mirror{Service: "web", Direction: direction})
			at := n.mark()
			n.useService(n.client)
			n.wantFrames(name, at, func() (want []string) {
				in, out := selected(n.client0, at.client, toService), []string(nil)
				if out = selected(n.backends0, at.backends, fromBackend); direction == datapath.MirrorIn {
					return in
				} else if direction == datapath.MirrorOut {
					return out
				}
				return append(in, out...)
			})
		}
		if s, _ := n.d.Telemetry().MirrorState("m"); !slices.Equal(s.Ports, []string{"in0", "out0"}) {
			t.Errorf("ports %v, want in0 and out0", s.Ports)
		}
		// A port that is added later is mirrored at once.
		n.ok(n.d.Ports().Delete(t.Context(), "in0"))
		if s, _ := n.d.Telemetry().MirrorState("m"); !slices.Equal(s.Ports, []string{"out0"}) {
			t.Errorf("ports %v, want out0", s.Ports)
		}
		n.attach()
		if s, _ := n.d.Telemetry().MirrorState("m"); !slices.Equal(s.Ports, []string{"in0", "out0"}) {
			t.Errorf("ports %v, want in0 and out0", s.Ports)
		}
		n.ok(n.d.Services().Delete(t.Context(), "web"))
		if ok, err := n.d.Mirrors().Verify(t.Context(), "m"); ok || !errors.Is(err, datapath.ErrOutdated) {
			t.Errorf("verify without the service: %v, %v", ok, err)
		}
		err := n.d.Mirrors().Update(t.Context(), "m", datapath.Mirror{Service: "web", Direction: bothDirections, To: datapath.MirrorTarget{Device: "mon0"}})
		if !errors.Is(err, datapath.ErrAbsent) || !strings.Contains(err.Error(), `"web"`) {
			t.Errorf("without the service: %v", err)
		}
	})
}

// TestMirrorOfServiceFromNode: packets of the node itself to a Service are copied where they leave.
func TestMirrorOfServiceFromNode(t *testing.T) {
	n := newMirrorNetwork(t)
	n.attach()
	n.mirrorService()
	n.node.Route(t, "198.51.100.0/24", "10.0.1.12")
	n.node.Route(t, "2001:db8:f::/64", "2001:db8:2::12")
	n.mirror("m", datapath.Mirror{Service: "web", Direction: bothDirections})
	n.exchange(n.node, "tcp", "198.51.100.10:80") // neighbours are known
	n.exchange(n.node, "tcp", "[2001:db8:f::10]:80")
	n.settle()
	at := n.mark()
	for _, addr := range []string{"198.51.100.10:80", "[2001:db8:f::10]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			n.exchange(n.node, network, addr)
		}
	}
	n.wantCopies("of the node", at, n.backends0, at.backends, func(f []byte) bool {
		p := testpkt.Parse(f)
		return p.Source().Port() == 8080 || p.Destination().Port() == 8080
	})
}

// TestMirrorOfRule: the packets of the connections that a rule allows are copied, in both directions,
// and packets that another rule allows are not.
func TestMirrorOfRule(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.serveOnce()
		allow := func(priority int32, m datapath.Match) datapath.FirewallRule {
			return datapath.FirewallRule{Priority: priority, Hooks: datapath.HookAll, Match: m, Action: datapath.ActionAllow}
		}
		rules := map[datapath.RuleName]datapath.FirewallRule{
			"web":  allow(1, datapath.Match{Protocols: []datapath.Protocol{datapath.TCP}, Ports: []datapath.PortRange{{First: 8080, Last: 8080}}, Destination: []netip.Prefix{netip.MustParsePrefix("10.0.1.11/32")}}),
			"ping": allow(2, datapath.Match{Protocols: []datapath.Protocol{datapath.ICMPv6}, ICMP: []datapath.ICMPMatch{{Type: 128, AnyCode: true}}, In: []string{"in0"}}),
			"gre":  allow(3, datapath.Match{Protocols: []datapath.Protocol{47}}),
			"rest": allow(9, datapath.Match{}),
		}
		n.ok(n.d.Firewall().Update(t.Context(), datapath.NodeSet, datapath.FirewallSet{Rules: rules}))
		client, backends := n.client.MAC(t, "eth0"), n.backends.MAC(t, "eth0")
		for name, match := range map[datapath.RuleName]func(p *testpkt.Packet) bool{
			"web": func(p *testpkt.Packet) bool {
				return p.TCP != nil && (p.Source().String() == "10.0.1.11:8080" || p.Destination().String() == "10.0.1.11:8080")
			},
			"ping": func(p *testpkt.Packet) bool {
				return p.ICMP != nil && p.ICMP.V6 && (p.ICMP.Type == testpkt.V6EchoRequest || p.ICMP.Type == testpkt.V6EchoReply)
			},
			"gre": func(p *testpkt.Packet) bool { return p.Protocol() == 47 && p.ICMP == nil },
		} {
			for direction, of := range map[datapath.MirrorDirection]string{datapath.MirrorIn: "in", datapath.MirrorOut: "out", bothDirections: "both"} {
				if name == "gre" && direction == datapath.MirrorOut {
					continue // the client sends all of it
				}
				n.mirror("m", datapath.Mirror{Rule: name, Direction: direction})
				at := n.mark()
				n.talk()
				n.exchange(n.client, "tcp", "10.0.1.12:8080")
				n.wantFrames(fmt.Sprint(name, " ", of), at, func() (want []string) {
					if direction&datapath.MirrorIn != 0 {
						want = selected(n.client0, at.client, func(f []byte) bool { return sentBy(client)(f) && match(testpkt.Parse(f)) })
					}
					if direction&datapath.MirrorOut != 0 {
						want = append(want, selected(n.backends0, at.backends, func(f []byte) bool { return sentBy(backends)(f) && match(testpkt.Parse(f)) })...)
					}
					return want
				})
			}
		}
		err := n.d.Mirrors().Update(t.Context(), "m", datapath.Mirror{Rule: "none", Direction: bothDirections, To: datapath.MirrorTarget{Device: "mon0"}})
		if !errors.Is(err, datapath.ErrAbsent) || !strings.Contains(err.Error(), `"none"`) {
			t.Errorf("without the rule: %v", err)
		}
	})
}
