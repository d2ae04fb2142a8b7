// SPDX-License-Identifier: Apache-2.0

package security

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// forgedPort is the port on which pods listen for packets that must not arrive.
const forgedPort = 5300

// forgery is one tunnelled packet whose sender is not a node: how it is sent, and its description.
type forgery struct {
	name string
	send func(payload []byte)
}

// TestS1Forged: a pod and a host on the LAN send the packets of another node's tunnel: from
// sockets, by masquerade, by a Service, and by a NAT, with every kind of inner source.
func TestS1Forged(t *testing.T) {
	for _, kind := range []overlayKind{
		{tunnel: "vxlan"}, {tunnel: "geneve", over6: true}, {tunnel: "gre"}, {tunnel: "vxlan", merged: true}, {tunnel: "gre", over6: true},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newOverlaySite(t, kind)
			a, b, v := s.pod(1, "a1"), s.pod(1, "b1"), s.pod(2, "v2")
			forgeries := s.forgeries(t, a)
			for family := range 2 {
				to := netip.AddrPortFrom(v.addr[family], forgedPort)
				h := v.listen(t, to)
				for _, f := range forgeries {
					for who, from := range map[string]netip.Addr{
						"another pod": b.addr[family], "its node": s.inPods(1, 2, family), "a pod of node 3": s.inPods(3, 9, family),
						"a pod of node 2": s.inPods(2, 9, family),
					} {
						text := fmt.Sprintf("FORGED %s as %s", f.name, who)
						f.send(s.encapsulated(netip.AddrPortFrom(from, 5353), to, text))
					}
				}
				h.until(t, "genuine", func() { sendUDP(t, a.NS, to, []byte("genuine")) })
				h.none(t)
				if from := h.texts["genuine"].Addr(); from != a.addr[family] {
					t.Errorf("the genuine datagram came from %s, want %s", from, a.addr[family])
				}
			}
			for i, n := range s.nodes {
				t.Logf("node %d: tunnel_forged %d, tunnel_unknown_peer %d, tunnel_source %d", i+1,
					n.drops("tunnel_forged"), n.drops("tunnel_unknown_peer"), n.drops("tunnel_source"))
			}
		})
	}
}

// inPods returns the address of a pod on a node.
func (k overlayKind) inPods(node, i, family int) netip.Addr {
	return netip.MustParseAddr([]string{fmt.Sprintf("10.76.%d.%d", node, i), fmt.Sprintf("fd76:%d::%d", node, i)}[family])
}

// forgeries are the ways in which a pod of node 1, or the host, tries to send packets to node 2
// that appear to come from node 1.
func (s *overlaySite) forgeries(t *testing.T, a *overlayPod) []forgery {
	t.Helper()
	port := s.port()
	all := []forgery{{"by a socket", func(b []byte) { s.sendOuter(t, a.NS, s.underlay(2), b) }}}
	if port == 0 {
		// We do not masquerade GRE, but netfilter does.
		s.nodes[0].ns.Run(t, "nft", fmt.Sprintf("add table %[1]s nat; add chain %[1]s nat post { type nat hook postrouting priority 100; };"+
			" add rule %[1]s nat post oifname eth0 masquerade", map[bool]string{true: "ip6", false: "ip"}[s.over6]))
		return append(all, forgery{"by the host", func(b []byte) { s.sendOuter(t, s.host, s.underlay(2), b) }})
	}
	vip, node := netip.MustParseAddr("198.51.100.10"), s.underlay(1)
	if s.over6 {
		vip = netip.MustParseAddr("2001:db8:51::10")
	}
	ap := func(a netip.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(a, p) }
	s.nodes[0].Apply(fmt.Sprintf("kind: Service\nname: forged\nspec: {frontends: [%q], backends: [{address: %q}], source: snat}\n---\n"+
		"kind: NAT\nname: forged\nspec: {type: dnat, match: {destination: %q, protocol: udp, ports: 5001}, to: {addresses: %q, ports: %d}}",
		ap(vip, 5000).String()+"/udp", ap(s.underlay(2), port), node, s.underlay(2), port))
	s.host.Route(t, netip.PrefixFrom(vip, vip.BitLen()).String(), node.String())
	for who, ns := range map[string]*testnet.NS{"a pod": a.NS, "the host": s.host} {
		all = append(all,
			forgery{who + " by a Service", func(b []byte) { sendUDP(t, ns, ap(vip, 5000), b) }},
			forgery{who + " by a NAT", func(b []byte) { sendUDP(t, ns, ap(node, 5001), b) }})
	}
	return append(all, forgery{"by the host", func(b []byte) { s.sendOuter(t, s.host, s.underlay(2), b) }})
}

