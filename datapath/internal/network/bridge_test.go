// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestBridge creates a bridge with two ports, over which hosts reach each other, and removes it
// again.
//
//	a eth0 ── p1 ┐
//	             ├ br0 (10.71.0.1, fd71::1)
//	b eth0 ── p2 ┘
func TestBridge(t *testing.T) {
	r := newRig(t, false)
	ctx := context.Background()
	if err := r.n.NeedSwitch("p1"); err != nil {
		t.Fatal(err)
	}
	sw := r.sw()
	a := r.addHost("a", sw, "p1", "10.71.0.2/24", "fd71::2/64")
	b := r.addHost("b", sw, "p2", "10.71.0.3/24", "fd71::3/64")
	want := datapath.Bridge{
		Device: "br0", Addresses: prefixes("10.71.0.1/24", "fd71::1/64"), Ageing: 60e9, MTU: 1450,
		Ports: []datapath.BridgePort{{Device: "p1"}, {Device: "p2"}},
	}
	r.bridge("lan", want)
	r.has(sw, "ip -d addr show br0", []string{"mtu 1450", "ageing_time 6000", "10.71.0.1/24", "fd71::1/64 scope global nodad", "alias loxilight test"})
	if marked := r.marked("br0"); marked != 2 {
		t.Errorf("%d addresses say that they are ours, want 2", marked)
	}
	b.ServeUDP(t, "10.71.0.3:4660", "b")
	b.ServeUDP(t, "[fd71::3]:4660", "b")
	sw.ServeUDP(t, "10.71.0.1:4661", "switch")
	r.reach(a, "10.71.0.3:4660")
	r.reach(a, "[fd71::3]:4660")
	r.reach(a, "10.71.0.1:4661")

	// The MAC differs from the MACs of the ports, and stays the same when the bridge is recreated.
	mac := sw.MAC(t, "br0")
	if mac == sw.MAC(t, "p1") || mac == sw.MAC(t, "p2") {
		t.Error("the bridge has the MAC of a port")
	}
	r.drainSignals()
	sw.DeleteLink(t, "br0")
	r.awaitSignal("another program deleted the bridge")
	if ok, err := r.n.Bridges().Verify(ctx, "lan"); ok || err != nil {
		t.Errorf("a deleted bridge is as configured: %v", err)
	}
	r.bridge("lan", want)
	if sw.MAC(t, "br0") != mac {
		t.Error("the bridge has another MAC than before")
	}
	r.reach(a, "10.71.0.3:4660")

	// After a restart, with one port, one address and one setting fewer.
	r.restart()
	want.Ports, want.Addresses, want.Ageing = want.Ports[:1], prefixes("10.71.0.1/24"), 0
	r.bridge("lan", want)
	r.has(sw, "ip -d addr show br0", []string{"ageing_time 30000", "10.71.0.1/24"}, "fd71::1")
	r.has(sw, "ip link show master br0", []string{"p1"}, "p2")

	if err := r.n.Bridges().Delete(ctx, "lan"); err != nil {
		t.Fatal(err)
	}
	r.has(sw, "ip link", []string{"p1", "p2"}, "br0", "master")
}

// TestBridgeRepair changes each of our settings externally, one at a time.
func TestBridgeRepair(t *testing.T) {
	requireIP(t)
	r := newRig(t, true)
	r.addHost("a", r.host, "p1", "10.71.0.2/24")
	want := datapath.Bridge{
		Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ageing: 60e9, MTU: 1400,
		Ports: []datapath.BridgePort{{Device: "p1", Isolated: true}},
	}
	r.bridge("lan", want)
	for _, change := range []string{
		"ip link set p1 nomaster",
		"ip addr del 10.71.0.1/24 dev br0",
		"ip link set br0 mtu 1300",
		"ip link set br0 down",
		"ip link set br0 address 02:00:00:12:34:56",
		"ip link set br0 type bridge ageing_time 1000",
		"ip link set br0 alias mine",
		"ip link set p1 type bridge_slave isolated off",
		"ip link del br0",
	} {
		words := strings.Fields(change)
		r.host.Run(t, words[0], words[1:]...)
		if ok, err := r.n.Bridges().Verify(context.Background(), "lan"); ok || err != nil {
			t.Errorf("%s: not noticed (%v)", change, err)
		}
		r.bridge("lan", want)
	}
}

