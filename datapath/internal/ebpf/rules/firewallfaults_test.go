// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// fakeRuleImages holds the image of the firewall in memory; publishing it fails at random.
type fakeRuleImages struct {
	site    *firewallSite
	image   *classify.Image
	pending bool
	own     *classify.Image
}

func (m *fakeRuleImages) Publish(_ kernel.RuleSet, image *classify.Image) (changed bool, err error) {
	if m.site.Fails() {
		return false, unix.ENOMEM
	}
	if same := (m.image == nil) == (image == nil) && (image == nil || slices.Equal(m.image.Bytes(), image.Bytes())); !same {
		m.image, m.pending = image, true
		m.site.unseen = true // connections that the old rules allowed await another evaluation
		m.site.counts()
	}
	m.own = m.image
	if m.site.Fails() {
		return true, unix.EIO
	}
	return m.pending, nil
}

func (m *fakeRuleImages) Settle(kernel.RuleSet) error {
	if m.site.Fails() {
		return unix.EIO
	}
	m.pending = false
	return nil
}

func (m *fakeRuleImages) IsEmpty(kernel.RuleSet) (bool, error) { return m.image == nil, nil }
func (m *fakeRuleImages) Verify(kernel.RuleSet) (bool, error) {
	return m.image != nil && m.image == m.own, nil
}

// firewallSite has a firewall with in-memory tables, changes to which fail at random.
type firewallSite struct {
	*Firewall
	testtables.Failing
	t       *testing.T
	all     *kernel.Tables
	images  *fakeRuleImages
	unseen  bool // the epoch has not been raised since the rules changed
	desired datapath.FirewallSet
	broken  string
	hits    map[datapath.RuleName]uint64 // minimum count of each rule since it was created
}

// counts checks that each rule in force has a name and counters.
func (s *firewallSite) counts() {
	if s.images.image == nil || s.broken != "" {
		return
	}
	for _, r := range s.images.image.Rules() {
		var name kernel.RuleName
		var hits []kernel.RuleHits
		named, err := s.all.RuleName.Find(r.ID, &name)
		counted, err2 := s.all.RuleHits.Find(r.ID, &hits)
		if !named || !counted || err != nil || err2 != nil {
			s.broken = fmt.Sprintf("rule %d is in force: has a name %t %v, counters %t %v", r.ID, named, err, counted, err2)
		}
	}
}

func newFirewallSite(t *testing.T, seed uint64) *firewallSite {
	s := &firewallSite{
		t: t, Failing: testtables.Failing{Random: rand.New(rand.NewPCG(seed, 7))}, desired: datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{}},
		hits: map[datapath.RuleName]uint64{},
	}
	s.all, _ = testtables.New(t, testtables.Small, &testmap.Faults{Fail: func() error {
		if s.Fails() {
			return unix.EIO
		}
		return nil
	}})
	s.images = &fakeRuleImages{site: s}
	s.restart()
	return s
}

