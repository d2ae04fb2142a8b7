// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func podNetwork(name string, subnets ...string) *state.Object {
	v := &state.PodNetwork{Bridge: "hsvlan110"}
	for _, s := range subnets {
		v.Subnets = append(v.Subnets, netip.MustParsePrefix(s))
	}
	return objectOf(state.KindPodNetwork, name, v)
}

func masqueraded(name string, subnet string, except ...string) *state.Object {
	o := podNetwork(name, subnet)
	v := o.Value.(*state.PodNetwork)
	v.Masquerade = true
	for _, e := range except {
		v.Except = append(v.Except, netip.MustParsePrefix(e))
	}
	return objectOf(state.KindPodNetwork, name, v)
}

func uplink(device string) *state.Object {
	return objectOf(state.KindInterface, device, &state.Interface{Port: datapath.Port{Device: device, Role: datapath.RoleUplink}})
}

// podRig is a node whose device MTUs are set by a test.
type podRig struct {
	t       *testing.T
	store   *state.Store
	plane   *backends.FakePlane
	network *backends.FakeNetwork
	reports *recorder
	n       *Node
	mtu     atomic.Int64
}

func newPodRig(t *testing.T) *podRig {
	r := &podRig{t: t, store: openStore(t), network: backends.NewFakeNetwork(backends.FakeOptions{}), reports: &recorder{}}
	r.mtu.Store(1500)
	r.plane = backends.NewFake(backends.FakeOptions{Device: func(datapath.Port) (datapath.PortState, bool) {
		return datapath.PortState{Index: 7, MTU: int(r.mtu.Load())}, true
	}})
	r.n = start(t, Options{
		Store: r.store, Plane: r.plane, Network: r.network, StatusChanged: r.reports.record, Devices: Devices{Host: "loxi_host", Switch: "hs_host"},
	})
	return r
}

func (r *podRig) apply(objects ...*state.Object) {
	r.t.Helper()
	waitFor(r.t, r.n, commit(r.t, r.store, objects), objects...)
}

var compared = cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})

// want compares the actual rows with the desired rows.
func (r *podRig) want(bridge datapath.Bridge, host datapath.Link, routes map[datapath.RouteName]datapath.Route, ports ...string) {
	r.t.Helper()
	bridges, gotRoutes := r.network.Content()
	gotPorts, _ := r.plane.Content()
	if d := cmp.Diff(map[datapath.BridgeName]datapath.Bridge{"pods#bridge": bridge}, bridges, compared); d != "" {
		r.t.Errorf("bridges (-want +got):\n%s", d)
	}
	if d := cmp.Diff(host, r.network.LinksContent()["pods#host"], compared); d != "" {
		r.t.Errorf("the host's end (-want +got):\n%s", d)
	}
	if d := cmp.Diff(routes, gotRoutes, compared); d != "" {
		r.t.Errorf("routes (-want +got):\n%s", d)
	}
	if got := slices.Sorted(maps.Keys(gotPorts)); fmt.Sprint(got) != fmt.Sprint(ports) {
		r.t.Errorf("ports %v, want %v", got, ports)
	}
}

