// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// policySite is a node with the bridge br0, to which Endpoints on the device pod belong.
type policySite struct{ *mirrorSite }

func newPolicySite(t *testing.T) *policySite {
	x := &policySite{newMirrorSite(t, Options{})}
	x.put(bridge("br", "br0"), tier("main", 1))
	return x
}

func tier(name string, order int32) *state.Object {
	return objectOf(state.KindTier, name, &state.Tier{Order: order})
}

// appliedTo returns a Policy that isolates the Entities with a label, and allows peers with it.
func appliedTo(name, key, value string) *state.Object {
	sel := policy.Selector{Set: "pods", Labels: policy.Requirements{{Key: key, Operator: policy.In, Values: []string{value}}}}
	v := &state.Policy{Policy: policy.Policy{Tier: "main", AppliedTo: []policy.Selector{sel}, Isolates: [2]bool{true, false}}}
	v.Rules[policy.Ingress] = []policy.Rule{{Action: policy.Allow, Peers: []policy.Peer{{Entities: &sel}}}}
	return objectOf(state.KindPolicy, name, v)
}

func remote(name, address string, labels map[string]string) *state.Object {
	return objectOf(state.KindEntity, name, &state.Entity{Entity: policy.Entity{
		Set: "pods", Namespace: "shop", Labels: labels, Addrs: []netip.Addr{netip.MustParseAddr(address)}}})
}

func entityFor(name, endpoint string, labels map[string]string) *state.Object {
	return objectOf(state.KindEntity, name, &state.Entity{
		Entity: policy.Entity{Set: "pods", Namespace: "shop", Labels: labels}, Of: state.EndpointRef{Name: endpoint}})
}

func app(value string) map[string]string { return map[string]string{"app": value} }

// state waits until the data plane has the current desired state, and returns it.
func (x *policySite) state() (s *policy.State) {
	x.t.Helper()
	revision := x.store.Snapshot().Revision
	testnet.Eventually(x.t, 20*time.Second, "policies in force", func() bool {
		is, ok := x.policies.Status(datapath.NodeSet)
		return x.received() >= revision && (!ok || is.State == reconcile.Done)
	})
	return x.plane.PolicyContent()
}

// status waits until an object is Ready, or not Ready because of text.
func (x *policySite) status(kind, name, text string) {
	x.t.Helper()
	k, last := state.Key{Kind: kind, Name: name}, Status{}
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		s, ok := x.Status(k)
		if last = s; ok && (s.State == reconcile.Done) == (text == "") && strings.Contains(s.Message, text) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	x.t.Fatalf("%s is %s %q, want %q", k, last.State, last.Message, text)
}

// TestPolicyRow: the row contains everything that objects desire, and exists only with Policies.
func TestPolicyRow(t *testing.T) {
	x := newPolicySite(t)
	pod := endpoint("pod", "br", 5, app("web"))
	pod.Value.(*state.Endpoint).Namespace = "shop"
	x.put(remote("far", "10.9.0.7", app("db")), tier("first", -3), objectOf(state.KindNamespace, "shop", &state.Namespace{}), pod)
	if s := x.state(); s != nil {
		t.Fatalf("without Policies: %+v", s)
	}
	for _, k := range []string{"Entity/far", "Tier/main", "Namespace/shop"} {
		kind, name, _ := strings.Cut(k, "/")
		x.status(kind, name, "")
	}
	x.put(appliedTo("p", "app", "web"), entityFor("vm", "vm7", app("build")))
	s := x.state()
	if got := fmt.Sprint(slices.Sorted(maps.Keys(s.Entities))); got != "[Endpoint/pod Entity/far]" {
		t.Errorf("Entities %s", got)
	}
	mac := pod.Value.(*state.Endpoint).MAC
	want := policy.Entity{Name: "Endpoint/pod", Set: "pods", Namespace: "shop", Labels: app("web"), Endpoint: "pod",
		Addrs: append(slices.Clone(pod.Value.(*state.Endpoint).Addresses), datapath.LinkLocal(mac))}
	if got := *s.Entities["Endpoint/pod"]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(s.Tiers) != 2 || s.Tiers[0].Name != "first" || s.Tiers[1].Name != "main" || s.Policies["p"].Name != "p" {
		t.Errorf("tiers %+v, policies %+v", s.Tiers, s.Policies)
	}
	if s.Namespaces["shop"] == nil {
		t.Error("no namespace")
	}
	x.status(state.KindPolicy, "p", "")
	if n := x.Subjects("p"); n != 1 {
		t.Errorf("%d subjects", n)
	}
	x.drop(state.Key{Kind: state.KindPolicy, Name: "p"})
	if s := x.state(); s != nil {
		t.Errorf("after the Policy: %+v", s)
	}
}

