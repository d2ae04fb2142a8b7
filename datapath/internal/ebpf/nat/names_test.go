// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// pools returns count rules, each with a pool of one address, whose names begin with prefix.
func pools(prefix string, count int) map[datapath.NATName]datapath.NAT {
	all := make(map[datapath.NATName]datapath.NAT)
	for i := range count {
		a := netip.AddrFrom4([4]byte{203, 0, byte(i / 256), byte(i)})
		all[datapath.NATName(fmt.Sprint(prefix, i))] = datapath.NAT{Addresses: []netip.Prefix{netip.PrefixFrom(a, 32)}}
	}
	return all
}

// set makes rules the desired ones, and applies them without faults.
func (s *natSite) set(rules map[datapath.NATName]datapath.NAT) {
	s.t.Helper()
	s.desired.Rules = rules
	s.reconcile()
	if err := s.Maintain(); err != nil {
		s.t.Fatal(err)
	}
}

// TestIDs: a rule keeps its id, across restarts too. An id is reused only after all others, and
// never while a rule has it.
func TestIDs(t *testing.T) {
	s := newNATSite(t, 1)
	rules := pools("keep", 2)
	s.set(rules)
	kept := maps.Clone(s.ids)
	seen := map[uint16]bool{}
	for i := range 10 {
		rules[datapath.NATName(fmt.Sprint("other", i))] = datapath.NAT{Type: datapath.Masquerade}
		s.set(rules)
		if i%3 == 0 {
			s.restart()
			s.set(rules)
		}
		id := s.ids[datapath.NATName(fmt.Sprint("other", i))]
		if seen[id] || id == 0 {
			t.Errorf("rule %d has id %d, which another rule had", i, id)
		}
		seen[id] = true
		delete(rules, datapath.NATName(fmt.Sprint("other", i)))
		if i%3 != 1 { // otherwise it is replaced by the next one in one step
			s.set(rules)
		}
	}
	s.lastID = 65533
	rules = maps.Clone(rules)
	maps.Copy(rules, pools("late", 6))
	s.set(rules)
	for name, id := range kept {
		if s.ids[name] != id || s.Name(id) != name {
			t.Errorf("rule %s has id %d, want %d", name, s.ids[name], id)
		}
	}
	got := slices.Sorted(maps.Values(s.ids))
	if want := []uint16{1, 2, 3, 4, 5, 6, 65534, 65535}; !slices.Equal(got, want) {
		t.Errorf("ids %v, want %v", got, want)
	}
}

// TestNoIDs: if every id is in use, a new rule is refused, and the rules in force stay.
func TestNoIDs(t *testing.T) {
	s := newNATSite(t, 1)
	s.set(pools("a", 1))
	for id := range uint16(65535) {
		if s.names[id+1] == "" {
			s.names[id+1] = "another"
		}
	}
	s.foreign = true // the names are not in a table
	s.wantRefused(pools("b", 1), "b0", datapath.ErrCapacity, "65535 NAT objects")
}

// wantRefused applies rules that cannot take effect, and checks the rule that the error names. The
// rules in force stay, and the tables contain nothing else afterwards.
func (s *natSite) wantRefused(rules map[datapath.NATName]datapath.NAT, name string, want error, text string) {
	s.t.Helper()
	before, held := s.meaning(), s.desired.Rules
	s.desired.Rules = rules
	var which *datapath.RuleError
	err := s.apply()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), text) || !errors.As(err, &which) || name != "" && which.Rule != name {
		s.t.Errorf("error %v, want one about rule %q: %v: %s", err, name, want, text)
	}
	after := s.meaning()
	for _, set := range natSets {
		if key := fmt.Sprint("set ", set); after[key] != before[key] {
			s.t.Errorf("in force is %s, want %s", after[key], before[key])
		}
	}
	if s.broken != "" {
		s.t.Error(s.broken)
	}
	s.desired.Rules = held
	s.reconcile()
	if err := s.Maintain(); err != nil {
		s.t.Fatal(err)
	}
	if after := s.meaning(); !maps.Equal(after, before) {
		s.t.Errorf("after the old rules again: %v, want %v", after, before)
	}
}

// TestLongNames: a name has at most 255 bytes.
func TestLongNames(t *testing.T) {
	s := newNATSite(t, 1)
	long := strings.Repeat("n", 255)
	s.set(pools(long[1:], 1))
	s.restart()
	if rules := s.Rules(); !slices.Equal(rules, []string{long[1:] + "0"}) {
		t.Errorf("rules %v after a restart", rules)
	}
	s.wantRefused(pools(long, 1), long+"0", datapath.ErrUnsupported, "name longer than 255 bytes")
}

