// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func objectOf(kind, name string, v state.Value) *state.Object {
	spec, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &state.Object{Key: state.Key{Kind: kind, Name: name}, Owner: "cli", Spec: string(spec), Value: v}
}

// rule makes a rule that denies packets from the given groups.
func rule(name string, priority int32, from ...datapath.GroupName) *state.Object {
	return objectOf(state.KindFirewallRule, name, &state.FirewallRule{FirewallRule: datapath.FirewallRule{
		Priority: priority, Hooks: datapath.HookAll, Action: datapath.ActionDeny, Match: datapath.Match{SourceGroups: from},
	}})
}

// attach attaches one device.
func attach(t *testing.T, s *state.Store) {
	t.Helper()
	commit(t, s, []*state.Object{objectOf(state.KindInterface, "lo", &state.Interface{Port: datapath.Port{Device: "lo"}})})
}

func nat(name string) *state.Object {
	return objectOf(state.KindNAT, name, &state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade}})
}

func group(name string, prefix string, within ...datapath.GroupName) *state.Object {
	return objectOf(state.KindAddressGroup, name, &state.AddressGroup{
		AddressGroup: datapath.AddressGroup{Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}, Groups: within,
	})
}

// recorder records a node's reports about objects.
type recorder struct {
	mu   sync.Mutex
	list []string
}

func (t *recorder) record(k state.Key, s Status) {
	if k.Kind == state.KindInterface && k.Name == "lo" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, fmt.Sprint(k, " ", s.State))
}

// want waits until exactly these reports have arrived, in any order, and clears the list of
// reports.
func (t *recorder) want(tt *testing.T, want ...string) {
	tt.Helper()
	slices.Sort(want)
	deadline := time.Now().Add(20 * time.Second)
	for {
		t.mu.Lock()
		got := slices.Sorted(slices.Values(t.list))
		if slices.Equal(got, want) || time.Now().After(deadline) {
			t.list = nil
			t.mu.Unlock()
			if !slices.Equal(got, want) {
				tt.Errorf("reported %q, want %q", got, want)
			}
			return
		}
		t.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

func waitFor(t *testing.T, n *Node, revision uint64, objects ...*state.Object) {
	t.Helper()
	var keys []state.Key
	for _, o := range objects {
		keys = append(keys, o.Key)
	}
	if left, err := n.Wait(within(t, 20*time.Second), revision, keys); err != nil {
		t.Fatalf("left %v: %v", left, err)
	}
}

func TestRulesAreOneSet(t *testing.T) {
	store, plane, reports := openStore(t), backends.NewFake(backends.FakeOptions{}), &recorder{}
	attach(t, store)
	exempt := []datapath.Match{{Ports: []datapath.PortRange{{First: 22, Last: 22}}}}
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: reports.record, Exempt: exempt})
	objects := []*state.Object{
		group("inner", "10.2.0.0/16"), group("outer", "10.1.0.0/16", "inner"), group("idle", "10.3.0.0/16"),
		rule("a", 10, "outer"), rule("b", 20),
	}
	waitFor(t, n, commit(t, store, objects), objects...)
	f, there, _, translates := plane.Rules()
	want := datapath.FirewallSet{
		Rules: map[datapath.RuleName]datapath.FirewallRule{
			"a": objects[3].Value.(*state.FirewallRule).FirewallRule, "b": objects[4].Value.(*state.FirewallRule).FirewallRule,
		},
		Groups: map[datapath.GroupName]datapath.AddressGroup{
			"outer": {Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}},
		},
		Exempt: exempt,
	}
	if d := cmp.Diff(want, f, cmpopts.EquateComparable(netip.Prefix{})); d != "" || !there || translates {
		t.Errorf("firewall %v, nat %v; set (-want +got):\n%s", there, translates, d)
	}
	reports.want(t, "AddressGroup/inner done", "AddressGroup/outer done", "AddressGroup/idle done", "FirewallRule/a done", "FirewallRule/b done")

	// The exemptions change, but no object does.
	n.SetExempt([]datapath.Match{{In: []string{"eth7"}}})
	eventually(t, func() bool {
		f, _, _, _ = plane.Rules()
		return len(f.Exempt) == 1 && f.Exempt[0].In != nil
	})
	if len(f.Rules) != 2 {
		t.Errorf("and the rules are %+v", f.Rules)
	}

	// A change to a nested group that a rule uses rebuilds the set, but a change to another group
	// does not.
	waitFor(t, n, commit(t, store, []*state.Object{group("inner", "10.9.0.0/16")}), objects[0])
	if f, _, _, _ = plane.Rules(); f.Groups["outer"].Prefixes[1] != netip.MustParsePrefix("10.9.0.0/16") {
		t.Errorf("a group within a group was changed, and the set is %+v", f.Groups)
	}
	plane.Refuse("a", errors.New("no more"))
	waitFor(t, n, commit(t, store, []*state.Object{group("idle", "10.4.0.0/16")}), objects[2])
	// The reports are for the objects that changed, and for the rule whose set was not in force in
	// the meantime.
	reports.want(t, "AddressGroup/idle done", "AddressGroup/inner done", "FirewallRule/a done")

	plane.Refuse("a", nil)
	revision := commit(t, store, []*state.Object{nat("out")}, objects[3].Key, objects[4].Key)
	waitFor(t, n, revision, objects[3], nat("out"))
	if _, there, set, translates := plane.Rules(); there || !translates || len(set.Rules) != 1 {
		t.Errorf("firewall %v, nat %v with %v; want no rules of the firewall, and one of nat", there, translates, set.Rules)
	}
	reports.want(t, "FirewallRule/a removed", "FirewallRule/b removed", "NAT/out done")
}

