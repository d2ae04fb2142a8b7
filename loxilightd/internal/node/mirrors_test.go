// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// mirrorSite is a node whose devices a test adds and removes.
type mirrorSite struct {
	*Node
	t     *testing.T
	store *state.Store
	plane *backends.FakePlane

	mu      sync.Mutex
	devices map[string]datapath.LinkState
}

// newMirrorSite returns a node with the devices lo, eth7, mon0 and mon1. Host and switch are one
// network namespace unless devices of the link between them are given.
func newMirrorSite(t *testing.T, o Options) *mirrorSite {
	x := &mirrorSite{t: t, store: openStore(t), devices: map[string]datapath.LinkState{}}
	for _, name := range []string{"lo", "eth7", "mon0", "mon1", "pod"} {
		x.devices[name] = datapath.LinkUp
	}
	x.plane = backends.NewFake(backends.FakeOptions{
		Device: func(p datapath.Port) (datapath.PortState, bool) {
			x.mu.Lock()
			defer x.mu.Unlock()
			if p.Address == ownAddress {
				p.Device = "eth7"
			}
			link, ok := x.devices[p.Device]
			return datapath.PortState{Device: p.Device, Index: 7, Link: link}, ok
		},
		Devices: func(bool) map[string]datapath.Device {
			x.mu.Lock()
			defer x.mu.Unlock()
			all := map[string]datapath.Device{}
			for name, link := range x.devices {
				all[name] = datapath.Device{Kind: "veth", Link: link}
			}
			return all
		},
	})
	o.Store, o.Plane, o.Network = x.store, x.plane, backends.NewFakeNetwork(backends.FakeOptions{})
	x.Node = start(t, o)
	return x
}

// link sets the state of a device; LinkUnknown removes the device.
func (x *mirrorSite) link(device string, is datapath.LinkState) {
	x.mu.Lock()
	x.devices[device] = is
	if is == datapath.LinkUnknown {
		delete(x.devices, device)
	}
	x.mu.Unlock()
	x.plane.SignalChange()
}

func (x *mirrorSite) put(objects ...*state.Object) { commit(x.t, x.store, objects) }

func (x *mirrorSite) drop(keys ...state.Key) { commit(x.t, x.store, nil, keys...) }

// is waits until a Mirror is Ready, or not Ready because of text, and checks that the data plane
// holds the Mirror if and only if it is applied.
func (x *mirrorSite) is(name, text string) {
	x.t.Helper()
	k := state.Key{Kind: state.KindMirror, Name: name}
	deadline := time.Now().Add(20 * time.Second)
	for {
		s, ok := x.Status(k)
		if ok && (s.State == reconcile.Done) == (text == "") && strings.Contains(s.Message, text) {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("%s is %s %q, want %q", name, s.State, s.Message, text)
		}
		time.Sleep(time.Millisecond)
	}
}

// copies waits until the data plane copies exactly the desired packets.
func (x *mirrorSite) copies(want map[datapath.MirrorName]datapath.Mirror) {
	x.t.Helper()
	testnet.Eventually(x.t, 20*time.Second, fmt.Sprintf("copies of %+v", want), func() bool {
		return fmt.Sprint(x.plane.MirrorContent()) == fmt.Sprint(want)
	})
}

func mirrorOf(name, kind, source string, to datapath.MirrorTarget) *state.Object {
	v := &state.Mirror{Source: state.Key{Kind: kind, Name: source}, SourceField: map[string]string{
		state.KindInterface: "interface", state.KindEndpoint: "endpoint", state.KindService: "service", state.KindFirewallRule: "rule"}[kind]}
	v.Direction, v.To = datapath.MirrorIn, to
	return objectOf(state.KindMirror, name, v)
}

var (
	ownAddress = netip.MustParseAddr("192.0.2.7") // of eth7

	toMon0 = datapath.MirrorTarget{Device: "mon0"}
	eth    = objectOf(state.KindInterface, "eth", &state.Interface{Port: datapath.Port{Device: "eth7"}})
)

func allowing(name string) *state.Object {
	return objectOf(state.KindFirewallRule, name, &state.FirewallRule{FirewallRule: datapath.FirewallRule{Hooks: datapath.HookAll}})
}

