// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestGuardedConnections: a connection from a guarded port continues only on that port, translated
// or not, and no other guarded host can send packets of the connection.
func TestGuardedConnections(t *testing.T) {
	loaded := newRig(t)
	for _, f := range families {
		for name, proto := range map[string]uint8{"TCP": testpkt.ProtoTCP, "UDP": testpkt.ProtoUDP} {
			for _, m := range []natMode{natModes[0], natModes[3]} {
				t.Run(fmt.Sprint(f.name, "/", name, "/", m.name), func(t *testing.T) {
					r := loaded.fresh(t)
					r.guard(true)
					p := r.connect(f, proto, m)
					r.follow(p) // unaffected by the guard
					r.intrude(p)
				})
			}
		}
	}
}

// intrude sends packets of an established connection from ports on which they must not arrive.
func (r *rig) intrude(p path) {
	r.t.Helper()
	unchanged := func(what string, of rigTuple, try func()) {
		r.t.Helper()
		before, _ := r.conn(of)
		try()
		if after, found := r.conn(of); !found || after != before {
			r.t.Errorf("%s: the connection was %+v and is %+v", what, before, after)
		}
	}
	for _, s := range []stage{stageData, stageConfirm} {
		forth := packet(r.out.arrives(), p.proto, p.client, p.vip, s, 61)
		unchanged("by another port", p.forth(), func() { r.step("by another port", r.out, forth, actUnspec, forth) })
		back := packet(r.in.arrives(), p.proto, p.backend, p.source, s, 61)
		unchanged("as the server", p.back(), func() {
			if got, _ := r.run(r.ingress, r.in, back); got != actShot {
				r.t.Errorf("as the server: action %d", got)
			}
		})
	}
	if n := r.counters()["DROP_SPOOFED"]; n != 2 {
		r.t.Errorf("%d counted as spoofed, want 2", n)
	}
	// From here on another endpoint has the client's address, as guard.Table records it.
	key := kernel.GuardKey{Ifindex: r.in.index}
	key.Addr.Word = rigWords(p.client.Addr().String())
	r.ok(r.maps[kernel.MapLlGuard].Delete(key))
	r.put(kernel.MapLlEpoch, uint32(0), kernel.Epoch{Count: 1, ChangedTick: rigTick()})
	unchanged("with its former address", p.forth(), func() {
		if got, _ := r.run(r.ingress, r.in, packet(r.in.arrives(), p.proto, p.client, p.vip, stageData, 61)); got != actShot {
			r.t.Errorf("with its former address: action %d", got)
		}
	})
}

// TestGuardedFrames: a bridged frame of an established connection is dropped unless it has the
// pod's MAC.
func TestGuardedFrames(t *testing.T) {
	r := newRig(t)
	r.guard(true)
	low := r.in.index & 0xffff
	r.put(kernel.MapLlBridged, low>>6, uint64(1)<<(low&63))
	s := kernel.BridgePort{Bridge: 99, Domain: 3, Mac: r.in.mac, Guard: podMAC, Flags: kernel.BridgePortGuarded}
	r.put(kernel.MapLlBridgePort, kernel.BridgePortKey{Ifindex: r.in.index}, s)
	frame := func(from [6]byte, stage stage) []byte {
		return packet(testpkt.Ethernet{Source: from, Destination: otherMAC}, testpkt.ProtoUDP, netip.AddrPortFrom(pod4, 5000), netip.AddrPortFrom(other4, 53), stage, 61)
	}
	for i := range 3 {
		if got, _ := r.run(r.ingress, r.in, frame(podMAC, stageData)); got == actShot {
			t.Fatalf("its own frame %d is dropped", i)
		}
	}
	if got, _ := r.run(r.ingress, r.in, frame(otherMAC, stageData)); got != actShot {
		t.Errorf("another's MAC: action %d", got)
	}
	if got, _ := r.run(r.ingress, r.in, frame(groupMAC, stageData)); got != actShot {
		t.Errorf("a group's MAC: action %d", got)
	}
	if n := r.counters()["DROP_SPOOFED"]; n != 2 {
		t.Errorf("%d counted as spoofed, want 2", n)
	}
}

