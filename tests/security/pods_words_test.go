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
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// sendsWords attaches to a device a program that sets a word in skb->tc_index of outgoing packets,
// and returns a function that sets that word.
func sendsWords(t *testing.T, ns *testnet.NS, device string) (set func(word uint32)) {
	t.Helper()
	const tcIndex = 44 // in struct __sk_buff
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R2, m.FD(), 0),
		asm.LoadMem(asm.R3, asm.R2, 0, asm.Word),
		asm.StoreMem(asm.R1, tcIndex, asm.R3, asm.Word),
		asm.Mov.Imm(asm.R0, -1), // TCX_NEXT
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var l link.Link
	ns.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: program, Attach: ebpf.AttachTCXEgress})
		return err
	})
	t.Cleanup(func() { l.Close(); program.Close(); m.Close() })
	return func(word uint32) {
		if err := m.Put(uint32(0), word); err != nil {
			t.Fatal(err)
		}
	}
}

// TestS19Words: a pod with NET_ADMIN sets, on its packets, the words with which our programs mark a
// packet as handled, both while one copy of the programs takes over from another and at other
// times. Its packets with the addresses of another pod are dropped.
func TestS19Words(t *testing.T) {
	s := newPodsSite(t)
	evil, victim, other := s.addPod(nil), s.addPod(nil), s.addPod(nil)
	set, wire := sendsWords(t, evil.NS, "eth0"), evil.Wire(t, "eth0")
	front, err := ebpf.LoadPinnedMap(filepath.Join(s.PinDir, "layout-1", "ll_shadow"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	words := []uint32{
		0, 0x4c00, 0x4c01, 0x4c02, 0x4c03, 0x4c06, 0x4d00, 0x4d01, 0x4d02, 0x4d03, 0x4d06, 0x4dff, 0x4e00, 0x8000, 0x8001, 0xc000, 0xc001, 0xffff,
	}
	for i, ip := range victim.ips {
		from, to := netip.MustParseAddr(other.ips[i]), netip.MustParseAddr(ip)
		eth := testpkt.Ethernet{Source: evil.MAC(t, "eth0"), Destination: victim.MAC(t, "eth0")}
		routed := testpkt.Ethernet{Source: eth.Source, Destination: testnet.Named(t, s.name).MAC(t, "hsvlan110")}
		seen, before := victim.Wire(t, "eth0"), s.Counters("", "").Drops["spoofed"]
		for _, takesOver := range []uint32{1, 0} {
			if err := front.Put(uint32(0), takesOver); err != nil {
				t.Fatal(err)
			}
			for _, word := range words {
				set(word)
				for _, e := range []testpkt.Ethernet{eth, routed} {
					wire.Send(t, udpFrame(e, netip.AddrPortFrom(from, 5353), netip.AddrPortFrom(to, 53), fmt.Sprintf("FORGED with %#x", word)))
				}
			}
		}
		set(0)
		wire.Send(t, udpFrame(eth, netip.AddrPortFrom(netip.MustParseAddr(evil.ips[i]), 5353), netip.AddrPortFrom(to, 53), "genuine"))
		seen.Await(t, 20*time.Second, "what is genuine", func(frame []byte) bool { return strings.Contains(string(frame), "genuine") })
		for _, frame := range seen.Frames() {
			if _, what, ok := strings.Cut(string(frame), "FORGED"); ok {
				t.Errorf("from %s as %s: the pod got a packet%s", evil.ips[i], from, what)
			}
		}
		if got, want := s.Counters("", "").Drops["spoofed"]-before, uint64(4*len(words)); got != want {
			t.Errorf("as %s: %d packets dropped as spoofed, want %d", from, got, want)
		}
	}
}
