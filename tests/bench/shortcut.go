// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

// shortcut contains the number of packets that the ports of a node received so far, and how many of
// them took the fast path under test.
type shortcut struct{ all, taken uint64 }

// shortcuts are the counts of the rigs that have a fast path, by name.
type shortcuts map[string]shortcut

// trackedShare is the required share of packets on the fast path: all but the few that refresh the
// kernel's tables.
const trackedShare = 0.9

func shortcutsOf(ctx context.Context, rigs []*rig) (shortcuts, error) {
	list := shortcuts{}
	for _, r := range rigs {
		var cut shortcut
		var err error
		if cut.all, err = r.received(); err != nil {
			return nil, err
		}
		d, ours := r.balancer.(*loxilight)
		switch {
		case ours && r.name == pathOurs:
			var verdicts map[string]uint64
			verdicts, err = d.verdicts(ctx)
			cut.taken = verdicts["fast"]
		case r.name == pathFlowtable:
			var slow uint64
			slow, err = r.slowPackets()
			cut.taken = cut.all - slow
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		list[r.name] = cut
	}
	return list, nil
}

// received returns the number of packets received on the ports of the rig's node.
func (r *rig) received() (count uint64, err error) {
	for _, port := range []string{"up0", "up1", "pod0"} {
		link, err := r.node.links.LinkByName(port)
		if err != nil {
			return 0, fmt.Errorf("device %s: %w", port, err)
		}
		count += link.Attrs().Statistics.RxPackets
	}
	return count, nil
}

// wantTaken fails if less than the given share of the connections' packets has taken the fast path
// since the counts in before: otherwise the slow path would have been measured. A flowtable must
// have taken all packets, including those of the warm-up round.
func (b *bench) wantTaken(ctx context.Context, rigs []*rig, before shortcuts, connections int, share float64) error {
	now, err := shortcutsOf(ctx, rigs)
	if err != nil {
		return err
	}
	round := uint64(max(b.packetCount, connections))
	for name, was := range before {
		want := uint64(share * float64(uint64(b.rounds)*round))
		if name == pathFlowtable {
			want = uint64(b.rounds+1) * round
		}
		if taken := now[name].taken - was.taken; taken < want {
			return fmt.Errorf("%s: %d packets took the fast path, of at least %d", name, taken, want)
		}
	}
	return nil
}

// handshakePackets is the maximum number of packets of a TCP connection that take no fast path: at
// its beginning and at its end.
const handshakePackets = 8

// wantShare fails if less than trackedShare of all packets have taken the fast path since these
// counts, or if a flowtable did not take all of them. The first and last packets of the connections
// do not count.
func (before shortcuts) wantShare(ctx context.Context, rigs []*rig, connections int) error {
	now, err := shortcutsOf(ctx, rigs)
	if err != nil {
		return err
	}
	for name, was := range before {
		share := trackedShare
		if name == pathFlowtable {
			share = 1
		}
		all, taken := now[name].all-was.all, now[name].taken-was.taken
		if want := share * (float64(all) - float64(handshakePackets*connections)); float64(taken) < want {
			return fmt.Errorf("%s: %d packets of %d took the fast path, of at least %.0f", name, taken, all, want)
		}
	}
	return nil
}
