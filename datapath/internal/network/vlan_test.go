// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// requireVLANs skips the test on kernels without VLAN filtering, after checking that they reject a
// bridge with filtering and do not leave it behind.
func requireVLANs(t *testing.T, r *rig) {
	t.Helper()
	err := r.n.Bridges().Update(context.Background(), "probe", datapath.Bridge{Device: "br0", VLANFiltering: true})
	if errors.Is(err, datapath.ErrUnsupported) {
		if l, err := r.n.host.Link("br0"); l != nil || err != nil {
			t.Errorf("a bridge that would mix VLANs was left: %v", err)
		}
		t.Skip("kernel without CONFIG_BRIDGE_VLAN_FILTERING")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.n.Bridges().Delete(context.Background(), "probe"); err != nil {
		t.Fatal(err)
	}
}

// vlans returns the VLANs of a device, for example "10pu 20": p is the PVID, u is untagged.
func (r *rig) vlans(device string) string {
	r.t.Helper()
	link, err := r.n.host.Link(device)
	if err != nil || link == nil {
		r.t.Fatalf("%s: %v", device, err)
	}
	all, err := r.n.host.Netlink.BridgeVlanList()
	if err != nil {
		r.t.Fatal(err)
	}
	list := all[int32(link.Attrs().Index)]
	slices.SortFunc(list, func(a, b *nl.BridgeVlanInfo) int { return int(a.Vid) - int(b.Vid) })
	text := ""
	for i, v := range list {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprint(v.Vid)
		if v.PortVID() {
			text += "p"
		}
		if v.EngressUntag() {
			text += "u"
		}
	}
	return text
}

func (r *rig) wantVLANs(device, want string) {
	r.t.Helper()
	if got := r.vlans(device); got != want {
		r.t.Errorf("VLANs of %s: %q, want %q", device, got, want)
	}
}

// tagged gives a host a device for a VLAN.
func (r *rig) tagged(ns *testnet.NS, vlan int, addr string) {
	r.t.Helper()
	name := fmt.Sprintf("eth0.%d", vlan)
	ns.Do(r.t, func() error {
		parent, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = name, parent.Attrs().Index
		return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: vlan})
	})
	ns.Up(r.t, name)
	ns.Addr(r.t, name, addr)
}

// silent checks that a datagram is not answered.
func (r *rig) silent(from *testnet.NS, target string) {
	r.t.Helper()
	c, err := from.Dial("udp", "", target, time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := c.Write([]byte("a datagram")); err != nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := c.Read(make([]byte, 100)); err == nil {
		r.t.Errorf("%s answered with %d bytes", target, n)
	}
}

// TestVLANs configures ports in VLANs, tagged and untagged, and changes them under traffic.
//
//	a ── p1 10 ┐          ┌ p3 20 ── c
//	           ├ br0 (10) ┤
//	b ── p2 10 ┘          └ p4 10,20 tagged ── d: eth0.10, eth0.20
func TestVLANs(t *testing.T) {
	r := newRig(t, true)
	requireVLANs(t, r)
	a := r.addHost("a", r.host, "p1", "10.71.0.2/24")
	b := r.addHost("b", r.host, "p2", "10.71.0.3/24")
	c := r.addHost("c", r.host, "p3", "10.71.0.4/24")
	d := r.addHost("d", r.host, "p4")
	r.tagged(d, 10, "10.71.0.5/24")
	r.tagged(d, 20, "10.71.1.5/24")
	c.Addr(t, "eth0", "10.71.1.4/24")
	for ns, addr := range map[*testnet.NS]string{b: "10.71.0.3", c: "10.71.0.4", d: "10.71.0.5"} {
		ns.ServeUDP(t, addr+":4660", "host")
	}
	d.ServeUDP(t, "10.71.1.5:4660", "d")
	one := func(v uint16) []datapath.VLANRange { return []datapath.VLANRange{{First: v, Last: v}} }
	want := datapath.Bridge{
		Device: "br0", VLANFiltering: true, Addresses: prefixes("10.71.0.1/24"),
		Ports: []datapath.BridgePort{
			{Device: "p1", PVID: 10, Untagged: one(10)},
			{Device: "p2", PVID: 10, Untagged: one(10)},
			{Device: "p3", PVID: 20, Untagged: one(20)},
			{Device: "p4", VLANs: []datapath.VLANRange{{First: 10, Last: 10}, {First: 20, Last: 20}}},
			{Device: "br0", PVID: 10},
		},
	}
	r.bridge("lan", want)
	r.host.ServeUDP(t, "10.71.0.1:4660", "switch")
	for device, vlans := range map[string]string{"p1": "10pu", "p2": "10pu", "p3": "20pu", "p4": "10 20", "br0": "10pu"} {
		r.wantVLANs(device, vlans)
	}
	r.reach(a, "10.71.0.3:4660")
	r.reach(a, "10.71.0.5:4660")
	r.reach(a, "10.71.0.1:4660")
	r.reach(c, "10.71.1.5:4660")
	r.silent(a, "10.71.0.4:4660")

	// Changes under traffic: VLANs are added and removed, and the port stays attached.
	traffic := testtraffic.Start(t, a, "10.71.0.3:4660", testtraffic.Load{Flows: 4, Packets: 1000})
	for i := range 20 {
		p := &want.Ports[0]
		p.VLANs = nil
		if i%2 == 0 {
			p.VLANs = []datapath.VLANRange{{First: 100, Last: 199}, {First: 300, Last: 300}}
		}
		r.bridge("lan", want)
		r.restart()
	}
	r.bridge("lan", want)
	traffic.ExpectUnharmed(t)
	r.wantVLANs("p1", "10pu")

	// A VLAN that another program adds stays; a VLAN that it removes is restored.
	p1, err := r.n.host.Link("p1")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.n.host.Netlink.BridgeVlanAdd(p1, 33, false, false, false, false), r.n.host.Netlink.BridgeVlanDel(p1, 10, false, false, false, false)); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.n.Bridges().Verify(context.Background(), "lan"); ok || err != nil {
		t.Errorf("the removal of a VLAN by another program is not detected: %v", err)
	}
	want.Ports[0].PVID, want.Ports[0].Untagged = 20, one(20)
	r.bridge("lan", want)
	r.wantVLANs("p1", "20pu 33")
	a.Addr(t, "eth0", "10.71.1.2/24")
	r.reach(a, "10.71.1.5:4660")
	want.Ports[0].PVID, want.Ports[0].Untagged, want.Ports[0].VLANs = 0, nil, one(20)
	r.bridge("lan", want)
	r.wantVLANs("p1", "20 33")
	r.silent(a, "10.71.1.5:4660")
}

