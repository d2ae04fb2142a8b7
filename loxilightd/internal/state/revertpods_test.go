// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

func bridgeWith(name string, addresses ...string) *Object {
	return &Object{Key: Key{KindBridge, name}, Owner: "cli", Spec: fmt.Sprint(addresses), Value: &Bridge{Bridge: datapath.Bridge{
		Device: "br-" + name, Addresses: prefixes(addresses),
	}}}
}

func podWith(name string, n byte, network string, addresses ...string) *Object {
	o := endpoint(name, "hs"+name, n, addresses...)
	o.Owner, o.Spec, o.Value.(*Endpoint).Network = OwnerCNI, network+fmt.Sprint(addresses), network
	return o
}

// podStore is a store that can decode the given objects, even after a restart.
func podStore(t *testing.T, objects ...*Object) (*Store, Config, *fakeClock) {
	t.Helper()
	cfg, c := clockConfig(t)
	m := newSmall(0)
	for _, o := range objects {
		m.values[o.Kind+o.Spec] = o.Value
	}
	cfg.Decode = m.decode
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, cfg, c
}

// TestPodsGetNothingThatIsReverted: while a change is pending, no pod gets an address that the node
// would have again after a rollback, or joins a network that would not exist after a rollback;
// other pods are accepted.
func TestPodsGetNothingThatIsReverted(t *testing.T) {
	lan, moved := bridgeWith("lan", "10.7.1.9/24"), bridgeWith("lan", "10.7.1.200/24")
	small, wide, moreover := podNetwork("pods", "10.7.1.0/25"), podNetwork("pods", "10.7.0.0/16"), podNetwork("more", "10.9.1.0/24")
	small.Owner, wide.Owner, moreover.Owner = "cli", "cli", "cli"
	was, foreign := podWith("was", 1, "pods", "10.7.1.5"), podWith("foreign", 7, "pods", "10.7.3.7")
	gateway, gone := podWith("gateway", 2, "pods", "10.7.1.1"), podWith("gone", 3, "pods", "10.7.1.9")
	outside, none, fits := podWith("outside", 4, "pods", "10.7.2.8"), podWith("none", 5, "more", "10.9.1.8"), podWith("fits", 6, "pods", "10.7.1.10")
	elsewhere := podWith("elsewhere", 8, "more", "192.0.2.8")
	s, cfg, c := podStore(t, lan, moved, small, wide, moreover, was, foreign, gateway, gone, outside, none, fits, elsewhere)
	commit(t, s, &Transaction{By: root, Put: []*Object{lan, small, was, foreign}})
	commit(t, s, &Transaction{By: root, Confirm: time.Minute, Put: []*Object{moved, wide, moreover}})
	for range 2 {
		for _, x := range []struct {
			o           *Object
			field, text string
		}{
			{gone, "spec.addresses[0]", "is pending until 2026-03-04T05:07:07Z (for 1m0s), and this object conflicts with the state after the rollback: 10.7.1.9 is an address of the switch or the node (Bridge/lan): confirm it"},
			{gateway, "spec.addresses[0]", "10.7.1.1 is an address of the switch or the node (PodNetwork/pods)"},
			{outside, "spec.addresses[0]", "10.7.2.8 would not be in a subnet of PodNetwork/pods"},
			{none, "spec.addresses[0]", "10.9.1.8 would not be in a subnet of PodNetwork/more"},
			{elsewhere, "spec.network", "PodNetwork/more would not exist"},
		} {
			wantRefusal(t, s, &Transaction{Put: []*Object{x.o}}, Conflict, x.o.Key.String(), x.field, x.text)
		}
		for text, want := range map[string]string{
			"10.7.1.5": "Endpoint/was", "10.7.1.9": "Bridge/lan", "10.7.1.200": "Bridge/lan", "10.7.1.1": "PodNetwork/pods", "10.7.0.2": "PodNetwork/pods", "10.7.1.10": "/",
		} {
			if k, held := s.AddressHolder(netip.MustParseAddr(text)); k.String() != want || held != (want != "/") {
				t.Errorf("%s is held by %s, %v; want %s", text, k, held, want)
			}
		}
		s, _ = reopen(t, s, cfg)
	}
	closed(t, s)
	commit(t, s, &Transaction{Put: []*Object{fits}})
	c.pass(time.Minute)
	r := expire(t, s)
	if r == nil || len(r.Left) > 0 {
		t.Fatalf("rolled back as %+v", r)
	}
	for _, want := range []*Object{lan, small, was, foreign, fits} {
		if o, ok := s.Snapshot().Get(want.Key); !ok || !o.same(want) {
			t.Errorf("there is %+v, want %+v", o, want)
		}
	}
	if s.Snapshot().Len() != 5 {
		t.Errorf("%d objects, want 5:\n%s", s.Snapshot().Len(), dump(s.Snapshot()))
	}
}

