// SPDX-License-Identifier: Apache-2.0

package security

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// udpFrame builds a UDP datagram as a frame.
func udpFrame(eth testpkt.Ethernet, from, to netip.AddrPort, text string) []byte {
	var ip testpkt.Layer = testpkt.IPv4{Source: from.Addr(), Destination: to.Addr()}
	if from.Addr().Is6() {
		ip = testpkt.IPv6{Source: from.Addr(), Destination: to.Addr()}
	}
	return testpkt.Build(eth, ip, testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Payload(text))
}

// TestS13UplinkSources: a host on the LAN sends with the addresses of pods, of their gateway and of
// pods behind tunnels.
func TestS13UplinkSources(t *testing.T) {
	for _, kind := range []overlayKind{{tunnel: "vxlan"}, {tunnel: "gre", over6: true, merged: true}} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newOverlaySite(t, kind)
			a, b, v := s.pod(1, "a1"), s.pod(1, "b1"), s.pod(2, "v2")
			w := s.host.Wire(t, "eth0")
			eth := testpkt.Ethernet{Source: s.host.MAC(t, "eth0"), Destination: s.nodes[0].ns.MAC(t, "eth0")}
			for family := range 2 {
				to := netip.AddrPortFrom(a.addr[family], forgedPort)
				h := a.listen(t, to)
				before := s.nodes[0].drops("uplink_source")
				for who, from := range map[string]netip.Addr{
					"another pod": b.addr[family], "the gateway": s.inPods(1, 1, family), "no pod's": s.inPods(1, 99, family),
					"a pod of node 2": v.addr[family], "a pod of node 3": s.inPods(3, 9, family),
				} {
					w.Send(t, udpFrame(eth, netip.AddrPortFrom(from, 5353), to, "FORGED as "+who))
				}
				h.until(t, "genuine", func() { sendUDP(t, s.host, to, []byte("genuine")) })
				h.until(t, "by the tunnel", func() { sendUDP(t, v.NS, to, []byte("by the tunnel")) })
				h.none(t)
				if got := s.nodes[0].drops("uplink_source") - before; got != 5 {
					t.Errorf("uplink_source %d, want 5", got)
				}
			}
		})
	}
}

// TestS14Loopback: a host on the LAN, and a pod, send to a host port on the loopback, and from
// loopback addresses.
func TestS14Loopback(t *testing.T) {
	s := newOverlaySite(t, overlayKind{tunnel: "vxlan"})
	a, b := s.pod(1, "a1"), s.pod(1, "b1")
	eth := testpkt.Ethernet{Source: s.host.MAC(t, "eth0"), Destination: s.nodes[0].ns.MAC(t, "eth0")}
	inside := testpkt.Ethernet{Source: b.MAC(t, "eth0"), Destination: s.gatewayMAC(t, b)}
	lan, pod := s.host.Wire(t, "eth0"), b.Wire(t, "eth0")
	mapped := func(p netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(p.Addr().As16()), p.Port())
	}
	for family, of := range []struct{ loopback, host string }{{"127.0.0.1", "192.0.2.77"}, {"::1", "2001:db8:2::77"}} {
		s.nodes[0].Apply(fmt.Sprintf("kind: NAT\nname: port%d\nspec: {type: dnat, match: {destination: %q, protocol: udp, ports: 9999}, to: {addresses: %q, ports: %d}}",
			family, of.loopback, a.addr[family], forgedPort))
		to := netip.AddrPortFrom(a.addr[family], forgedPort)
		h := a.listen(t, to)
		loopback, host := netip.MustParseAddr(of.loopback), netip.MustParseAddr(of.host)
		port, from := netip.AddrPortFrom(loopback, 9999), netip.AddrPortFrom(loopback, 5353)
		before, sent := s.nodes[0].drops("loopback"), 4
		lan.Send(t, udpFrame(eth, netip.AddrPortFrom(host, 5353), port, "FORGED to the loopback, by the LAN"))
		lan.Send(t, udpFrame(eth, from, to, "FORGED from the loopback, by the LAN"))
		lan.Send(t, udpFrame(eth, from, port, "FORGED from the loopback to itself, by the LAN"))
		if family == 0 {
			sent += 2
			lan.Send(t, udpFrame(eth, mapped(netip.AddrPortFrom(host, 5353)), mapped(port), "FORGED to the mapped loopback"))
			lan.Send(t, udpFrame(eth, mapped(from), mapped(to), "FORGED from the mapped loopback"))
		}
		pod.Send(t, udpFrame(inside, netip.AddrPortFrom(b.addr[family], 5353), port, "FORGED to the loopback, by a pod"))
		h.until(t, "by the other pod", func() { sendUDP(t, b.NS, to, []byte("by the other pod")) })
		h.until(t, "by the LAN", func() { sendUDP(t, s.host, to, []byte("by the LAN")) })
		h.none(t)
		if got := s.nodes[0].drops("loopback") - before; got != uint64(sent) {
			t.Errorf("loopback %d, want %d", got, sent)
		}
	}
}