// endpoint returns an endpoint for the client, with device in0 and these addresses.
func (n *network) endpoint(addrs ...string) datapath.Endpoint {
	e := datapath.Endpoint{Device: "in0", MAC: n.client.MAC(n.t, "eth0")}
	for _, a := range addrs {
		e.Addresses = append(e.Addresses, netip.MustParseAddr(a))
	}
	return e
}

func (n *network) from(local, remote string) error {
	c, err := n.client.Dial("tcp", local, remote, 500*time.Millisecond)
	if err == nil {
		c.Close()
	}
	return err
}

func (n *network) guards() int {
	n.t.Helper()
	count, err := pin.CountEntries(n.d.maps[kernel.MapLlGuard])
	n.ok(err)
	return int(count)
}

// TestGuardLives: a guard stays in force without a daemon and is taken over by the next one,
// follows the addresses of its endpoint, and is deleted with the endpoint.
func TestGuardLives(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			n := newNetwork(t)
			n.restart(how.attach)
			ctx := context.Background()
			n.ok(n.d.Ports().Update(ctx, "out0", datapath.Port{Device: "out0"}))
			n.backends.ServeTCP(t, "10.0.1.11:8080", "server")
			n.client.Addr(t, "eth0", "192.0.2.66/24")
			mine, both := n.endpoint("192.0.2.10", "2001:db8:1::10"), n.endpoint("192.0.2.10", "192.0.2.66")
			n.ok(n.d.Endpoints().Update(ctx, "pod", mine))
			wanted := func(when string, forged bool) {
				t.Helper()
				if err := n.from("192.0.2.10:0", "10.0.1.11:8080"); err != nil {
					t.Errorf("%s: %v", when, err)
				}
				if err := n.from("192.0.2.66:0", "10.0.1.11:8080"); (err == nil) != forged {
					t.Errorf("%s, from another address: %v", when, err)
				}
			}
			wanted("at first", false)
			if c, ok, err := n.d.Telemetry().PortCounters(ctx, datapath.EndpointName("pod").Port()); err != nil || !ok || c.Drops["spoofed"] == 0 {
				t.Errorf("counters %+v, %t, %v", c, ok, err)
			}
			if n.guards() != 4 { // the device, two addresses, the link-local address
				t.Errorf("%d entries of guards", n.guards())
			}
			n.ok(n.d.Close())
			wanted("without a daemon", false)
			n.restart(how.attach)
			wanted("taken over", false)
			size := n.d.maps[kernel.MapLlGuard].MaxEntries()
			n.config.Tables.Connections = 1 << 16
			n.restart(how.attach)
			if now := n.d.maps[kernel.MapLlGuard].MaxEntries(); now == size {
				t.Errorf("the table of guards has %d entries as before", now)
			}
			wanted("in a table of another size", false)
			if got := slicesOf(n.d.Ports().Keys(ctx)); fmt.Sprint(got) != "[out0]" {
				t.Errorf("ports %q", got)
			}
			if got := slicesOf(n.d.Endpoints().Keys(ctx)); fmt.Sprint(got) != "[pod]" {
				t.Errorf("endpoints %q", got)
			}
			n.ok(n.d.Endpoints().Update(ctx, "pod", both))
			wanted("with both", true)

			// Connections of an address end when the endpoint loses it.
			c, err := n.client.Dial("tcp", "192.0.2.66:0", "10.0.1.11:8080", time.Second)
			n.ok(err)
			defer c.Close()
			talk := &conversation{c}
			_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
			var greeting [64]byte
			_, err = c.Read(greeting[:])
			n.ok(err)
			talk.echo(t, "still mine")
			n.ok(n.d.Endpoints().Update(ctx, "pod", mine))
			before := n.spoofs()
			if _, err := c.Write([]byte("not any more")); err != nil {
				t.Error(err)
			}
			testnet.Eventually(t, 3*time.Second, "the connection of the former address is refused", func() bool { return n.spoofs() > before })
			wanted("with one", false)

			// The guard is repaired.
			if ok, err := n.d.Endpoints().Verify(ctx, "pod"); !ok || err != nil {
				t.Errorf("verify: %t, %v", ok, err)
			}
			key := n.guarded("Endpoint/pod").Key(netip.MustParseAddr("192.0.2.10"))
			n.ok(n.d.maps[kernel.MapLlGuard].Delete(&key))
			if ok, err := n.d.Endpoints().Verify(ctx, "pod"); ok || err != nil {
				t.Errorf("verify after an external change: %t, %v", ok, err)
			}
			n.ok(n.d.Endpoints().Update(ctx, "pod", mine))
			wanted("mended", false)

			n.ok(n.d.Endpoints().Delete(ctx, "pod"))
			wanted("without an endpoint", true)
			if n.guards() != 0 || len(n.d.guards.Devices()) != 0 {
				t.Errorf("%d entries of guards are left", n.guards())
			}
			var word uint64
			for i := range uint32(2 * guard.Words) {
				if n.ok(n.d.maps[kernel.MapLlGuarded].Lookup(i, &word)); word != 0 {
					t.Errorf("bits %d are %x", i, word)
				}
			}
			drops, err := countDrops(n.d)
			if n.ok(err); drops["in0"] != 0 {
				t.Errorf("counters of drops are left: %v", drops)
			}
		})
	}
}