// TestPolicyPointers: objects that have not changed keep their values; the others do not.
func TestPolicyPointers(t *testing.T) {
	x := newPolicySite(t)
	group := objectOf(state.KindAddressGroup, "far", &state.AddressGroup{AddressGroup: datapath.AddressGroup{Prefixes: list("192.0.2.0/24")}})
	grouped := appliedTo("grouped", "app", "db")
	grouped.Value.(*state.Policy).Rules[policy.Egress] = []policy.Rule{{Action: policy.Deny, Peers: []policy.Peer{{}}}}
	grouped.Value.(*state.Policy).Groups = []state.PeerGroups{{Direction: policy.Egress, Names: []datapath.GroupName{"far"}}}
	x.put(group, grouped, appliedTo("plain", "app", "web"), remote("a", "10.9.0.1", app("web")), remote("b", "10.9.0.2", app("db")),
		endpoint("pod", "br", 5, nil), entityFor("vm", "pod", app("web")), objectOf(state.KindNamespace, "shop", &state.Namespace{}))
	before := x.state()
	if got := before.Policies["grouped"].Rules[policy.Egress][0].Peers[0].Prefixes; fmt.Sprint(got) != "[192.0.2.0/24]" {
		t.Fatalf("prefixes %v", got)
	}
	changed := func(name string, wanted ...string) {
		t.Helper()
		now := x.state()
		var differ []string
		note := func(what string, same bool) {
			if !same {
				differ = append(differ, what)
			}
		}
		for k, v := range now.Entities {
			note(k, before.Entities[k] == v)
		}
		for k, v := range now.Policies {
			note("Policy/"+k, before.Policies[k] == v)
		}
		for k, v := range now.Namespaces {
			note("Namespace/"+k, before.Namespaces[k] == v)
		}
		note("Tiers", slices.Equal(before.Tiers, now.Tiers))
		slices.Sort(differ)
		if !slices.Equal(differ, wanted) {
			t.Errorf("after %s: %v differ, want %v", name, differ, wanted)
		}
		before = now
	}
	x.put(remote("a", "10.9.0.1", app("api")))
	changed("a label of a", "Entity/a")
	x.put(objectOf(state.KindNamespace, "shop", &state.Namespace{Namespace: policy.Namespace{Labels: app("shop")}}))
	changed("a label of the Namespace", "Namespace/shop")
	x.put(entityFor("vm", "pod", app("db")))
	changed("a label of vm", "Endpoint/pod")
	pod := endpoint("pod", "br", 5, nil)
	pod.Value.(*state.Endpoint).MTU = 1400
	pod.Spec += "mtu"
	x.put(pod)
	changed("the MTU of the Endpoint")
	group = objectOf(state.KindAddressGroup, "far", &state.AddressGroup{AddressGroup: datapath.AddressGroup{Prefixes: list("192.0.2.0/25")}})
	x.put(group)
	changed("the group", "Policy/grouped")
	if got := before.Policies["grouped"].Rules[policy.Egress][0].Peers[0].Prefixes; fmt.Sprint(got) != "[192.0.2.0/25]" {
		t.Errorf("prefixes %v", got)
	}
	x.put(tier("main", 7))
	changed("the order of the only tier")
	x.put(tier("before", 3))
	changed("another tier", "Tiers")
	x.put(appliedTo("plain", "app", "build"))
	changed("a Policy", "Policy/plain")
}