// gatewayMAC returns the MAC of a pod's gateway on its link.
func (s *overlaySite) gatewayMAC(t *testing.T, p *overlayPod) (mac [6]byte) {
	t.Helper()
	sendUDP(t, p.NS, netip.MustParseAddrPort("192.0.2.77:9"), []byte("who is the gateway?"))
	testnet.Eventually(t, 10*time.Second, "the gateway answers", func() bool {
		_, rest, ok := strings.Cut(p.Run(t, "ip", "neigh", "show", "10.76.1.1"), "lladdr ")
		if !ok {
			return false
		}
		m, err := net.ParseMAC(strings.Fields(rest)[0])
		return err == nil && copy(mac[:], m) == len(mac)
	})
	return mac
}

// TestS6ICMPErrors: a host on the LAN, which rules allow to reach one pod, sends ICMP errors about
// that connection to another pod.
func TestS6ICMPErrors(t *testing.T) {
	s := newOverlaySite(t, overlayKind{tunnel: "vxlan"})
	a, b := s.pod(1, "a1"), s.pod(1, "b1")
	s.nodes[0].Apply(fmt.Sprintf(`kind: FirewallRule
name: allow
spec: {action: allow, priority: 10, match: {source: [192.0.2.77, "2001:db8:2::77"], destination: [%q, %q]}}
---
kind: FirewallRule
name: last
spec: {action: allow, priority: 11, match: {source: [192.0.2.77, "2001:db8:2::77"], destination: [%q, %q], protocol: udp, ports: 9}}
---
kind: FirewallRule
name: deny
spec: {action: deny, priority: 20, match: {source: [192.0.2.77, "2001:db8:2::77"], destination: [10.76.1.0/24, "fd76:1::/64"]}}`, a.addr[0], a.addr[1], b.addr[0], b.addr[1]))
	w := s.host.Wire(t, "eth0")
	eth := testpkt.Ethernet{Source: s.host.MAC(t, "eth0"), Destination: s.nodes[0].ns.MAC(t, "eth0")}
	for family, host := range []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77")} {
		at := netip.AddrPortFrom(a.addr[family], forgedPort)
		h := a.listen(t, at)
		from := s.host.ListenUDP(t, netip.AddrPortFrom(host, 40000).String())
		h.until(t, "hello", func() { _, _ = from.WriteToUDPAddrPort([]byte("hello"), at) })
		if _, err := h.WriteToUDPAddrPort([]byte("answer"), netip.AddrPortFrom(host, 40000)); err != nil {
			t.Fatal(err)
		}
		own, seen := a.Wire(t, "eth0"), b.Wire(t, "eth0") // of this family alone
		sendErrors(t, w, eth, host, b.addr[family], at)
		sendErrors(t, w, eth, host, a.addr[family], at)
		own.Await(t, 20*time.Second, "the error at the pod that it is about", isForgedError)
		last := fmt.Sprintf("allowed, family %d", family)
		w.Send(t, udpFrame(eth, netip.AddrPortFrom(host, 40001), netip.AddrPortFrom(b.addr[family], 9), last))
		seen.Await(t, 20*time.Second, "what rules allow, after the errors", func(frame []byte) bool { return strings.Contains(string(frame), last) })
		for _, frame := range seen.Frames() {
			if isForgedError(frame) {
				t.Errorf("another pod got %s", testpkt.Parse(frame))
			}
		}
	}
}

// sendErrors sends ICMP errors from a host to an address. They quote a datagram from an address to
// port 40000 of that host.
func sendErrors(t *testing.T, w *testnet.Wire, eth testpkt.Ethernet, host, to netip.Addr, from netip.AddrPort) {
	t.Helper()
	errors := []testpkt.ICMP{{Type: 3, Code: 3}, {Type: 11}}
	if to.Is6() {
		errors = []testpkt.ICMP{{V6: true, Type: 1, Code: 4}, {V6: true, Type: 3}}
	}
	quoted := udpFrame(testpkt.Ethernet{}, from, netip.AddrPortFrom(host, 40000), "FORGED in an error")[14:]
	for _, e := range errors {
		w.Send(t, testpkt.Build(eth, ipHeader(host, to), e, testpkt.Payload(quoted)))
	}
}

// isForgedError reports whether a frame is one that sendErrors sent.
func isForgedError(frame []byte) bool {
	proto := testpkt.Parse(frame).Protocol()
	return (proto == 1 || proto == 58) && strings.Contains(string(frame), "FORGED in an error")
}