// TestMirrorWaitsForEverythingThatItNeeds: without one of its parts, a Mirror is Pending, names the
// part, and nothing is copied; with all of them it is Ready.
func TestMirrorWaitsForEverythingThatItNeeds(t *testing.T) {
	x := newMirrorSite(t, Options{})
	x.link("mon0", datapath.LinkUnknown)
	x.put(mirrorOf("m", state.KindInterface, "eth", toMon0))
	x.is("m", "Interface/eth does not exist: create it (llcli interface add eth)")
	x.put(eth)
	x.is("m", "device mon0: does not exist")
	x.copies(nil)
	x.link("mon0", datapath.LinkDown)
	x.is("m", `copies are lost, because device "mon0" is down: run ip link set mon0 up`)
	x.link("mon0", datapath.LinkNoCarrier)
	x.is("m", `copies are lost, because device "mon0" has no carrier`)
	x.link("mon0", datapath.LinkUp)
	x.is("m", "")
	x.copies(map[datapath.MirrorName]datapath.Mirror{"m": {Port: "eth", Direction: datapath.MirrorIn, To: toMon0}})
	x.link("eth7", datapath.LinkDown)
	x.is("m", `copies nothing, because Interface/eth is not Ready: device "eth7" is down`)
	x.link("eth7", datapath.LinkUp)
	x.is("m", "")
	x.link("mon0", datapath.LinkUnknown)
	x.is("m", `copies are lost, because device "mon0" does not exist`)
	x.link("mon0", datapath.LinkUp)
	x.is("m", "")

	x.drop(eth.Key)
	x.is("m", "Interface/eth does not exist")
	x.copies(nil)
	x.put(eth)
	x.is("m", "")
	x.put(mirrorOf("m", state.KindInterface, "other", toMon0)) // must stop copying the packets of eth
	x.is("m", "Interface/other does not exist")
	x.copies(nil)
}

// TestMirrorOfEachSource: sources of every kind, each of which is created later than the Mirror,
// deleted, and created again.
func TestMirrorOfEachSource(t *testing.T) {
	x := newMirrorSite(t, Options{})
	web, ok := service("web", 1, 80, 1), allowing("ok")
	x.put(eth, bridge("lan", "br0"))
	for _, c := range []struct {
		source *state.Object
		want   datapath.Mirror
	}{
		{endpoint("pod", "lan", 5, nil), datapath.Mirror{Port: "Endpoint/pod"}},
		{web, datapath.Mirror{Service: "web"}}, {ok, datapath.Mirror{Rule: "ok"}},
	} {
		m := mirrorOf("m", c.source.Kind, c.source.Name, toMon0)
		c.want.Direction, c.want.To = datapath.MirrorIn, toMon0
		x.put(m)
		for range 2 {
			x.is("m", c.source.Key.String()+" does not exist: create it")
			x.copies(nil)
			x.put(c.source)
			x.is("m", "")
			x.copies(map[datapath.MirrorName]datapath.Mirror{"m": c.want})
			x.drop(c.source.Key)
		}
		x.drop(m.Key)
	}
	x.put(ok, mirrorOf("m", state.KindFirewallRule, "ok", toMon0))
	x.is("m", "")
	x.put(rule("ok", 1)) // denies
	x.is("m", "FirewallRule/ok allows no connections")
	x.copies(nil)
}

// TestMirrorToPeer: the Peer, its Tunnel and the VNI. A Tunnel with the VNI of the copies, which only
// a rollback can add, ends the copies.
func TestMirrorToPeer(t *testing.T) {
	x := newMirrorSite(t, Options{})
	to := datapath.MirrorTarget{Peer: "far", VNI: 4242}
	tunnel := func(name string, vni uint32) *state.Object {
		return objectOf(state.KindTunnel, name, &state.Tunnel{Tunnel: datapath.Tunnel{Device: "vx-" + name, VNI: vni}})
	}
	peer := func(tunnel string) *state.Object {
		return objectOf(state.KindPeer, "far", &state.Peer{Peer: datapath.Peer{Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Tunnel: datapath.TunnelName(tunnel)}})
	}
	x.put(eth, mirrorOf("m", state.KindInterface, "eth", to))
	x.is("m", "Peer/far does not exist: create it (llcli peer add far)")
	x.put(peer(""))
	x.is("m", "Peer/far has no Tunnel, through which copies could be sent: set one (llcli peer set far --tunnel NAME)")
	x.put(peer("mesh"))
	x.is("m", "Tunnel/mesh does not exist")
	x.copies(nil)
	x.put(tunnel("mesh", 7))
	x.is("m", "")
	x.copies(map[datapath.MirrorName]datapath.Mirror{"m": {Port: "eth", Direction: datapath.MirrorIn, To: to}})
	if _, err := x.store.Commit(&state.Transaction{Put: []*state.Object{tunnel("other", 4242)}}); err == nil {
		t.Error("a Tunnel with the VNI of a Mirror was accepted")
	}
	x.drop(state.Key{Kind: state.KindPeer, Name: "far"})
	x.is("m", "Peer/far does not exist")
	x.copies(nil)
}

// TestMirrorDevices: a device that is the source, or the link between host and switch.
func TestMirrorDevices(t *testing.T) {
	x := newMirrorSite(t, Options{Devices: Devices{Host: "mon1", Switch: "hs_host", Namespace: "sw"}})
	byAddress := objectOf(state.KindInterface, "by-address", &state.Interface{Port: datapath.Port{Address: ownAddress}})
	x.put(eth, byAddress, mirrorOf("m", state.KindInterface, "by-address", datapath.MirrorTarget{Device: "eth7"}),
		mirrorOf("link", state.KindInterface, "eth", datapath.MirrorTarget{Device: "mon1"}),
		mirrorOf("web", state.KindService, "web", toMon0), service("web", 1, 80, 1))
	x.is("m", "eth7 is the device whose packets are copied: name another device in spec.to.device")
	x.is("link", "mon1 is the link between host and switch, which would forward the copies")
	eventually(t, func() bool {
		s, _ := x.Status(state.Key{Kind: state.KindMirror, Name: "web"})
		return s.State == reconcile.Done && strings.Contains(s.Message, "packets that pass only devices in the switch are not copied")
	})
	if got := x.plane.MirrorContent(); len(got) != 1 || got["web"].Service != "web" {
		t.Errorf("copied: %+v", got)
	}
	x.put(objectOf(state.KindInterface, "eth", &state.Interface{Port: datapath.Port{Device: "eth7", Switch: true}}), mirrorOf("link", state.KindInterface, "eth", toMon0))
	x.is("link", "")
	if !x.plane.MirrorContent()["link"].To.Switch {
		t.Error("the target is not in the network namespace of the source")
	}
}