// TestPolicyWaitsForItsSubjects: a Policy is not Ready while the port of one of its subjects is not
// attached.
func TestPolicyWaitsForItsSubjects(t *testing.T) {
	x := newPolicySite(t)
	x.link("pod", datapath.LinkUnknown)
	staged := appliedTo("staged", "app", "web")
	staged.Value.(*state.Policy).Staged = true
	staged.Spec += "staged"
	x.put(appliedTo("p", "app", "web"), appliedTo("other", "app", "db"), staged, endpoint("pod", "br", 5, nil), entityFor("vm", "pod", app("web")))
	x.status(state.KindPolicy, "p", "not enforced for Endpoint/pod, whose device is not attached: ")
	x.status(state.KindPolicy, "other", "")
	x.status(state.KindPolicy, "staged", "")
	x.status(state.KindEntity, "vm", "")
	x.link("pod", datapath.LinkUp)
	x.status(state.KindPolicy, "p", "")
	x.put(entityFor("vm", "pod", app("db")))
	x.state()
	if x.Subjects("p") != 0 || x.Subjects("other") != 1 {
		t.Errorf("%d and %d subjects after the label has changed", x.Subjects("p"), x.Subjects("other"))
	}
	x.drop(state.Key{Kind: state.KindEndpoint, Name: "pod"})
	x.status(state.KindEntity, "vm", "Endpoint/pod does not exist")
	testnet.Eventually(t, 20*time.Second, "no subject", func() bool { return x.Subjects("other") == 0 && len(x.plane.PolicyContent().Entities) == 0 })
}

// TestPolicyRefused: if the row cannot be applied, everything that has changed, and each Policy
// that the changes concern, is not Ready; other objects stay Ready.
func TestPolicyRefused(t *testing.T) {
	x := newPolicySite(t)
	x.put(appliedTo("web", "app", "web"), appliedTo("db", "app", "db"), remote("a", "10.9.0.1", app("web")))
	before := x.state()
	x.plane.Refuse("bad", errors.New("too many rows"))
	x.put(appliedTo("bad", "app", "x"), remote("b", "10.9.0.2", app("db")))
	x.status(state.KindPolicy, "bad", "too many rows")
	x.status(state.KindEntity, "b", "too many rows")
	x.status(state.KindPolicy, "db", "too many rows") // it allows b
	x.status(state.KindPolicy, "web", "")
	x.status(state.KindEntity, "a", "")
	if x.plane.PolicyContent() != before {
		t.Error("the previous row is not in force")
	}
	if text := strings.Join(x.Problems(), "\n"); !strings.Contains(text, "the previous Policies stay in force") {
		t.Errorf("problems: %s", text)
	}
	x.plane.Refuse("bad", nil)
	x.plane.SignalChange()
	for _, name := range []string{"bad", "db", "web"} {
		x.status(state.KindPolicy, name, "")
	}
	x.status(state.KindEntity, "b", "")
}

// TestPoliciesAreRepaired after another program has changed them.
func TestPoliciesAreRepaired(t *testing.T) {
	x := newPolicySite(t)
	x.put(appliedTo("p", "app", "web"))
	x.state()
	if err := x.plane.DamagePolicies(true); err != nil {
		t.Fatal(err)
	}
	x.policies.Trigger()
	testnet.Eventually(t, 20*time.Second, "the row again", func() bool { return x.plane.PolicyContent() != nil })
	x.status(state.KindPolicy, "p", "")
}

