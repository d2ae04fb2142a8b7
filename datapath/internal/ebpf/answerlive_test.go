// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// refusing is a client and a node; a program on a hook of the node refuses packets that the node
// receives or sends.
//
//	[client] eth0 192.0.2.10 ── 192.0.2.1 in0 [node]
//	     2001:db8:1::10        2001:db8:1::1
type refusing struct {
	t            *testing.T
	client, node *testnet.NS
}

func newRefusing(t *testing.T) *refusing {
	t.Helper()
	requireTCX(t)
	n := &refusing{t, testnet.New(t, "client"), testnet.New(t, "node")}
	testnet.Veth(t,
		testnet.Port{NS: n.client, Name: "eth0", Addrs: []string{"192.0.2.10/24", "2001:db8:1::10/64"}, MAC: "02:00:5e:10:01:17"},
		testnet.Port{NS: n.node, Name: "in0", Addrs: []string{"192.0.2.1/24", "2001:db8:1::1/64"}, MAC: "02:00:5e:10:01:01"})
	return n
}

// refuse attaches a program with these settings to a hook of the node until the test ends.
func (n *refusing) refuse(hook ebpf.AttachType, settings map[string]any) *ebpf.Program {
	n.t.Helper()
	p := answerer(n.t, nil, settings)
	n.node.Do(n.t, func() error {
		dev, err := net.InterfaceByName("in0")
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: p, Attach: hook})
		if err == nil {
			n.t.Cleanup(func() { l.Close() })
		}
		return err
	})
	return p
}

// eachFamily runs a test for each family, with the addresses of the client and the node.
func (n *refusing) eachFamily(t *testing.T, run func(t *testing.T, client, node string)) {
	t.Run("IPv4", func(t *testing.T) { run(t, "192.0.2.10", "192.0.2.1") })
	t.Run("IPv6", func(t *testing.T) { run(t, "2001:db8:1::10", "2001:db8:1::1") })
}

// TestRefusedSockets: a socket is notified of a refusal at once, with or without checksum offload.
// So is a socket of the node itself if the egress hook refuses its packet.
func TestRefusedSockets(t *testing.T) {
	for name, c := range map[string]struct {
		hook         ebpf.AttachType
		client, node bool // compute checksums in software
	}{
		"on the way in":                          {ebpf.AttachTCXIngress, false, false},
		"on the way in, checksums of the client": {ebpf.AttachTCXIngress, true, false},
		"on the way in, checksums of the node":   {ebpf.AttachTCXIngress, false, true},
		"on the way out":                         {ebpf.AttachTCXEgress, false, false},
		"on the way out, checksums of the node":  {ebpf.AttachTCXEgress, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRefusing(t)
			n.client.Offload(t, "eth0", !c.client, testnet.TxChecksum)
			n.node.Offload(t, "in0", !c.node, testnet.TxChecksum)
			from, server, egress := n.client, n.node, uint8(0)
			if c.hook == ebpf.AttachTCXEgress {
				from, server, egress = n.node, n.client, 1
			}
			n.refuse(c.hook, map[string]any{"config_port": uint16(4660), "config_egress": egress})
			n.eachFamily(t, func(t *testing.T, client, node string) {
				at := net.JoinHostPort(node, "4660")
				if egress != 0 {
					at = net.JoinHostPort(client, "4660")
				}
				server.ServeTCP(t, at, "reached")
				server.ServeUDP(t, at, "reached")
				for protocol, talk := range refusals {
					t.Run(protocol, func(t *testing.T) {
						begin := time.Now()
						if err := talk(t, from, at); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begin) > testnet.OnThisMachine(2*time.Second) {
							t.Errorf("%v after %s, want it refused at once", err, time.Since(begin))
						}
					})
				}
			})
		})
	}
}

// refusals contains, by protocol, functions that send packets and return the error of the socket.
var refusals = map[string]func(t *testing.T, from *testnet.NS, to string) error{
	"TCP": refusedTCP, "UDP": refusedUDP, "SCTP": refusedSCTP,
}

func refusedTCP(_ *testing.T, ns *testnet.NS, at string) error {
	c, err := ns.Dial("tcp", "", at, 3*time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func refusedUDP(_ *testing.T, ns *testnet.NS, at string) error {
	c, err := ns.Dial("udp", "", at, 3*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	// The second datagram does not fit into one packet: a first fragment is refused.
	if _, err := c.Write(bytes.Repeat([]byte("odd"), 1001)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 64))
	return err
}

func refusedSCTP(t *testing.T, ns *testnet.NS, at string) (err error) {
	requireSCTP(t)
	family, addr := sockaddr(netip.MustParseAddrPort(at))
	return ns.Try(func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 3}); err != nil {
			return err
		}
		return unix.Connect(fd, addr)
	})
}

