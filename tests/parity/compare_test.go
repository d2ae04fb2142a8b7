// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// compare waits until the same frames have left on both sides, and fails the test if that does not
// happen.
func (r *rig) compare() {
	r.t.Helper()
	limit := patience
	if r.lenient || *allFlag {
		limit = 20 * time.Millisecond
	}
	differ := r.await(limit, r.differences)
	if differ != "" && r.lenient {
		r.unequal = time.Now()
		differ = r.await(patience, r.lost)
	}
	if differ != "" {
		r.fail("after %d frames and %s the sides differ\n%s", r.sent, cmp.Or(r.last, "no change"), differ)
	}
	for i := range portCount {
		r.carried += len(r.kernel.out[i])
		r.kernel.out[i], r.ours.out[i] = nil, nil
	}
}

// await waits until nothing differs, for at most limit, and returns the remaining differences.
func (r *rig) await(limit time.Duration, differences func() string) string {
	deadline := time.Now().Add(limit)
	for {
		r.drain()
		differ := differences()
		if differ == "" || time.Now().After(deadline) {
			return differ
		}
		time.Sleep(time.Millisecond) // the kernel has not finished yet
	}
}

// fail ends the test; with -all the test continues.
func (r *rig) fail(format string, args ...any) {
	r.t.Helper()
	if *allFlag {
		r.t.Errorf(format, args...)
	} else {
		r.t.Fatalf(format, args...)
	}
}

// differences returns the frames that left on one side only, or in a different order; empty: none.
func (r *rig) differences() string {
	var b strings.Builder
	for i := range portCount {
		theirs, ours := r.kernel.out[i], r.ours.out[i]
		if slices.EqualFunc(theirs, ours, bytes.Equal) {
			continue
		}
		lost, extra := without(theirs, ours), without(ours, theirs)
		for _, frame := range lost {
			r.describe(&b, fmt.Sprintf("only the kernel sent out of p%d", i+1), frame, r.alike(frame, extra))
		}
		for _, frame := range extra {
			r.describe(&b, fmt.Sprintf("only we sent out of p%d", i+1), frame, nil)
		}
		if len(lost)+len(extra) == 0 && r.reordered(i) != "" {
			r.overtaken++
			if *gapsFlag {
				b.WriteString(r.reordered(i))
			}
		}
	}
	return b.String()
}

// isFromOwn reports whether the source of a frame is an address that the node gets or loses now.
func (r *rig) isFromOwn(frame []byte) bool {
	const source = 14 + 12
	return r.own.Is4() && len(frame) >= source+4 && [4]byte(frame[source:]) == r.own.As4()
}

// lost returns the frames that left on the kernel's side but nowhere on ours.
func (r *rig) lost() string {
	var b strings.Builder
	count := map[string]int{}
	for i := range portCount {
		for _, frame := range r.ours.out[i] {
			count[identity(frame)]++
		}
	}
	for i := range portCount {
		for _, frame := range r.kernel.out[i] {
			id := identity(frame)
			if count[id] == 0 && id != "" && !r.isFromOwn(frame) {
				r.describe(&b, fmt.Sprintf("lost while a change took effect; the kernel sent out of p%d", i+1), frame, nil)
			}
		}
	}
	return b.String()
}

// without returns the frames of all that are not in others, counting duplicates.
func without(all, others [][]byte) (left [][]byte) {
	count := map[string]int{}
	for _, frame := range others {
		count[string(frame)]++
	}
	for _, frame := range all {
		if count[string(frame)]--; count[string(frame)] < 0 {
			left = append(left, frame)
		}
	}
	return left
}

// reordered reports frames of one flow that left through a port in different orders. Between flows
// there is no order to keep. Known: if the kernel processes packets in bulk, a packet on the slow
// path is overtaken by later ones that go straight to the far end of a veth.
func (r *rig) reordered(port int) string {
	flows := func(frames [][]byte) map[string][][]byte {
		m := map[string][][]byte{}
		for _, frame := range frames {
			m[flowOf(frame)] = append(m[flowOf(frame)], frame)
		}
		return m
	}
	theirs, ours := flows(r.kernel.out[port]), flows(r.ours.out[port])
	for flow, frames := range theirs {
		for i, frame := range frames {
			if !bytes.Equal(frame, ours[flow][i]) {
				return fmt.Sprintf("another order out of p%d, frame %d of %s:\n%s\n", port+1, i, flow, testpkt.Diff(frame, ours[flow][i]))
			}
		}
	}
	return ""
}

