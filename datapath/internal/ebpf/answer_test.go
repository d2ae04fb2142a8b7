// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

//go:generate go tool bpf2go -cc clang-19 -go-package ebpf -target bpfel -tags linux -no-global-types -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" answerer ../../../ebpf-src/answer_test.bpf.c

// answerer loads the test program that answers packets, with these settings, on the maps of r; r
// nil: on its own maps.
func answerer(t testing.TB, r *rig, settings map[string]any) *ebpf.Program {
	t.Helper()
	spec, err := loadAnswerer()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range settings {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(name, err)
		}
	}
	shared := make(map[string]*ebpf.Map)
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if r == nil {
			continue
		}
		if m := kernel.SharedMap(r.maps, name); m != nil {
			shared[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		t.Fatalf("%+v", refused)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := c.DetachProgram("ll_answer_test")
	c.Close()
	t.Cleanup(func() { p.Close() })
	return p
}

// answered is the expected answer to one packet of the client.
type answered struct {
	name string
	in   []testpkt.Layer // after the IP header
	out  []testpkt.Layer // after the IP header; nil: nothing
}

// answerIP returns the IP header of an answer.
func answerIP(from, to netip.Addr, tos uint8) testpkt.Layer {
	if from.Is4() {
		return testpkt.IPv4{Source: from, Destination: to, TTL: 64, TOS: tos, DontFragment: true}
	}
	return testpkt.IPv6{Source: from, Destination: to, HopLimit: 64}
}

func tcpAnswers(f family) []answered {
	tcp := testpkt.TCP{Source: f.client.Port(), Destination: f.vip.Port(), Seq: 0xfffffffe, Ack: 0x11121314, Window: 501}
	rst := testpkt.TCP{Source: f.vip.Port(), Destination: f.client.Port(), Flags: testpkt.RST, Window: 1}
	with := func(flags uint8, options ...byte) testpkt.TCP {
		c := tcp
		c.Flags, c.Options = flags, options
		if flags&testpkt.ACK == 0 {
			c.Ack = 0
		}
		return c
	}
	acks := func(ack uint32) testpkt.TCP {
		c := rst
		c.Flags |= testpkt.ACK
		c.Ack = ack
		return c
	}
	seq := rst
	seq.Seq = tcp.Ack
	return []answered{
		{"SYN", []testpkt.Layer{with(testpkt.SYN, 2, 4, 5, 0xb4)}, []testpkt.Layer{acks(0xffffffff)}},
		{"SYN with data", []testpkt.Layer{with(testpkt.SYN), testpkt.Payload("early")}, []testpkt.Layer{acks(4)}},
		{"FIN", []testpkt.Layer{with(testpkt.FIN, 1, 1, 1, 1), testpkt.Payload("x")}, []testpkt.Layer{acks(0)}},
		{"SYN and FIN", []testpkt.Layer{with(testpkt.SYN | testpkt.FIN)}, []testpkt.Layer{acks(0)}},
		{"ACK", []testpkt.Layer{with(testpkt.ACK)}, []testpkt.Layer{seq}},
		{"data", []testpkt.Layer{with(testpkt.ACK | testpkt.PSH), testpkt.Payload("odd sized text.")}, []testpkt.Layer{seq}},
		{"RST", []testpkt.Layer{with(testpkt.RST)}, nil},
		{"RST and ACK", []testpkt.Layer{with(testpkt.RST | testpkt.ACK)}, nil},
	}
}

func sctpAnswers(f family) []answered {
	init := append(binary.BigEndian.AppendUint32(nil, 0x31323334), make([]byte, 12)...)
	packet := func(tag uint32, chunks ...testpkt.Chunk) []testpkt.Layer {
		return []testpkt.Layer{testpkt.SCTP{Source: f.client.Port(), Destination: f.vip.Port(), Tag: tag, Chunks: chunks}}
	}
	answer := func(tag uint32, kind, flags uint8) []testpkt.Layer {
		return []testpkt.Layer{testpkt.SCTP{Source: f.vip.Port(), Destination: f.client.Port(), Tag: tag,
			Chunks: []testpkt.Chunk{{Type: kind, Flags: flags}}}}
	}
	const tag = 0x21222324
	return []answered{
		{"INIT", packet(0, testpkt.Chunk{Type: 1, Value: init}), answer(0x31323334, 6, 0)},
		{"INIT with a tag", packet(tag, testpkt.Chunk{Type: 1, Value: init}), answer(tag, 6, 1)},
		{"DATA", packet(tag, testpkt.Chunk{Type: 0, Value: []byte("chunk of SCTP")}), answer(tag, 6, 1)},
		{"COOKIE ECHO", packet(tag, testpkt.Chunk{Type: 10, Value: []byte("cookie")}), answer(tag, 6, 1)},
		{"SHUTDOWN ACK", packet(tag, testpkt.Chunk{Type: 8}), answer(tag, 14, 1)},
		{"SHUTDOWN COMPLETE", packet(tag, testpkt.Chunk{Type: 14}), nil},
		{"COOKIE ACK", packet(tag, testpkt.Chunk{Type: 11}), nil},
		{"ABORT", packet(tag, testpkt.Chunk{Type: 6}), nil},
		{"ABORT after DATA", packet(tag, testpkt.Chunk{Type: 0, Value: []byte("odd")}, testpkt.Chunk{Type: 6}), nil},
	}
}

// TestAnswers checks the answers to refused TCP and SCTP packets, byte by byte.
func TestAnswers(t *testing.T) {
	base := newRig(t)
	p := answerer(t, base, nil)
	for _, f := range families {
		for protocol, cases := range map[string][]answered{"TCP": tcpAnswers(f), "SCTP": sctpAnswers(f)} {
			for _, c := range cases {
				t.Run(f.name+"/"+protocol+"/"+c.name, func(t *testing.T) {
					r := base.fresh(t)
					in := testpkt.Build(append([]testpkt.Layer{r.in.arrives(), ipHeader(f.client.Addr(), f.vip.Addr(), 61)}, c.in...)...)
					if c.out == nil {
						if action, _ := r.run(p, r.in, in); action != actShot {
							t.Errorf("action %d, want it dropped", action)
						}
						r.counted(map[string]uint64{"DROP_NO_BACKEND": 1})
						return
					}
					want := testpkt.Build(append([]testpkt.Layer{r.in.leaves(), answerIP(f.vip.Addr(), f.client.Addr(), 0)}, c.out...)...)
					if protocol == "TCP" {
						want = noWindow(want)
					}
					r.compare(c.name, p, r.in, in, actRedirect, want)
					r.counted(map[string]uint64{"DROP_NO_BACKEND": 1, "VERDICT_ANSWERED": 1})
				})
			}
		}
	}
}

// noWindow changes the window of a TCP segment without data from 1 to 0, since testpkt replaces 0
// by its default.
func noWindow(frame []byte) []byte {
	tcp := frame[len(frame)-20:]
	tcp[15] = 0
	sum := uint32(binary.BigEndian.Uint16(tcp[16:])) + 1
	binary.BigEndian.PutUint16(tcp[16:], uint16(sum+sum>>16))
	return frame
}

// TestErrors checks the ICMP errors for refused packets, byte by byte: their source, and how much
// of the packet they quote.
func TestErrors(t *testing.T) {
	base := newRig(t)
	for _, kind := range []struct {
		name     string
		settings map[string]any
		v4, v6   testpkt.ICMP
		drop     string
	}{
		{"refused", nil, testpkt.ICMP{Type: 3, Code: 3}, testpkt.ICMP{V6: true, Type: 1, Code: 4}, "DROP_NO_BACKEND"},
		{"too big", map[string]any{"config_too_big": uint16(1280)}, testpkt.FragmentationNeeded(1280), testpkt.PacketTooBig(1280), "DROP_TOO_BIG"},
	} {
		p := answerer(t, base, kind.settings)
		for _, f := range families {
			for size := range sizes(f.name) {
				t.Run(fmt.Sprintf("%s/%s/%d", kind.name, f.name, size), func(t *testing.T) {
					r := base.fresh(t)
					icmp, max, tos := kind.v4, 548, uint8(0xd0)
					if f.name == "IPv6" {
						icmp, max, tos = kind.v6, 1232, 0
					}
					in := datagram(r.in.arrives(), f.client, f.vip, size)
					quoted := in[14:min(len(in), 14+max)]
					if size == 0 {
						in = append(in, make([]byte, 60-min(60, len(in)))...) // padding
					}
					r.compare("error", p, r.in, in, actRedirect, testpkt.Build(r.in.leaves(),
						answerIP(f.inAddr, f.client.Addr(), tos), icmp, testpkt.Raw(quoted)))
					r.counted(map[string]uint64{kind.drop: 1, "VERDICT_ANSWERED": 1})
				})
			}
		}
	}
}

// sizes returns datagram sizes, some of them around the maximum that an error quotes.
func sizes(family string) map[int]bool {
	all := map[int]bool{0: true, 1: true, 2: true, 3: true, 15: true, 200: true, 484: true, 485: true, 1400: true}
	edge := 548 - 28
	if family == "IPv6" {
		edge = 1232 - 48
	}
	for i := -2; i < 3; i++ {
		all[edge+i] = true
	}
	return all
}

// datagram builds a UDP packet with size bytes of data.
func datagram(eth testpkt.Ethernet, from, to netip.AddrPort, size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*7 + 1)
	}
	return testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), 61),
		testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Raw(data))
}