// TestS1Established: node 1 sends, through its tunnel, a packet of a connection between a pod on
// node 2 and a pod on node 3: the source of a tunnelled packet must be behind its Peer, whether or
// not the packet belongs to a connection.
func TestS1Established(t *testing.T) {
	for _, kind := range []overlayKind{{tunnel: "vxlan"}, {tunnel: "geneve", over6: true, merged: true}} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newOverlaySite(t, kind)
			a, v := s.pod(1, "a1"), s.pod(2, "v2")
			for family := range 2 {
				from := netip.AddrPortFrom(s.inPods(3, 9, family), 5353)
				to := netip.AddrPortFrom(v.addr[family], forgedPort)
				h := v.listen(t, to)
				third := func(text string) func() {
					return func() {
						s.sendOuter(t, s.third, s.underlay(2), s.encapsulated(from, to, text))
						if at, ok := h.texts[text]; ok || len(h.texts) > 0 {
							_, _ = h.WriteToUDPAddrPort([]byte("answer"), netip.AddrPortFrom(from.Addr(), from.Port())) // no process listens
							_ = at
						}
					}
				}
				for i := range 4 { // both sides speak, so that it is established and on the fast path
					h.until(t, fmt.Sprintf("hello %d", i), third(fmt.Sprintf("hello %d", i)))
				}
				for i := range 3 {
					s.sendOuter(t, s.nodes[0].ns, s.underlay(2), s.encapsulated(from, to, fmt.Sprintf("FORGED %d", i)))
				}
				h.until(t, "genuine", func() { sendUDP(t, a.NS, to, []byte("genuine")) })
				h.until(t, "goes on", third("goes on"))
				h.none(t)
			}
		})
	}
}

// TestS1OtherPort: a machine behind another port of node 2, which is not an uplink, sends with the
// underlay address of node 1.
func TestS1OtherPort(t *testing.T) {
	for _, kind := range []overlayKind{{tunnel: "vxlan"}, {tunnel: "geneve", over6: true}, {tunnel: "gre"}} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newOverlaySite(t, kind)
			box := testnet.New(t, "box")
			testnet.Veth(t, testnet.Port{NS: s.nodes[1].ns, Name: "box0", Addrs: []string{"172.16.9.1/24", "2001:db8:9::1/64"}},
				testnet.Port{NS: box, Name: "eth0", Addrs: []string{"172.16.9.2/24", "2001:db8:9::2/64"}})
			s.nodes[1].Apply("kind: Interface\nname: box0\nspec: {device: box0, role: port}")
			a, v := s.pod(1, "a1"), s.pod(2, "v2")
			w := box.Wire(t, "eth0")
			eth := testpkt.Ethernet{Source: box.MAC(t, "eth0"), Destination: s.nodes[1].ns.MAC(t, "box0")}
			for family := range 2 {
				to := netip.AddrPortFrom(v.addr[family], forgedPort)
				h := v.listen(t, to)
				from := netip.AddrPortFrom(s.inPods(1, 9, family), 5353)
				w.Send(t, s.outer(eth, s.underlay(1), s.underlay(2), s.encapsulated(from, to, "FORGED by another port")))
				h.until(t, "genuine", func() { sendUDP(t, a.NS, to, []byte("genuine")) })
				h.none(t)
			}
			if got := s.nodes[1].drops("tunnel_port"); got != 2 {
				t.Errorf("tunnel_port %d, want 2", got)
			}
		})
	}
}

// outer returns the whole frame of a tunnel packet.
func (k overlayKind) outer(eth testpkt.Ethernet, from, to netip.Addr, payload []byte) []byte {
	layers := []testpkt.Layer{eth, testpkt.IPv4{Source: from, Destination: to, DontFragment: true, Protocol: 47}}
	if from.Is6() {
		layers[1] = testpkt.IPv6{Source: from, Destination: to, Protocol: 47}
	}
	if k.port() == 0 {
		return testpkt.Build(append(layers, testpkt.Raw(payload))...)
	}
	layers[1] = testpkt.IPv4{Source: from, Destination: to, DontFragment: true}
	if from.Is6() {
		layers[1] = testpkt.IPv6{Source: from, Destination: to}
	}
	return testpkt.Build(append(layers, testpkt.UDP{Source: 50001, Destination: k.port(), NoChecksum: true}, testpkt.Payload(payload))...)
}

// TestS1LaterPeer: a pod sends to an address that becomes a Peer only afterwards: the earlier
// connection must not give access either.
func TestS1LaterPeer(t *testing.T) {
	for _, kind := range []overlayKind{{tunnel: "vxlan"}, {tunnel: "geneve", over6: true}} {
		t.Run(kind.String(), func(t *testing.T) { laterPeer(t, newOverlaySite(t, kind)) })
	}
}

func laterPeer(t *testing.T, s *overlaySite) {
	a := s.pod(1, "a1")
	s.nodes[0].LLCLI("delete", "peer", "node3")
	end := netip.AddrPortFrom(s.underlay(3), s.port()).String()
	server := s.third.ServeUDP(t, end, "third")
	c, err := a.Dial("udp", "", end, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // no longer needed
	ask := func() bool {
		b := make([]byte, 100)
		_, err := c.Write([]byte("hello\n"))
		if err == nil {
			err = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		}
		if err == nil {
			_, err = c.Read(b)
		}
		return err == nil
	}
	for range 5 {
		testnet.Eventually(t, 20*time.Second, "an answer before there is a Peer", ask)
	}
	s.nodes[0].Apply(fmt.Sprintf("kind: Peer\nname: node3\nspec: {underlay: [%q], prefixes: [10.76.3.0/24], tunnel: mesh}", s.underlay(3)))
	testnet.Eventually(t, 20*time.Second, "packets to a Peer's tunnel end", func() bool {
		for range 2 {
			if ask() {
				return false
			}
		}
		return true
	})
	if s.nodes[0].drops("tunnel_forged") == 0 {
		t.Error("nothing is counted as tunnel_forged")
	}
	server.Close()
}