func defaultBy(via, device string) datapath.Route {
	a := netip.MustParseAddr(via)
	p := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if a.Is4() {
		p = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return datapath.Route{Prefix: p, Switch: true, NextHops: []datapath.NextHop{{Via: a, Device: device, Weight: 1}}}
}

func list(prefixes ...string) (all []netip.Prefix) {
	for _, p := range prefixes {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestPodNetworkRows(t *testing.T) {
	r := newPodRig(t)
	one := podNetwork("one", "10.7.1.0/24", "2001:db8:7::/64")
	r.apply(uplink("eth0"), one)
	r.reports.want(t, "Interface/eth0 done", "PodNetwork/one done")
	hsHost := []datapath.BridgePort{{Device: "hs_host"}}
	six := defaultBy("2001:db8:7::2", "hsvlan110")
	eventually(t, func() bool { b, _ := r.network.Content(); return b["pods#bridge"].MTU == 1500 })
	eventually(t, func() bool { return r.network.LinksContent()["pods#host"].MTU == 1500 })
	r.want(datapath.Bridge{Device: "hsvlan110", Addresses: list("10.7.1.1/24", "2001:db8:7::1/64"), Ports: hsHost, MTU: 1500},
		datapath.Link{Device: "loxi_host", Addresses: list("10.7.1.2/24", "2001:db8:7::2/64"), MTU: 1500},
		map[datapath.RouteName]datapath.Route{"pods#default4": defaultBy("10.7.1.2", "hsvlan110"), "pods#default6": six}, "eth0", "pods#host", "pods#switch")

	// A second network shares the bridge. A Route and an Interface replace the derived rows.
	lead := objectOf(state.KindRoute, "lead", &state.Route{Route: datapath.Route{
		Prefix: netip.MustParsePrefix("0.0.0.0/0"), Switch: true, NextHops: []datapath.NextHop{{Device: "hs1", Weight: 1}}}})
	own := objectOf(state.KindInterface, "own", &state.Interface{Port: datapath.Port{Device: "hs_host", Switch: true, Role: datapath.RoleHost}})
	r.mtu.Store(1400)
	two := podNetwork("two", "10.8.1.0/25")
	r.apply(two, lead, own)
	r.reports.want(t, "PodNetwork/two done", "Route/lead done", "Interface/own done")
	r.plane.SignalChange()
	eventually(t, func() bool { b, _ := r.network.Content(); return b["pods#bridge"].MTU == 1400 })
	eventually(t, func() bool { _, routes := r.network.Content(); return len(routes) == 2 })
	eventually(t, func() bool { return r.network.LinksContent()["pods#host"].MTU == 1400 })
	r.want(datapath.Bridge{Device: "hsvlan110", Addresses: list("10.7.1.1/24", "2001:db8:7::1/64", "10.8.1.1/25"), Ports: hsHost, MTU: 1400},
		datapath.Link{Device: "loxi_host", Addresses: list("10.7.1.2/24", "2001:db8:7::2/64", "10.8.1.2/25"), MTU: 1400},
		map[datapath.RouteName]datapath.Route{"lead": lead.Value.(*state.Route).Route, "pods#default6": six}, "eth0", "own", "pods#host")
	if m := r.n.PodMTU(); m != 1400 {
		t.Errorf("MTU %d, want 1400", m)
	}

	// Now there is a tunnel with a smaller MTU.
	tunnel := objectOf(state.KindTunnel, "overlay", &state.Tunnel{Tunnel: datapath.Tunnel{Device: "hsvxlan100", MTU: 1350}})
	r.apply(tunnel)
	r.reports.want(t, "Tunnel/overlay done")
	eventually(t, func() bool { b, _ := r.network.Content(); return b["pods#bridge"].MTU == 1350 && r.n.PodMTU() == 1350 })

	revision := commit(t, r.store, nil, one.Key, two.Key, own.Key, lead.Key, tunnel.Key)
	waitFor(t, r.n, revision, one, two, own, lead, tunnel)
	bridges, routes := r.network.Content()
	ports, _ := r.plane.Content()
	if len(bridges)+len(routes)+len(r.network.LinksContent()) > 0 || len(ports) != 1 {
		t.Errorf("left are %v %v %v %v", bridges, routes, r.network.LinksContent(), ports)
	}
	r.reports.want(t, "PodNetwork/one removed", "PodNetwork/two removed", "Route/lead removed", "Interface/own removed", "Tunnel/overlay removed")
}

func (r *podRig) rules() map[datapath.NATName]datapath.NAT {
	_, _, set, _ := r.plane.Rules()
	return set.Rules
}

func TestPodMasquerade(t *testing.T) {
	r := newPodRig(t)
	one := masqueraded("one", "10.7.1.0/24", "128.0.0.0/1")
	revision := commit(t, r.store, []*state.Object{one})
	r.reports.want(t, "PodNetwork/one pending")
	if s, _ := r.n.Status(one.Key); s.State != reconcile.Pending || !strings.Contains(s.Message, "no uplink has our programs") {
		t.Errorf("without an uplink: %+v", s)
	}
	if some, count := r.n.NotDone(10); count != 1 || len(some) != 1 {
		t.Errorf("not done: %d, %v; want the PodNetwork alone", count, some)
	}
	if left, err := r.n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{one.Key}); err == nil || len(left) != 1 {
		t.Errorf("waited with %v, left %v", err, left)
	}
	r.apply(uplink("eth0"), one)
	r.reports.want(t, "Interface/eth0 done", "PodNetwork/one done")
	port := objectOf(state.KindInterface, "p1", &state.Interface{Port: datapath.Port{Device: "p1", Switch: true, Role: datapath.RolePort}})
	r.apply(masqueraded("two", "10.0.0.0/16"), uplink("eth1"), port, nat("own"))
	got := r.rules()
	want := map[datapath.NATName]datapath.NAT{
		"own": {Type: datapath.Masquerade},
		"PodNetwork/one#ipv4": {Type: datapath.Masquerade, Priority: 1<<31 - 1, Match: datapath.Match{
			Source: list("10.7.1.0/24"), Out: []string{"eth0", "eth1"}, Destination: without(netip.MustParsePrefix("0.0.0.0/1"), list("10.7.1.0/24", "10.0.0.0/16"))}},
		"PodNetwork/two#ipv4": {Type: datapath.Masquerade, Priority: 1<<31 - 1, Match: datapath.Match{
			Source: list("10.0.0.0/16"), Out: []string{"eth0", "eth1"}, Destination: without(netip.MustParsePrefix("0.0.0.0/0"), list("10.7.1.0/24", "10.0.0.0/16"))}},
	}
	if d := cmp.Diff(want, got, compared); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}

	// Connections to pods on another node keep their source address.
	peer := objectOf(state.KindPeer, "far", &state.Peer{Peer: datapath.Peer{Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Prefixes: list("64.0.0.0/2", "2001:db8:9::/48")}})
	r.apply(peer)
	eventually(t, func() bool {
		_, in := r.rules()["PodNetwork/one#ipv4"]
		return in && cmp.Equal(r.rules()["PodNetwork/one#ipv4"].Match.Destination, without(netip.MustParsePrefix("0.0.0.0/2"), list("10.7.1.0/24", "10.0.0.0/16")), compared)
	})
	r.reports.want(t, "Peer/far done", "Interface/eth1 done", "Interface/p1 done", "PodNetwork/two done", "NAT/own done")
	r.plane.Refuse("PodNetwork/one#ipv4", fmt.Errorf("not today"))
	commit(t, r.store, []*state.Object{masqueraded("one", "10.7.2.0/24")})
	// Connections from the other network to the new subnet would be translated.
	r.reports.want(t, "PodNetwork/one failed", "PodNetwork/two failed")
	if s, _ := r.n.Status(one.Key); s.Message != "not today" {
		t.Errorf("refused: %+v", s)
	}
	r.plane.Refuse("PodNetwork/one#ipv4", nil)
	r.reports.want(t, "PodNetwork/one done", "PodNetwork/two done")
	r.apply(podNetwork("one", "10.7.2.0/24"), podNetwork("two", "10.0.0.0/16"))
	if got := r.rules(); len(got) != 1 {
		t.Errorf("without masquerade: %v", got)
	}
}

// TestPodNetworkAndPeers: the host routes packets for pods behind a tunnel to the switch.
func TestPodNetworkAndPeers(t *testing.T) {
	r := newPodRig(t)
	tunnel := objectOf(state.KindTunnel, "mesh", &state.Tunnel{Tunnel: datapath.Tunnel{Device: "hstunnel"}})
	peer := func(name, tunnel string, prefixes ...string) *state.Object {
		return objectOf(state.KindPeer, name, &state.Peer{Peer: datapath.Peer{
			Underlay: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[0]})}, Prefixes: list(prefixes...), Tunnel: datapath.TunnelName(tunnel)}})
	}
	configured := objectOf(state.KindRoute, "configured", &state.Route{Route: datapath.Route{
		Prefix: netip.MustParsePrefix("10.7.4.0/24"), NextHops: []datapath.NextHop{{Device: "eth7", Weight: 1}}}})
	one := podNetwork("one", "10.7.1.0/24")
	r.apply(one, tunnel, peer("a", "mesh", "10.7.2.0/24", "10.7.4.0/24", "2001:db8::/48"), peer("b", "", "10.7.3.0/24"), configured)
	want := map[datapath.RouteName]datapath.Route{
		"pods#default4": defaultBy("10.7.1.2", "hsvlan110"), "configured": configured.Value.(*state.Route).Route,
		"Peer/a#10.7.2.0/24": {Prefix: netip.MustParsePrefix("10.7.2.0/24"), NextHops: []datapath.NextHop{{Via: netip.MustParseAddr("10.7.1.1"), Device: "loxi_host", Weight: 1}}},
	}
	_, routes := r.network.Content()
	if d := cmp.Diff(want, routes, compared); d != "" {
		t.Errorf("routes (-want +got):\n%s", d)
	}
	// The PodNetwork reports a failed route.
	r.network.SetFaults(1)
	revision := commit(t, r.store, []*state.Object{peer("c", "mesh", "10.7.5.0/24")})
	eventually(t, func() bool { s, _ := r.n.Status(one.Key); return s.State == reconcile.Failed && s.Message != "" })
	r.network.SetFaults(0)
	waitFor(t, r.n, revision, one)
	r.apply(podNetwork("one", "10.7.1.0/25"))
	revision = commit(t, r.store, nil, one.Key)
	waitFor(t, r.n, revision, one)
	eventually(t, func() bool { _, routes := r.network.Content(); return len(routes) == 1 })
}