// TestRestIsRevertedAllTheSame: if a daemon without this check gave a pod an address that the
// rollback restores, everything is rolled back except the object with that address.
func TestRestIsRevertedAllTheSame(t *testing.T) {
	lan, moved := bridgeWith("lan", "10.7.1.9/24"), bridgeWith("lan", "10.7.1.200/24")
	other, changed := bridgeWith("other", "10.8.1.9/24"), bridgeWith("other", "10.8.1.200/24")
	gone := podWith("gone", 3, "", "10.7.1.9")
	s, _, c := podStore(t, lan, moved, other, changed, gone)
	defer closed(t, s)
	commit(t, s, &Transaction{By: root, Put: []*Object{lan, other}})
	commit(t, s, &Transaction{By: root, Confirm: time.Minute, Put: []*Object{moved, changed}})
	w := s.waiting.Load()
	s.waiting.Store(nil)
	commit(t, s, &Transaction{Put: []*Object{gone}})
	s.waiting.Store(w)
	c.pass(time.Minute)
	r := expire(t, s)
	if o, _ := s.Snapshot().Get(other.Key); len(r.Left) != 1 || r.Left[0] != lan.Key || !o.same(other) {
		t.Errorf("rolled back as %+v, to\n%s", r, dump(s.Snapshot()))
	}
	if p, _ := s.Pending(); p != nil {
		t.Errorf("%+v still waits", p)
	}
}

// TestEndpointOfPendingChangeReservesItsAddress: an address that a rollback would restore stays
// reserved.
func TestEndpointOfPendingChangeReservesItsAddress(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{endpoint("a", "hs1", 1, "10.1.0.5")}})
	commit(t, s, &Transaction{Confirm: time.Minute, Delete: []Key{{KindEndpoint, "a"}}})
	if k, held := s.AddressHolder(netip.MustParseAddr("10.1.0.5")); !held || k.Name != "a" {
		t.Errorf("%v, %v", k, held)
	}
	wantRefusal(t, s, &Transaction{Put: []*Object{podWith("b", 2, "", "10.1.0.5")}}, Conflict, "Endpoint/b", "spec.addresses[0]", "belongs to Endpoint/a already")
}

// TestPodsAreNotConfirmed: pods' objects cannot be part of a change that requires confirmation.
func TestPodsAreNotConfirmed(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	pod := podWith("pod", 1, "", "10.1.0.5")
	refused := func(tr *Transaction) {
		t.Helper()
		tr.Confirm = time.Minute
		wantRefusal(t, s, tr, Conflict, "Endpoint/pod", "owner", "objects of pods cannot be part of a change with confirmation: omit it")
	}
	refused(&Transaction{Put: []*Object{pod}})
	commit(t, s, &Transaction{Put: []*Object{pod}})
	refused(&Transaction{Put: []*Object{podWith("pod", 1, "", "10.1.0.6")}})
	refused(&Transaction{Put: []*Object{service(t, "web", "192.0.2.1:80 1")}, Delete: []Key{pod.Key}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "web", "192.0.2.1:80 1"), pod}, Confirm: time.Minute}) // unchanged
	commit(t, s, &Transaction{Delete: []Key{pod.Key}})
}

// manyServices returns count services each with the given number of backends.
func manyServices(t testing.TB, count, backends int) (list []*Object) {
	t.Helper()
	for i := range count {
		list = append(list, service(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("10.%d.%d.%d:80 %d", 96+i>>16, i>>8&255, i&255, backends)))
	}
	return list
}

// waits returns a store with many objects, most of which the waiting change has modified, and a
// transaction that attaches a pod.
func waits(t testing.TB, count int, confirm time.Duration) (*Store, *Transaction) {
	t.Helper()
	cfg := testConfig(t.TempDir())
	cfg.Tables = datapath.Tables{Services: 1 << 20, Backends: 1 << 20, Entities: 16}
	s, _ := open(t, cfg)
	commit(t, s, &Transaction{Put: append(manyServices(t, count, 1), podNetwork("pods", "10.7.0.0/16"), bridgeWith("lan", "10.8.0.1/24"))})
	commit(t, s, &Transaction{Confirm: confirm, Put: manyServices(t, count*9/10, 2)})
	return s, &Transaction{DryRun: true, Put: []*Object{podWith("new", 9, "pods", "10.7.3.9")}}
}

// TestPodsAreQuickDuringAPendingChange: the size of the waiting change does not slow down other
// changes.
func TestPodsAreQuickDuringAPendingChange(t *testing.T) {
	allocs := func(count int) float64 {
		s, add := waits(t, count, time.Minute)
		return testing.AllocsPerRun(20, func() { commit(t, s, add) })
	}
	if few, many := allocs(10), allocs(5000); many > few+20 {
		t.Errorf("%v allocations with a change of 9 objects, %v with one of 4500", few, many)
	}
}

func BenchmarkAddMeanwhile(b *testing.B) {
	for name, confirm := range map[string]time.Duration{"nothing waits": 0, "90000 objects wait": time.Hour} {
		b.Run(name, func(b *testing.B) {
			s, add := waits(b, 100_000, confirm)
			for b.Loop() {
				commit(b, s, add)
			}
		})
	}
}
