// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testpolicy"
)

// verdictBetween returns the verdict of a state on traffic between two ends.
func verdictBetween(s *policy.State, from, to, t policy.Traffic) policy.Action {
	t.Peer, t.Node = to.Peer, to.Node
	if e := s.PeerOf(from); e != nil && e.Endpoint != "" {
		if v := s.Evaluate(e, policy.Egress, t, false); v.Action != policy.Allow {
			return v.Action
		}
	}
	t.Peer, t.Node = from.Peer, from.Node
	if e := s.PeerOf(to); e != nil && e.Endpoint != "" {
		return s.Evaluate(e, policy.Ingress, t, false).Action
	}
	return policy.Allow
}

// endOf returns the end in differences to which an address belongs.
func endOf(ends map[policy.End]bool, x policy.Traffic) (best policy.End) {
	if x.Node {
		return policy.End{Node: true}
	}
	longest := -1
	for e := range ends {
		if !e.Node && e.Prefix.Contains(x.Peer) && e.Prefix.Bits() > longest {
			best, longest = e, e.Prefix.Bits()
		}
	}
	return best
}

// TestDifferences compares the differences of random states with the definition, for random traffic.
func TestDifferences(t *testing.T) {
	compared, differ := 0, 0
	for seed := uint64(0); compared < 20_000; seed++ {
		g := testpolicy.New(seed)
		before := g.State()
		after := g.Next(before)
		list, more := policy.Differences(before, after, 1_000_000)
		if more {
			t.Fatalf("seed %d: not all differences", seed)
		}
		ends := policy.EndsOf(before, after)
		for range 200 {
			from, to, traffic := g.Traffic(), g.Traffic(), g.Traffic()
			traffic.Names = nil // addresses of names are not compared
			if from.Peer.Is4() != to.Peer.Is4() && !from.Node && !to.Node {
				continue
			}
			if !traffic.Protocol.HasPorts() {
				traffic.Port = 0
			}
			source, destination := endOf(ends, from), endOf(ends, to)
			if source == destination || source.Entity != "" && source.Entity == destination.Entity {
				continue
			}
			want := [2]policy.Action{verdictBetween(before, from, to, traffic), verdictBetween(after, from, to, traffic)}
			got, found := [2]policy.Action{}, false
			for _, d := range list {
				matches := d.Protocol == traffic.Protocol && d.First <= traffic.Port && traffic.Port <= d.Last || d.Protocol == 0 && !traffic.Protocol.HasPorts()
				if d.Source == source && d.Destination == destination && matches {
					got, found = [2]policy.Action{d.Before, d.After}, true
				}
			}
			compared++
			if want[0] != want[1] {
				differ++
			}
			if found != (want[0] != want[1]) || found && got != want {
				t.Fatalf("seed %d: from %+v (%+v) to %+v (%+v), %+v: %v (%t), want %v\n%s\n%s", seed, from, source, to, destination, traffic, got, found, want, describe(before), describe(after))
			}
		}
		if short, more := policy.Differences(before, after, 3); len(list) > 3 && (len(short) != 3 || !more) {
			t.Fatalf("seed %d: %d differences with a limit of 3, of %d", seed, len(short), len(list))
		}
	}
	t.Logf("%d compared, %d differ", compared, differ)
	if differ < compared/50 {
		t.Error("the states test too little")
	}
}
