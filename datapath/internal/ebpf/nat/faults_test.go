// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// fakeImages holds images in memory; publishing them fails at random.
type fakeImages struct {
	site  *natSite
	image [kernel.RuleSetRULE_SET_MAX]*classify.Image
	// translations of the slots of each image in force, as they were when it was published
	meant [kernel.RuleSetRULE_SET_MAX]map[uint32]string
	own   [kernel.RuleSetRULE_SET_MAX]*classify.Image // published by this run
}

func (m *fakeImages) PublishAll(sets []kernel.RuleSet, images []*classify.Image) error {
	if m.site.FailsAt(m.site.imageRate) {
		return unix.ENOMEM // before the first image is in force
	}
	for i, set := range sets {
		if m.site.FailsAt(m.site.imageRate) {
			return unix.EIO
		}
		if same := m.image[set] != nil && images[i] != nil && slices.Equal(m.image[set].Bytes(), images[i].Bytes()); !same {
			m.image[set], m.meant[set] = images[i], map[uint32]string{}
			if images[i] != nil {
				for _, r := range images[i].Rules() {
					slot := r.ID<<2 | uint32(r.Flags)
					m.meant[set][slot] = m.site.translation(slot)
					m.site.published[slot] = m.meant[set][slot]
				}
			}
		}
		m.own[set] = m.image[set]
		if m.site.FailsAt(m.site.imageRate) {
			return unix.EIO // the image is in force nevertheless
		}
	}
	return nil
}

func (m *fakeImages) InForce(set kernel.RuleSet) (*classify.Image, error) { return m.image[set], nil }
func (m *fakeImages) IsEmpty(set kernel.RuleSet) (bool, error)            { return m.image[set] == nil, nil }

func (m *fakeImages) Verify(set kernel.RuleSet) (bool, error) {
	return m.image[set] != nil && m.image[set] == m.own[set], nil
}

// natSite has a Table, and is its host; the Table uses in-memory maps, changes to which fail at
// random.
type natSite struct {
	*Table
	testtables.Failing
	t         *testing.T
	all       *kernel.Tables
	images    *fakeImages
	published map[uint32]string  // translations of slots when last published in an image
	announced []datapath.NATName // names of announced rules, in order
	imageRate float64            // probability that a step of publishing fails
	desired   datapath.NATSet
	uplinks   []string
	foreign   bool   // another program has changed the tables
	broken    string // first invariant that a change broke
}

func (s *natSite) DefaultPorts() ([]datapath.PortRange, error) {
	return []datapath.PortRange{{First: 61000, Last: 65535}}, nil
}
func (s *natSite) SetUplinkNames(names []string)                          { s.uplinks = names }
func (s *natSite) SoonOnLoopback()                                        {}
func (s *natSite) LocalAddrs() (map[kernel.LocalKey]bool, map[uint8]bool) { return nil, nil }

func (s *natSite) Announce(rules map[datapath.NATName]datapath.NAT, _ map[datapath.NATName]uint16) error {
	if s.Fails() {
		return unix.EIO
	}
	s.announced = slices.Sorted(maps.Keys(rules))
	return nil
}

func newNATSite(t *testing.T, seed uint64) *natSite {
	s := &natSite{
		t: t, Failing: testtables.Failing{Random: rand.New(rand.NewPCG(seed, 6))}, published: map[uint32]string{},
		desired: datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{}},
	}
	s.all, _ = testtables.New(t, testtables.Small, &testmap.Faults{
		Fail: func() error {
			if s.Fails() {
				return unix.EIO
			}
			return nil
		},
		Changed: func() {
			if s.broken == "" && !s.foreign {
				s.broken = s.wrong()
			}
		},
	})
	s.images = &fakeImages{site: s}
	s.restart()
	return s
}

