// SPDX-License-Identifier: Apache-2.0

package security

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// silent are addresses on the LAN whose host is simulated by the test.
var silent = map[string]netip.Addr{
	"IPv4": netip.MustParseAddr("192.0.2.78"), "IPv6": netip.MustParseAddr("2001:db8:2::78"),
}

// dialogue is a masqueraded connection between a pod and the LAN, whose frames a test forges.
type dialogue struct {
	s          *podsSite
	protocol   string
	pod        *testnet.Wire
	lan        *testnet.Wire
	eth        testpkt.Ethernet // from the LAN to the node
	inner      netip.AddrPort   // of the pod
	outer      netip.AddrPort   // to which the node translates inner
	remote     netip.AddrPort
	podAddress netip.Addr
}

// translated returns the connection in the host's netns, where its source is translated. The
// switch has an entry of its own.
func (d *dialogue) translated() api.Connection {
	for _, c := range d.s.Connections(api.ConnectionFilter{Protocol: d.protocol}) {
		if c.Original.Source == d.inner.String() && c.Original.Destination == d.remote.String() && c.NAT == "snat" {
			return c
		}
	}
	return api.Connection{State: "none"}
}

// answer sends a packet from the remote to the connection.
func (d *dialogue) answer(layer testpkt.Layer) {
	d.s.t.Helper()
	d.lan.Send(d.s.t, testpkt.Build(d.eth, ipHeader(d.remote.Addr(), d.outer.Addr()), layer))
}

// survives expects the connection to be established, after the node has handled all frames from the
// LAN.
func (d *dialogue) survives(t *testing.T, what string) {
	t.Helper()
	host := netip.AddrPortFrom(d.remote.Addr(), 5353)
	d.lan.Send(t, udpFrame(d.eth, host, netip.AddrPortFrom(d.podAddress, 9), "after "+what))
	d.pod.Await(t, 20*time.Second, "a datagram after "+what, func(f []byte) bool { return strings.Contains(string(f), "after "+what) })
	if got := d.translated().State; got != "established" {
		t.Errorf("after %s the connection is in state %s, want established", what, got)
	}
}

func ipHeader(from, to netip.Addr) testpkt.Layer {
	if from.Is6() {
		return testpkt.IPv6{Source: from, Destination: to}
	}
	return testpkt.IPv4{Source: from, Destination: to}
}

