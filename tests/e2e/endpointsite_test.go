// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// endpointSite is a node with three pods on its switch, one of which, x, is hostile.
//
//	a 10.72.0.2 ── hs1 ┐
//	b 10.72.0.3 ── hs2 ├ pods 10.72.0.1 [switch]
//	x 10.72.0.4 ── hs3 ┘
type endpointSite struct {
	*switchSite
	pods  map[string]*endpointPod
	x     *testnet.Wire // of the hostile pod
	heard *testnet.Wire // packets that b receives
	marks int
}

type endpointPod struct {
	ns          *testnet.NS
	name        string
	device      string
	mac         [6]byte
	addr, addr6 netip.Addr
	local       netip.Addr
}

func newEndpointPod(name string, number byte) *endpointPod {
	return &endpointPod{
		name: name, device: fmt.Sprintf("hs%d", number-1), mac: [6]byte{2, 0, 0x5e, 0x72, 0, number},
		addr: netip.AddrFrom4([4]byte{10, 72, 0, number}), addr6: netip.MustParseAddr(fmt.Sprintf("fd72::%d", number)),
		local: netip.MustParseAddr(fmt.Sprintf("fe80::5eff:fe72:%d", number)),
	}
}

func newEndpointSite(t *testing.T) *endpointSite {
	s := &endpointSite{switchSite: newSwitchSite(t), pods: map[string]*endpointPod{}}
	for i, name := range []string{"a", "b", "x"} {
		s.pods[name] = newEndpointPod(name, byte(i+2))
	}
	return s
}

// macText returns the MAC address as text.
func (p *endpointPod) macText() string { return net.HardwareAddr(p.mac[:]).String() }

// endpoint is the object of a pod.
func (p *endpointPod) endpoint() string {
	return fmt.Sprintf(`
---
kind: Endpoint
name: shop/%s
spec: {device: %s, addresses: [%s, "%s"], mac: "%s", namespace: shop, pod: %s, labels: {app: %s}}
`, p.name, p.device, p.addr, p.addr6, p.macText(), p.name, p.name)
}

func (s *endpointSite) objects() string {
	all := `
kind: Bridge
name: pods
spec: {device: br0, addresses: [10.72.0.1/24, "fd72::1/64"]}
`
	for _, name := range []string{"a", "b", "x"} {
		all += s.pods[name].endpoint()
	}
	return all
}

// plugIn creates a pod, and its link to the switch.
func (s *endpointSite) plugIn(name string) {
	s.t.Helper()
	p := s.pods[name]
	p.ns = testnet.New(s.t, name)
	s.t.Run("plug in "+name, func(t *testing.T) {
		testnet.Veth(t, testnet.Port{
			NS: p.ns, Name: "eth0", Addrs: []string{p.addr.String() + "/24", p.addr6.String() + "/64"},
			MAC: p.macText(),
		}, testnet.Port{NS: testnet.Named(t, s.name), Name: p.device})
	})
	p.ns.Route(s.t, "default", "10.72.0.1")
	switch name {
	case "b":
		p.ns.ServeUDP(s.t, p.addr.String()+":4660", "b")
		p.ns.ServeUDP(s.t, "["+p.addr6.String()+"]:4660", "b")
		p.ns.ServeTCP(s.t, p.addr.String()+":4660", "b")
		s.heard = p.ns.Wire(s.t, "eth0")
	case "x":
		s.x = p.ns.Wire(s.t, "eth0")
	}
}

// from returns a frame from a pod to b.
func (s *endpointSite) from(mac [6]byte, layers ...testpkt.Layer) []byte {
	return testpkt.Build(append([]testpkt.Layer{testpkt.Ethernet{Source: mac, Destination: s.pods["b"].mac}}, layers...)...)
}

func (s *endpointSite) arp(mac [6]byte, sender netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	b = append(append(b, mac[:]...), sender.AsSlice()...)
	b = append(append(b, s.pods["b"].mac[:]...), s.pods["b"].addr.AsSlice()...)
	return testpkt.Build(testpkt.Ethernet{Source: s.pods["x"].mac, Destination: s.pods["b"].mac, Type: 0x0806}, testpkt.Raw(b))
}