func slicesOf[K any](keys func(func(K, error) bool)) (all []K) {
	for k := range keys {
		all = append(all, k)
	}
	return all
}

func (n *network) spoofs() uint64 {
	n.t.Helper()
	c, err := n.d.Telemetry().NodeCounters(context.Background())
	n.ok(err)
	return c.Drops["spoofed"]
}

// countDrops counts the entries of drop counters by device name.
func countDrops(d *DataPlane) (map[string]int, error) {
	byDevice := map[string]int{}
	var key kernel.PortDropKey
	var value []uint64
	it := d.maps[kernel.MapLlPortDrops].Iterate()
	for it.Next(&key, &value) {
		byDevice[d.deviceName(uint8(key.Netns), int(key.Ifindex))]++
	}
	return byDevice, it.Err()
}

// TestGuardOfAnIndex: if the device of an endpoint was deleted while no daemon ran, another device
// with its ifindex does not inherit the guard.
func TestGuardOfAnIndex(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	ctx := context.Background()
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	index := n.port("Endpoint/pod").Ifindex
	n.ok(n.d.Close())
	n.node.DeleteLink(t, "in0")
	n.node.Do(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index, attrs.Flags = "other0", index, net.FlagUp
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	})
	n.restart("tcx")
	if n.guards() != 0 {
		t.Errorf("%d entries of guards are left", n.guards())
	}
	n.ok(n.d.Ports().Update(ctx, "other0", datapath.Port{Device: "other0"}))
	if ok, err := n.d.Endpoints().Verify(ctx, "pod"); ok || err != nil {
		t.Errorf("verify: %t, %v", ok, err)
	}
	err := n.d.Endpoints().Update(ctx, "pod", n.endpointAt("other0"))
	if err == nil || !strings.Contains(err.Error(), `already belongs to interface "other0"`) {
		t.Errorf("the device of an Interface: %v", err)
	}
	n.ok(n.d.Ports().Delete(ctx, "other0"))
	epoch := n.epoch()
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpointAt("other0")))
	if n.epoch() == epoch {
		t.Error("connections of the index are not looked at again")
	}
}

func (n *network) endpointAt(device string) datapath.Endpoint {
	return datapath.Endpoint{Device: device, MAC: podMAC, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}
}