// TestOneBadRule: rules in force stay Ready, the faulty rule has the error, and the other rules in
// the transaction name the faulty rule.
func TestOneBadRule(t *testing.T) {
	store, plane, reports := openStore(t), backends.NewFake(backends.FakeOptions{}), &recorder{}
	attach(t, store)
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: reports.record})
	waitFor(t, n, commit(t, store, []*state.Object{rule("old", 1), group("g", "10.1.0.0/16")}), rule("old", 1))
	reports.want(t, "FirewallRule/old done", "AddressGroup/g done")

	plane.Refuse("bad", errors.New("too wide"))
	fresh := []*state.Object{rule("bad", 2), rule("beside", 3, "g")}
	revision := commit(t, store, fresh)
	reports.want(t, "FirewallRule/bad failed", "FirewallRule/beside failed")
	for name, text := range map[string]string{"bad": "too wide", "beside": "FirewallRule/bad is faulty: too wide"} {
		if s, ok := n.Status(state.Key{Kind: state.KindFirewallRule, Name: name}); !ok || s.State != reconcile.Failed || !strings.Contains(s.Message, text) {
			t.Errorf("%s: %+v, want failed: …%s…", name, s, text)
		}
	}
	left, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{fresh[0].Key, fresh[1].Key, rule("old", 1).Key})
	if err == nil || len(left) != 2 {
		t.Errorf("waited with %v, left %v; want the two that are not in force", err, left)
	}
	some, count := n.NotDone(1)
	if len(some) != 1 || count != 2 {
		t.Errorf("%d not done, of which %v; want 2, of which one", count, slices.Collect(maps.Keys(some)))
	}
	if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0], "the previous rules stay in force") {
		t.Errorf("problems %q", p)
	}
	if f, _, _, _ := plane.Rules(); len(f.Rules) != 1 {
		t.Errorf("in force are %d rules, want the one from before", len(f.Rules))
	}

	plane.Refuse("bad", nil)
	waitFor(t, n, revision, fresh...)
	reports.want(t, "FirewallRule/bad done", "FirewallRule/beside done")
	if p := n.Problems(); len(p) != 0 {
		t.Errorf("problems %q, want none", p)
	}
}

// TestRulesThroughFaults changes rules while one call in three fails.
func TestRulesThroughFaults(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{Faults: 0.33, Seed: 5})
	attach(t, store)
	n := start(t, Options{Store: store, Plane: plane})
	var last []*state.Object
	for i := range 60 {
		last = append(last, rule(fmt.Sprint("r", i%20), int32(i)))
		commit(t, store, last[i:])
	}
	plane.SetFaults(0)
	waitFor(t, n, store.Snapshot().Revision, last[40:]...)
	f, _, _, _ := plane.Rules()
	for _, o := range last[40:] {
		if got := f.Rules[datapath.RuleName(o.Name)].Priority; got != o.Value.(*state.FirewallRule).Priority {
			t.Errorf("%s has priority %d in the data plane", o.Name, got)
		}
	}
}

