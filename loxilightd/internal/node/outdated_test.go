// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// gate holds the callers of pass while it is closed.
type gate struct {
	mu      sync.Mutex
	open    chan struct{} // closed while the gate is open
	waiting chan struct{} // receives a value for each caller that is held
}

func newGate() *gate {
	g := &gate{open: make(chan struct{}), waiting: make(chan struct{}, 100)}
	close(g.open)
	return g
}

func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return
	default:
	}
	g.waiting <- struct{}{}
	select {
	case <-open:
	case <-ctx.Done():
	}
}

// close closes the gate; the returned function opens it.
func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	g.open = c
	return sync.OnceFunc(func() { close(c) })
}

// gatedTable is a table whose updates pass a gate.
type gatedTable[K comparable, V any] struct {
	datapath.Table[K, V]
	*gate
}

func (t gatedTable[K, V]) Update(ctx context.Context, key K, value V) error {
	t.pass(ctx)
	return t.Table.Update(ctx, key, value)
}

// gatedNetwork is a network in which updates of Endpoints pass a gate.
type gatedNetwork struct {
	*backends.FakeNetwork
	*gate
}

func (g gatedNetwork) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return gatedTable[datapath.EndpointName, datapath.Endpoint]{g.FakeNetwork.Endpoints(), g.gate}
}

// gatedPlane is a data plane in which updates of the NAT rules pass a gate.
type gatedPlane struct {
	*backends.FakePlane
	*gate
}

type gatedNAT struct {
	datapath.RuleTable[datapath.NATSet]
	*gate
}

func (t gatedNAT) Update(ctx context.Context, key datapath.SetName, set datapath.NATSet) error {
	t.pass(ctx)
	return t.RuleTable.Update(ctx, key, set)
}

func (g gatedPlane) NAT() datapath.RuleTable[datapath.NATSet] {
	return gatedNAT{g.FakePlane.NAT(), g.gate}
}

// outdatedRig is a node with objects of many kinds, all of which are Ready.
type outdatedRig struct {
	*Node
	t         *testing.T
	store     *state.Store
	reports   *recorder
	endpoints *gate // of the Endpoints in the network
	nat       *gate
	objects   []*state.Object
	number    byte // of the last Endpoint
}

func newOutdatedRig(t *testing.T) *outdatedRig {
	r := &outdatedRig{t: t, store: openStore(t), reports: &recorder{}, endpoints: newGate(), nat: newGate(), number: 5}
	r.Node = start(t, Options{
		Store: r.store, Plane: gatedPlane{endpointPlane(), r.nat}, Network: gatedNetwork{backends.NewFakeNetwork(backends.FakeOptions{}), r.endpoints},
		Devices: Devices{Host: "loxi_host", Switch: "hs_host"}, StatusChanged: r.reports.record,
	})
	chosen := group("chosen", "10.7.0.0/16")
	chosen.Value.(*state.AddressGroup).Labels = []map[string]string{{"role": "web"}}
	pod, ported := endpoint("pod", "lan", 5, nil), *rule("ported", 5).Value.(*state.FirewallRule)
	ported.Match.In = []string{"p1"}
	r.objects = []*state.Object{
		uplink("eth0"), masqueraded("one", "10.7.1.0/24"), bridge("lan", "br0"), pod, peerTo("far", "10.8.0.0/16"), peerTo("near", "10.9.0.0/16"),
		routeVia("via", "10.10.0.0/16", "far"), group("inner", "10.2.0.0/16"), group("outer", "10.3.0.0/16", "inner"), group("other", "10.4.0.0/16"),
		objectOf(state.KindAddressGroup, "chosen", chosen.Value), rule("nested", 1, "outer"), rule("plain", 2, "other"), rule("labelled", 3, "chosen"),
		rule("free", 4), nat("own"), service("web", 1, 10, 1), port("p1", datapath.RolePort), objectOf(state.KindFirewallRule, "ported", &ported),
	}
	waitFor(t, r.Node, commit(t, r.store, r.objects), r.objects...)
	r.settle()
	return r
}

func port(device string, role datapath.Role) *state.Object {
	return objectOf(state.KindInterface, device, &state.Interface{Port: datapath.Port{Device: device, Switch: true, Role: role}})
}

func peerTo(name string, prefixes ...string) *state.Object {
	return objectOf(state.KindPeer, name, &state.Peer{Peer: datapath.Peer{
		Underlay: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[0]})}, Prefixes: list(prefixes...)}})
}

func routeVia(name, prefix, peer string) *state.Object {
	return objectOf(state.KindRoute, name, &state.Route{Peer: peer, Route: datapath.Route{Prefix: netip.MustParsePrefix(prefix)}})
}

// settle waits until all objects are Ready, and clears the list of reports.
func (r *outdatedRig) settle() {
	r.t.Helper()
	eventually(r.t, func() bool { return r.received() == r.store.Snapshot().Revision && len(r.pending()) == 0 })
	time.Sleep(100 * time.Millisecond) // for reports
	r.takeReports()
}

func (r *outdatedRig) takeReports() []string {
	r.reports.mu.Lock()
	defer r.reports.mu.Unlock()
	list := r.reports.list
	r.reports.list = nil
	return list
}

// pending returns the objects of the rig that are not Ready.
func (r *outdatedRig) pending() (names []string) {
	for _, o := range r.objects {
		if s, ok := r.Status(o.Key); !ok || s.State != reconcile.Done {
			names = append(names, o.Key.String())
		}
	}
	slices.Sort(names)
	return names
}

