// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// farAway is a grace period that no test waits for.
func farAway() time.Time { return time.Now().Add(time.Hour) }

// TestLostRulesConfiguredAgain: the rule set stays frozen until each rule in force is configured
// again. Until then, the message names a missing rule.
func TestLostRulesConfiguredAgain(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	attach(t, store)
	old := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"a": {}, "b": {}}}
	if err := plane.Firewall().Update(t.Context(), datapath.NodeSet, old); err != nil {
		t.Fatal(err)
	}
	n := start(t, Options{Store: store, Plane: plane, PruneNotBefore: farAway()})
	revision := commit(t, store, []*state.Object{rule("a", 1), rule("c", 1)})
	if left, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{rule("a", 1).Key}); err == nil {
		t.Errorf("waited with %v, left %v: want it to wait for b", err, left)
	}
	eventually(t, func() bool {
		some, _ := n.NotDone(5)
		return strings.Contains(some[rule("c", 1).Key].Message, "FirewallRule/b")
	})
	if f, _, _, _ := plane.Rules(); len(f.Rules) != 2 {
		t.Errorf("in force are %d rules, want the two from before", len(f.Rules))
	}
	waitFor(t, n, commit(t, store, []*state.Object{rule("b", 1)}), rule("a", 1), rule("b", 1), rule("c", 1))
	if f, _, _, _ := plane.Rules(); len(f.Rules) != 3 {
		t.Errorf("in force are %d rules, want the three that are wanted", len(f.Rules))
	}
}

// lostRig is a node with a pod network. The desired state was lost while the NAT rules with the
// given names are in force.
func lostRig(t *testing.T, names ...datapath.NATName) (*Node, *state.Store, *backends.FakePlane) {
	store := openStore(t)
	plane := backends.NewFake(backends.FakeOptions{Device: func(datapath.Port) (datapath.PortState, bool) {
		return datapath.PortState{Index: 7, MTU: 1500}, true
	}})
	old := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{}}
	for _, name := range names {
		old.Rules[name] = datapath.NAT{Type: datapath.Masquerade}
	}
	if err := plane.NAT().Update(t.Context(), datapath.NodeSet, old); err != nil {
		t.Fatal(err)
	}
	return start(t, Options{
		Store: store, Plane: plane, Network: backends.NewFakeNetwork(backends.FakeOptions{}), PruneNotBefore: farAway(),
		Devices: Devices{Host: "loxi_host", Switch: "hs_host"},
	}), store, plane
}

// TestLostPodNetwork: pods can be attached again once their network is configured again, because
// the old rules still masquerade for them.
func TestLostPodNetwork(t *testing.T) {
	const masquerades = "PodNetwork/one#ipv4"
	one := masqueraded("one", "10.7.1.0/24")
	t.Run("alone", func(t *testing.T) {
		n, store, plane := lostRig(t, masquerades)
		waitFor(t, n, commit(t, store, []*state.Object{uplink("eth0"), one}), one)
		if _, _, set, _ := plane.Rules(); len(set.Rules[masquerades].Match.Out) != 1 {
			t.Errorf("in force is %+v, want the desired rules", set.Rules)
		}
	})
	t.Run("beside a rule that is not configured again", func(t *testing.T) {
		n, store, plane := lostRig(t, masquerades, "out")
		waitFor(t, n, commit(t, store, []*state.Object{uplink("eth0"), one}), one)
		if _, _, set, _ := plane.Rules(); len(set.Rules) != 2 || len(set.Rules[masquerades].Match.Out) != 0 {
			t.Errorf("in force is %+v, want both rules from before", set.Rules)
		}
		waitFor(t, n, commit(t, store, []*state.Object{nat("out")}), one, nat("out"))
		if _, _, set, _ := plane.Rules(); len(set.Rules) != 2 || len(set.Rules[masquerades].Match.Out) != 1 {
			t.Errorf("in force is %+v, want the desired rules", set.Rules)
		}
	})
	t.Run("not masqueraded before", func(t *testing.T) {
		n, store, _ := lostRig(t, "out")
		revision := commit(t, store, []*state.Object{uplink("eth0"), one})
		if _, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{one.Key}); err == nil {
			t.Error("it is Ready though its pods are not masqueraded")
		}
		s, ok := n.Status(one.Key)
		if !ok || s.State != reconcile.Pending || !strings.Contains(s.Message, "NAT/out") || strings.Contains(s.Message, "not applied yet") {
			t.Errorf("status %+v, want Pending, and that it waits for NAT/out", s)
		}
	})
}

// TestLostGroups: groups that select Endpoints by labels may be incomplete until their Endpoints
// are configured again, and it is impossible to detect when that is the case.
func TestLostGroups(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	old := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"a": {}}}
	if err := plane.Firewall().Update(t.Context(), datapath.NodeSet, old); err != nil {
		t.Fatal(err)
	}
	n := start(t, Options{Store: store, Plane: plane, PruneNotBefore: farAway()})
	g := group("g", "10.1.0.0/16")
	g.Value.(*state.AddressGroup).Labels = []map[string]string{{"role": "web"}}
	g = objectOf(state.KindAddressGroup, "g", g.Value)
	revision := commit(t, store, []*state.Object{g, rule("a", 1, "g")})
	if _, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{rule("a", 1).Key}); err == nil {
		t.Error("old rules were replaced while it is unknown which Endpoints exist")
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		s, ok := n.Status(rule("a", 1).Key)
		if ok && strings.Contains(s.Message, "labels") {
			return
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("status %+v, want that it speaks of labels", s)
		}
	}
}
