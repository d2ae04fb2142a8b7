// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestRoamingPod: an Endpoint with an address outside all local pod subnets gets its own routes and
// is masqueraded; a configured Route replaces such a route.
func TestRoamingPod(t *testing.T) {
	store, plane, network := openStore(t), endpointPlane(), backends.NewFakeNetwork(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane, Network: network, Devices: Devices{Host: "loxi_test", Switch: "hs_host"}})
	pods := objectOf(state.KindPodNetwork, "default", &state.PodNetwork{Bridge: "br0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}})
	pod := endpoint("pod", "default", 5, nil) // 10.1.0.5
	waitFor(t, n, commit(t, store, []*state.Object{pods, pod}), pod)
	routes := func() (list []string) {
		for _, r := range network.EndpointContent()["pod"].Routes {
			where := "host"
			if r.Switch {
				where = "switch"
			}
			list = append(list, where+" "+r.Prefix.String()+" "+r.NextHops[0].Device)
		}
		return list
	}
	if got, want := routes(), []string{"switch 10.1.0.5/32 br0", "host 10.1.0.5/32 loxi_test"}; !slices.Equal(got, want) {
		t.Errorf("routes %q, want %q", got, want)
	}
	configured := objectOf(state.KindRoute, "configured", &state.Route{Route: datapath.Route{Prefix: netip.MustParsePrefix("10.1.0.5/32"), Switch: true}})
	commit(t, store, []*state.Object{configured})
	eventually(t, func() bool { return slices.Equal(routes(), []string{"host 10.1.0.5/32 loxi_test"}) })
	commit(t, store, nil, configured.Key)
	eventually(t, func() bool { return len(routes()) == 2 })
	home := objectOf(state.KindPodNetwork, "default", &state.PodNetwork{Bridge: "br0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
	commit(t, store, []*state.Object{home})
	eventually(t, func() bool { return len(routes()) == 0 })
}

// TestRoamingPodInOneNamespace: if host and switch are the same namespace, a Route to an Endpoint's
// address replaces the Endpoint's own route, whichever namespace the Route names.
func TestRoamingPodInOneNamespace(t *testing.T) {
	for _, inSwitch := range []bool{true, false} {
		store, network := openStore(t), backends.NewFakeNetwork(backends.FakeOptions{})
		n := start(t, Options{Store: store, Plane: endpointPlane(), Network: network})
		pods := objectOf(state.KindPodNetwork, "default", &state.PodNetwork{Bridge: "br0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}})
		pod := endpoint("pod", "default", 5, nil) // 10.1.0.5
		waitFor(t, n, commit(t, store, []*state.Object{pods, pod}), pod)
		routes := func() int { return len(network.EndpointContent()["pod"].Routes) }
		if routes() != 1 {
			t.Errorf("%d routes, want one", routes())
		}
		configured := objectOf(state.KindRoute, "configured", &state.Route{Route: datapath.Route{Prefix: netip.MustParsePrefix("10.1.0.5/32"), Switch: inSwitch}})
		commit(t, store, []*state.Object{configured})
		eventually(t, func() bool { return routes() == 0 })
	}
}

// TestLocalPodIsNotBehindPeers: while an Endpoint of this node has an address, that address is not
// behind a Peer, whichever was configured first.
func TestLocalPodIsNotBehindPeers(t *testing.T) {
	store, network := openStore(t), backends.NewFakeNetwork(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: endpointPlane(), Network: network})
	subnet, single := netip.MustParsePrefix("10.3.0.0/24"), netip.MustParsePrefix("10.1.0.5/32")
	other := objectOf(state.KindPeer, "node3", &state.Peer{Peer: datapath.Peer{
		Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.3")}, Prefixes: []netip.Prefix{subnet, single},
	}})
	lan, pod := bridge("lan", "br0"), endpoint("pod", "lan", 5, nil) // 10.1.0.5
	has := func(want ...netip.Prefix) func() bool {
		return func() bool { return slices.Equal(network.PeerContent()["node3"].Prefixes, want) }
	}
	waitFor(t, n, commit(t, store, []*state.Object{lan, other}), other)
	eventually(t, has(subnet, single))
	waitFor(t, n, commit(t, store, []*state.Object{pod}), pod)
	eventually(t, has(subnet))
	commit(t, store, nil, pod.Key)
	eventually(t, has(subnet, single))
	waitFor(t, n, commit(t, store, []*state.Object{pod}, other.Key), pod)
	waitFor(t, n, commit(t, store, []*state.Object{other}), other)
	eventually(t, has(subnet))
	if peers, _ := store.Snapshot().Peers(); len(peers["node3"].Prefixes) != 2 {
		t.Errorf("the snapshot was changed: %v", peers["node3"].Prefixes)
	}
}