// TestMirrorIsLast: a Mirror is applied after everything that it needs in the same transaction, and
// deleted before: it is never reported as Pending.
func TestMirrorIsLast(t *testing.T) {
	for range 10 {
		reports := &recorder{}
		x := newMirrorSite(t, Options{StatusChanged: func(k state.Key, s Status) {
			if k.Kind == state.KindMirror {
				reports.record(k, s)
			}
		}})
		objects := []*state.Object{
			mirrorOf("eth", state.KindInterface, "eth", toMon0), mirrorOf("web", state.KindService, "web", toMon0), mirrorOf("ok", state.KindFirewallRule, "ok", toMon0),
			service("web", 1, 80, 1), allowing("ok"), eth,
		}
		var keys []state.Key
		for _, o := range objects {
			keys = append(keys, o.Key)
		}
		waitFor(t, x.Node, commit(t, x.store, objects), objects...)
		reports.want(t, "Mirror/eth done", "Mirror/ok done", "Mirror/web done")
		waitFor(t, x.Node, commit(t, x.store, nil, keys...), objects...)
		reports.want(t, "Mirror/eth removed", "Mirror/ok removed", "Mirror/web removed")
	}
}

// TestMirrorsAreKept: mirrors of an earlier run are adopted or deleted, and external changes are
// repaired.
func TestMirrorsAreKept(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	lo := objectOf(state.KindInterface, "lo", &state.Interface{Port: datapath.Port{Device: "lo"}})
	to := datapath.MirrorTarget{Peer: "none", VNI: 7}
	if err := plane.Ports().Update(t.Context(), "lo", datapath.Port{Device: "lo"}); err != nil {
		t.Fatal(err)
	}
	if err := plane.Peers().Update(t.Context(), "none", datapath.Peer{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []datapath.MirrorName{"gone", "waits"} {
		if err := plane.Mirrors().Update(t.Context(), name, datapath.Mirror{Port: "lo", To: to}); err != nil {
			t.Fatal(err)
		}
	}
	// Both are in the data plane, but Peer/none is no longer an object.
	commit(t, store, []*state.Object{lo, mirrorOf("waits", state.KindInterface, "lo", to)})
	n := start(t, Options{Store: store, Plane: plane})
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := plane.MirrorContent(); len(got) != 0 {
		t.Errorf("copied after the start: %+v", got)
	}

	x := newMirrorSite(t, Options{})
	x.put(eth, mirrorOf("m", state.KindInterface, "eth", toMon0))
	x.is("m", "")
	before := x.Repairs()
	if err := x.plane.DamageMirror("m", true); err != nil {
		t.Fatal(err)
	}
	x.plane.SignalChange()
	eventually(t, func() bool { return len(x.plane.MirrorContent()) == 1 && x.Repairs() > before })
}

// TestMirrorsThroughFaults changes sources, targets and Mirrors at random while one call in three
// fails. Once the faults end, exactly what is desired and possible is copied.
func TestMirrorsThroughFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	x := newMirrorSite(t, Options{})
	attach(t, x.store) // the last Interface of a Service is not deleted
	x.plane.SetFaults(0.33)
	sources := []*state.Object{eth, service("web", 1, 80, 1), allowing("ok")}
	for range 150 {
		source := sources[random.IntN(len(sources))]
		name := fmt.Sprint("m", random.IntN(5))
		switch random.IntN(4) {
		case 0:
			x.drop(source.Key)
		case 1:
			x.drop(state.Key{Kind: state.KindMirror, Name: name})
		case 2:
			x.put(source)
		case 3:
			x.put(mirrorOf(name, source.Kind, source.Name, datapath.MirrorTarget{Device: fmt.Sprint("mon", random.IntN(2))}))
		}
	}
	x.plane.SetFaults(0)
	want := map[datapath.MirrorName]datapath.Mirror{}
	s := x.store.Snapshot()
	for o := range s.After(state.KindMirror, "") {
		if m, fault := s.Resolve(o.Value.(*state.Mirror), true); fault == nil {
			want[datapath.MirrorName(o.Name)] = m
		}
	}
	eventually(t, func() bool { return fmt.Sprint(x.plane.MirrorContent()) == fmt.Sprint(want) })
	for _, name := range slices.Sorted(maps.Keys(want)) {
		x.is(string(name), "")
	}
}
