// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// entityOf returns an Entity of an Endpoint, or with addresses.
func entityOf(name string, of EndpointRef, addrs ...string) *Object {
	v := &Entity{Of: of}
	for _, a := range addrs {
		v.Addrs = append(v.Addrs, netip.MustParseAddr(a))
	}
	return &Object{Key: Key{KindEntity, name}, Owner: "cli", Spec: fmt.Sprint(of, addrs), Value: v}
}

// labelled returns an Endpoint of a pod, with a label.
func labelled(name, pod string, number byte, address, app string) *Object {
	o := endpoint(name, "hs"+name, number, address)
	v := o.Value.(*Endpoint)
	v.Namespace, v.Pod, v.Labels = "shop", pod, nil
	if app != "" {
		v.Labels = map[string]string{"app": app}
	}
	o.Spec += pod + app
	return o
}

func tierOf(name string, order int32) *Object {
	return &Object{Key: Key{KindTier, name}, Owner: "cli", Spec: fmt.Sprint(order), Value: &Tier{Order: order}}
}

func policyOf(name, tier string, groups ...datapath.GroupName) *Object {
	v := &Policy{Policy: policy.Policy{Tier: tier}}
	if len(groups) > 0 {
		v.Groups = []PeerGroups{{Direction: policy.Egress, Rule: 1, Peer: 2, Names: groups}}
	}
	return &Object{Key: Key{KindPolicy, name}, Owner: "cli", Spec: fmt.Sprint(tier, groups), Value: v}
}

func groupOf(name string) *Object {
	return &Object{Key: Key{KindAddressGroup, name}, Owner: "cli", Spec: "empty", Value: &AddressGroup{}}
}

// TestPolicyReferences: a Policy refers to a Tier and to groups that exist, and that are not
// deleted before it.
func TestPolicyReferences(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	put := func(list ...*Object) *Transaction { return &Transaction{Put: list} }
	wantRefusal(t, s, put(policyOf("p", "main")), Invalid, "Policy/p", "spec.tier", "there is no Tier/main: create it first")
	wantRefusal(t, s, put(tierOf("main", 1), policyOf("p", "main", "far")), Invalid, "Policy/p", "spec.egress[1].to[2].prefixes", "there is no AddressGroup/far")
	commit(t, s, put(tierOf("main", 1), groupOf("far"), policyOf("p", "main", "far")))
	wantRefusal(t, s, &Transaction{Delete: []Key{{KindTier, "main"}}}, Conflict, "Tier/main", "", "Policy/p refers to it in spec.tier")
	wantRefusal(t, s, &Transaction{Delete: []Key{{KindAddressGroup, "far"}}}, Conflict, "AddressGroup/far", "", "Policy/p refers to it in spec.egress[1].to[2].prefixes")
	commit(t, s, &Transaction{Put: []*Object{policyOf("p", "main")}, Delete: []Key{{KindAddressGroup, "far"}}})
	commit(t, s, &Transaction{Delete: []Key{{KindTier, "main"}, {KindPolicy, "p"}}})
}

// TestTiersAreOrdered by their order, then by name.
func TestTiersAreOrdered(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{tierOf("b", 7), tierOf("c", -1), tierOf("a", 7), tierOf("d", 5)}})
	var names []string
	for _, o := range s.Snapshot().Tiers() {
		names = append(names, o.Name)
	}
	if got := fmt.Sprint(names); got != "[c d a b]" {
		t.Errorf("tiers in the order %s", got)
	}
}

