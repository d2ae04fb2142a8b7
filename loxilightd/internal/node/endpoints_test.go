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

func endpoint(name, network string, number byte, labels map[string]string) *state.Object {
	return objectOf(state.KindEndpoint, name, &state.Endpoint{Labels: labels, Endpoint: datapath.Endpoint{
		Device: name, MAC: [6]byte{2, 5: number}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, number})}, Network: network,
	}})
}

func bridge(name, device string) *state.Object {
	return objectOf(state.KindBridge, name, &state.Bridge{Bridge: datapath.Bridge{Device: device}})
}

func endpointPlane() *backends.FakePlane {
	return backends.NewFake(backends.FakeOptions{Device: func(datapath.Port) (datapath.PortState, bool) { return datapath.PortState{Index: 7}, true }})
}

// TestChangedDevicesAreReported: DevicesChanged is called if devices change.
func TestChangedDevicesAreReported(t *testing.T) {
	store, network := openStore(t), backends.NewFakeNetwork(backends.FakeOptions{})
	changed := make(chan struct{}, 1)
	start(t, Options{Store: store, Plane: endpointPlane(), Network: network, DevicesChanged: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	_ = network.DamageRoute("none") // signals a change, although there is no such route
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("not called")
	}
}

// TestEndpointFollowsItsNetwork: an Endpoint is a port of its network's bridge, and waits for the
// bridge if the bridge does not exist.
func TestEndpointFollowsItsNetwork(t *testing.T) {
	store, network := openStore(t), backends.NewFakeNetwork(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: endpointPlane(), Network: network})
	pod, anywhere := endpoint("pod", "lan", 5, nil), endpoint("anywhere", "", 6, nil)
	commit(t, store, []*state.Object{pod, anywhere})
	eventually(t, func() bool {
		s, _ := n.Status(pod.Key)
		other, _ := n.Status(anywhere.Key)
		return s.State == reconcile.Pending && strings.Contains(s.Message, `no PodNetwork or Bridge "lan"`) &&
			other.State == reconcile.Pending && strings.Contains(other.Message, "there is no PodNetwork")
	})
	waitFor(t, n, commit(t, store, []*state.Object{bridge("lan", "br0")}), pod, anywhere)
	if got := network.EndpointContent(); got["pod"].Bridge != "br0" || got["anywhere"].Bridge != "br0" {
		t.Errorf("endpoints %+v", got)
	}
	waitFor(t, n, commit(t, store, []*state.Object{bridge("lan", "br1")}), pod)
	eventually(t, func() bool { return network.EndpointContent()["pod"].Bridge == "br1" })
	waitFor(t, n, commit(t, store, nil, pod.Key, anywhere.Key), pod, anywhere)
	if calls := network.Calls(); !slices.Equal(calls[len(calls)-2:], []string{"remove endpoint", "remove endpoint"}) {
		t.Errorf("calls %q", calls)
	}
}

// TestGroupsFollowEndpoints: a group defined by labels has the addresses of the Endpoints with
// these labels, and all changes in one transaction take effect in one rule set.
func TestGroupsFollowEndpoints(t *testing.T) {
	store, plane := openStore(t), endpointPlane()
	attach(t, store)
	n := start(t, Options{Store: store, Plane: plane, Network: backends.NewFakeNetwork(backends.FakeOptions{})})
	web := map[string]string{"app": "web"}
	group := objectOf(state.KindAddressGroup, "web", &state.AddressGroup{
		AddressGroup: datapath.AddressGroup{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, Labels: []map[string]string{web},
	})
	outer := objectOf(state.KindAddressGroup, "outer", &state.AddressGroup{Groups: []datapath.GroupName{"web"}})
	deny, a, b := rule("deny", 5, "outer"), endpoint("a", "", 5, web), endpoint("b", "", 6, map[string]string{"app": "db"})
	lan := bridge("lan", "br0")
	want := func(addrs ...string) {
		t.Helper()
		set, _, _, _ := plane.Rules()
		var got []string
		for _, p := range set.Groups["outer"].Prefixes {
			got = append(got, p.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, addrs) {
			t.Errorf("group is %q, want %q", got, addrs)
		}
	}
	waitFor(t, n, commit(t, store, []*state.Object{group, outer, deny, lan}), deny, outer)
	want("192.0.2.0/24")
	waitFor(t, n, commit(t, store, []*state.Object{a, b}), a, b, group)
	want("10.1.0.5/32", "192.0.2.0/24")
	waitFor(t, n, commit(t, store, []*state.Object{endpoint("b", "", 6, web)}, a.Key), b, group)
	want("10.1.0.6/32", "192.0.2.0/24")
	if v := group.Value.(*state.AddressGroup); len(v.Prefixes) != 1 {
		t.Errorf("the object was written to: %v", v.Prefixes)
	}
}

// TestExpectRemoval: a change to an Endpoint's device is an external change, unless the daemon
// itself is deleting the device.
func TestExpectRemoval(t *testing.T) {
	store, plane, network := openStore(t), endpointPlane(), backends.NewFakeNetwork(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane, Network: network})
	pod, lan := endpoint("pod", "lan", 5, nil), bridge("lan", "br0")
	waitFor(t, n, commit(t, store, []*state.Object{pod, lan}), pod, lan)
	shut := func() uint64 {
		t.Helper()
		if err := network.Endpoints().Delete(t.Context(), "pod"); err != nil {
			t.Fatal(err)
		}
		before := n.Repairs()
		if err := n.VerifyEndpoint(t.Context(), "pod"); err != nil {
			t.Fatal(err)
		}
		return n.Repairs() - before
	}
	if got := shut(); got != 1 {
		t.Errorf("%d repairs of an external change, want 1", got)
	}
	eventually(t, func() bool { s, _ := n.Status(pod.Key); return s.State == reconcile.Done })
	first, second := n.ExpectRemoval("pod"), n.ExpectRemoval("pod")
	first()
	if got := shut(); got != 0 {
		t.Errorf("%d repairs of our own work", got)
	}
	second()
	if got := shut(); got != 1 {
		t.Errorf("%d repairs where it stayed after all, want 1", got)
	}
}