// TestFullTables: a set that does not fit is refused with the setting to be raised, and the rules
// in force stay.
func TestFullTables(t *testing.T) {
	s := newNATSite(t, 1)
	s.set(pools("a", 3))
	s.wantRefused(pools("many", int(s.all.NatName.MaxEntries())+1), "", datapath.ErrCapacity, "raise tables.rules in the configuration")
	wide := map[datapath.NATName]datapath.NAT{}
	for i := range 3 {
		v := datapath.NAT{}
		for j := range 400 {
			v.Addresses = append(v.Addresses, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i), byte(j / 128), byte(j%128) * 2}), 32))
		}
		wide[datapath.NATName(fmt.Sprint("wide", i))] = v
	}
	s.wantRefused(wide, "", datapath.ErrCapacity, "raise tables.prefixes in the configuration")
	pairs := datapath.NAT{OneToOne: true}
	for i := range int(s.all.NatPair.MaxEntries()) + 1 {
		pairs.Match.Source = append(pairs.Match.Source, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)}), 32))
		pairs.Addresses = append(pairs.Addresses, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i / 256), byte(i)}), 32))
	}
	s.foreign = true // checking each of a thousand changes takes too long
	s.wantRefused(map[datapath.NATName]datapath.NAT{"pairs": pairs}, "pairs", datapath.ErrCapacity, "raise tables.prefixes in the configuration")
}

// TestAllReplaced: a node with as many rules as it may have can replace all of them at once: names
// and counters of the old and the new rules exist together for a moment.
func TestAllReplaced(t *testing.T) {
	s := newNATSite(t, 1)
	count := int(testSizes.MaxNATs())
	for i := range 3 {
		s.set(pools(fmt.Sprint("round", i, "-"), count))
		if len(s.Rules()) != count {
			t.Errorf("round %d: %d rules, want %d", i, len(s.Rules()), count)
		}
	}
}

// TestTwoIDsOfOneName: an earlier run was killed while it replaced a rule with another of the same
// name. The id of the rule in force stays, whichever of the two is read first.
func TestTwoIDsOfOneName(t *testing.T) {
	for _, other := range []uint32{1, 40000} {
		s := newNATSite(t, 1)
		s.lastID = 99
		rules := pools("a", 1)
		s.set(rules)
		s.foreign = true
		var name kernel.NatName
		name.Name[0], name.Name[1] = 'a', '0'
		// Both orders of the entries, as the kernel's hash table has no order.
		if err := errors.Join(s.all.NatName.Delete(100), s.all.NatName.Put(other, name), s.all.NatName.Put(100, name)); err != nil {
			t.Fatal(err)
		}
		if other == 40000 {
			if err := errors.Join(s.all.NatName.Delete(other), s.all.NatName.Put(other, name)); err != nil {
				t.Fatal(err)
			}
		}
		s.foreign = false
		s.restart()
		if s.ids["a0"] != 100 {
			t.Errorf("the rule has id %d, want 100", s.ids["a0"])
		}
		s.set(rules)
		if ok, err := s.all.NatName.Find(other, &name); ok || err != nil || s.Name(uint16(other)) != "" {
			t.Errorf("the id %d still has a name: %v", other, err)
		}
	}
}

// TestNoDefaultPorts: without ports for rules that name none, the set does not take effect.
func TestNoDefaultPorts(t *testing.T) {
	s := newNATSite(t, 1)
	s.set(pools("a", 1))
	before := s.meaning()
	s.noPorts = unix.ENOENT
	s.desired.Rules = pools("b", 2)
	if err := s.apply(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %v", err)
	}
	s.desired.Rules = pools("a", 1)
	s.noPorts = nil
	s.reconcile()
	if after := s.meaning(); !maps.Equal(after, before) {
		t.Errorf("in force is %v, want %v", after, before)
	}
}

// TestRefusedRules: an error names each rule that cannot be translated into entries.
func TestRefusedRules(t *testing.T) {
	s := newNATSite(t, 1)
	rules := pools("a", 1)
	for _, name := range []datapath.NATName{"x", "y"} {
		rules[name] = datapath.NAT{OneToOne: true, Addresses: prefixes("203.0.113.0/24")}
	}
	s.desired.Rules = rules
	err := s.apply()
	for _, name := range []string{"x", "y"} {
		if err == nil || !strings.Contains(err.Error(), name+": addresses: 1 prefixes, want 0 as in the match") {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
	if count := s.meaning()["entries"]; count != "map[counters:3 pairs:0 pool:0 rules:0]" {
		t.Errorf("%s entries were written", count)
	}
}
