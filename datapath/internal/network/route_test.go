// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/route"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// routed is the host between a client and two routers that lead to the same addresses.
//
//	client ── c0 ┐      ┌ u0 ── up0: 10.80.0.2, fd80::2 ┐
//	             ├ host ┤                               ├ 203.0.113.9, 2001:db8:9::9
//	             ┘      └ u1 ── up1: 10.81.0.2, fd81::2 ┘
type routed struct {
	*rig
	client *testnet.NS
	ups    [2]*testnet.NS
}

func newRouted(t *testing.T) *routed {
	x := &routed{rig: newRig(t, true)}
	x.host.Forward(t)
	x.client = x.addHost("client", x.host, "c0", "10.79.0.2/24", "fd79::2/64")
	x.host.Addr(t, "c0", "10.79.0.1/24", "fd79::1/64")
	x.client.Route(t, "default", "10.79.0.1")
	x.client.Route(t, "default", "fd79::1")
	for i := range x.ups {
		net := fmt.Sprint(80 + i)
		x.ups[i] = x.addHost("up", x.host, "u"+fmt.Sprint(i), "10."+net+".0.2/24", "fd"+net+"::2/64")
		x.host.Addr(t, "u"+fmt.Sprint(i), "10."+net+".0.1/24", "fd"+net+"::1/64")
		x.ups[i].Route(t, "default", "10."+net+".0.1")
		x.ups[i].Route(t, "default", "fd"+net+"::1")
		x.ups[i].Addr(t, "lo", "203.0.113.9/32", "2001:db8:9::9/128")
		x.ups[i].ServeUDP(t, "203.0.113.9:4660", fmt.Sprintf("up%d", i))
		x.ups[i].ServeUDP(t, "[2001:db8:9::9]:4660", fmt.Sprintf("up%d", i))
	}
	return x
}

// families has a prefix and the next hops to it for each family.
var families = []struct{ prefix, target, via0, via1 string }{
	{"203.0.113.0/24", "203.0.113.9:4660", "10.80.0.2", "10.81.0.2"},
	{"2001:db8:9::/48", "[2001:db8:9::9]:4660", "fd80::2", "fd81::2"},
}

func TestRoute(t *testing.T) {
	x := newRouted(t)
	ctx := context.Background()
	for _, f := range families {
		x.host.Sysctl(t, "net.ipv4.fib_multipath_hash_policy", "1")
		x.host.Sysctl(t, "net.ipv6.fib_multipath_hash_policy", "1")
		p := netip.MustParsePrefix(f.prefix)
		family := "-4"
		if p.Addr().Is6() {
			family = "-6"
		}
		show := "ip -d " + family + " route show " + f.prefix
		x.route("net", datapath.Route{Prefix: p, NextHops: []datapath.NextHop{via(f.via0, "u0")}, Metric: 77, MTU: 1400})
		x.has(x.host, show, []string{"via " + f.via0 + " dev u0 proto 76", "metric 77", "mtu lock 1400"})
		x.reach(x.client, f.target)

		// Both next hops are used, and the metric changes.
		two := datapath.Route{Prefix: p, NextHops: []datapath.NextHop{via(f.via0, "u0"), via(f.via1, "")}}
		two.NextHops[0].Weight = 3
		x.route("net", two)
		x.has(x.host, show, []string{"via " + f.via0 + " dev u0 weight 3", "via " + f.via1 + " dev u1 weight 1", "proto 76"}, "metric 77", "mtu")
		received := map[string]int{}
		for range 100 {
			if name, err := testtraffic.TalkUDP(x.client, "", f.target, []byte("a datagram")); err != nil {
				t.Error(err)
			} else {
				received[name]++
			}
		}
		if received["up0"] < 50 || received["up1"] < 5 {
			t.Errorf("%s: weights 3 and 1, and received %v", f.prefix, received)
		}

		for kind, text := range map[datapath.RouteType]string{
			datapath.RouteBlackhole: "blackhole", datapath.RouteUnreachable: "unreachable", datapath.RouteProhibit: "prohibit",
		} {
			x.route("net", datapath.Route{Prefix: p, Type: kind})
			x.has(x.host, show, []string{text}, "via")
		}
		x.route("net", two)
		if err := x.n.Routes().Delete(ctx, "net"); err != nil {
			t.Fatal(err)
		}
		x.has(x.host, show, nil, "via", "proto")
	}
}

