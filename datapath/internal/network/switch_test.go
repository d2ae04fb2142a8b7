// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestSwitchIsMadeWhenNeeded: without an object that needs it, no switch is created.
func TestSwitchIsMadeWhenNeeded(t *testing.T) {
	r := newRig(t, false)
	ctx := context.Background()
	if err := r.n.Maintain(ctx); err != nil {
		t.Fatal(err)
	}
	r.route("host only", datapath.Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Type: datapath.RouteBlackhole})
	if _, there := namespace.Find(r.cfg.SwitchNamespace); there {
		t.Error("an unneeded namespace was created")
	}
	r.has(r.host, "ip link", nil, "loxi_host")

	r.route("switch", datapath.Route{Switch: true, Prefix: netip.MustParsePrefix("192.0.2.0/24"), Type: datapath.RouteBlackhole})
	sw := r.sw()
	r.has(sw, "ip -d link", []string{"hs_host", "alias loxilight test", "lo: <LOOPBACK,UP"})
	r.has(r.host, "ip -d link show loxi_host", []string{"veth", "alias loxilight test", "state UP"})
	for key, want := range switchSysctls {
		r.has(sw, "cat /proc/sys/"+key, []string{want})
	}
	r.has(r.host, "cat /proc/sys/net/ipv4/ip_forward", []string{"0"})

	// The link is recreated, too.
	for _, end := range []struct {
		ns     *testnet.NS
		device string
	}{{r.host, "loxi_host"}, {sw, "hs_host"}} {
		if err := r.n.Maintain(ctx); err != nil {
			t.Fatal(err)
		}
		before := r.n.Repairs()
		r.n.mu.Lock()
		r.n.linkNext.due = time.Now().Add(time.Hour) // not because it is due anyway
		r.n.mu.Unlock()
		end.ns.DeleteLink(t, end.device)
		testnet.Eventually(t, 5*time.Second, "the link is created again once the kernel has reported its deletion", func() bool {
			if err := r.n.Maintain(ctx); err != nil {
				t.Fatal(err)
			}
			return r.n.Repairs() == before+1
		})
		r.has(r.host, "ip link show loxi_host", []string{"UP"})
		r.has(sw, "ip link show hs_host", []string{"UP"})
	}

	// The namespace is no longer needed: it stays, and is not recreated when it is deleted.
	if err := r.n.Routes().Delete(ctx, "switch"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.n.Maintain(ctx); err != nil {
			t.Fatal(err)
		}
		if _, there := namespace.Find(r.cfg.SwitchNamespace); !there {
			t.Error("the namespace went with the last object")
		}
	}
	r.deleteSwitch()
	for range 2 {
		if err := r.n.Maintain(ctx); err != nil {
			t.Fatal(err)
		}
		if _, there := namespace.Find(r.cfg.SwitchNamespace); there {
			t.Error("an unneeded namespace was created again")
		}
	}
	if err := r.n.NeedSwitch("p1"); err != nil {
		t.Fatal(err)
	}
	r.has(r.host, "ip link show loxi_host", []string{"UP"})
	r.n.ForgetSwitch("p1")
}

