// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestRoutingRules: if routing rules exist, the routes for forwarded packets are decisive, not the
// routes for the node's own packets.
func TestRoutingRules(t *testing.T) {
	to := netip.MustParseAddr("198.51.100.66")
	dropped := map[string]bool{} // by ingress device; empty: packets from the node
	w := seenWorld(t, map[string]datapath.Device{"lan": device("10.1.0.1/24"), "lan2": device("10.2.0.1/24")})
	w.opts.Telemetry = backends.NewFake(backends.FakeOptions{Hop: func(h datapath.Hop) datapath.HopState {
		if dropped[h.From.Device] && h.Addr == to {
			return datapath.HopState{Err: errors.New("dropped")}
		}
		return datapath.HopState{Device: "wan"}
	}}).Telemetry()
	w.devices["lan"], w.devices["lan2"] = w.devices["wan"], w.devices["wan"]
	w.routers = [2]int{3, 0}
	all := func(drops ...string) (list []condition) {
		clear(dropped)
		for _, device := range drops {
			dropped[device] = true
		}
		w.ways = newHopCache(w.opts.Telemetry)
		v := &state.Service{Service: datapath.Service{
			Frontends: []datapath.Frontend{{Addr: netip.MustParseAddrPort("192.0.2.200:80")}},
			Backends:  []datapath.Backend{{Addr: netip.AddrPortFrom(to, 80), Weight: 1}},
		}}
		return append(list, w.ofService(objectOf(state.KindService, "web", v), v),
			w.ofRoute(&state.Route{Route: datapath.Route{Prefix: netip.PrefixFrom(to, 32)}}),
			w.ofNAT(&state.NAT{NAT: datapath.NAT{Type: datapath.DNAT, Addresses: prefixes("198.51.100.66/32"),
				Match: datapath.Match{In: []string{"lan"}}}}, 0))
	}
	arriving := []string{"lan", "lan2", "wan"}
	for _, is := range all(arriving...) {
		wantCondition(t, is, true, nil) // without rules, the ingress device does not matter
	}
	w.forwarding[0].Rules4 = true
	for _, is := range all(arriving...) {
		wantCondition(t, is, false, []string{"dropped"})
	}
	for _, is := range all("lan", "lan2", "wan", "") {
		wantCondition(t, is, false, []string{"dropped"})
	}
	some := all("lan")
	wantCondition(t, some[0], true, []string{"backend 198.51.100.66:80", `packets from 10.1.0.2 on device "lan" are dropped`})
	wantCondition(t, some[1], true, []string{`packets from 10.1.0.2 on device "lan" are dropped`})
	wantCondition(t, some[2], false, []string{"dropped"})
	for _, is := range all("") {
		wantCondition(t, is, true, []string{"packets of the node itself are dropped"})
	}
	some = all("lan2", "wan")
	wantCondition(t, some[2], true, nil)
}

// TestExamplesOfPrefixes: the examples are host addresses at both ends of a prefix.
func TestExamplesOfPrefixes(t *testing.T) {
	for prefix, want := range map[string][]string{
		"0.0.0.0/0": {"198.18.0.1"}, "::/0": {"2001:2::1"}, "203.0.113.0/24": {"203.0.113.1", "203.0.113.254"}, "203.0.113.7/32": {"203.0.113.7"},
		"203.0.113.6/31": {"203.0.113.6", "203.0.113.7"}, "2001:db8::/126": {"2001:db8::1", "2001:db8::2"},
	} {
		var got []string
		for _, a := range examplesOf(netip.MustParsePrefix(prefix)) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
	for address, want := range map[string]string{"192.0.2.1/24": "192.0.2.2", "192.0.2.9/24": "192.0.2.1", "192.0.2.6/31": "192.0.2.7", "2001:db8::1/64": "2001:db8::2"} {
		if got := otherIn(netip.MustParsePrefix(address)); got.String() != want {
			t.Errorf("host beside %s: %s, want %s", address, got, want)
		}
	}
}