// TestOutdated: from the moment at which a commit is visible, all objects whose rows it changes are
// Pending until these rows are in the tables, and no others are. The end of each Pending state that
// a client has read is reported.
func TestOutdated(t *testing.T) {
	for _, tt := range []struct {
		name   string
		put    []*state.Object
		labels map[string]string // of another Endpoint
		want   []string
	}{
		{"uplink", []*state.Object{uplink("eth1")}, nil, []string{"PodNetwork/one"}},
		{"group", []*state.Object{group("inner", "10.5.0.0/16")}, nil, []string{"AddressGroup/inner", "AddressGroup/outer", "FirewallRule/nested"}},
		{"peer", []*state.Object{peerTo("near", "10.11.0.0/16")}, nil, []string{"Peer/near", "PodNetwork/one"}},
		{"route to a peer", []*state.Object{routeVia("more", "10.11.0.0/16", "far")}, nil, []string{"Peer/far", "PodNetwork/one", "Route/via"}},
		{"bridge", []*state.Object{bridge("lan", "br1")}, nil, []string{"Bridge/lan", "Endpoint/pod"}},
		{"pod network", []*state.Object{masqueraded("two", "10.12.1.0/24")}, nil, []string{"PodNetwork/one"}},
		{"labels", nil, map[string]string{"role": "web"}, []string{"AddressGroup/chosen", "FirewallRule/labelled"}},
		{"port", []*state.Object{port("p1", datapath.RoleHost)}, nil, []string{"FirewallRule/ported", "Interface/p1"}},
		{"nothing", []*state.Object{
			service("api", 2, 10, 1), rule("more", 9), group("idle", "10.13.0.0/16"), port("p2", datapath.RolePort),
		}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newOutdatedRig(t)
			// While an Endpoint is held, the node applies no later change.
			open := r.endpoints.close()
			defer open()
			revision := commit(t, r.store, []*state.Object{endpoint("held", "lan", 100, nil)})
			<-r.endpoints.waiting
			if got := r.pending(); len(got) > 0 {
				t.Errorf("Pending because of an Endpoint: %v", got)
			}
			put := tt.put
			if tt.labels != nil {
				put = []*state.Object{endpoint("chosen", "lan", 101, tt.labels)}
			}
			revision = max(revision, commit(t, r.store, put))
			if got := r.pending(); !slices.Equal(got, tt.want) {
				t.Errorf("Pending: %v, want %v", got, tt.want)
			}
			if r.received() >= revision {
				t.Fatal("the change was applied too early for this test")
			}
			if some, count := r.NotDone(100); count < min(len(tt.want), 1)+1 {
				t.Errorf("%d not done: %v", count, some)
			}
			open()
			waitFor(t, r.Node, revision, r.objects...)
			eventually(t, func() bool { return len(r.pending()) == 0 })
			reported := map[string]int{}
			eventually(t, func() bool {
				for _, report := range r.takeReports() {
					reported[report]++
				}
				return !slices.ContainsFunc(tt.want, func(name string) bool { return reported[name+" done"] == 0 })
			})
			for _, o := range r.objects {
				if name := o.Key.String(); reported[name+" done"] > 0 && !slices.Contains(tt.want, name) {
					t.Errorf("reported: %s, which the change does not concern", name)
				}
			}
		})
	}
}

// TestOutdatedInTheTable: once a table has received the rows that depend on another object, but has
// not applied them yet, the objects are still Pending.
func TestOutdatedInTheTable(t *testing.T) {
	r := newOutdatedRig(t)
	open := r.nat.close()
	defer open()
	far := peerTo("far", "10.14.0.0/16")
	revision := commit(t, r.store, []*state.Object{far})
	<-r.nat.waiting
	eventually(t, func() bool { return r.received() == revision })
	eventually(t, func() bool { return slices.Equal(r.pending(), []string{"PodNetwork/one"}) })
	r.takeReports()
	open()
	eventually(t, func() bool { return len(r.pending()) == 0 })
	eventually(t, func() bool { return slices.Contains(r.takeReports(), "PodNetwork/one done") })
}

// TestUnreadStatusIsNotReported: the end of a Pending state that no client has read is not reported,
// unless the status differs from the last report.
func TestUnreadStatusIsNotReported(t *testing.T) {
	r := newOutdatedRig(t)
	far := peerTo("far", "10.14.0.0/16")
	waitFor(t, r.Node, commit(t, r.store, []*state.Object{far}), r.objects...)
	time.Sleep(100 * time.Millisecond)
	if got := fmt.Sprint(r.takeReports()); got != "[Peer/far done]" {
		t.Errorf("reported %s, want the Peer alone", got)
	}
}

// TestRepairedRowsAreReported: while a row that a PodNetwork needs is applied again, the PodNetwork
// is Pending, and the end of that state is reported if a client has read it.
func TestRepairedRowsAreReported(t *testing.T) {
	r := newPodRig(t)
	one := podNetwork("one", "10.7.1.0/24")
	r.apply(uplink("eth0"), one)
	r.reports.want(t, "Interface/eth0 done", "PodNetwork/one done")
	received := r.n.bridges.received.Load()
	anew := *received
	anew.needed = append(slices.Clone(anew.needed), "not made yet")
	r.n.bridges.received.Store(&anew)
	if s, ok := r.n.Status(one.Key); !ok || s.State != reconcile.Pending {
		t.Errorf("status %+v, and a row is not applied", s)
	}
	r.n.bridges.received.Store(received)
	r.n.rowsChanged(r.n.bridges)
	r.reports.want(t, "PodNetwork/one done")
	r.n.rowsChanged(r.n.bridges)
	r.reports.want(t)
}
