// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// bridged returns a bridge, an Interface on its device, and a Route through that device.
func bridged() []*state.Object {
	return []*state.Object{
		objectOf(state.KindRoute, "lan", &state.Route{Route: datapath.Route{
			Prefix: netip.MustParsePrefix("10.1.0.0/16"), Switch: true, NextHops: []datapath.NextHop{{Device: "br0", Weight: 1}},
		}}),
		objectOf(state.KindInterface, "br0", &state.Interface{Port: datapath.Port{Device: "br0", Switch: true}}),
		objectOf(state.KindBridge, "br0", &state.Bridge{Bridge: datapath.Bridge{Device: "br0"}}),
	}
}

// TestOrder: a bridge is created before its ports, and deleted after them. Otherwise a port would
// first be reported as Pending because its device is missing.
func TestOrder(t *testing.T) {
	for range 20 {
		store, network, reports := openStore(t), backends.NewFakeNetwork(backends.FakeOptions{}), &recorder{}
		plane := backends.NewFake(backends.FakeOptions{Device: func(p datapath.Port) (datapath.PortState, bool) {
			bridges, _ := network.Content()
			_, ok := bridges[datapath.BridgeName(p.Device)]
			return datapath.PortState{Index: 7}, ok
		}})
		n := start(t, Options{Store: store, Plane: plane, Network: network, StatusChanged: reports.record})
		objects := bridged()
		waitFor(t, n, commit(t, store, objects), objects...)
		reports.want(t, "Bridge/br0 done", "Interface/br0 done", "Route/lan done")
		revision := commit(t, store, nil, objects[0].Key, objects[1].Key, objects[2].Key)
		waitFor(t, n, revision, objects...)
		reports.want(t, "Bridge/br0 removed", "Interface/br0 removed", "Route/lan removed")
		if got, want := network.Calls(), []string{"put bridge", "put route", "remove route", "remove bridge"}; !slices.Equal(got, want) {
			t.Fatalf("calls %q, want %q", got, want)
		}
	}
}

func TestNetworkIsKept(t *testing.T) {
	store, plane, network := openStore(t), backends.NewFake(backends.FakeOptions{}), backends.NewFakeNetwork(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane, Network: network})
	objects := bridged()
	waitFor(t, n, commit(t, store, objects[:1]), objects[0])
	if err := network.DamageRoute("lan"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return n.Repairs() == 1 })
	eventually(t, func() bool { _, routes := network.Content(); return len(routes) == 1 })
	eventually(t, func() bool { return network.Maintained() > 0 && plane.Maintained() > 0 })
	network.SetFaults(1)
	eventually(t, func() bool {
		p := n.Problems()
		return len(p) == 1 && strings.Contains(p[0], "maintain the network")
	})
}

func TestWithoutANetwork(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane})
	objects := bridged()
	revision := commit(t, store, objects)
	if left, err := n.Wait(within(t, 100*time.Millisecond), revision, []state.Key{objects[0].Key, objects[2].Key}); err == nil || len(left) != 2 {
		t.Errorf("waited with %v, left %v", err, left)
	}
	for _, o := range []*state.Object{objects[0], objects[2]} {
		if s, ok := n.Status(o.Key); !ok || s.State != reconcile.Failed || s.Reason != reconcile.ReasonUnsupported {
			t.Errorf("%s: %+v, want failed for want of support", o.Key, s)
		}
	}
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
}