// TestEntityConflicts: an address and an Endpoint belong to one Entity.
func TestEntityConflicts(t *testing.T) {
	byName, byPod := EndpointRef{Name: "a"}, EndpointRef{Namespace: "shop", Pod: "web"}
	here := &Object{Key: Key{KindEntity, "here"}, Owner: "cli", Spec: "here", Value: &Entity{Entity: policy.Entity{Here: true}}}
	also := *here
	also.Name = "also"
	for _, c := range []struct {
		first, second  []*Object
		key, field, is string
	}{
		{[]*Object{entityOf("x", EndpointRef{}, "10.1.0.5")}, []*Object{entityOf("y", EndpointRef{}, "10.1.0.6", "10.1.0.5")}, "Entity/y", "spec.addresses[1]", "address 10.1.0.5 belongs to Entity/x already"},
		{[]*Object{entityOf("x", EndpointRef{}, "10.1.0.5")}, []*Object{labelled("a", "web", 5, "10.1.0.5", "")}, "Endpoint/a", "spec.addresses[0]", "belongs to Entity/x already"},
		{[]*Object{labelled("a", "web", 5, "10.1.0.5", "")}, []*Object{entityOf("x", EndpointRef{}, "10.1.0.5")}, "Entity/x", "spec.addresses[0]", "belongs to Endpoint/a already"},
		{[]*Object{here}, []*Object{&also}, "Entity/also", "spec.here", "this node belongs to Entity/here already"},
		{[]*Object{entityOf("x", byName)}, []*Object{entityOf("y", byName)}, "Entity/y", "spec.endpoint", "Endpoint/a belongs to Entity/x already"},
		{[]*Object{entityOf("x", byPod)}, []*Object{entityOf("y", byPod)}, "Entity/y", "spec.endpoint", "the pod shop/web belongs to Entity/x already"},
		{[]*Object{labelled("a", "web", 5, "10.1.0.5", ""), entityOf("x", byName)}, []*Object{entityOf("y", byPod)}, "Entity/y", "spec.endpoint", "Endpoint/a belongs to Entity/x already"},
		{[]*Object{entityOf("x", byName), entityOf("y", byPod)}, []*Object{labelled("a", "web", 5, "10.1.0.5", "")}, "Endpoint/a", "", "Entity/x and Entity/y both name this Endpoint"},
		{[]*Object{labelled("a", "web", 5, "10.1.0.5", "web")}, []*Object{entityOf("x", byPod)}, "Entity/x", "spec.endpoint", "Endpoint/a has labels, and therefore needs no Entity"},
		{[]*Object{entityOf("x", byName)}, []*Object{labelled("a", "web", 5, "10.1.0.5", "web")}, "Endpoint/a", "spec.labels", "this Endpoint belongs to Entity/x already"},
	} {
		s, _ := open(t, testConfig(t.TempDir()))
		commit(t, s, &Transaction{Put: c.first})
		wantRefusal(t, s, &Transaction{Put: c.second}, Conflict, c.key, c.field, c.is)
		var keys []Key
		for _, o := range c.first {
			keys = append(keys, o.Key)
		}
		commit(t, s, &Transaction{Put: c.second, Delete: keys}) // a resource moves in one change
	}
}

// TestEndpointsOfEntities: an Entity stands for the Endpoint of a name, or for all of a pod.
func TestEndpointsOfEntities(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{
		labelled("a", "web", 5, "10.1.0.5", ""), labelled("b", "web", 6, "10.1.0.6", ""), labelled("c", "db", 7, "10.1.0.7", ""), labelled("d", "", 8, "10.1.0.8", ""),
	}})
	for of, want := range map[EndpointRef]string{
		{Name: "c"}: "[Endpoint/c]", {Name: "none"}: "[]", {Namespace: "shop", Pod: "web"}: "[Endpoint/a Endpoint/b]", {Pod: "web"}: "[]", {Namespace: "shop"}: "[]",
	} {
		keys := []Key{}
		for _, o := range s.Snapshot().EndpointsOf(of) {
			keys = append(keys, o.Key)
		}
		if got := fmt.Sprint(keys); got != want {
			t.Errorf("%v: %s, want %s", of, got, want)
		}
	}
}

// TestAddressOfEntityIsHeld: no pod gets the address of an Entity.
func TestAddressOfEntityIsHeld(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{entityOf("x", EndpointRef{}, "10.1.0.5")}})
	if k, held := s.AddressHolder(netip.MustParseAddr("10.1.0.5")); !held || k.String() != "Entity/x" {
		t.Errorf("%s holds the address (%t)", k, held)
	}
}

func TestMostTiers(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	var all []*Object
	for i := range datapath.TierMax {
		all = append(all, tierOf(fmt.Sprint("t", i), int32(i)))
	}
	commit(t, s, &Transaction{Put: all})
	wantRefusal(t, s, &Transaction{Put: []*Object{tierOf("more", 1)}}, Capacity, "Tier/more", "", "at most 64 Tiers: 64 now, 65 with this change")
}

// TestPolicyPrefixesCount: prefixes of Policies count as entries of the table of prefixes.
func TestPolicyPrefixesCount(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Tables.Prefixes = 2
	s, _ := open(t, cfg)
	p := policyOf("p", "main")
	peer := policy.Peer{Prefixes: make([]netip.Prefix, 2), Except: make([]netip.Prefix, 1)}
	p.Value.(*Policy).Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.Peer{peer}}}
	wantRefusal(t, s, &Transaction{Put: []*Object{tierOf("main", 1), p}}, Capacity, "Policy/p", "", "table prefixes is full: 0 of 2 entries used, 3 with this change")
}