// TestLocalRouteEndsWithAddress restores the local route of an IPv6 address on a bridge that
// already existed. The kernel does not remove the restored route with the address, so we do.
func TestLocalRouteEndsWithAddress(t *testing.T) {
	requireIP(t)
	r := newRig(t, true)
	r.addHost("a", r.host, "p1", "10.71.0.2/24")
	r.host.Bridge(t, "br0", "p1")
	r.bridge("lan", datapath.Bridge{Device: "br0", Addresses: prefixes("fd71::1/64")})
	r.host.Run(t, "ip", "-6", "route", "del", "local", "fd71::1", "dev", "br0", "table", "local")
	if ok, err := r.n.Bridges().Verify(context.Background(), "lan"); ok || err != nil {
		t.Errorf("the missing local route is not noticed (%v)", err)
	}
	r.bridge("lan", datapath.Bridge{Device: "br0", Addresses: prefixes("fd71::1/64")})
	r.has(r.host, "ip -6 route show table local dev br0", []string{"local fd71::1"})
	if err := r.n.Bridges().Delete(context.Background(), "lan"); err != nil {
		t.Fatal(err)
	}
	r.has(r.host, "ip -6 route show table local dev br0", nil, "fd71::1")
	r.has(r.host, "ip link show br0", []string{"br0"})
}

// TestBridgeExternalChanges: whatever other programs add to one of our bridges is kept.
func TestBridgeExternalChanges(t *testing.T) {
	requireIP(t)
	r := newRig(t, true)
	r.addHost("a", r.host, "p1", "10.71.0.2/24")
	r.addHost("b", r.host, "p2", "10.71.0.3/24")
	want := datapath.Bridge{Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ports: []datapath.BridgePort{{Device: "p1"}}}
	r.bridge("lan", want)
	r.host.Run(t, "ip", "link", "set", "p2", "master", "br0")
	r.host.Addr(t, "br0", "10.72.0.1/24")
	r.host.Run(t, "bridge", "fdb", "add", "02:00:00:12:34:56", "dev", "p2", "master", "static")
	want.Addresses = prefixes("10.71.0.9/24")
	r.bridge("lan", want)
	r.restart()
	r.bridge("lan", want)
	r.has(r.host, "ip link show master br0", []string{"p1", "p2"})
	r.has(r.host, "ip addr show br0", []string{"10.72.0.1/24", "10.71.0.9/24"}, "10.71.0.1/24")
	r.has(r.host, "bridge fdb show br br0", []string{"02:00:00:12:34:56"})
}

// TestBridgeAdopted takes over a bridge that another program created, and releases it again,
// without disturbing its traffic.
func TestBridgeAdopted(t *testing.T) {
	r := newRig(t, true)
	ctx := context.Background()
	a := r.addHost("a", r.host, "p1", "10.71.0.2/24")
	b := r.addHost("b", r.host, "p2", "10.71.0.3/24")
	r.addHost("c", r.host, "p3", "10.71.0.4/24")
	r.host.Bridge(t, "br0", "p1", "p2")
	r.host.Addr(t, "br0", "10.71.0.1/24")
	mac := r.host.MAC(t, "br0")
	b.ServeUDP(t, "10.71.0.3:4660", "b")
	b.ServeTCP(t, "10.71.0.3:4660", "b")
	traffic := testtraffic.Start(t, a, "10.71.0.3:4660", testtraffic.Load{Flows: 4, Packets: 2000, Connections: 20, Lasting: 2})

	want := datapath.Bridge{
		Device: "br0", Addresses: prefixes("10.71.0.1/24", "10.73.0.1/24"),
		Ports: []datapath.BridgePort{{Device: "p1"}, {Device: "p3"}},
	}
	for range 5 {
		r.bridge("lan", want)
		r.has(r.host, "ip link show master br0", []string{"p1", "p2", "p3"})
		r.restart()
		r.bridge("lan", want)
		if err := r.n.Bridges().Delete(ctx, "lan"); err != nil {
			t.Fatal(err)
		}
		r.has(r.host, "ip link show master br0", []string{"p1", "p2"}, "p3")
		r.has(r.host, "ip addr show br0", []string{"10.71.0.1/24"}, "10.73.0.1", "alias")
	}
	if r.host.MAC(t, "br0") != mac {
		t.Error("the bridge has another MAC")
	}
	traffic.ExpectUnharmed(t)
}

// TestBridgePortAddedAndRemoved: a device that returns is attached to the bridge again.
func TestBridgePortAddedAndRemoved(t *testing.T) {
	r := newRig(t, true)
	want := datapath.Bridge{Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ports: []datapath.BridgePort{{Device: "p1"}}}
	update := func() error { return r.n.Bridges().Update(context.Background(), "lan", want) }
	for range 3 {
		r.wantAbsent(update(), `port p1 does not exist`)
		r.has(r.host, "ip addr show br0", []string{"10.71.0.1/24"}) // the rest is in force
		r.drainSignals()
		r.addHost("a", r.host, "p1", "10.71.0.2/24")
		r.awaitSignal("a device came")
		r.bridge("lan", want)
		r.has(r.host, "ip link show master br0", []string{"p1"})
		r.drainSignals()
		r.host.DeleteLink(t, "p1")
		r.awaitSignal("a device went")
	}
}