// TestWithout checks for each address that it is covered unless an excluded prefix contains it.
func TestWithout(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for range 300 {
		base := netip.MustParsePrefix("10.1.2.0/24")
		shift := 0
		if random.IntN(2) == 0 {
			base, shift = netip.MustParsePrefix("2001:db8::/120"), 96
		}
		var out []netip.Prefix
		for range random.IntN(5) {
			b := base.Addr().AsSlice()
			b[len(b)-1] = byte(random.IntN(256))
			a, _ := netip.AddrFromSlice(b)
			p, err := a.Prefix(shift + 22 + random.IntN(11))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, p)
		}
		left := without(base, out)
		for i, a := 0, base.Addr(); i < 256; i, a = i+1, a.Next() {
			in := func(list []netip.Prefix) (n int) {
				for _, p := range list {
					if p.Contains(a) {
						n++
					}
				}
				return n
			}
			if n := in(left); n > 1 || (n == 1) == (in(out) > 0) {
				t.Fatalf("%s without %v: %v, with %s %d times", base, out, left, a, n)
			}
		}
		for _, p := range left {
			if p.Masked() != p {
				t.Fatalf("%s has bits behind its length", p)
			}
		}
	}
}

// TestPodNetworkThroughFaults changes pod networks while one call in three fails.
func TestPodNetworkThroughFaults(t *testing.T) {
	r := newPodRig(t)
	r.network.SetFaults(0.33)
	r.plane.SetFaults(0.33)
	last := podNetwork("one", "10.7.1.0/24")
	for i := range 40 {
		last = podNetwork("one", fmt.Sprintf("10.7.%d.0/24", i))
		if i%7 == 6 {
			commit(t, r.store, nil, last.Key)
			continue
		}
		commit(t, r.store, []*state.Object{last})
	}
	r.network.SetFaults(0)
	r.plane.SetFaults(0)
	waitFor(t, r.n, r.store.Snapshot().Revision, last)
	r.want(datapath.Bridge{Device: "hsvlan110", Addresses: list("10.7.39.1/24"), Ports: []datapath.BridgePort{{Device: "hs_host"}}},
		datapath.Link{Device: "loxi_host", Addresses: list("10.7.39.2/24")},
		map[datapath.RouteName]datapath.Route{"pods#default4": defaultBy("10.7.39.2", "hsvlan110")}, "pods#host", "pods#switch")
}