// TestRulesAfterARestart: a set that is not desired is deleted; a set that cannot be decoded is
// kept.
func TestRulesAfterARestart(t *testing.T) {
	for _, keep := range []bool{false, true} {
		store := openStore(t)
		if keep {
			store = undecodableStore(t, rule("undecodable", 1))
		}
		plane := backends.NewFake(backends.FakeOptions{})
		set := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"undecodable": {}}}
		if err := plane.Firewall().Update(t.Context(), datapath.NodeSet, set); err != nil {
			t.Fatal(err)
		}
		n := start(t, Options{Store: store, Plane: plane})
		if err := n.Synced(within(t, 20*time.Second)); err != nil {
			t.Fatal(err)
		}
		if keep {
			if _, there, _, _ := plane.Rules(); !there {
				t.Error("rules that are not understood were removed")
			}
			continue
		}
		eventually(t, func() bool { _, there, _, _ := plane.Rules(); return !there })
	}
}

// TestLostRules: while the desired state may be incomplete, rules in force are not replaced by
// the rules configured so far.
func TestLostRules(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	attach(t, store)
	old := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"a": {}, "b": {}}}
	if err := plane.Firewall().Update(t.Context(), datapath.NodeSet, old); err != nil {
		t.Fatal(err)
	}
	n := start(t, Options{Store: store, Plane: plane, PruneNotBefore: time.Now().Add(400 * time.Millisecond)})
	revision := commit(t, store, []*state.Object{rule("a", 1), nat("out")})
	waitFor(t, n, revision, nat("out")) // previously, no NAT rules were in force
	left, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{rule("a", 1).Key})
	if time.Now().Before(n.opts.PruneNotBefore) {
		if f, _, _, _ := plane.Rules(); err == nil || len(left) != 1 || len(f.Rules) != 2 {
			t.Errorf("waited with %v, left %v; in force are %d rules, want the two from before", err, left, len(f.Rules))
		}
		if some, count := n.NotDone(5); count != 1 || !strings.Contains(some[rule("a", 1).Key].Message, "desired state was lost") {
			t.Errorf("not done: %v", some)
		}
	}
	waitFor(t, n, revision, rule("a", 1))
	if f, _, _, _ := plane.Rules(); time.Now().Before(n.opts.PruneNotBefore) || len(f.Rules) != 1 {
		t.Errorf("in force are %d rules, want one, and not before the others have had their time", len(f.Rules))
	}
}

// TestWhatIsStillInForce: a rule is not done if the change to its group is rejected; a different
// rule stays done until the rule set in force is changed externally.
func TestWhatIsStillInForce(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	attach(t, store)
	n := start(t, Options{Store: store, Plane: plane})
	objects := []*state.Object{group("g", "10.1.0.0/16"), rule("a", 1, "g"), rule("b", 2)}
	waitFor(t, n, commit(t, store, objects), objects...)
	plane.Refuse("a", errors.New("too wide"))
	commit(t, store, []*state.Object{group("g", "10.2.0.0/16")})
	states := func() string {
		text := ""
		for _, o := range objects {
			s, _ := n.Status(o.Key)
			text += fmt.Sprint(o.Name, " ", s.State, " ")
		}
		return text
	}
	eventually(t, func() bool { return states() == "g failed a failed b done " })
	plane.Refuse("a", nil)
	waitFor(t, n, store.Snapshot().Revision, objects...)
	plane.Refuse("b", errors.New("no more"))
	if err := plane.DamageFirewall(); err != nil {
		t.Fatal(err)
	}
	plane.SignalChange()
	eventually(t, func() bool { return states() == "g failed a failed b failed " })
	plane.Refuse("b", nil)
	eventually(t, func() bool { return states() == "g done a done b done " })
}

// TestRulesBeforePorts: a port is attached only once the rules in the same transaction are in
// force.
func TestRulesBeforePorts(t *testing.T) {
	for range 50 {
		store := openStore(t)
		var plane *backends.FakePlane
		plane = backends.NewFake(backends.FakeOptions{Device: func(datapath.Port) (datapath.PortState, bool) {
			if _, there, _, translates := plane.Rules(); !there || !translates {
				t.Error("a port is attached before the rules are in force")
			}
			return datapath.PortState{Index: 7}, true
		}})
		n := start(t, Options{Store: store, Plane: plane})
		port := objectOf(state.KindInterface, "eth0", &state.Interface{Port: datapath.Port{Device: "eth0"}})
		waitFor(t, n, commit(t, store, []*state.Object{port, rule("a", 1), nat("out")}), port)
	}
}