// TestNotAnswered: packets that must not be answered by an ICMP error (RFC 1812, section 4.3.2.7;
// RFC 4443, section 2.4) are dropped and counted.
func TestNotAnswered(t *testing.T) {
	base := newRig(t)
	p := answerer(t, base, nil)
	for _, f := range families {
		group, loopback, none := "224.0.0.251", "127.0.0.1", "0.0.0.0"
		icmp := []uint8{3, 4, 5, 11, 12}
		if f.name == "IPv6" {
			group, loopback, none = "ff02::fb", "::1", "::"
			icmp = []uint8{1, 2, 3, 4, 100, 137}
		}
		at := func(a string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), 4660) }
		everybody, several := base.in.arrives(), base.in.arrives()
		everybody.Destination = rigMAC("ff:ff:ff:ff:ff:ff")
		several.Source = rigMAC("33:33:00:00:00:01")
		cases := map[string][]byte{
			"to a group":                   datagram(base.in.arrives(), f.client, at(group), 9),
			"from a group":                 datagram(base.in.arrives(), at(group), f.vip, 9),
			"from the unspecified address": datagram(base.in.arrives(), at(none), f.vip, 9),
			"from loopback":                datagram(base.in.arrives(), at(loopback), f.vip, 9),
			"to all stations":              datagram(everybody, f.client, f.vip, 9),
			"from many stations":           datagram(several, f.client, f.vip, 9),
			"a later fragment":             testpkt.Fragments(datagram(base.in.arrives(), f.client, f.vip, 1400), 600, 77)[1],
		}
		if f.name == "IPv4" {
			cases["to all"] = datagram(base.in.arrives(), f.client, at("255.255.255.255"), 9)
		}
		for _, kind := range icmp {
			cases[fmt.Sprint("ICMP of type ", kind)] = testpkt.Build(base.in.arrives(), ipHeader(f.client.Addr(), f.vip.Addr(), 61),
				testpkt.ICMP{V6: f.name == "IPv6", Type: kind}, testpkt.Raw(datagram(testpkt.Ethernet{}, f.vip, f.client, 9)[14:]))
		}
		for name, in := range cases {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				if action, _ := r.run(p, r.in, in); action != actShot {
					t.Errorf("action %d, want it dropped", action)
				}
				r.counted(map[string]uint64{"DROP_NO_BACKEND": 1})
			})
		}
	}
}