// flowOf names the flow of a frame by its outermost addresses and ports.
func flowOf(frame []byte) string {
	p := testpkt.Parse(frame)
	if p.Ethernet == nil {
		return "short"
	}
	if p.IPv4 == nil && p.IPv6 == nil {
		return fmt.Sprintf("%x", frame[:14])
	}
	return fmt.Sprintf("%d %s %s", p.Protocol(), p.Source(), p.Destination())
}

// alike returns the frame in others that results from sending the same frame.
func (r *rig) alike(frame []byte, others [][]byte) []byte {
	for _, other := range others {
		if id := identity(frame); id != "" && id == identity(other) {
			return other
		}
	}
	return nil
}

// describe writes the history of a frame, with all earlier frames of its flow.
func (r *rig) describe(b *strings.Builder, what string, frame, instead []byte) {
	if b.Len() > 20000 {
		return // the first ones suffice
	}
	fmt.Fprintf(b, "%s:\n%s\n", what, testpkt.Parse(frame))
	if instead != nil {
		fmt.Fprintf(b, "where ours is (+):\n%s", testpkt.Diff(frame, instead))
	}
	cause := r.causeOf(frame)
	if cause == nil {
		return
	}
	fmt.Fprintf(b, "it came of %s:\n%s\n", cause, testpkt.Parse(cause.frame))
	var before []string
	for _, s := range r.story {
		if s.flow == cause.flow && s.number <= cause.number {
			before = append(before, s.String())
		}
	}
	if len(before) > 12 {
		before = before[len(before)-12:]
	}
	fmt.Fprintf(b, "the flow: %s\n\n", strings.Join(before, "; "))
}

// mark is in the payload of frames, before their number.
const mark = "<frame "

// identity returns the number after the first mark in a frame; empty: none.
func identity(frame []byte) string {
	_, rest, found := bytes.Cut(frame, []byte(mark))
	id, _, closed := bytes.Cut(rest, []byte(">"))
	if !found || !closed {
		return ""
	}
	return string(id)
}

func (r *rig) causeOf(frame []byte) *shot {
	id := identity(frame)
	if id == "" {
		return nil
	}
	for i := len(r.story) - 1; i >= 0; i-- {
		if identity(r.story[i].frame) == id {
			return &r.story[i]
		}
	}
	return nil
}

// ownWords normalises one of the node's own frames: it removes fields that two kernels choose
// differently, the identification of IPv4 packets and fragments, and the flow label of IPv6
// packets. It returns nil for messages that the node sends at times of its own choice (neighbour
// discovery, ARP, group membership). own contains the node's addresses.
func ownWords(frame []byte, own map[netip.Addr]bool) []byte {
	p := testpkt.Parse(frame)
	switch {
	case p.Ethernet == nil:
		return frame
	case p.Ethernet.Type == 0x0806 && ownMAC(p.Ethernet.Source):
		return nil
	case p.IPv4 != nil && own[p.IPv4.Source]:
		if p.IPv4.Protocol == 2 || rationed(p) {
			return nil
		}
		at := 14 + 4*len(p.VLANs)
		frame = slices.Clone(frame)
		copy(frame[at+4:], []byte{0, 0})
		copy(frame[at+10:], []byte{0, 0})
	case p.IPv6 != nil && (own[p.IPv6.Source] || p.IPv6.Source.IsUnspecified() && ownMAC(p.Ethernet.Source)):
		if p.ICMP != nil && (p.ICMP.Type >= 130 && p.ICMP.Type <= 137 || p.ICMP.Type == 143) {
			return nil
		}
		at := 14 + 4*len(p.VLANs)
		frame = slices.Clone(frame)
		frame[at+1] &= 0xf0
		copy(frame[at+2:], []byte{0, 0})
		if frame[at+6] == 44 && len(frame) >= at+48 { // a fragment header comes first
			copy(frame[at+44:], []byte{0, 0, 0, 0})
		}
	}
	return frame
}

// rationed reports whether p is an ICMP message whose rate the kernel limits, regardless of the
// sysctls of a namespace: redirects, and errors about missing routes.
func rationed(p *testpkt.Packet) bool {
	if p.ICMP == nil || p.ICMP.V6 {
		return false
	}
	noRoute := p.ICMP.Type == testpkt.DestinationUnreachable && (p.ICMP.Code <= 1 || p.ICMP.Code == 13)
	return p.ICMP.Type == 5 || noRoute
}

func ownMAC(mac [6]byte) bool { return cmp.Compare(string(mac[:4]), "\x02\x11\x22\x33") == 0 }
