// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestServiceWithoutBackends: every owner gets the message; the health is affected only if a
// Service without backends is not normal for its owner.
func TestServiceWithoutBackends(t *testing.T) {
	store := attachedStore(t)
	n := start(t, Options{Store: store, Plane: backends.NewFake(backends.FakeOptions{})})
	own, pods := service("own", 1, 80, 0), service("pods", 2, 80, 0)
	pods.Owner = state.OwnerK8s
	waitFor(t, n, commit(t, store, []*state.Object{own, pods}), own, pods)
	for _, o := range []*state.Object{own, pods} {
		if s, _ := n.Status(o.Key); s.State != reconcile.Done || !strings.Contains(s.Message, "no IPv4 backend") {
			t.Errorf("%s: %+v, want it Ready with a message", o.Key, s)
		}
	}
	eventually(t, func() bool { return len(n.Noted()) == 1 && n.Noted()[own.Key] != "" })
	if some, count := n.NotDone(5); count != 0 {
		t.Errorf("not Ready are %v, want none", some)
	}
}

// TestSilentPeer: a Peer counts as silent once several reads over some time have shown sent but no
// received packets. It stops being silent with the first received packet, or some time after the
// last sent packet.
func TestSilentPeer(t *testing.T) {
	var w peerWatch
	now := time.Unix(1000, 0)
	check := func(sent, received uint64, after time.Duration) string {
		now = now.Add(after)
		w = w.next(datapath.PeerCounters{SentPackets: sent, ReceivedPackets: received}, now)
		is := w.note(now)
		if is.message != "" && (!is.ready || !is.quiet) {
			t.Errorf("%+v: silence alone must neither make a Peer Pending nor degrade the health", is)
		}
		return is.message
	}
	check(5, 5, 0)
	if !w.lastReceived.IsZero() {
		t.Error("received before any packet was counted")
	}
	for sent := uint64(6); sent < 21; sent++ {
		if p := check(sent, 5, time.Second); p != "" {
			t.Fatalf("after %d packets: %s", sent-5, p)
		}
	}
	if check(21, 5, time.Second) == "" {
		t.Error("silent for 15 s, and nothing is said")
	}
	if p := check(22, 6, time.Second); p != "" || w.lastReceived != now {
		t.Errorf("received at %v: %q", w.lastReceived, p)
	}
	for sent := uint64(23); sent < 43; sent++ {
		check(sent, 6, time.Second)
	}
	if is := w.note(now); is.message == "" {
		t.Error("silent again, and nothing is said")
	}
	if p := check(42, 6, time.Minute); p != "" {
		t.Errorf("nothing was sent for a minute: %s", p)
	}
}

// TestForwardingOff: the message names the kernel parameter for the address family of the object.
func TestForwardingOff(t *testing.T) {
	n := New(Options{Store: openStore(t), Plane: backends.NewFake(backends.FakeOptions{}), Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(n.watch.Close)
	w := &world{n: n, ways: newHopCache(n), bridges: map[string]state.Key{}, devices: map[string][]attachment{
		"in0": {{status: func() (Status, bool) { return Status{State: reconcile.Done}, true }}},
	}}
	ip6 := &state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Source: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}}}}
	ip4 := &state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Source: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}}
	w.forwarding[0] = datapath.Forwarding{IPv4: true}
	if is := w.ofNAT(ip4, 0); is.message != "" {
		t.Errorf("IPv4 with forwarding: %s", is.message)
	}
	if is := w.ofNAT(ip6, 0); !strings.Contains(is.message, "net.ipv6.conf.all.forwarding=1") {
		t.Errorf("IPv6 without forwarding: %q", is.message)
	}
	w.forwarding[0] = datapath.Forwarding{IPv6: true}
	if is := w.ofNAT(ip4, 0); !strings.Contains(is.message, "net.ipv4.ip_forward=1") {
		t.Errorf("IPv4 without forwarding: %q", is.message)
	}
	allow := &state.FirewallRule{FirewallRule: datapath.FirewallRule{Hooks: datapath.HookForward, Action: datapath.ActionAllow, Match: ip4.Match}}
	if is := w.ofRule(allow); is.message == "" {
		t.Error("a rule that allows forwarding, and none is done: nothing is said")
	}
	allow.Hooks = datapath.HookAll
	if is := w.ofRule(allow); is.message != "" {
		t.Errorf("a rule for the node itself, too: %s", is.message)
	}
}