// TestBridgeRefused: impossible configurations are rejected with the reason, and nothing changes.
func TestBridgeRefused(t *testing.T) {
	r := newRig(t, true)
	r.addHost("a", r.host, "p1", "10.71.0.2/24")
	r.addHost("b", r.host, "p2", "10.71.0.3/24")
	r.host.Bridge(t, "other", "p2")
	for _, c := range []struct {
		what string
		b    datapath.Bridge
	}{
		{`device "p1" already exists with type veth, not bridge`, datapath.Bridge{Device: "p1"}},
		{`device "p2" is already enslaved to another device`, datapath.Bridge{Device: "br0", Ports: []datapath.BridgePort{{Device: "p2"}}}},
	} {
		err := r.n.Bridges().Update(context.Background(), "lan", c.b)
		if err == nil || !strings.Contains(err.Error(), c.what) || errors.Is(err, datapath.ErrAbsent) {
			t.Errorf("got %v, want %s", err, c.what)
		}
	}
	r.has(r.host, "ip link show master other", []string{"p2"})
}

// TestBridgeTakenOverByAnother moves a bridge to a different object, as in a rename: no port is
// detached and attached again.
func TestBridgeTakenOverByAnother(t *testing.T) {
	r := newRig(t, true)
	ctx := context.Background()
	a := r.addHost("a", r.host, "p1", "10.71.0.2/24")
	b := r.addHost("b", r.host, "p2", "10.71.0.3/24")
	b.ServeUDP(t, "10.71.0.3:4660", "b")
	want := datapath.Bridge{Device: "br0", Ports: []datapath.BridgePort{{Device: "p1"}, {Device: "p2"}}}
	r.bridge("lan", want)
	traffic := testtraffic.Start(t, a, "10.71.0.3:4660", testtraffic.Load{Flows: 4, Packets: 2000})
	names := []datapath.BridgeName{"lan", "lan2"}
	i := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); i++ {
		r.bridge(names[(i+1)%2], want)
		if err := r.n.Bridges().Delete(ctx, names[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	traffic.ExpectUnharmed(t)
	if err := r.n.Bridges().Delete(ctx, names[i%2]); err != nil {
		t.Fatal(err)
	}
	r.has(r.host, "ip link", []string{"p1"}, "br0")
}

// TestOtherDevicesAreNoNews: devices that no object names cause no signals.
func TestOtherDevicesAreNoNews(t *testing.T) {
	r := newRig(t, true)
	r.addHost("a", r.host, "p1", "10.71.0.2/24")
	r.bridge("lan", datapath.Bridge{Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ports: []datapath.BridgePort{{Device: "p1"}}})
	names := map[int32]string{}
	message := func(kind uint16, index int32, name string) syscall.NetlinkMessage {
		info := nl.NewIfInfomsg(0)
		info.Index = index
		attr := nl.NewRtAttr(unix.IFLA_IFNAME, append([]byte(name), 0))
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: append(info.Serialize(), attr.Serialize()...)}
	}
	for _, c := range []struct {
		kind  uint16
		index int32
		name  string
		want  bool
	}{
		{unix.RTM_NEWLINK, 7, "pod7", false},
		{unix.RTM_NEWLINK, 8, "p1", true},
		{unix.RTM_NEWLINK, 8, "p1", true},
		{unix.RTM_NEWLINK, 8, "elsewhere", true}, // formerly p1
		{unix.RTM_NEWLINK, 8, "elsewhere", false},
		{unix.RTM_DELLINK, 9, "br0", true},
		{unix.RTM_DELLINK, 7, "pod7", false},
		{unix.RTM_NEWLINK, 7, "loxi_host", true},
	} {
		if got := r.n.concerns(names, message(c.kind, c.index, c.name)); got != c.want {
			t.Errorf("%d of %s: %v, want %v", c.kind, c.name, got, c.want)
		}
	}
	// A route whose device the kernel chooses may depend on any device.
	if err := r.n.Routes().Update(context.Background(), "far", datapath.Route{
		Prefix: netip.MustParsePrefix("192.0.2.0/24"), NextHops: []datapath.NextHop{via("10.71.0.9", "")},
	}); err != nil {
		t.Fatal(err)
	}
	if !r.n.concerns(names, message(unix.RTM_NEWLINK, 10, "pod10")) {
		t.Error("a route whose device is the kernel's choice, and a device came unheard")
	}
}