// TestEchoIsProhibited: protocols without a rejection of their own get the ICMP error "prohibited".
// If the ingress device has no address, the error's source is the packet's destination.
func TestEchoIsProhibited(t *testing.T) {
	base := newRig(t)
	p := answerer(t, base, nil)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			r.put(kernel.MapLlDevice, kernel.DeviceKey{Ifindex: r.in.index}, kernel.Device{MtuBytes: 1500, Mac: r.in.mac, Flags: 2})
			echo, want, tos := testpkt.ICMP{Type: 8, ID: 7, Seq: 1}, testpkt.ICMP{Type: 3, Code: 13}, uint8(0xd0)
			if f.name == "IPv6" {
				echo, want, tos = testpkt.ICMP{V6: true, Type: 128, ID: 7, Seq: 1}, testpkt.ICMP{V6: true, Type: 1, Code: 1}, 0
			}
			in := testpkt.Build(r.in.arrives(), ipHeader(f.client.Addr(), f.vip.Addr(), 61), echo, testpkt.Payload("ping"))
			r.compare("echo", p, r.in, in, actRedirect, testpkt.Build(r.in.leaves(),
				answerIP(f.vip.Addr(), f.client.Addr(), tos), want, testpkt.Raw(in[14:])))
		})
	}
}

// TestAnswersAreLimited: each CPU sends a limited number of answers in a tick of 134 ms, fewer
// errors than resets. Packets beyond the limit are dropped and counted as such.
func TestAnswersAreLimited(t *testing.T) {
	base := newRig(t)
	p := answerer(t, base, nil)
	f := families[0]
	for name, c := range map[string]struct {
		in    []byte
		limit uint64
	}{
		"errors": {datagram(base.in.arrives(), f.client, f.vip, 9), 134},
		"resets": {packet(base.in.arrives(), testpkt.ProtoTCP, f.client, f.vip, stageOpen, 61), 1340},
	} {
		t.Run(name, func(t *testing.T) {
			r := base.fresh(t)
			const sent = 6000
			begin := rigTick()
			for range sent {
				r.run(p, r.in, c.in)
			}
			ticks, cpus := uint64(rigTick()-begin)+1, uint64(ebpf.MustPossibleCPU())
			got := r.counters()
			answered, limited := got["VERDICT_ANSWERED"], got["DROP_NO_BACKEND_LIMITED"]
			if answered+limited != sent || answered != got["DROP_NO_BACKEND"] {
				t.Errorf("of %d packets: %v", sent, got)
			}
			if most := c.limit * ticks * cpus; answered < c.limit || answered > most || limited == 0 && most < sent {
				t.Errorf("%d answers in %d ticks on %d CPUs, want from %d to %d", answered, ticks, cpus, c.limit, most)
			}
		})
	}
}