// addressOf returns the pod's address that has the same family as other.
func (p *podsPod) addressOf(other netip.Addr) netip.Addr {
	for _, ip := range p.ips {
		if a := netip.MustParseAddr(ip); a.Is4() == other.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// newDialogue returns the connection of a pod, whose outer port is not known yet.
func (s *podsSite) newDialogue(p *podsPod, protocol string, inner, remote netip.AddrPort) *dialogue {
	return &dialogue{
		s: s, protocol: protocol, pod: p.Wire(s.t, "eth0"), lan: s.lan.Wire(s.t, "eth0"), inner: inner, remote: remote,
		eth:        testpkt.Ethernet{Source: s.lan.MAC(s.t, "eth0"), Destination: s.node.MAC(s.t, "eth0")},
		podAddress: p.addressOf(remote.Addr()),
	}
}

// TestS12Closing: a host on the LAN sends packets that close a masqueraded connection, with the
// address of the remote and with a guessed sequence number or verification tag. The connection
// stays established, and a genuine packet closes it.
func TestS12Closing(t *testing.T) {
	s := newPodsSite(t, "tables: {connections: 8192}")
	p := s.addPod(nil)
	t.Run("TCP", func(t *testing.T) { closingTCP(t, s, p) })
	t.Run("SCTP", func(t *testing.T) { closingSCTP(t, s, p) })
}

// closingTCP sends a FIN and a RST with a guessed sequence number.
func closingTCP(t *testing.T, s *podsSite, p *podsPod) {
	for family, host := range hosts {
		t.Run(family, func(t *testing.T) {
			remote := netip.AddrPortFrom(host, 7001)
			s.lan.ServeTCP(t, remote.String(), "lan")
			c, err := p.Dial("tcp", "", remote.String(), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close() // also closed below
			for range 4 {
				if _, err := c.Write([]byte("ping")); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Read(make([]byte, 64)); err != nil {
					t.Fatal(err)
				}
			}
			d := s.newDialogue(p, "tcp", netip.MustParseAddrPort(c.LocalAddr().String()), remote)
			if d.outer, err = netip.ParseAddrPort(d.translated().Reply.Destination); err != nil {
				t.Fatalf("the outer address of %+v: %v", s.Connections(api.ConnectionFilter{}), err)
			}
			d.survives(t, "data")
			for what, flags := range map[string]uint8{"a FIN": testpkt.FIN, "a FIN with ACK": testpkt.FIN | testpkt.ACK, "a RST": testpkt.RST} {
				d.answer(testpkt.TCP{Source: remote.Port(), Destination: d.outer.Port(), Seq: 12345, Ack: 54321, Flags: flags})
				d.survives(t, what+" with a guessed sequence number")
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			testnet.Eventually(t, 10*time.Second, "a genuine FIN closes it", func() bool { return d.translated().State != "established" })
		})
	}
}

// The chunks of SCTP that the tests use (RFC 9260).
const (
	sctpData, sctpInit, sctpInitAck, sctpAbort, sctpShutdown = 0, 1, 2, 6, 7
	sctpCookieEcho, sctpCookieAck, sctpShutdownComplete      = 10, 11, 14
)

// closingSCTP sends ABORT, SHUTDOWN and SHUTDOWN COMPLETE with a guessed verification tag.
func closingSCTP(t *testing.T, s *podsSite, p *podsPod) {
	// A kernel with SCTP would abort an association that none of its sockets knows.
	p.Run(t, "nft", "add table inet quiet; add chain inet quiet in { type filter hook input priority 0; }; add rule inet quiet in meta l4proto sctp drop")
	gateway := testnet.Named(t, s.name).MAC(t, "hsvlan110")
	for family, host := range silent {
		t.Run(family, func(t *testing.T) {
			s.node.Neighbour(t, "eth0", host.String(), s.lan.MAC(t, "eth0"))
			const own, others = 0x21222324, 0x41424344 // verification tags of what the pod and the remote receive
			remote := netip.AddrPortFrom(host, 4663)
			d := s.newDialogue(p, "sctp", netip.AddrPortFrom(p.addressOf(host), 4662), remote)
			out := testpkt.Ethernet{Source: p.MAC(t, "eth0"), Destination: gateway}
			seen := 0
			fromPod := func(tag uint32, kind uint8) {
				t.Helper()
				value := []byte{own >> 24, own >> 16 & 0xff, own >> 8 & 0xff, own & 0xff, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
				d.pod.Send(t, testpkt.Build(out, ipHeader(d.inner.Addr(), host),
					testpkt.SCTP{Source: d.inner.Port(), Destination: remote.Port(), Tag: tag, Chunks: []testpkt.Chunk{{Type: kind, Value: value}}}))
				seen++
				testnet.Eventually(t, 20*time.Second, "the chunk arrives", func() bool {
					n := 0
					for _, f := range d.lan.Frames() {
						if q := testpkt.Parse(f); q.SCTP != nil && q.SCTP.Destination == remote.Port() && q.Destination().Addr() == host {
							d.outer, n = q.Source(), n+1
						}
					}
					return n == seen
				})
			}
			chunk := func(tag uint32, kind uint8) testpkt.Layer {
				value := []byte{others >> 24, others >> 16 & 0xff, others >> 8 & 0xff, others & 0xff, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
				return testpkt.SCTP{Source: remote.Port(), Destination: d.outer.Port(), Tag: tag, Chunks: []testpkt.Chunk{{Type: kind, Value: value}}}
			}
			answered := 0
			answer := func(tag uint32, kind uint8) {
				t.Helper()
				d.answer(chunk(tag, kind))
				answered++
				testnet.Eventually(t, 20*time.Second, "the answer arrives", func() bool {
					n := 0
					for _, f := range d.pod.Frames() {
						if q := testpkt.Parse(f); q.SCTP != nil && q.SCTP.Source == remote.Port() && q.Source().Addr() == host {
							n++
						}
					}
					return n == answered
				})
			}
			fromPod(0, sctpInit)
			answer(own, sctpInitAck)
			fromPod(others, sctpCookieEcho)
			answer(own, sctpCookieAck)
			fromPod(others, sctpData)
			answer(own, sctpData)
			fromPod(others, sctpData)
			d.survives(t, "data")
			for what, kind := range map[string]uint8{"ABORT": sctpAbort, "SHUTDOWN": sctpShutdown, "SHUTDOWN COMPLETE": sctpShutdownComplete} {
				d.answer(chunk(0x51525354, kind))
				d.survives(t, what+" with a guessed verification tag")
			}
			d.answer(chunk(own, sctpAbort))
			testnet.Eventually(t, 10*time.Second, "a genuine ABORT ends it", func() bool { return d.translated().State != "established" })
		})
	}
}