// TestDeletedEndpointObeysPolicies: a deleted Endpoint stays in the row until its port is detached,
// without an address that another Entity has by then.
func TestDeletedEndpointObeysPolicies(t *testing.T) {
	store := openStore(t)
	b := policies.NewBuilder(func() *policies.Failsafe { return &policies.Failsafe{} })
	build := func(attached bool) (*policy.State, bool) {
		s := store.Snapshot()
		g := newGroups(s, nil, nil)
		return b.Build(s, policyGroups{g}, func(string) bool { return attached })
	}
	commit(t, store, []*state.Object{tier("main", 1), appliedTo("p", "app", "web"), endpoint("pod", "br", 5, app("web"))})
	first, leaving := build(true)
	if leaving {
		t.Error("nothing has been deleted")
	}
	commit(t, store, nil, state.Key{Kind: state.KindEndpoint, Name: "pod"})
	s, leaving := build(true)
	if s.Entities["Endpoint/pod"] != first.Entities["Endpoint/pod"] || !leaving {
		t.Errorf("while attached: %+v", s.Entities)
	}
	commit(t, store, []*state.Object{remote("next", "10.1.0.5", app("web"))})
	s, _ = build(true)
	if e := s.Entities["Endpoint/pod"]; e == nil || len(e.Addrs) != 1 || !e.Addrs[0].IsLinkLocalUnicast() {
		t.Errorf("while attached, with its address at another Entity: %+v", e)
	}
	if s, leaving = build(false); leaving || s.Entities["Endpoint/pod"] != nil {
		t.Errorf("once detached: %+v", s.Entities)
	}
}

// TestPoliciesOfAnotherVersion: what depends on an object that this version cannot decode denies
// rather too much.
func TestPoliciesOfAnotherVersion(t *testing.T) {
	store := undecodableStore(t, objectOf(state.KindAddressGroup, "far", &state.AddressGroup{}), tier("old", 1))
	p := appliedTo("p", "app", "web")
	v := p.Value.(*state.Policy)
	v.Tier = "old"
	for _, action := range []policy.Action{policy.Allow, policy.Pass, policy.Reject} {
		v.Groups = append(v.Groups, state.PeerGroups{Direction: policy.Egress, Rule: len(v.Rules[policy.Egress]), Names: []datapath.GroupName{"far"}})
		v.Rules[policy.Egress] = append(v.Rules[policy.Egress], policy.Rule{Action: action, Peers: []policy.Peer{{}}})
	}
	commit(t, store, []*state.Object{p})
	plane := backends.NewFake(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane})
	testnet.Eventually(t, 20*time.Second, "the Policy", func() bool { return plane.PolicyContent() != nil })
	s := plane.PolicyContent()
	if len(s.Tiers) != 1 || s.Tiers[0].Name != "old" {
		t.Errorf("tiers %+v", s.Tiers)
	}
	var got []string
	for _, r := range s.Policies["p"].Rules[policy.Egress] {
		got = append(got, fmt.Sprint(r.Action, " ", len(r.Peers)))
	}
	if fmt.Sprint(got) != "[allow 1 deny 0 reject 0]" {
		t.Errorf("rules %v", got)
	}
	if is, _ := n.Status(p.Key); is.State == reconcile.Done || !strings.Contains(is.Message, "cannot decode AddressGroup/far") {
		t.Errorf("status %s %q", is.State, is.Message)
	}
}