// TestSwitchSysctls: the sysctls of a namespace that we created are restored in the next round, also after
// the namespace was created again. The sysctls of another program's namespace stay unchanged.
func TestSwitchSysctls(t *testing.T) {
	const all, each = "net.ipv4.ip_forward", "net.ipv6.conf.default.accept_ra"
	r := newRig(t, false)
	maintain := func() {
		t.Helper()
		if err := r.n.Maintain(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.n.NeedSwitch("p1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sw := r.sw()
		maintain()
		before := r.n.Repairs()
		sw.Sysctl(t, all, "0")
		sw.Sysctl(t, each, "1")
		maintain()
		r.has(sw, "sysctl "+all, []string{"= 1"})
		r.has(sw, "sysctl "+each, []string{"= 0"})
		if repairs := r.n.Repairs() - before; repairs != 2 {
			t.Errorf("%d repairs, want 2", repairs)
		}
		r.deleteSwitch()
		maintain()
	}
	r.deleteSwitch()
	other := r.cfg
	other.Instance = "another program"
	r.host.Do(t, func() error { return MakeSwitch(other) })
	maintain()
	r.sw().Sysctl(t, all, "0")
	maintain()
	r.has(r.sw(), "sysctl "+all, []string{"= 0"})
}

// TestSwitchDeleted deletes the namespace externally: everything of ours in it is restored in the
// next round, ports as soon as their devices exist.
func TestSwitchDeleted(t *testing.T) {
	r := newRig(t, false)
	ctx := context.Background()
	lan := datapath.Bridge{Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ports: []datapath.BridgePort{{Device: "hs_host"}}}
	far := datapath.Route{Switch: true, Prefix: netip.MustParsePrefix("192.0.2.0/24"), NextHops: []datapath.NextHop{via("10.71.0.9", "")}}
	r.bridge("lan", lan)
	r.route("far", far)
	r.host.Addr(t, "loxi_host", "10.71.0.2/24")
	r.sw().ServeUDP(t, "10.71.0.1:4660", "switch")
	r.reach(r.host, "10.71.0.1:4660")
	for range 3 {
		old, _ := namespace.Find(r.cfg.SwitchNamespace)
		r.drainSignals()
		r.deleteSwitch()
		if err := r.n.Maintain(ctx); err != nil {
			t.Fatal(err)
		}
		r.awaitSignal("the namespace is another one")
		if now, there := namespace.Find(r.cfg.SwitchNamespace); !there || now == old {
			t.Fatal("the namespace was not made again")
		}
		for what, verify := range map[string]func() (bool, error){
			"bridge": func() (bool, error) { return r.n.Bridges().Verify(ctx, "lan") },
			"route":  func() (bool, error) { return r.n.Routes().Verify(ctx, "far") },
		} {
			if ok, err := verify(); ok || err != nil {
				t.Errorf("the %s was deleted, and is reported as existing (%v)", what, err)
			}
		}
		r.bridge("lan", lan)
		r.route("far", far)
	}
	// The namespace is deleted while no daemon runs.
	r.close()
	r.deleteSwitch()
	r.open()
	r.bridge("lan", lan)
	r.route("far", far)
	r.has(r.sw(), "ip route", []string{"192.0.2.0/24 via 10.71.0.9 dev br0 proto 76"})
}

// TestDetach removes everything that we created, and keeps what existed before.
func TestDetach(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		r := newRig(t, false)
		if adopted {
			other := r.cfg
			other.Instance = "another program"
			r.host.Do(t, func() error { return MakeSwitch(other) })
			r.addHost("a", r.sw(), "p1")
			r.sw().Bridge(t, "br0", "p1")
		}
		lan := datapath.Bridge{Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ports: []datapath.BridgePort{{Device: "hs_host"}}}
		r.bridge("lan", lan)
		r.route("far", datapath.Route{Switch: true, Prefix: netip.MustParsePrefix("192.0.2.0/24"), Type: datapath.RouteBlackhole})
		r.route("host", datapath.Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Type: datapath.RouteBlackhole})
		r.close()
		for range 2 { // again: nothing to do
			r.host.Do(t, func() error { return Detach(r.cfg, slog.New(slog.DiscardHandler)) })
		}
		r.has(r.host, "ip link", nil, "loxi_host")
		r.has(r.host, "ip route", nil, "192.0.2.0")
		if _, there := namespace.Find(r.cfg.SwitchNamespace); there != adopted {
			t.Errorf("adopted %v: the namespace exists: %v", adopted, there)
		}
		if adopted {
			sw := r.sw()
			r.has(sw, "ip link", []string{"br0", "p1"}, "hs_host")
			r.has(sw, "ip addr show br0", nil, "10.71.0.1")
			r.has(sw, "ip route", nil, "192.0.2.0")
			r.has(sw, "ip link show master br0", []string{"p1"})
		}
	}
}