// TestS6Translated: a host on the LAN sends ICMP errors about a masqueraded connection to an
// address other than the translated one: they are not translated, and reach no pod.
func TestS6Translated(t *testing.T) {
	s := newOverlaySite(t, overlayKind{tunnel: "vxlan"})
	a, b := s.pod(1, "a1"), s.pod(1, "b1")
	s.nodes[0].Apply("kind: FirewallRule\nname: deny\nspec: {action: deny, match: {source: [192.0.2.77, \"2001:db8:2::77\"], destination: [10.76.1.0/24, \"fd76:1::/64\"]}}")
	w := s.host.Wire(t, "eth0")
	eth := testpkt.Ethernet{Source: s.host.MAC(t, "eth0"), Destination: s.nodes[0].ns.MAC(t, "eth0")}
	for family, host := range []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77")} {
		server := &heard{s.host.ListenUDP(t, netip.AddrPortFrom(host, 40000).String()), map[string]netip.AddrPort{}}
		c, err := a.Dial("udp", "", netip.AddrPortFrom(host, 40000).String(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // no longer needed
		server.until(t, "question", func() { _, _ = c.Write([]byte("question")) })
		outer := server.texts["question"]
		if outer.Addr() == a.addr[family] {
			t.Fatalf("%s is not translated", outer)
		}
		own, other := a.Wire(t, "eth0"), b.Wire(t, "eth0") // of this family alone
		sendErrors(t, w, eth, host, b.addr[family], outer)
		sendErrors(t, w, eth, host, a.addr[family], outer)
		_, _ = server.WriteToUDPAddrPort([]byte("answer"), outer)
		own.Await(t, 20*time.Second, "an answer after the errors", func(frame []byte) bool {
			p := testpkt.Parse(frame)
			return p.UDP != nil && p.Source() == netip.AddrPortFrom(host, 40000)
		})
		for _, frame := range append(own.Frames(), other.Frames()...) {
			if isForgedError(frame) {
				t.Errorf("a pod got %s", testpkt.Parse(frame))
			}
		}
		sendErrors(t, w, eth, host, outer.Addr(), outer)
		own.Await(t, 20*time.Second, "an error to the translated address", isForgedError)
	}
}

// TestS9PathMTU: a pod and a host on the LAN report, in ICMP errors, that packets from one node to
// another are too large.
func TestS9PathMTU(t *testing.T) {
	for _, kind := range []overlayKind{{tunnel: "vxlan"}, {tunnel: "geneve", over6: true}, {tunnel: "gre"}} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newOverlaySite(t, kind)
			a, v := s.pod(1, "a1"), s.pod(2, "v2")
			from, to := netip.AddrPortFrom(v.addr[0], 5353), netip.AddrPortFrom(a.addr[0], forgedPort)
			quoted := s.outer(testpkt.Ethernet{}, s.underlay(2), s.underlay(1), s.encapsulated(from, to, "what was too large"))[14:]
			e := testpkt.Build(testpkt.FragmentationNeeded(1300), testpkt.Payload(quoted))
			network := "ip4:icmp"
			if s.over6 {
				network, e = "ip6:ipv6-icmp", testpkt.Build(testpkt.ICMP{V6: true, Type: 2, Seq: 1300}, testpkt.Payload(quoted))
			}
			senders := map[string]*testnet.NS{"a pod": a.NS}
			if kind.port() != 0 { // GRE has no field that only the path knows
				senders["a host of the LAN"] = s.host
			}
			h := a.listen(t, to)
			for who, ns := range senders {
				var c net.Conn
				ns.Do(t, func() (err error) {
					c, err = net.Dial(network, s.underlay(2).String())
					return err
				})
				for range 3 {
					if _, err := c.Write(e); err != nil {
						t.Logf("%s: %v", who, err)
					}
				}
				c.Close()
				h.until(t, "after "+who, func() { sendUDP(t, v.NS, to, []byte("after "+who)) })
				h.until(t, "and more after "+who, func() { sendUDP(t, v.NS, to, []byte("and more after "+who)) })
				if paths := s.nodes[1].believed(t); len(paths) > 0 {
					t.Errorf("node 2 believes %s: %v", who, paths)
				}
			}
		})
	}
}

// believed returns the path MTUs of Peers that ICMP errors have changed, by the Peers' index. The
// status of a Peer reports them later.
func (n *overlayNode) believed(t *testing.T) map[uint32][8]byte {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(n.PinDir, "layout-1", "ll_peer_pmtu"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all := make(map[uint32][8]byte)
	var index uint32
	var path [8]byte // MTU and tick
	it := m.Iterate()
	for it.Next(&index, &path) {
		if path != [8]byte{} {
			all[index] = path
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