// TestPodDevicesWithoutForwarding: the message names the device, and where to run the command.
func TestPodDevicesWithoutForwarding(t *testing.T) {
	n := New(Options{
		Store: openStore(t), Plane: backends.NewFake(backends.FakeOptions{}), Log: slog.New(slog.DiscardHandler),
		Devices: Devices{Host: "loxi_host", Switch: "hs_host", Namespace: "sw7"},
	})
	t.Cleanup(n.watch.Close)
	v := &state.PodNetwork{Subnets: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd09::/64")}, Bridge: "hsvlan110"}
	for want, change := range map[string]func(host, sw *datapath.Forwarding){
		"": func(*datapath.Forwarding, *datapath.Forwarding) {},
		"run ip netns exec sw7 sysctl -w net.ipv4.conf.hsvlan110.forwarding=1": func(_, sw *datapath.Forwarding) {
			sw.Off4 = []string{"hsvlan110"}
		},
		"run ip netns exec sw7 sysctl -w net.ipv6.conf.hs_host.forwarding=1": func(_, sw *datapath.Forwarding) {
			sw.Off6 = []string{"hs_host"}
		},
		"run ip netns exec sw7 sysctl -w net.ipv6.conf.all.forwarding=1": func(_, sw *datapath.Forwarding) { sw.IPv6 = false },
		"run sysctl -w net.ipv4.conf.loxi_host.forwarding=1":             func(host, _ *datapath.Forwarding) { host.Off4 = []string{"loxi_host"} },
	} {
		w := &world{n: n}
		w.forwarding[0] = datapath.Forwarding{IPv4: true, IPv6: true}
		w.forwarding[1] = w.forwarding[0]
		change(&w.forwarding[0], &w.forwarding[1])
		if is := w.ofPodNetwork(v); want == "" && is.message != "" || !strings.Contains(is.message, want) {
			t.Errorf("%q, want %q", is.message, want)
		}
	}
}

// TestServiceWaitsForItsFirstHealth: waiting for a new Service includes waiting for the first probe
// of a backend.
func TestServiceWaitsForItsFirstHealth(t *testing.T) {
	live, err := net.Listen("tcp", "127.0.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	port := live.Addr().(*net.TCPAddr).AddrPort().Port()
	store := attachedStore(t)
	n := start(t, Options{Store: store, Plane: backends.NewFake(backends.FakeOptions{})})
	good, dead := service("good", 1, port, 1), service("dead", 2, 1, 1)
	for _, o := range []*state.Object{good, dead} {
		o.Value.(*state.Service).Health = &state.HealthCheck{
			Type: "tcp", Interval: 50 * time.Millisecond, Timeout: time.Second, Healthy: 2, Unhealthy: 2,
		}
	}
	revision := commit(t, store, []*state.Object{good, dead})
	left, _ := n.Wait(within(t, 2*time.Second), revision, []state.Key{good.Key, dead.Key})
	if len(left) != 1 || left[0] != dead.Key {
		t.Fatalf("not Ready: %v, want %v", left, dead.Key)
	}
	if s, _ := n.Status(dead.Key); !strings.Contains(s.Message, "1 unhealthy") {
		t.Errorf("status %+v, want it to say that its backend is unhealthy", s)
	}
}

// TestReportsOnce: a row that is tried again and is still Pending for the same reason is not
// reported again.
func TestReportsOnce(t *testing.T) {
	var reports []string
	n := New(Options{
		Store: openStore(t), Plane: backends.NewFake(backends.FakeOptions{}), Log: slog.New(slog.DiscardHandler),
		StatusChanged: func(_ state.Key, s Status) { reports = append(reports, s.State.String()+" "+s.Message) },
	})
	t.Cleanup(n.watch.Close)
	k := state.Key{Kind: state.KindRoute, Name: "far"}
	waits, ready := Status{State: reconcile.Pending, Message: "p2 is down"}, Status{State: reconcile.Done}
	for _, s := range []Status{waits, waits, ready, ready, waits} {
		n.conditions.report(k, s, true)
	}
	is := func(s Status) string { return s.State.String() + " " + s.Message }
	if want := []string{is(waits), is(ready), is(ready), is(waits)}; !slices.Equal(reports, want) {
		t.Errorf("reported %q, want %q", reports, want)
	}
}
