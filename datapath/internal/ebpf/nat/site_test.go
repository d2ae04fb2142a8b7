// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
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

	interrupted bool // the last attempt to publish failed
}

func (m *fakeImages) PublishAll(sets []kernel.RuleSet, images []*classify.Image) error {
	m.interrupted = true
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
	m.interrupted = false
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
	maps      map[string]*testmap.Map // the same, by name
	images    *fakeImages
	published map[uint32]string // translations of slots when last published in an image
	targets   [1 << 16]bool
	announced []datapath.NATName // names of announced rules, in order
	imageRate float64            // probability that a step of publishing fails
	steps     int                // changes and steps of publishing so far
	failing   int                // the step that fails; 0: none
	kills     bool               // that failure simulates a crash
	hook      func()             // called before the next step; nil: none
	desired   datapath.NATSet
	uplinks   []string
	log       slog.Handler
	noPorts   error                    // of DefaultPorts
	local     map[kernel.LocalKey]bool // addresses of the devices
	netns     map[uint8]bool           // namespaces in use
	foreign   bool                     // another program has changed the tables
	broken    string                   // first invariant that a change broke
}

// FailsAt counts a step, and reports whether it fails: at the given rate, or because it is the step
// that must fail.
func (s *natSite) FailsAt(rate float64) bool {
	if hook := s.hook; hook != nil {
		s.hook = nil
		hook()
	}
	if s.steps++; s.steps == s.failing {
		s.Failures++
		s.Killed = s.kills
		return true
	}
	return s.Failing.FailsAt(rate)
}

// Fails is FailsAt with the rate of changes to tables.
func (s *natSite) Fails() bool { return s.FailsAt(s.Rate) }

// testSizes are the sizes of the tables.
var testSizes = testtables.Small

func (s *natSite) DefaultPorts() ([]datapath.PortRange, error) {
	return []datapath.PortRange{{First: 61000, Last: 65535}}, s.noPorts
}
func (s *natSite) SetUplinkNames(names []string) { s.uplinks = names }
func (s *natSite) SetTargetPorts(ports *[1 << 16]bool) error {
	if s.Fails() {
		return unix.EIO
	}
	s.targets = *ports
	return nil
}
func (s *natSite) SoonOnLoopback()                                        {}
func (s *natSite) LocalAddrs() (map[kernel.LocalKey]bool, map[uint8]bool) { return s.local, s.netns }

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
		desired: datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{}}, log: slog.DiscardHandler,
	}
	s.all, s.maps = testtables.New(t, testSizes, &testmap.Faults{
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
	rate := s.Rate
	s.Rate, s.failing = 0, 0
	if err := s.adopt(); err != nil {
		s.t.Fatal(err)
	}
	s.Rate = rate
}

// adopt is restart with changes that fail. If it fails, the Table is still the old one.
func (s *natSite) adopt() error {
	s.Killed = false
	s.images.own = [kernel.RuleSetRULE_SET_MAX]*classify.Image{}
	next, err := Adopt(s.all, s.images, s, slog.New(s.log))
	if err == nil {
		s.Table = next
	}
	return err
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

// reconcile applies the desired rules once. Without faults, that must succeed.
func (s *natSite) reconcile() {
	s.t.Helper()
	if err := s.apply(); err != nil && s.Rate+s.imageRate == 0 && !s.Killed {
		s.t.Fatal(err)
	}
}

// apply applies the desired rules once.
func (s *natSite) apply() (err error) {
	if len(s.desired.Rules) > 0 {
		return s.Update(s.t.Context(), datapath.NodeSet, s.desired)
	}
	for range s.Keys(s.t.Context()) {
		err = s.Delete(s.t.Context(), datapath.NodeSet)
	}
	return err
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
	count["pairs"], count["counters"] = len(s.pairs()), s.maps["NatStats"].Len()
	m["entries"], m["names"], m["uplinks"] = fmt.Sprint(count), fmt.Sprint(names), fmt.Sprint(s.uplinks)
	m["targets"] = fmt.Sprint(s.targets)
	m["announced"] = fmt.Sprint(s.announced)
	m["known"] = fmt.Sprint(slices.Sorted(slices.Values(s.Rules())))
	return m
}