// TestPodNetworkIsKept: rows of pod networks that this version cannot decode are kept.
func TestPodNetworkIsKept(t *testing.T) {
	for _, kept := range []bool{false, true} {
		store, plane, network := openStore(t), backends.NewFake(backends.FakeOptions{}), backends.NewFakeNetwork(backends.FakeOptions{})
		if kept {
			store = undecodableStore(t, masqueraded("one", "10.7.1.0/24"))
		}
		set := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{"PodNetwork/one#ipv4": {Type: datapath.Masquerade}}}
		if err := plane.NAT().Update(t.Context(), datapath.NodeSet, set); err != nil {
			t.Fatal(err)
		}
		if err := network.Bridges().Update(t.Context(), "pods#bridge", datapath.Bridge{Device: "hsvlan110"}); err != nil {
			t.Fatal(err)
		}
		n := start(t, Options{Store: store, Plane: plane, Network: network})
		if err := n.Synced(within(t, 20*time.Second)); err != nil {
			t.Fatal(err)
		}
		if bridges, _ := network.Content(); len(bridges) == 1 != kept {
			t.Errorf("kept %v: bridges %v", kept, bridges)
		}
		if _, _, _, translates := plane.Rules(); translates != kept {
			t.Errorf("kept %v: NAT %v", kept, translates)
		}
	}
}