// restart replaces the Table with a new one, which adopts the maps as a new run does.
func (s *natSite) restart() {
	s.t.Helper()
	s.Killed = false
	rate := s.Rate
	s.Rate = 0
	s.images.own = [kernel.RuleSetRULE_SET_MAX]*classify.Image{}
	next, err := Adopt(s.all, s.images, s, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	s.Table, s.Rate = next, rate
}

// translation describes all entries that affect packets for a slot.
func (s *natSite) translation(slot uint32) string {
	var r kernel.NatRule
	if ok, err := s.all.NatRule.Find(slot, &r); !ok || err != nil {
		return fmt.Sprintf("no rule %v", err)
	}
	var b strings.Builder
	for f, first := range r.PoolFirst {
		for i := range r.PoolCount[f] {
			var p kernel.NatPrefix
			if ok, err := s.all.NatPool.Find(first+i, &p); !ok || err != nil {
				return fmt.Sprintf("no pool entry %v", err)
			}
			fmt.Fprint(&b, p, " ")
		}
	}
	var pairs []string
	for key, value := range s.pairs() {
		if key.Slot == slot {
			pairs = append(pairs, fmt.Sprint(key.PrefixLen, key.Addr, value))
		}
	}
	slices.Sort(pairs)
	r.Id, r.PoolFirst, r.Flags = 0, [2]uint32{}, r.Flags&^kernel.NATReplaced
	return fmt.Sprint(r, b.String(), pairs)
}

func (s *natSite) pairs() map[kernel.NatPairKey]kernel.NatPrefix {
	all := map[kernel.NatPairKey]kernel.NatPrefix{}
	var key kernel.NatPairKey
	var value kernel.NatPrefix
	for it := s.all.NatPair.Iterate(); it.Next(&key, &value); {
		all[key] = value
	}
	return all
}

// wrong describes an error that a packet arriving now would encounter: a rule of an image in force
// that is incomplete, or has changed since the image was published; or a rule that lookups by id
// find although it was never in force. Empty: none.
func (s *natSite) wrong() string {
	for _, set := range natSets {
		for slot, meant := range s.images.meant[set] {
			if now := s.translation(slot); now != meant || strings.HasPrefix(now, "no ") {
				return fmt.Sprintf("slot %d of set %d is %q, published as %q", slot, set, now, meant)
			}
		}
	}
	for id := range s.names {
		if slot := s.byID(id); slot != 0 && s.translation(slot) != s.published[slot] {
			return fmt.Sprintf("a look-up of %d finds slot %d, which is %q and was published as %q", id, slot, s.translation(slot), s.published[slot])
		}
	}
	return ""
}

// byID returns the slot that the programs find by an id, as translate_slot does; 0: none.
func (s *natSite) byID(id uint16) uint32 {
	for slot := uint32(id) << 2; slot < uint32(id)<<2+Variants; slot++ {
		var r kernel.NatRule
		if ok, err := s.all.NatRule.Find(slot, &r); err == nil && ok && r.Flags&kernel.NATReplaced == 0 {
			return slot
		}
	}
	return 0
}

// reconcile applies the desired rules once.
func (s *natSite) reconcile() {
	var err error
	if len(s.desired.Rules) == 0 {
		for range s.Keys(s.t.Context()) {
			err = s.Delete(s.t.Context(), datapath.NodeSet)
		}
	} else {
		err = s.Update(s.t.Context(), datapath.NodeSet, s.desired)
	}
	if err != nil && s.Rate+s.imageRate == 0 && !s.Killed {
		s.t.Fatal(err)
	}
}

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

// meaning describes the tables independently of ids, slots and indexes.
func (s *natSite) meaning() map[string]string {
	m := map[string]string{}
	count := map[string]int{}
	for _, set := range natSets {
		var rules []string
		if s.images.image[set] != nil {
			for _, r := range s.images.image[set].Rules() {
				slot := r.ID<<2 | uint32(r.Flags)
				rules = append(rules, fmt.Sprint(s.names[uint16(r.ID)], s.translation(slot), " found by id ", s.byID(uint16(r.ID)) == slot))
			}
		}
		slices.Sort(rules)
		m[fmt.Sprint("set ", set)] = strings.Join(rules, "\n")
	}
	must := func(err error) {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	must(s.all.NatRule.Batches(func(k []uint32, _ []kernel.NatRule) error { count["rules"] += len(k); return nil }))
	must(s.all.NatPool.Batches(func(k []uint32, _ []kernel.NatPrefix) error { count["pool"] += len(k); return nil }))
	names := []string{}
	must(s.all.NatName.Batches(func(ids []uint32, v []kernel.NatName) error {
		for i := range v {
			var each []kernel.NatStats
			has, err := s.all.NatStats.Find(ids[i], &each)
			names = append(names, fmt.Sprint(v[i].Text(), " with counters: ", has, err))
		}
		return nil
	}))
	slices.Sort(names)
	count["pairs"] = len(s.pairs())
	m["entries"], m["names"], m["uplinks"] = fmt.Sprint(count), fmt.Sprint(names), fmt.Sprint(s.uplinks)
	m["announced"] = fmt.Sprint(s.announced)
	m["known"] = fmt.Sprint(slices.Sorted(slices.Values(s.Rules())))
	return m
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