// restart replaces the firewall with a new one, which adopts the tables as a new run does.
func (s *firewallSite) restart() {
	s.t.Helper()
	rate := s.Rate
	s.Rate, s.Killed, s.images.own = 0, false, nil
	next, err := Adopt(s.all, s.images, func() error {
		if s.Fails() {
			return unix.EIO
		}
		s.unseen = false
		return nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	s.Firewall, s.Rate = next, rate
}

func (s *firewallSite) change() {
	r := s.Random
	for range 1 + r.IntN(3) {
		name := datapath.RuleName([]string{"a", "b", "c", "d", "e"}[r.IntN(5)])
		if r.IntN(3) == 0 {
			delete(s.desired.Rules, name)
			delete(s.hits, name)
			continue
		}
		s.desired.Rules[name] = datapath.FirewallRule{
			Priority: int32(r.IntN(3)), Hooks: datapath.HookAll, Action: datapath.FirewallAction(r.IntN(2)),
			Match: datapath.Match{Protocols: []datapath.Protocol{datapath.TCP}, Ports: []datapath.PortRange{{First: uint16(r.IntN(4)), Last: 9}}},
		}
	}
	if r.IntN(10) == 0 {
		clear(s.desired.Rules)
		clear(s.hits)
	}
}

func (s *firewallSite) reconcile() {
	var err error
	if len(s.desired.Rules) == 0 {
		for range s.Keys(s.t.Context()) {
			err = s.Delete(s.t.Context(), datapath.NodeSet)
		}
	} else {
		err = s.Update(s.t.Context(), datapath.NodeSet, s.desired)
	}
	if err != nil && s.Rate == 0 && !s.Killed {
		s.t.Fatal(err)
	}
}

// meaning describes names, counters and rules independently of ids.
func (s *firewallSite) meaning() string {
	var names, inForce []string
	hits := 0
	err := s.all.RuleName.Batches(func(ids []uint32, v []kernel.RuleName) error {
		for i := range v {
			names = append(names, string(v[i].Text()))
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for id := range s.lastID + 10 {
		var each []kernel.RuleHits
		if ok, err := s.all.RuleHits.Find(id, &each); err != nil {
			s.t.Fatal(err)
		} else if ok {
			hits++
		}
	}
	if s.images.image != nil {
		for _, r := range s.images.image.Rules() {
			var name kernel.RuleName
			if _, err := s.all.RuleName.Find(r.ID, &name); err != nil {
				s.t.Fatal(err)
			}
			inForce = append(inForce, fmt.Sprint(name.Text(), " ", r.Action))
		}
	}
	slices.Sort(names)
	slices.Sort(inForce)
	known := s.Rules()
	slices.Sort(known)
	return fmt.Sprintf("names %v, %d counters, known %v, in force %v", names, hits, known, inForce)
}

func (s *firewallSite) wantDesired(seed uint64) {
	s.t.Helper()
	if s.Rate = 0; s.Killed {
		s.restart()
	}
	s.reconcile()
	fresh := newFirewallSite(s.t, seed)
	fresh.desired = s.desired
	fresh.reconcile()
	if have, want := s.meaning(), fresh.meaning(); have != want {
		s.t.Errorf("seed %d:\nhave %s\nwant %s", seed, have, want)
	}
	if s.unseen {
		s.t.Errorf("seed %d: connections that earlier rules allowed were not evaluated again", seed)
	}
	for name := range s.desired.Rules {
		c, ok, err := s.Counters(name)
		if !ok || err != nil || c.Packets < s.hits[name] {
			s.t.Errorf("seed %d: rule %s counts %d packets (%t %v), want at least %d", seed, name, c.Packets, ok, err, s.hits[name])
		}
		s.hits[name]++
		each := make([]kernel.RuleHits, ebpf.MustPossibleCPU())
		each[0].PacketCount = s.hits[name]
		if err := s.all.RuleHits.Put(s.ids[name], each); err != nil {
			s.t.Fatal(err)
		}
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// TestFirewallUnderFaults: whichever change fails, and whenever the daemon is killed, each rule in
// force has a name and counters; after the retries the tables contain exactly what a first run with
// the desired rules would have written, and connections have been evaluated again since the rules
// changed.
func TestFirewallUnderFaults(t *testing.T) {
	failures := 0
	for range 15 {
		seed := rand.Uint64()
		s := newFirewallSite(t, seed)
		for range 25 {
			s.change()
			s.Rate = []float64{0, 0.02, 0.1, 0.3}[s.Random.IntN(4)]
			for range 1 + s.Random.IntN(3) {
				s.reconcile()
			}
			if s.Killed || s.Random.IntN(6) == 0 {
				s.restart()
			}
			if s.counts(); s.broken != "" {
				t.Fatalf("seed %d: %s", seed, s.broken)
			}
			if s.Random.IntN(3) == 0 {
				s.wantDesired(seed)
			}
		}
		s.wantDesired(seed)
		failures += s.Failures
	}
	if failures == 0 {
		t.Error("nothing failed")
	}
	t.Logf("%d failures", failures)
}