// TestPoliciesAreKept: if the desired state was lost, or another version's objects cannot be
// decoded, the row of an earlier run stays.
func TestPoliciesAreKept(t *testing.T) {
	earlier := &policy.State{Policies: map[string]*policy.Policy{"earlier": {Name: "earlier"}}}
	run := func(store *state.Store, until time.Time) (*Node, *backends.FakePlane) {
		plane := backends.NewFake(backends.FakeOptions{})
		if err := plane.Policies().Update(t.Context(), datapath.NodeSet, earlier); err != nil {
			t.Fatal(err)
		}
		commit(t, store, []*state.Object{tier("main", 1), appliedTo("p", "app", "web")})
		return start(t, Options{Store: store, Plane: plane, PruneNotBefore: until}), plane
	}
	site := func(n *Node, plane *backends.FakePlane) *policySite {
		return &policySite{&mirrorSite{Node: n, t: t, store: n.opts.Store, plane: plane}}
	}
	lost, plane := run(openStore(t), time.Now().Add(time.Second))
	site(lost, plane).status(state.KindPolicy, "p", "desired state was lost: the Policies that are in force stay until")
	if plane.PolicyContent() != earlier {
		t.Error("the row was replaced at once")
	}
	site(lost, plane).status(state.KindPolicy, "p", "")
	if plane.PolicyContent().Policies["p"] == nil {
		t.Error("the row was not replaced")
	}

	other, plane := run(undecodableStore(t, entityFor("vm", "pod", nil)), time.Time{})
	site(other, plane).status(state.KindPolicy, "p", "the Policies in force stay unchanged, because this version cannot decode Entity/vm")
	commit(t, other.opts.Store, nil, state.Key{Kind: state.KindEntity, Name: "vm"})
	site(other, plane).status(state.KindPolicy, "p", "")
	if plane.PolicyContent().Policies["p"] == nil {
		t.Error("the row was not replaced")
	}
}

// TestPolicyDoesNotFit: of a Policy for which the data plane has no room, the subjects are isolated. All
// other objects are in force, also those that change later, until there is room.
func TestPolicyDoesNotFit(t *testing.T) {
	x := newPolicySite(t)
	x.put(appliedTo("web", "app", "web"), appliedTo("db", "app", "db"), remote("a", "10.9.0.1", app("web")))
	x.state()
	x.plane.LimitPolicyRules(10)
	large := appliedTo("large", "app", "x")
	v := large.Value.(*state.Policy)
	for range 9 {
		v.Rules[policy.Egress] = append(v.Rules[policy.Egress], policy.Rule{Action: policy.Deny})
	}
	staged := appliedTo("staged", "app", "y")
	staged.Value.(*state.Policy).Staged = true
	staged.Value.(*state.Policy).Rules = v.Rules
	x.put(large, staged, remote("b", "10.9.0.2", app("db")))
	x.status(state.KindPolicy, "large", "all ingress and egress of its subjects is denied, because it does not fit: ")
	x.status(state.KindPolicy, "staged", "not evaluated, because it does not fit: ")
	x.put(remote("c", "10.9.0.3", app("web")), appliedTo("small", "app", "y"))
	for _, k := range []string{"Policy/web", "Policy/db", "Policy/small", "Entity/a", "Entity/b", "Entity/c", "Tier/main"} {
		kind, name, _ := strings.Cut(k, "/")
		x.status(kind, name, "")
	}
	x.status(state.KindPolicy, "large", "it does not fit")
	s := x.plane.PolicyContent()
	is := s.Policies["large"]
	if is.Isolates != [2]bool{true, true} || len(is.Rules[policy.Egress]) > 0 || s.Tiers[0].Name != is.Tier || s.Policies["staged"] != nil || s.Policies["small"] == nil {
		t.Errorf("in force: %+v in tiers %+v, %+v", is, s.Tiers[0], s.Policies)
	}
	if text := strings.Join(x.Problems(), "\n"); !strings.Contains(text, "2 Policies are not in force as desired; Policy/large: all ingress and egress") {
		t.Errorf("problems: %s", text)
	}
	if x.Subjects("large") != 0 {
		t.Error("subjects")
	}
	x.plane.LimitPolicyRules(20)
	x.drop(state.Key{Kind: state.KindPolicy, Name: "web"})
	x.status(state.KindPolicy, "large", "")
	x.status(state.KindPolicy, "staged", "it does not fit")
	x.drop(state.Key{Kind: state.KindPolicy, Name: "large"})
	x.status(state.KindPolicy, "staged", "")
	if s := x.state(); s.Policies["staged"] == nil || len(s.Tiers) != 1 {
		t.Errorf("in force: %+v", s)
	}
}
