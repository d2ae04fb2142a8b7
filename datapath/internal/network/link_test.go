// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

func (r *rig) link(name datapath.LinkName, v datapath.Link) {
	r.t.Helper()
	if err := r.n.Links().Update(context.Background(), name, v); err != nil {
		r.t.Fatalf("link %s: %v", name, err)
	}
	r.linkIs(name, true)
}

func (r *rig) linkIs(name datapath.LinkName, wanted bool) {
	r.t.Helper()
	if ok, err := r.n.Links().Verify(context.Background(), name); ok != wanted || err != nil {
		r.t.Fatalf("link %s is as configured: %v, %v; want %v", name, ok, err, wanted)
	}
}

// TestLink sets addresses and an MTU on an existing device, and removes them again.
//
//	host: loxi_host ══ hs_host :switch
func TestLink(t *testing.T) {
	requireIP(t)
	r := newRig(t, false)
	ctx := context.Background()
	v := datapath.Link{Device: "loxi_host", Addresses: prefixes("10.5.1.2/24", "2001:db8:5::2/64"), MTU: 1432}
	r.wantAbsent(r.n.Links().Update(ctx, "pods", v), "loxi_host")
	br0 := datapath.Bridge{Device: "br0", Addresses: prefixes("10.5.1.1/24", "2001:db8:5::1/64"), Ports: []datapath.BridgePort{{Device: "hs_host"}}}
	r.bridge("b", br0)
	r.link("pods", v)
	r.host.Run(t, "ip", "address", "add", "10.6.1.9/24", "dev", "loxi_host") // another program's
	r.has(r.host, "ip address show dev loxi_host", []string{"10.5.1.2/24", "2001:db8:5::2/64", "10.6.1.9/24", "mtu 1432", "state UP"})
	r.sw().ServeUDP(t, "10.5.1.1:4660", "switch")
	r.sw().ServeUDP(t, "[2001:db8:5::1]:4660", "switch")
	r.reach(r.host, "10.5.1.1:4660")
	r.reach(r.host, "[2001:db8:5::1]:4660")

	// Removals and changes by other programs are detected and repaired.
	r.drainSignals()
	r.host.Run(t, "ip", "address", "del", "10.5.1.2/24", "dev", "loxi_host")
	r.awaitSignal("an address is gone")
	r.linkIs("pods", false)
	r.host.Run(t, "ip", "link", "set", "loxi_host", "mtu", "1400", "down")
	r.link("pods", v)
	r.has(r.host, "ip address show dev loxi_host", []string{"10.5.1.2/24", "2001:db8:5::2/64", "mtu 1432", "state UP"})

	// The MTU stays until a different one is configured.
	v.MTU = 0
	r.link("pods", v)
	r.has(r.host, "ip link show dev loxi_host", []string{"mtu 1432"})

	// After a restart, different settings replace the old ones.
	r.restart()
	r.bridge("b", br0)
	if names := fmt.Sprint(r.n.journal.link("pods").Addresses); names != "[10.5.1.2/24 2001:db8:5::2/64]" {
		t.Errorf("after a restart it is known that ours are %s", names)
	}
	v.Addresses, v.MTU = prefixes("10.5.1.7/24", "2001:db8:5::2/64"), 1500
	r.link("pods", v)
	r.has(r.host, "ip address show dev loxi_host", []string{"10.5.1.7/24", "2001:db8:5::2/64", "10.6.1.9/24", "mtu 1500"}, "10.5.1.2/")

	// The device is recreated, without its settings.
	r.sw().Run(t, "ip", "link", "del", "hs_host")
	r.linkIs("pods", false)
	if err := r.n.Maintain(ctx); err != nil {
		t.Fatal(err)
	}
	v.MTU = 1432
	r.link("pods", v)

	r.restart()
	if err := r.n.Links().Delete(ctx, "pods"); err != nil {
		t.Fatal(err)
	}
	r.has(r.host, "ip address show dev loxi_host", []string{"mtu 1500", "state UP"}, "10.5.1", "2001:db8")
	for name := range r.n.Links().Keys(ctx) {
		t.Errorf("%s is left", name)
	}

	// Detach removes the rest.
	r.link("pods", v)
	r.host.Run(t, "ip", "address", "add", "10.6.1.9/24", "dev", "loxi_host")
	r.close()
	r.host.Do(t, func() error { return Detach(r.cfg, slog.New(slog.DiscardHandler)) })
	r.has(r.host, "ip link show", nil, "loxi_host")
}

// TestLinkStays: on a device that is not ours, only our settings are removed.
func TestLinkStays(t *testing.T) {
	requireIP(t)
	r := newRig(t, true)
	r.host.Run(t, "ip", "link", "add", "own0", "type", "veth", "peer", "name", "own1")
	r.host.Run(t, "ip", "address", "add", "10.6.1.9/24", "dev", "own0")
	r.link("a", datapath.Link{Device: "own0", Addresses: prefixes("10.5.1.2/24", "10.6.1.9/24"), MTU: 1400})
	r.close()
	r.host.Do(t, func() error { return Detach(r.cfg, slog.New(slog.DiscardHandler)) })
	r.has(r.host, "ip address show dev own0", []string{"10.6.1.9/24", "mtu 1500"}, "10.5.1.2")
}