// TestVLANsAdopted takes over a bridge that another program made, with its VLANs.
func TestVLANsAdopted(t *testing.T) {
	r := newRig(t, true)
	requireVLANs(t, r)
	ctx := context.Background()
	a := r.addHost("a", r.host, "p1", "10.71.0.2/24")
	b := r.addHost("b", r.host, "p2", "10.71.0.3/24")
	r.addHost("c", r.host, "p3", "10.71.0.4/24")
	b.ServeUDP(t, "10.71.0.3:4660", "b")
	on := true
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	if err := r.n.host.Netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, VlanFiltering: &on}); err != nil {
		t.Fatal(err)
	}
	br0, err := r.n.host.Link("br0")
	if err != nil {
		t.Fatal(err)
	}
	r.host.Up(t, "br0")
	for _, device := range []string{"p1", "p2"} {
		link, err := r.n.host.Link(device)
		if err == nil {
			err = r.n.host.Netlink.LinkSetMaster(link, br0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := r.n.Bridges().Update(ctx, "lan", datapath.Bridge{Device: "br0"}); err == nil || errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("the VLANs of a bridge that was there would have become one: %v", err)
	}
	traffic := testtraffic.Start(t, a, "10.71.0.3:4660", testtraffic.Load{Flows: 4, Packets: 1000})
	for range 5 {
		r.bridge("lan", datapath.Bridge{Device: "br0", VLANFiltering: true, Ports: []datapath.BridgePort{
			{Device: "p1", PVID: 1, VLANs: []datapath.VLANRange{{First: 50, Last: 59}}, Untagged: []datapath.VLANRange{{First: 1, Last: 1}}},
			{Device: "p3", PVID: 7},
		}})
		r.wantVLANs("p3", "7pu")
		r.wantVLANs("p1", "1pu 50 51 52 53 54 55 56 57 58 59")
		r.restart()
		if err := r.n.Bridges().Delete(ctx, "lan"); err != nil {
			t.Fatal(err)
		}
		r.wantVLANs("p1", "1pu")
		r.wantVLANs("p2", "1pu")
		r.wantVLANs("br0", "1pu")
	}
	traffic.ExpectUnharmed(t)
}

// TestVLANsSwitchedOn switches VLAN filtering of a bridge on and off while its hosts exchange
// traffic.
func TestVLANsSwitchedOn(t *testing.T) {
	r := newRig(t, true)
	requireVLANs(t, r)
	a := r.addHost("a", r.host, "p1", "10.71.0.2/24")
	b := r.addHost("b", r.host, "p2", "10.71.0.3/24")
	b.ServeUDP(t, "10.71.0.3:4660", "b")
	plain := datapath.Bridge{Device: "br0", Ports: []datapath.BridgePort{{Device: "p1"}, {Device: "p2"}}}
	filtering := datapath.Bridge{Device: "br0", VLANFiltering: true, Ports: []datapath.BridgePort{{Device: "p1", PVID: 10}, {Device: "p2", PVID: 10}}}
	r.bridge("lan", plain)
	traffic := testtraffic.Start(t, a, "10.71.0.3:4660", testtraffic.Load{Flows: 4, Packets: 2000})
	for range 10 {
		r.bridge("lan", filtering)
		r.wantVLANs("p1", "10pu")
		r.wantVLANs("p2", "10pu")
		r.bridge("lan", plain)
	}
	traffic.ExpectUnharmed(t)
}
