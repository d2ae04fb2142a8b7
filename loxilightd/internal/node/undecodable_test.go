// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// allow makes a rule that allows packets from the given groups.
func allow(name string, priority int32, from ...datapath.GroupName) *state.Object {
	v := *rule(name, priority, from...).Value.(*state.FirewallRule)
	v.Action = datapath.ActionAllow
	return objectOf(state.KindFirewallRule, name, &v)
}

// left puts rules in force that an earlier run left.
func left(t *testing.T, plane *backends.FakePlane, names ...datapath.RuleName) {
	t.Helper()
	set := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{}}
	for _, name := range names {
		set.Rules[name] = datapath.FirewallRule{Action: datapath.ActionDeny}
	}
	if err := plane.Firewall().Update(t.Context(), datapath.NodeSet, set); err != nil {
		t.Fatal(err)
	}
}

func rulesInForce(plane *backends.FakePlane) []datapath.RuleName {
	f, _, _, _ := plane.Rules()
	return slices.Sorted(maps.Keys(f.Rules))
}

// wantState waits until an object has a state and a message that contains the words.
func wantState(t *testing.T, n *Node, o *state.Object, want reconcile.State, words ...string) {
	t.Helper()
	var s Status
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		s, _ = n.Status(o.Key)
		if s.State == want && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s.Message, w) }) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%s: %+v, want %s with %q", o.Key, s, want, words)
}

// TestUndecodableRuleStaysInForce: after a downgrade, the rules in force are kept as long as one of
// them cannot be decoded. Changes are Pending, and name the object.
func TestUndecodableRuleStaysInForce(t *testing.T) {
	x := rule("x", 1)
	store, plane := undecodableStore(t, x), backends.NewFake(backends.FakeOptions{})
	attach(t, store)
	a, b := rule("a", 2), rule("b", 3)
	commit(t, store, []*state.Object{a, nat("out")})
	left(t, plane, "a", "x")
	n := start(t, Options{Store: store, Plane: plane})
	waitFor(t, n, store.Snapshot().Revision, a, nat("out"))
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	stays := func(what string) {
		t.Helper()
		if got := rulesInForce(plane); !slices.Equal(got, []datapath.RuleName{"a", "x"}) {
			t.Errorf("%s: in force are %q, want a and x", what, got)
		}
	}
	stays("after the start")

	commit(t, store, []*state.Object{b, rule("a", 7)})
	words := []string{"cannot decode FirewallRule/x", "llcli firewallrule delete x", "install a version that can decode it"}
	wantState(t, n, b, reconcile.Pending, words...)
	wantState(t, n, a, reconcile.Pending, words...)
	revision := commit(t, store, nil, a.Key)
	if left, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{a.Key}); err == nil {
		t.Errorf("a rule that stays in force counts as deleted: %v", left)
	}
	if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0], words[0]) {
		t.Errorf("problems %q", p)
	}
	n.SetExempt([]datapath.Match{{In: []string{"eth7"}}})
	stays("after changes")

	waitFor(t, n, commit(t, store, nil, x.Key), b, a)
	if got := rulesInForce(plane); !slices.Equal(got, []datapath.RuleName{"b"}) {
		t.Errorf("in force are %q, want b", got)
	}
	if p := n.Problems(); len(p) != 0 {
		t.Errorf("problems %q, want none", p)
	}
}

// TestUndecodableRuleAfterABoot: if no rules are left in force, a rule that denies all packets
// stands in for a rule that cannot be decoded. Other rules can be changed.
func TestUndecodableRuleAfterABoot(t *testing.T) {
	x := rule("x", 5)
	store, plane := undecodableStore(t, x), backends.NewFake(backends.FakeOptions{})
	attach(t, store)
	a := rule("a", 1)
	t.Run("boot", func(t *testing.T) { // then this node has ended
		n := start(t, Options{Store: store, Plane: plane})
		eventually(t, func() bool { return slices.Equal(rulesInForce(plane), []datapath.RuleName{"?x"}) })
		f, _, _, _ := plane.Rules()
		if r := f.Rules["?x"]; r.Action != datapath.ActionDeny || r.Hooks != datapath.HookAll || r.Priority != 5 {
			t.Errorf("in place of x there is %+v", r)
		}
		waitFor(t, n, commit(t, store, []*state.Object{a}), a)
		if got := rulesInForce(plane); !slices.Equal(got, []datapath.RuleName{"?x", "a"}) {
			t.Errorf("in force are %q", got)
		}
		if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0], "cannot decode FirewallRule/x") || !strings.Contains(p[0], "denies all packets") {
			t.Errorf("problems %q", p)
		}
	})
	t.Run("restart", func(t *testing.T) {
		n := start(t, Options{Store: store, Plane: plane})
		b := rule("b", 1)
		waitFor(t, n, commit(t, store, []*state.Object{b}), a, b)
		if got := rulesInForce(plane); !slices.Equal(got, []datapath.RuleName{"?x", "a", "b"}) {
			t.Errorf("in force are %q", got)
		}
	})
}