// TestListingWhileLinksFlap lists while devices are continuously added and removed.
func TestListingWhileLinksFlap(t *testing.T) {
	r := newRig(t, true)
	lan := datapath.Bridge{Device: "br0", Addresses: prefixes("10.71.0.1/24", "fd71::1/64")}
	r.bridge("lan", lan)
	r.route("far", datapath.Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Type: datapath.RouteBlackhole})
	// A dump that fits in one message is never interrupted, so add many addresses.
	lo, err := r.n.host.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	many := func(i int) *netlink.Addr {
		return &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, byte(90+i>>16), byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}}
	}
	for i := range 3000 {
		if err := r.n.host.Netlink.AddrAdd(lo, many(i)); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	done := make(chan int)
	for i := range 20 {
		go func() {
			nl, err := netlink.NewHandleAt(r.n.host.NS, unix.NETLINK_ROUTE)
			if err != nil {
				t.Error(err)
			}
			defer nl.Close()
			count := 0
			for ; ; count++ {
				select {
				case <-stop:
					done <- count
					return
				default:
				}
				attrs := netlink.NewLinkAttrs()
				attrs.Name = "f" + string(rune('a'+i))
				if i > 3 {
					_ = nl.AddrAdd(lo, many(100000+i))
					_ = nl.AddrDel(lo, many(100000+i))
					time.Sleep(time.Millisecond) // give the other goroutines a turn
				} else if err := nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err == nil {
					_ = nl.LinkDel(&netlink.Bridge{LinkAttrs: attrs})
				}
			}
		}()
	}
	ctx := context.Background()
	lists, interrupted := 0, 0
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); lists++ {
		if ok, err := r.n.Bridges().Verify(ctx, "lan"); !ok || err != nil {
			t.Fatalf("bridge: %v %v", ok, err)
		}
		r.n.routes.stale()
		if ok, err := r.n.Routes().Verify(ctx, "far"); !ok || err != nil {
			t.Fatalf("route: %v %v", ok, err)
		}
		if _, err := r.n.host.Links(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.n.host.Netlink.AddrList(nil, netlink.FAMILY_ALL); errors.Is(err, netlink.ErrDumpInterrupted) {
			interrupted++
		}
	}
	close(stop)
	flaps := 0
	for range 20 {
		flaps += <-done
	}
	t.Logf("%d lists of each kind while devices and addresses came and went %d times; a single list was interrupted %d times",
		lists, flaps, interrupted)
	if interrupted == 0 {
		t.Error("no listing was interrupted: this test sees nothing")
	}
	r.awaitSignal("devices came and went")
}

// TestSwitchDeletedAtWork deletes the namespace repeatedly while bridges and routes are changed in
// it: no change may ever reach the host.
func TestSwitchDeletedAtWork(t *testing.T) {
	r := newRig(t, false)
	ctx := context.Background()
	stop, done := make(chan struct{}), make(chan int, 2)
	work := func(update func(i int)) {
		// On threads in the host's namespace, in which a request through a closed handle would take
		// effect.
		_ = r.host.Try(func() error {
			for i := 0; ; i++ {
				select {
				case <-stop:
					done <- i
					return nil
				default:
					update(i) // may fail
				}
			}
		})
	}
	go work(func(i int) {
		_ = r.n.Bridges().Update(ctx, "lan", datapath.Bridge{
			Device: "br0", Addresses: prefixes("10.71.0.1/24"), Ageing: time.Duration(60+i%9) * time.Second,
			Ports: []datapath.BridgePort{{Device: "hs_host", Isolated: i%2 == 0}},
		})
	})
	go work(func(i int) {
		_ = r.n.Routes().Update(ctx, "far", datapath.Route{
			Switch: true, Prefix: netip.MustParsePrefix("192.0.2.0/24"), Type: datapath.RouteBlackhole, Metric: uint32(1 + i%5),
		})
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		r.deleteSwitch()
		if err := r.n.Maintain(ctx); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	t.Logf("%d and %d changes", <-done, <-done)
	r.has(r.host, "ip link", nil, "br0", "hs_host")
	r.has(r.host, "ip route show table all", nil, "192.0.2.0", "10.71.0")
}

// TestSwitchAsksAtOnce: duplicate address detection is off for the link-local address of a bridge,
// from which it solicits its neighbours.
func TestSwitchAsksAtOnce(t *testing.T) {
	testnet.RequireRoot(t)
	r := newRig(t, false)
	s, err := r.n.space(true)
	if err != nil {
		t.Fatal(err)
	}
	r.n.done(s)
	sw := r.sw()
	for _, words := range []string{"link add br9 type bridge", "link add p9 type veth peer name q9", "link set p9 master br9 up", "link set q9 up", "link set br9 up"} {
		sw.Run(t, "ip", strings.Fields(words)...)
	}
	testnet.Eventually(t, 10*time.Second, "the bridge has a link-local address to be used", func() bool {
		out := sw.Run(t, "ip", "-6", "addr", "show", "dev", "br9", "scope", "link")
		return strings.Contains(out, "fe80:") && !strings.Contains(out, "tentative")
	})
	if out := sw.Run(t, "cat", "/proc/net/dev_snmp6/br9"); strings.Contains(out, "Icmp6OutType135") { // RFC 4861: neighbour solicitation
		t.Errorf("it asked first whether others have it:\n%s", out)
	}
}

// TestDeletedSwitchIsSignalled: the kernel sends no notification when the name of a namespace is
// deleted, but the pod links depend on this signal.
func TestDeletedSwitchIsSignalled(t *testing.T) {
	r := newRig(t, false)
	if err := r.n.NeedSwitch("p1"); err != nil {
		t.Fatal(err)
	}
	r.drainSignals()
	r.deleteSwitch()
	r.awaitSignal("the namespace of the switch was deleted")
}