// TestHistoryOmitsEntities: the history omits changes of Entities alone, also across restarts; all
// revisions remain in it.
func TestHistoryOmitsEntities(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Decode = func(kind string, spec []byte) (Value, error) {
		if kind == KindEntity {
			return entityOf("", EndpointRef{Name: string(spec)}).Value, nil
		}
		return decodeForTest(kind, spec)
	}
	s, _ := open(t, cfg)
	entity := func(name string) *Object {
		o := entityOf(name, EndpointRef{Name: name})
		o.Spec = name
		return o
	}
	put := func(list ...*Object) uint64 { return commit(t, s, &Transaction{Put: list, By: root}).Revision }
	revisions := func() (list []uint64) {
		for _, e := range s.History() {
			list = append(list, e.Revision)
		}
		return list
	}
	put(entity("before"))
	first := put(service(t, "web", "10.0.0.1:80 1"))
	put(entity("a"))
	put(entity("b"))
	second := put(service(t, "web", "10.0.0.1:80 2"), entity("mixed"))
	last := put(entity("c"))
	want := []uint64{first, second}
	if got := revisions(); !slices.Equal(got, want) {
		t.Fatalf("history %v, want %v", got, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, report := open(t, cfg)
	if got := revisions(); !slices.Equal(got, want) || report.HistoryLost != "" || s.Snapshot().Revision != last {
		t.Fatalf("after a restart: history %v, want %v (%s)", got, want, report.HistoryLost)
	}
	// An omitted revision can be restored, without the Entities that it changed.
	if _, err := s.Rollback(&Rollback{Revision: second - 1, By: root}); err != nil {
		t.Fatal(err)
	}
	for name, exists := range map[string]bool{"before": true, "a": true, "b": true, "mixed": false, "c": true} {
		if _, ok := s.Snapshot().Get(Key{KindEntity, name}); ok != exists {
			t.Errorf("after the rollback, Entity/%s exists: %t", name, ok)
		}
	}
	o, _ := s.Snapshot().Get(Key{KindService, "web"})
	if o.Spec != "10.0.0.1:80 1" {
		t.Errorf("after the rollback, the Service is %q", o.Spec)
	}
	if err := s.Diffs(last, "", func(Diff) bool { return true }); err == nil {
		t.Error("the changes of an omitted revision are reported")
	}
}

// TestEntitiesToConfirm: a change of Entities with confirmation is in the history, and is rolled
// back.
func TestEntitiesToConfirm(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	r := commit(t, s, &Transaction{Put: []*Object{entityOf("a", EndpointRef{Name: "a"})}, By: root, Confirm: time.Minute})
	if len(s.History()) != 1 {
		t.Fatal("the change is not in the history")
	}
	if _, err := s.Rollback(&Rollback{Undo: r.Revision, By: root}); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Snapshot().Get(Key{KindEntity, "a"}); ok {
		t.Error("the Entity exists after the rollback")
	}
}

// TestEntitiesCount: the addresses of Entities and Endpoints count as entries of the table of
// entities; objects of a full table can be exchanged.
func TestEntitiesCount(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Tables.Entities = 4
	s, _ := open(t, cfg)
	entity := func(name string, addrs ...string) *Object {
		e := &Entity{}
		for _, a := range addrs {
			e.Addrs = append(e.Addrs, netip.MustParseAddr(a))
		}
		return &Object{Key: Key{KindEntity, name}, Value: e}
	}
	commit(t, s, &Transaction{Put: []*Object{entity("a", "10.0.0.1", "fd00::1"), entity("b", "10.0.0.2")}})
	wantRefusal(t, s, &Transaction{Put: []*Object{entity("c", "10.0.0.3", "fd00::3")}}, Capacity, "Entity/c", "spec.addresses",
		"table entities is full: 3 of 4 entries used, 5 with this change; delete something, or raise tables.entities in the configuration")
	pod := &Endpoint{Endpoint: datapath.Endpoint{Device: "hs1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}}
	wantRefusal(t, s, &Transaction{Put: []*Object{{Key: Key{KindEndpoint, "e"}, Value: pod}}}, Capacity, "Endpoint/e", "spec.addresses", "3 of 4 entries used, 5 with this change")
	commit(t, s, &Transaction{Put: []*Object{entity("c", "10.0.0.3")}})
	commit(t, s, &Transaction{Put: []*Object{entity("c", "10.0.0.9")}})
}
