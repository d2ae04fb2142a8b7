// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// change replaces, adds or deletes one or more rules.
func (s *natSite) change() {
	for range 1 + s.Random.IntN(3) {
		name := datapath.NATName([]string{"a", "b", "c", "d"}[s.Random.IntN(4)])
		if s.Random.IntN(4) == 0 {
			delete(s.desired.Rules, name)
		} else {
			s.desired.Rules[name] = s.rule()
		}
	}
	if s.Random.IntN(12) == 0 {
		clear(s.desired.Rules)
	}
}

func (s *natSite) rule() datapath.NAT {
	r := s.Random
	net := func() netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(r.IntN(4)), 0}), 24)
	}
	v := datapath.NAT{Type: datapath.SNAT, Priority: int32(r.IntN(3)), Addresses: []netip.Prefix{net()}}
	switch r.IntN(4) {
	case 0:
		v.Type, v.Match.Destination = datapath.DNAT, []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32")}
		if r.IntN(2) == 0 {
			v.Ports = []datapath.PortRange{{First: 80, Last: 80}}
		}
	case 1:
		v.Type, v.Addresses, v.Match.Out = datapath.Masquerade, nil, []string{"out0"}
		v.BlockSize = uint16(r.IntN(2)) * 128
	case 2:
		v.OneToOne, v.Match.Source = true, []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(3)), 0}), 24)}
	}
	return v
}

// wantDesired applies the desired rules without faults, and compares the tables with what a first
// run writes.
func (s *natSite) wantDesired(seed uint64) {
	s.t.Helper()
	if s.Rate, s.imageRate = 0, 0; s.Killed {
		s.restart()
	}
	s.reconcile()
	for _, set := range natSets {
		for slot := range s.images.meant[set] {
			if found := s.byID(uint16(slot >> 2)); found != slot {
				s.t.Errorf("seed %d: slot %d is in force, and a look-up by id finds %d", seed, slot, found)
			}
		}
	}
	if err := s.Maintain(); err != nil {
		s.t.Fatal(err)
	}
	fresh := newNATSite(s.t, seed)
	fresh.desired = s.desired
	fresh.reconcile()
	have, want := s.meaning(), fresh.meaning()
	for what, w := range want {
		if have[what] != w {
			s.t.Errorf("seed %d: %s:\nhave %s\nwant %s", seed, what, have[what], w)
		}
	}
	if len(s.desired.Rules) > 0 {
		if ok, err := s.Verify(s.t.Context(), datapath.NodeSet); !ok || err != nil {
			s.t.Errorf("seed %d: does not verify: %v", seed, err)
		}
	}
	before := s.images.image
	s.restart()
	s.reconcile()
	if s.images.image != before {
		s.t.Errorf("seed %d: a restart without changes published other images", seed)
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// interfere deletes an entry of the tables, or an image, as another program could.
func (s *natSite) interfere() {
	s.t.Helper()
	s.foreign = true
	defer func() { s.foreign = false }()
	var rules, pool []uint32
	_ = s.all.NatRule.Batches(func(k []uint32, _ []kernel.NatRule) error { rules = append(rules, k...); return nil }) // cannot fail in memory
	_ = s.all.NatPool.Batches(func(k []uint32, _ []kernel.NatPrefix) error { pool = append(pool, k...); return nil }) // likewise
	pairs := slices.Collect(maps.Keys(s.pairs()))
	set := natSets[s.Random.IntN(2)]
	var err error
	switch r := s.Random; {
	case r.IntN(4) == 0 && s.images.image[set] != nil:
		s.images.image[set], s.images.meant[set] = nil, nil
	case r.IntN(2) == 0 && len(pairs) > 0:
		err = s.all.NatPair.Delete(pairs[r.IntN(len(pairs))])
	case r.IntN(2) == 0 && len(pool) > 0:
		err = s.all.NatPool.Delete(pool[r.IntN(len(pool))])
	case len(rules) > 0:
		err = s.all.NatRule.Delete(rules[r.IntN(len(rules))])
	default:
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if ok, err := s.Verify(s.t.Context(), datapath.NodeSet); ok || err != nil {
		s.t.Errorf("the check misses what another program deleted: %v", err)
	}
	s.reconcile()
}

// TestNATsUnderFaults: whichever change to a table fails, whichever image cannot be published, and
// whenever the daemon is killed, a packet finds the complete translation of each rule in force, as
// it was when its image was published; after the retries the tables are equivalent to what a first
// run with the desired rules would write, and no entry is left behind.
func TestNATsUnderFaults(t *testing.T) {
	const rounds, changes = 10, 20
	failures := 0
	for round := range rounds {
		seed := rand.Uint64()
		s := newNATSite(t, seed)
		stubborn := float64(round%2) * 0.5 // publishing fails many times in a row
		for range changes {
			s.change()
			s.Rate = []float64{0, 0.02, 0.1, 0.3}[s.Random.IntN(4)]
			s.imageRate = max(s.Rate, stubborn)
			for range 1 + s.Random.IntN(3) {
				s.reconcile()
				if s.Random.IntN(4) == 0 && s.Rate > 0 {
					_ = s.Maintain() // may fail
				}
			}
			if s.Killed || s.Random.IntN(6) == 0 {
				s.restart()
			}
			if s.broken != "" {
				t.Fatalf("seed %d: %s", seed, s.broken)
			}
			if s.Random.IntN(3+4*(round%2)) == 0 {
				s.wantDesired(seed)
				s.interfere()
				s.wantDesired(seed)
			}
		}
		s.wantDesired(seed)
		if failures += s.Failures; s.Failures == 0 {
			t.Errorf("seed %d: nothing failed", seed)
		}
	}
	t.Logf("%d failures", failures)
}