// TestRouteMovesKilled: a daemon was killed while it moved a route to another metric, and again
// while it moved the route on. Wherever the route moves next, to a new metric or back, no other
// entry is left.
func TestRouteMovesKilled(t *testing.T) {
	x := newRouted(t)
	for _, f := range families {
		p := netip.MustParsePrefix(f.prefix)
		family := map[bool]string{true: "-4", false: "-6"}[p.Addr().Is4()]
		metric := func(m int) *datapath.Route {
			return &datapath.Route{Prefix: p, NextHops: []datapath.NextHop{via(f.via0, "u0")}, Metric: uint32(m)}
		}
		for kills := range 7 {
			for _, next := range []int{10, 20, 10 + 10*kills, 500} {
				x.route("net", *metric(10))
				record := *x.n.journal.route("net")
				for i := range kills { // what Update does until it adds the new entry
					old := record
					record.Key = route.KeyOf(metric(20 + 10*i))
					if err := errors.Join(
						x.n.routes.keepOld("net", &old, &record),
						x.n.routes.note("net", &record),
					); err != nil {
						t.Fatal(err)
					}
					x.host.Run(t, "ip", family, "route", "add", f.prefix, "via", f.via0, "dev", "u0", "proto", "76", "metric", fmt.Sprint(20+10*i))
					x.n.routes.stale()
				}
				x.route("net", *metric(next))
				out := x.host.Run(t, "ip", family, "route", "show", f.prefix)
				if strings.Count(out, "via") != 1 || !strings.Contains(out, fmt.Sprintf("metric %d ", next)) {
					t.Errorf("%s, killed %d times, then moved to metric %d:\n%s", f.prefix, kills, next, out)
				}
				if err := x.n.Routes().Delete(context.Background(), "net"); err != nil {
					t.Fatal(err)
				}
				if out := x.host.Run(t, "ip", family, "route", "show", f.prefix); out != "" || len(x.n.journal.current.Routes) != 0 {
					t.Fatalf("%s, killed %d times: after deletion there are %v and\n%s", f.prefix, kills, x.n.journal.current.Routes, out)
				}
			}
		}
	}
}