// TestUplinkNames: the masquerade of pods matches an uplink by its current name and by the name by
// which rules still match it.
func TestUplinkNames(t *testing.T) {
	store := openStore(t)
	plane := backends.NewFake(backends.FakeOptions{Device: func(p datapath.Port) (datapath.PortState, bool) {
		if p.Address.IsValid() {
			return datapath.PortState{Device: "wan7", RuleName: "eth0", Index: 7, MTU: 1500}, true
		}
		return datapath.PortState{Device: p.Device, RuleName: "old1", Index: 8, MTU: 1500}, true
	}})
	n := start(t, Options{
		Store: store, Plane: plane, Network: backends.NewFakeNetwork(backends.FakeOptions{}), Devices: Devices{Host: "loxi_host", Switch: "hs_host"},
	})
	byAddress := objectOf(state.KindInterface, "wan", &state.Interface{Port: datapath.Port{Address: netip.MustParseAddr("2001:db8::1"), Role: datapath.RoleUplink}})
	byDevice := uplink("eth1")
	waitFor(t, n, commit(t, store, []*state.Object{byAddress, byDevice}), byAddress, byDevice)
	one := podNetwork("one", "10.7.1.0/24", "2001:db8:7::/64")
	one.Value.(*state.PodNetwork).Masquerade = true
	waitFor(t, n, commit(t, store, []*state.Object{one}), one)
	want := []string{"eth0", "eth1", "old1", "wan7"}
	var set datapath.NATSet
	eventually(t, func() bool {
		_, _, set, _ = plane.Rules()
		return len(set.Rules) == 2
	})
	if got := slices.Sorted(slices.Values(set.Uplinks)); !slices.Equal(got, want) {
		t.Errorf("uplinks %v, want %v", got, want)
	}
	for name, rule := range set.Rules {
		if got := slices.Sorted(slices.Values(rule.Match.Out)); !slices.Equal(got, want) {
			t.Errorf("%s matches %v, want %v", name, got, want)
		}
	}
}
