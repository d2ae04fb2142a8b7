// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestForwardingOff: the message names the kernel parameter for the address family of the object.
func TestForwardingOff(t *testing.T) {
	o := &Options{Store: openStore(t), Telemetry: backends.NewFake(backends.FakeOptions{}).Telemetry()}
	w := &world{opts: o, ways: newHopCache(o.Telemetry), bridges: map[string]state.Key{}, devices: map[string][]attachment{
		"in0": {{status: func() (reconcile.Status, bool) { return reconcile.Status{State: reconcile.Done}, true }}},
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
	o := &Options{
		Store: openStore(t), Telemetry: backends.NewFake(backends.FakeOptions{}).Telemetry(),
		HostDevice: "loxi_host", SwitchDevice: "hs_host", SwitchNamespace: "sw7",
	}
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
		w := &world{opts: o}
		w.forwarding[0] = datapath.Forwarding{IPv4: true, IPv6: true}
		w.forwarding[1] = w.forwarding[0]
		change(&w.forwarding[0], &w.forwarding[1])
		if is := w.ofPodNetwork(v); want == "" && is.message != "" || !strings.Contains(is.message, want) {
			t.Errorf("%q, want %q", is.message, want)
		}
	}
}