// TestRefusedSegments: a GSO packet gets a single answer, and its connection is reset.
func TestRefusedSegments(t *testing.T) {
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		t.Run(hook.String(), func(t *testing.T) {
			n := newRefusing(t)
			from, server, egress := n.client, n.node, uint8(0)
			if hook == ebpf.AttachTCXEgress {
				from, server, egress = n.node, n.client, 1
			}
			n.refuse(hook, map[string]any{"config_port": uint16(4660), "config_larger": uint32(3000), "config_egress": egress})
			n.eachFamily(t, func(t *testing.T, client, node string) {
				at := net.JoinHostPort(node, "4660")
				if egress != 0 {
					at = net.JoinHostPort(client, "4660")
				}
				server.ServeTCP(t, at, "reached")
				c, err := from.Dial("tcp", "", at, 3*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
					t.Fatal(err)
				}
				_, err = c.Write([]byte(strings.Repeat("a long text. ", 10000)))
				for err == nil {
					_, err = c.Read(make([]byte, 4096))
				}
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%v, want the connection reset", err)
				}
			})
		})
	}
}

// TestAnswersOnTheWire: the checksums of answers are correct at the client's device, even if the
// refused packet had only a partial checksum.
func TestAnswersOnTheWire(t *testing.T) {
	n := newRefusing(t)
	n.refuse(ebpf.AttachTCXIngress, map[string]any{"config_port": uint16(4660)})
	n.node.Offload(t, "in0", false, testnet.TxChecksum) // the device fills in partial checksums
	wire := n.client.Wire(t, "eth0")
	n.eachFamily(t, func(t *testing.T, client, node string) {
		at := net.JoinHostPort(node, "4660")
		from := netip.MustParseAddr(node)
		answer := map[string]uint8{"TCP": testpkt.ProtoTCP, "SCTP": testpkt.ProtoSCTP, "UDP": testpkt.ProtoICMP}
		if from.Is6() {
			answer["UDP"] = testpkt.ProtoICMPv6
		}
		for protocol, talk := range refusals {
			t.Run(protocol, func(t *testing.T) {
				if err := talk(t, n.client, at); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%v, want it refused", err)
				}
				frame := wire.Await(t, 3*time.Second, "an answer", func(b []byte) bool {
					p := testpkt.Parse(b)
					return p.Protocol() == answer[protocol] && p.Source().Addr() == from && (p.ICMP == nil || p.ICMP.Error())
				})
				if err := testpkt.Parse(frame).CheckOuter(); err != nil {
					t.Errorf("%v\n%v", err, testpkt.Parse(frame))
				}
			})
		}
	})
}

// TestAnswersKeepTags: an answer has the VLAN tags of the refused packet, whether in the frame or
// in the metadata.
func TestAnswersKeepTags(t *testing.T) {
	n := newRefusing(t)
	n.refuse(ebpf.AttachTCXIngress, nil)
	tap := n.client.Tap(t, "eth0")
	client := testpkt.Ethernet{Source: n.client.MAC(t, "eth0"), Destination: n.node.MAC(t, "in0")}
	node := testpkt.Ethernet{Source: client.Destination, Destination: client.Source}
	for name, tags := range map[string][]testpkt.Layer{
		"none":       nil,
		"one":        {testpkt.VLAN{ID: 0x6007}},
		"two":        {testpkt.VLAN{ID: 0x6007}, testpkt.VLAN{ID: 0x2009}},
		"two, other": {testpkt.VLAN{ID: 7, TPID: 0x88a8}, testpkt.VLAN{ID: 9}},
	} {
		for _, f := range families {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				open := packet(testpkt.Ethernet{}, testpkt.ProtoTCP, f.client, f.vip, stageOpen, 61)
				reset := noWindow(testpkt.Build(testpkt.Ethernet{}, answerIP(f.vip.Addr(), f.client.Addr(), 0),
					testpkt.TCP{Source: f.vip.Port(), Destination: f.client.Port(), Flags: testpkt.RST | testpkt.ACK, Ack: 0x01020305, Window: 1}))
				in, want := retagged(client, tags, open), retagged(node, tags, reset)
				if err := tap.Send(in); err != nil {
					t.Fatal(err)
				}
				var came [][]byte
				testnet.Eventually(t, 3*time.Second, "an answer", func() bool {
					if err := tap.Receive(func(b []byte) { came = append(came, b) }); err != nil {
						t.Fatal(err)
					}
					return slices.ContainsFunc(came, func(b []byte) bool { return testpkt.Parse(b).TCP != nil })
				})
				for _, b := range came {
					if testpkt.Parse(b).TCP == nil {
						continue // neighbour discovery of the hosts
					}
					if d := testpkt.Diff(want, b); d != "" {
						t.Errorf("answer (- want, + got):\n%s", d)
					}
				}
			})
		}
	}
}

// retagged returns the IP packet of a frame with another Ethernet header and tags.
func retagged(eth testpkt.Ethernet, tags []testpkt.Layer, frame []byte) []byte {
	for i := range tags {
		v := tags[i].(testpkt.VLAN)
		if i == 0 {
			eth.Type = max(v.TPID, 0x8100)
		}
		if i+1 == len(tags) {
			v.Protocol = uint16(frame[12])<<8 | uint16(frame[13])
		}
		tags[i] = v
	}
	if len(tags) == 0 {
		eth.Type = uint16(frame[12])<<8 | uint16(frame[13])
	}
	layers := append([]testpkt.Layer{eth}, tags...)
	return testpkt.Build(append(layers, testpkt.Raw(frame[14:]))...)
}