// forged returns frames that x must not send, by their purpose.
func (s *endpointSite) forged() map[string][]byte {
	a, b, x := s.pods["a"], s.pods["b"], s.pods["x"]
	udp := []testpkt.Layer{testpkt.UDP{Source: 4661, Destination: 4660}, testpkt.Payload("forged")}
	with := func(first testpkt.Layer) []testpkt.Layer { return append([]testpkt.Layer{first}, udp...) }
	nd := func(typ uint8, from netip.Addr, body ...[]byte) []byte {
		return s.from(x.mac, testpkt.IPv6{Source: from, Destination: b.addr6, HopLimit: 255}, testpkt.ICMP{V6: true, Type: typ, ID: 0x6000},
			testpkt.Raw(bytes.Join(body, nil)))
	}
	link := append([]byte{2, 1}, x.mac[:]...)
	return map[string][]byte{
		"another's address":              s.from(x.mac, with(testpkt.IPv4{Source: a.addr, Destination: b.addr})...),
		"another's address and MAC":      s.from(a.mac, with(testpkt.IPv4{Source: a.addr, Destination: b.addr})...),
		"another's MAC":                  s.from(a.mac, with(testpkt.IPv4{Source: x.addr, Destination: b.addr})...),
		"another's IPv6 address":         s.from(x.mac, with(testpkt.IPv6{Source: a.addr6, Destination: b.addr6})...),
		"another's IPv6 address and MAC": s.from(a.mac, with(testpkt.IPv6{Source: a.addr6, Destination: b.addr6})...),
		"ARP: another is here":           s.arp(x.mac, a.addr),
		"ARP: the gateway is here":       s.arp(x.mac, netip.MustParseAddr("10.72.0.1")),
		"ARP: my address is elsewhere":   s.arp(a.mac, x.addr),
		"ND: another is here":            nd(136, x.addr6, a.addr6.AsSlice(), link),
		"ND: the gateway is here":        nd(136, x.local, netip.MustParseAddr("fd72::1").AsSlice(), link),
		"ND: I am the router":            nd(134, x.local, make([]byte, 8)),
		"DHCP":                           s.from(x.mac, testpkt.IPv4{Source: x.addr, Destination: b.addr}, testpkt.UDP{Source: 67, Destination: 68}, testpkt.Payload("forged")),
	}
}

// attack sends frames that must not arrive anywhere, and waits for a permitted frame, which would
// arrive after them.
func (s *endpointSite) attack(when string, frames map[string][]byte) {
	s.t.Helper()
	for _, frame := range frames {
		s.x.Send(s.t, frame)
	}
	s.marks++
	mark := fmt.Sprintf("mark %d.", s.marks)
	x, b := s.pods["x"], s.pods["b"]
	testnet.Eventually(s.t, patience, when+": what x may send arrives", func() bool {
		s.x.Send(s.t, s.from(x.mac, testpkt.IPv4{Source: x.addr, Destination: b.addr}, testpkt.UDP{Source: 4700, Destination: 9}, testpkt.Payload(mark)))
		for _, f := range s.heard.Frames() {
			if bytes.Contains(f, []byte(mark)) {
				return true
			}
		}
		return false
	})
	for what, frame := range frames {
		for _, f := range s.heard.Frames() {
			if bytes.Equal(f, frame) {
				s.t.Errorf("%s: %s: it arrives", when, what)
				break
			}
		}
	}
	if neighbours := b.ns.Run(s.t, "ip", "neigh"); strings.Contains(neighbours, fmt.Sprintf("%s dev eth0 lladdr 02:00:5e:72:00:04", s.pods["a"].addr)) ||
		strings.Contains(neighbours, "10.72.0.1 dev eth0 lladdr 02:00:5e:72:00:04") {
		s.t.Errorf("%s: neighbours of b: %s", when, neighbours)
	}
}

// flood returns frames from x with many source MAC addresses.
func (s *endpointSite) flood() map[string][]byte {
	frames := map[string][]byte{}
	b := s.pods["b"]
	for i := range 200 {
		mac := [6]byte{2, 0x99}
		binary.BigEndian.PutUint16(mac[4:], uint16(i))
		frames[fmt.Sprint("source ", i)] = s.from(mac, testpkt.IPv4{Source: s.pods["x"].addr, Destination: b.addr}, testpkt.UDP{Source: uint16(i + 1), Destination: 4660}, testpkt.Payload("flood"))
	}
	return frames
}