// TestGuardIsClosed: no packet passes between attaching the programs and configuring the addresses.
func TestGuardIsClosed(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	v := func() guard.Device { return n.guarded("Endpoint/pod") }
	failed := n.endpoint("192.0.2.10")
	failed.Device = "lo"
	if err := n.d.Endpoints().Update(ctx, "pod", failed); err == nil {
		t.Fatal("the loopback has a guard")
	}
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	device := v()
	n.ok(n.d.guards.Close(device))
	if err := n.from("192.0.2.10:0", "192.0.2.1:9"); err == nil || !strings.Contains(err.Error(), "timeout") && !strings.Contains(err.Error(), "unreachable") {
		t.Errorf("by a closed guard: %v", err)
	}
	if ok, _ := n.d.Endpoints().Verify(ctx, "pod"); ok {
		t.Error("a closed guard is as it should be")
	}
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	testnet.Eventually(t, 5*time.Second, "the node answers neighbour discovery again", func() bool {
		err := n.from("192.0.2.10:0", "192.0.2.1:9")
		return err != nil && strings.Contains(err.Error(), "refused")
	})
}

// TestDeparted: connections of a deleted endpoint end, so that the next endpoint with its address
// does not continue them. They do not end if the endpoint returns at once, or if they are closing.
func TestDeparted(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	n.ok(n.d.Ports().Update(ctx, "out0", datapath.Port{Device: "out0"}))
	n.backends.ServeTCP(t, "10.0.1.11:8080", "server")
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	c := n.dial("10.0.1.11:8080")
	c.echo(t, "open")
	closing := n.dial("10.0.1.11:8080")
	closing.echo(t, "closing")
	n.ok(closing.Close())
	states := func() (all []string) {
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{Either: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}, "", 10)
		n.ok(err)
		for _, c := range list {
			all = append(all, c.State)
		}
		slices.Sort(all)
		return all
	}
	testnet.Eventually(t, 3*time.Second, "one is open and one is closing", func() bool {
		return fmt.Sprint(states()) == "[established time-wait]" || fmt.Sprint(states()) == "[established fin-wait]"
	})
	n.ok(n.d.Endpoints().Delete(ctx, "pod"))
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	back, passes := time.Now(), n.d.sweeper.NextPass()
	testnet.Eventually(t, 5*time.Second, "it is swept after the grace", func() bool {
		n.ok(n.d.Maintain(ctx))
		return time.Since(back) > guard.Grace+200*time.Millisecond && n.d.sweeper.NextPass() > passes+4
	})
	c.echo(t, "back at once")
	n.ok(n.d.Endpoints().Delete(ctx, "pod"))
	testnet.Eventually(t, 5*time.Second, "the open one ends", func() bool {
		n.ok(n.d.Maintain(ctx))
		return !slices.Contains(states(), "established")
	})
	if got := states(); len(got) != 1 {
		t.Errorf("left are %q, want the closing one", got)
	}
	testnet.Eventually(t, 5*time.Second, "it is forgotten", func() bool {
		n.ok(n.d.Maintain(ctx))
		return n.d.guards.Pending() == 0
	})
}

// TestGuardIsRepaired: if another program detached one of our programs, the device is down while
// that program is attached again.
func TestGuardIsRepaired(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	up := func() (is bool) {
		n.node.Do(t, func() error {
			link, err := net.InterfaceByName("in0")
			is = err == nil && link.Flags&net.FlagUp != 0
			return err
		})
		return is
	}
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	if !up() {
		t.Error("the device is down where nothing is wrong")
	}
	n.ok(n.port("Endpoint/pod").Hooks[0].Detach())
	if ok, err := n.d.Endpoints().Verify(ctx, "pod"); ok || err != nil {
		t.Errorf("verify: %t, %v", ok, err)
	}
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	if up() {
		t.Error("the device was up while its guard was put back")
	}
	if ok, err := n.d.Endpoints().Verify(ctx, "pod"); !ok || err != nil {
		t.Errorf("verify after the repair: %t, %v", ok, err)
	}
}