// TestRouteIsRestored: a route that is removed and immediately configured again exists again.
func TestRouteIsRestored(t *testing.T) {
	x := newRouted(t)
	for _, f := range families {
		p := netip.MustParsePrefix(f.prefix)
		family := map[bool]string{true: "-4", false: "-6"}[p.Addr().Is4()]
		for range 3 {
			x.route("net", datapath.Route{Prefix: p, NextHops: []datapath.NextHop{via(f.via0, "u0")}})
			x.has(x.host, "ip "+family+" route show "+f.prefix, []string{"via " + f.via0 + " dev u0 proto 76"})
			if err := x.n.Routes().Delete(context.Background(), "net"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRouteReplaced continuously replaces a route, and every packet finds a route.
func TestRouteReplaced(t *testing.T) {
	x := newRouted(t)
	for _, f := range families {
		p := netip.MustParsePrefix(f.prefix)
		forms := []datapath.Route{
			{NextHops: []datapath.NextHop{via(f.via0, "u0")}},
			{NextHops: []datapath.NextHop{via(f.via1, "u1")}, MTU: 1300},
			{NextHops: []datapath.NextHop{via(f.via0, "u0"), via(f.via1, "u1")}},
			{NextHops: []datapath.NextHop{via(f.via1, "u1"), via(f.via0, "u0")}, MTU: 1400},
			{NextHops: []datapath.NextHop{via(f.via0, "u0")}, Metric: 20},
			{NextHops: []datapath.NextHop{via(f.via0, "u0"), via(f.via1, "u1")}, Metric: 30},
		}
		forms[0].Prefix = p
		x.route("net", forms[0])
		x.reach(x.client, f.target)
		traffic := testtraffic.Start(t, x.client, f.target, testtraffic.Load{Flows: 8, Packets: 8000})
		changes := 0
		// Not at full speed: the kernel itself loses an IPv6 packet once in some tens of thousands
		// of changes from several next hops to one.
		pace := time.NewTicker(4 * time.Millisecond)
		defer pace.Stop()
		for ; changes < 500; changes++ {
			<-pace.C
			v := forms[changes%len(forms)]
			v.Prefix = p
			x.route("net", v)
		}
		traffic.End()
		if lost := traffic.Lost(); lost > 0 || traffic.Sent() < 5000 {
			t.Errorf("%s: %d of %d datagrams lost", f.prefix, lost, traffic.Sent())
		}
		t.Logf("%s: %d datagrams, %d changes", f.prefix, traffic.Sent(), changes)
	}
}

// TestRouteConflict finds another program's route with the same prefix and metric, which stays.
func TestRouteConflict(t *testing.T) {
	requireIP(t)
	x := newRouted(t)
	ctx := context.Background()
	for _, f := range families {
		x.host.Run(t, "ip", "route", "add", f.prefix, "via", f.via1, "proto", "static")
		value := datapath.Route{Prefix: netip.MustParsePrefix(f.prefix), NextHops: []datapath.NextHop{via(f.via0, "u0")}}
		err := x.n.Routes().Update(ctx, "net", value)
		if err == nil || !strings.Contains(err.Error(), "from protocol static already exists and is kept") || errors.Is(err, datapath.ErrAbsent) {
			t.Errorf("%s: %v", f.prefix, err)
		}
		show := "ip route show " + f.prefix
		if strings.Contains(f.prefix, ":") {
			show = "ip -6 route show " + f.prefix
		}
		x.has(x.host, show, []string{f.via1}, f.via0)
		// With a different metric, both exist side by side, and only ours is deleted.
		value.Metric = 50
		x.route("net", value)
		x.has(x.host, show, []string{f.via1, f.via0})
		if err := x.n.Routes().Delete(ctx, "net"); err != nil {
			t.Fatal(err)
		}
		x.has(x.host, show, []string{f.via1}, f.via0)
	}
}

// TestRouteConfiguredTwice: if host and switch become one network namespace, each of them may
// already have a Route with the same prefix and metric. The first by name is in force, and the
// other one reports the conflict: they do not alternate.
func TestRouteConfiguredTwice(t *testing.T) {
	x := newRouted(t)
	ctx := context.Background()
	for _, f := range families {
		p := netip.MustParsePrefix(f.prefix)
		a := datapath.Route{Prefix: p, NextHops: []datapath.NextHop{via(f.via0, "u0")}}
		b := datapath.Route{Prefix: p, NextHops: []datapath.NextHop{via(f.via1, "u1")}, Switch: true}
		inForce := func(when string, name datapath.RouteName, target string) {
			t.Helper()
			for _, n := range []datapath.RouteName{"a", "b"} {
				if ok, err := x.n.Routes().Verify(ctx, n); ok != (n == name) || err != nil {
					t.Errorf("%s %s: %s is as configured: %v, %v", f.prefix, when, n, ok, err)
				}
			}
			if name, err := testtraffic.TalkUDP(x.client, "", f.target, []byte("a datagram")); name != target || err != nil {
				t.Errorf("%s %s: %q answers, %v, want %s", f.prefix, when, name, err, target)
			}
		}
		x.route("b", b)
		x.route("a", a)
		inForce("a was configured", "a", "up0")
		for range 2 {
			err := x.n.Routes().Update(ctx, "b", b)
			if err == nil || !strings.Contains(err.Error(), "already configured by Route a") {
				t.Errorf("%s: b once more: %v, want an error that names a", f.prefix, err)
			}
			inForce("b was configured again", "a", "up0")
		}
		if err := x.n.Routes().Delete(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		x.route("b", b)
		inForce("without a", "b", "up1")
		x.route("a", a)
		if err := x.n.Routes().Delete(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		inForce("without b", "a", "up0")
	}
}

// TestRouteRepair deletes and replaces our routes externally, which is detected immediately, and
// finds routes from an earlier run.
func TestRouteRepair(t *testing.T) {
	requireIP(t)
	x := newRouted(t)
	ctx := context.Background()
	for _, f := range families {
		value := datapath.Route{Prefix: netip.MustParsePrefix(f.prefix), NextHops: []datapath.NextHop{via(f.via0, "u0")}, Metric: 9}
		x.route("net", value)
		family := "-4"
		if value.Prefix.Addr().Is6() {
			family = "-6"
		}
		for i, change := range []string{"del " + f.prefix + " metric 9", "replace " + f.prefix + " via " + f.via1 + " metric 9 proto static"} {
			x.drainSignals()
			x.host.Run(t, "ip", append([]string{family, "route"}, strings.Fields(change)...)...)
			x.awaitSignal(change)
			if ok, err := x.n.Routes().Verify(ctx, "net"); ok || err != nil {
				t.Errorf("%s: not noticed (%v)", change, err)
			}
			if i == 1 { // now it belongs to the other program
				if err := x.n.Routes().Update(ctx, "net", value); err == nil || !strings.Contains(err.Error(), "is kept") {
					t.Errorf("%s: taken from whoever made it: %v", change, err)
				}
				x.host.Run(t, "ip", family, "route", "del", f.prefix, "metric", "9")
			}
			x.route("net", value)
		}
		x.restart()
		for name := range x.n.Routes().Keys(ctx) {
			if err := x.n.Routes().Delete(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
		x.has(x.host, "ip "+family+" route show "+f.prefix, nil, "via")
	}
}

// TestRouteDeviceAddedAndRemoved sets the device of a route down and up.
func TestRouteDeviceAddedAndRemoved(t *testing.T) {
	requireIP(t)
	x := newRouted(t)
	ctx := context.Background()
	for _, f := range families {
		value := datapath.Route{Prefix: netip.MustParsePrefix(f.prefix), NextHops: []datapath.NextHop{via(f.via0, "u0"), via(f.via1, "u1")}}
		x.route("net", value)
		x.host.Run(t, "ip", "link", "set", "u1", "down")
		testnet.Eventually(t, time.Second, "the change is noticed", func() bool {
			ok, _ := x.n.Routes().Verify(ctx, "net")
			return !ok
		})
		x.wantAbsent(x.n.Routes().Update(ctx, "net", value), `device "u1"`)
		x.reach(x.client, f.target) // through the other next hop
		x.host.Up(t, "u1")
		x.host.Addr(t, "u1", "fd81::1/64") // which it lost while down
		testnet.Eventually(t, 2*time.Second, "both ways are back", func() bool { return x.n.Routes().Update(ctx, "net", value) == nil })
		if ok, err := x.n.Routes().Verify(ctx, "net"); !ok || err != nil {
			t.Errorf("not as configured: %v", err)
		}
		x.wantAbsent(x.n.Routes().Update(ctx, "gone", datapath.Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), NextHops: []datapath.NextHop{via("", "nosuch")}}), `device "nosuch"`)
		x.wantAbsent(x.n.Routes().Update(ctx, "far", datapath.Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), NextHops: []datapath.NextHop{via("198.51.100.77", "")}}), "next hop")
		if err := x.n.Routes().Delete(ctx, "net"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyRoutes adds, verifies and takes over ten thousand routes.
func TestManyRoutes(t *testing.T) {
	x := newRouted(t)
	ctx := context.Background()
	const count = 10000
	values := make([]datapath.Route, count)
	name := func(i int) datapath.RouteName { return datapath.RouteName(fmt.Sprint("r", i)) }
	for i := range values {
		values[i] = datapath.Route{
			Prefix:   netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)}), 32),
			NextHops: []datapath.NextHop{via("10.80.0.2", "u0")},
		}
	}
	for run := range 2 {
		begin := time.Now()
		for i := range values {
			if err := x.n.Routes().Update(ctx, name(i), values[i]); err != nil {
				t.Fatal(err)
			}
		}
		updated := time.Since(begin)
		begin = time.Now()
		for i := range values {
			if ok, err := x.n.Routes().Verify(ctx, name(i)); !ok || err != nil {
				t.Fatalf("route %d: %v %v", i, ok, err)
			}
		}
		if updated > 20*time.Second && haveIP() { // otherwise emulated
			t.Errorf("run %d: %d routes took %s", run, count, updated)
		}
		t.Logf("run %d: %d routes written in %s, verified in %s", run, count, updated, time.Since(begin))
		x.restart()
	}
}