// TestStandIns: the rule in place of a rule that cannot be decoded has its priority if that can be
// decoded, and none is needed for a rule that allows packets.
func TestStandIns(t *testing.T) {
	for _, tt := range []struct {
		spec     string
		priority int32
		denies   bool
	}{
		{`{"action":"deny","priority":7,"future":true}`, 7, true},
		{`{"action":"reject"}`, state.DefaultPriority, true},
		{`{"action":"sometimes","priority":-3}`, -3, true},
		{`{"action":"deny","priority":"low"}`, math.MinInt32, true},
		{`{"priority":8}`, 8, true},
		{`["deny"]`, math.MinInt32, true},
		{`{"action":"allow","priority":7,"future":true}`, 7, false},
	} {
		r, denies := standInFor(tt.spec)
		if r.Priority != tt.priority || denies != tt.denies || r.Action != datapath.ActionDeny || r.Hooks != datapath.HookAll {
			t.Errorf("%s: %t, %+v; want %t with priority %d", tt.spec, denies, r, tt.denies, tt.priority)
		}
	}
}

// TestUndecodableGroup: rules that refer to a group that cannot be decoded stay in force. After a
// boot, a rule that denies packets denies more, and a rule that allows packets allows none.
func TestUndecodableGroup(t *testing.T) {
	for _, isLeft := range []bool{true, false} {
		g := group("g", "10.1.0.0/16")
		store, plane := undecodableStore(t, g), backends.NewFake(backends.FakeOptions{})
		attach(t, store)
		denies, allows, own := rule("denies", 3, "g"), allow("allows", 4, "g"), rule("own", 9)
		commit(t, store, []*state.Object{denies, allows, own})
		if isLeft {
			left(t, plane, "allows", "denies", "own")
		}
		n := start(t, Options{Store: store, Plane: plane})
		waitFor(t, n, store.Snapshot().Revision, own)
		if isLeft {
			wantState(t, n, denies, reconcile.Done)
			commit(t, store, []*state.Object{rule("more", 1)})
			wantState(t, n, rule("more", 1), reconcile.Pending, "cannot decode AddressGroup/g", "llcli addressgroup delete g")
			if got := rulesInForce(plane); !slices.Equal(got, []datapath.RuleName{"allows", "denies", "own"}) {
				t.Errorf("in force are %q", got)
			}
		} else {
			if got := rulesInForce(plane); !slices.Equal(got, []datapath.RuleName{"?denies", "own"}) {
				t.Errorf("in force are %q", got)
			}
			f, _, _, _ := plane.Rules()
			if r := f.Rules["?denies"]; r.Priority != 3 || r.Action != datapath.ActionDeny || len(r.Match.SourceGroups) > 0 {
				t.Errorf("in place of the rule there is %+v", r)
			}
			wantState(t, n, denies, reconcile.Pending, "denies all packets", "cannot decode AddressGroup/g")
			wantState(t, n, allows, reconcile.Pending, "not in force", "cannot decode AddressGroup/g")
		}
		waitFor(t, n, commit(t, store, []*state.Object{g}), denies, allows, own)
	}
}

// TestUndecodableNAT: NAT rules that cannot be decoded, or that belong to such a PodNetwork, stay
// in force. After a boot, the other rules are in force.
func TestUndecodableNAT(t *testing.T) {
	for name, of := range map[datapath.NATName]*state.Object{
		"x": nat("x"), "PodNetwork/one#ipv4": masqueraded("one", "10.7.1.0/24"), "": nat("x"),
	} {
		store, plane := undecodableStore(t, of), backends.NewFake(backends.FakeOptions{})
		attach(t, store)
		if name != "" {
			set := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{name: {Type: datapath.Masquerade}}}
			if err := plane.NAT().Update(t.Context(), datapath.NodeSet, set); err != nil {
				t.Fatal(err)
			}
		}
		n := start(t, Options{Store: store, Plane: plane})
		own := nat("own")
		revision := commit(t, store, []*state.Object{own})
		if name == "" {
			waitFor(t, n, revision, own)
		} else {
			wantState(t, n, own, reconcile.Pending, "cannot decode "+of.Key.String())
			if _, _, set, _ := plane.Rules(); len(set.Rules) != 1 {
				t.Errorf("%s: in force are %v", name, set.Rules)
			}
		}
		if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0], "cannot decode "+of.Key.String()) {
			t.Errorf("%s: problems %q", name, p)
		}
		waitFor(t, n, commit(t, store, nil, of.Key), own)
	}
}
