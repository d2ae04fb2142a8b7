// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestPodMTUStaysWhilePodsAreThere: pods' devices keep their MTU until no pod exists; the MTU for
// packets that leave the node is set on routes.
func TestPodMTUStaysWhilePodsAreThere(t *testing.T) {
	store, network := openStore(t), backends.NewFakeNetwork(backends.FakeOptions{})
	var up, inside atomic.Int64
	up.Store(1500)
	inside.Store(1500)
	planes := backends.FakeOptions{Device: func(p datapath.Port) (datapath.PortState, bool) {
		mtu := &inside
		if p.Device == "eth0" {
			mtu = &up
		}
		return datapath.PortState{Index: 7, MTU: int(mtu.Load())}, true
	}}
	plane := backends.NewFake(planes)
	options := Options{Store: store, Plane: plane, Network: network, Devices: Devices{Host: "loxi_host", Switch: "hs_host"}}
	n := start(t, options)
	want := func(n *Node, what string, device, route int) {
		t.Helper()
		plane.SignalChange()
		var bridge, host, sw, to4, to6, podMTU int
		if !holds(func() bool {
			bridges, routes := network.Content()
			links := network.LinksContent()
			bridge, host, sw = bridges["pods#bridge"].MTU, links["pods#host"].MTU, links["pods#switch"].MTU
			to4, to6 = int(routes["Peer/far#10.9.0.0/16"].MTU), int(routes["Peer/far#2001:db8:9::/48"].MTU)
			podMTU = n.PodMTU()
			return bridge == device && host == device && sw == device && to4 == route && to6 == route && (podMTU == device || podMTU == route)
		}) {
			t.Fatalf("%s: MTU of the bridge %d, the host's end %d, the switch's %d, want %d; of routes %d and %d, want %d; podMTU %d",
				what, bridge, host, sw, device, to4, to6, route, podMTU)
		}
	}
	peer := objectOf(state.KindPeer, "far", &state.Peer{Peer: datapath.Peer{
		Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Prefixes: list("10.9.0.0/16", "2001:db8:9::/48"), Tunnel: "mesh"}})
	tunnel := objectOf(state.KindTunnel, "mesh", &state.Tunnel{Tunnel: datapath.Tunnel{Device: "hsvxlan100", MTU: 9000}})
	pod, byHand := endpoint("hs1", "one", 5, nil), endpoint("hs2", "one", 6, nil)
	pod.Owner = state.OwnerCNI
	objects := []*state.Object{uplink("eth0"), podNetwork("one", "10.7.1.0/24", "2001:db8:7::/64"), tunnel, peer}
	waitFor(t, n, commit(t, store, objects), objects...)
	want(n, "without pods", 1500, 0)
	waitFor(t, n, commit(t, store, []*state.Object{pod, byHand}), pod, byHand)
	up.Store(1400)
	want(n, "with a pod, and less outside", 1500, 1400)
	up.Store(9000)
	want(n, "with a pod, and more outside", 1500, 0)
	up.Store(1400)
	want(n, "with a pod, and less again", 1500, 1400)

	// Another daemon finds the pod as this daemon left it. This daemon is still running, on its own
	// data plane.
	again := backends.NewFakeNetwork(backends.FakeOptions{})
	plane = backends.NewFake(planes)
	options.Network, options.Plane, network = again, plane, again
	n = start(t, options)
	want(n, "another daemon", 1500, 1400)

	waitFor(t, n, commit(t, store, nil, pod.Key), pod)
	want(n, "without pods again", 1400, 0)
}

// holds waits until ok returns true. It returns false if ok never does.
func holds(ok func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// TestPodMTURoute: no route gets an MTU that exceeds the device's MTU or is too small for the
// route's address family.
func TestPodMTURoute(t *testing.T) {
	four, six := netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("2001:db8:9::/48")
	for m, want := range map[podMTU][2]uint32{
		{1500, 1400}: {1400, 1400}, {1500, 1500}: {}, {1400, 1500}: {}, {1500, 0}: {}, {0, 1400}: {}, {1500, 1200}: {1200, 0},
	} {
		if got := [2]uint32{m.route(four), m.route(six)}; got != want {
			t.Errorf("%+v: %v, want %v", m, got, want)
		}
	}
}
