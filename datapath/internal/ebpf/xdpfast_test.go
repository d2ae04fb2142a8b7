// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// Return values of XDP programs.
const (
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
)

// loadXDP loads the XDP program for the ingress device.
func (f *fastRig) loadXDP(mode datapath.XDPMode) *ebpf.Program {
	f.t.Helper()
	spec, err := kernel.LoadShortest()
	f.ok(err)
	leave, generic := uint32(kernel.NexthopXDPXmit), uint8(0)
	if mode == datapath.XDPGeneric {
		leave, generic = kernel.NexthopNoQdisc, 1
	}
	for name, value := range map[string]any{
		kernel.ShortestVarConfigIfindex: f.in.index,
		kernel.ShortestVarConfigMacHigh: binary.NativeEndian.Uint32(f.in.mac[:]), kernel.ShortestVarConfigMacLow: binary.NativeEndian.Uint16(f.in.mac[4:]),
		kernel.ShortestVarConfigLeave: leave, kernel.ShortestVarConfigGeneric: generic, kernel.ShortestVarConfigTurn: generic,
	} {
		f.ok(spec.Variables[name].Set(value))
	}
	return f.loadOn(spec, kernel.ShortestProgLlXdp)
}

// xdpChanges are changes of state that only the XDP programs check.
var xdpChanges = []fastChange{
	changedHop("a driver that takes no frames", func(n *kernel.Nexthop) { n.Flags &^= kernel.NexthopXDPXmit }),
	changedHop("a queue", func(n *kernel.Nexthop) { n.Flags &^= kernel.NexthopXDPXmit | kernel.NexthopNoQdisc }),
	{name: "back", do: func(c *fastCase) { c.next.Ifindex = uint32(c.meta.InPort) }},
	{name: "back to where a queue is", do: func(c *fastCase) {
		c.next.Ifindex, c.next.Flags = uint32(c.meta.InPort), c.next.Flags&^(kernel.NexthopXDPXmit|kernel.NexthopNoQdisc)
	}},
}

// l4Sum returns the offset of the layer 4 checksum in a TCP or UDP frame, and the sum of the pseudo
// header alone, not complemented; 0: the frame is too short, or has no such checksum.
func l4Sum(frame []byte) (at int, pseudo uint16) {
	if len(frame) < 42 || frame[14]>>4 == 6 && len(frame) < 62 {
		return 0, 0
	}
	words, proto := frame[26:34], frame[23]
	size := int(binary.BigEndian.Uint16(frame[16:])) - 20
	if frame[14]>>4 == 6 {
		words, proto = frame[22:54], frame[20]
		size = int(binary.BigEndian.Uint16(frame[18:]))
	}
	at = l4(frame)
	switch proto {
	case testpkt.ProtoTCP:
		at += 16
	case testpkt.ProtoUDP:
		at += 6
	default:
		return 0, 0
	}
	if at+2 > len(frame) {
		return 0, 0
	}
	sum := uint32(proto) + uint32(uint16(size))
	for ; len(words) > 0; words = words[2:] {
		sum += uint32(binary.BigEndian.Uint16(words))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return at, uint16(sum)
}

// unfinish replaces a frame's checksum by a partial one, which a device completes, plus more.
func unfinish(frame []byte, more uint16) {
	if at, pseudo := l4Sum(frame); at != 0 {
		binary.BigEndian.PutUint16(frame[at:], pseudo+more)
	}
}

// leftByXDP reports whether XDP programs leave a packet to tc although fastpath.h handles it there.
func (c *fastCase) leftByXDP(in uint32, generic bool) bool {
	wanted := uint32(kernel.NexthopXDPXmit)
	if generic {
		wanted = kernel.NexthopNoQdisc
	}
	// In the test the generic program may send packets back to the input device, whatever the flags
	// of the next hop.
	if c.next.Flags&wanted == 0 && !(generic && c.next.Ifindex == in) {
		return true
	}
	at, pseudo := l4Sum(c.frame)
	sum := binary.BigEndian.Uint16(c.frame[at:])
	if sum == 0 && at == l4(c.frame)+6 {
		return generic
	}
	return sum%0xffff == pseudo%0xffff
}

// inXDP runs c through the XDP programs. They must produce the same result as fastpath.h on the tc
// hook, or leave the packet unchanged.
func (f *fastRig) inXDP(t *testing.T, c *fastCase) {
	t.Helper()
	x := *c
	x.gso, x.mark, x.frame = 0, 0, slices.Clone(c.frame) // only an skb has the first two
	f.runs++
	for p, generic := range map[*ebpf.Program]bool{f.native: false, f.generic: true} {
		if generic && f.runs%3 != 0 {
			continue // for this program a third of the runs is enough
		}
		want := func() fastResult {
			want := f.outcome(f.alone, &x)
			switch {
			case want.action == fastNot || x.leftByXDP(f.in.index, generic):
				want = fastResult{action: xdpPass, frame: x.frame, entry: x.value(), nexthop: x.next, counted: map[string]uint64{}}
			case x.next.Ifindex == f.in.index:
				want.action = xdpTX
			default:
				want.action = xdpRedirect
			}
			return want
		}
		// Time-dependent results may change between two runs.
		if got, w := f.outcome(p, &x), want(); got.action != w.action || !bytes.Equal(got.frame, w.frame) || got.entry != w.entry {
			f.outcome(p, &x).diff(t, x.what+", in XDP", want())
		} else {
			got.diff(t, x.what+", in XDP", w)
			if !generic && got.action != xdpPass {
				f.taken++
			}
		}
	}
}
