// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, text := range list {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func device(addresses ...string) datapath.Device {
	d := datapath.Device{Kind: "veth", Addresses: prefixes(addresses...)}
	for _, p := range d.Addresses {
		d.Sources[familyOf(p.Addr())] = p.Addr()
	}
	return d
}

// seenWorld is a node whose devices are wan (attached, IPv4 only), lan and mgmt of the host, and x
// of the switch. x is attached in the switch; host and switch are split if a test adds Devices.
func seenWorld(t *testing.T, host map[string]datapath.Device, inSwitch ...string) *world {
	t.Helper()
	found := [2]map[string]datapath.Device{{
		"lo": {Loopback: true, Addresses: prefixes("127.0.0.1/8")}, "wan": device("198.51.100.7/24"), "lan": device("10.1.0.1/24", "fd01::1/64"),
	}, {}}
	for name, d := range host {
		found[0][name] = d
	}
	o := Options{Store: openStore(t), Log: slog.New(slog.DiscardHandler)}
	attached := map[string][]attachment{}
	attach := func(name string, inSwitch bool) {
		attached[name] = append(attached[name], attachment{
			object: state.Key{Kind: state.KindInterface, Name: name}, inSwitch: inSwitch,
			status: func() (Status, bool) { return Status{State: reconcile.Realised}, true },
		})
	}
	attach("wan", false)
	for _, name := range inSwitch {
		o.Devices = Devices{Host: "loxi_host", Switch: "hs_host", Namespace: "sw"}
		found[1][name] = device()
		attach(name, true)
	}
	noRoute := netip.MustParseAddr("10.66.0.1")
	o.Plane = backends.NewFake(backends.FakeOptions{
		Devices: func(inSwitch bool) map[string]datapath.Device { return found[map[bool]int{true: 1}[inSwitch]] },
		Hop: func(h datapath.Hop) datapath.HopState {
			switch a := h.Addr; {
			case a == noRoute:
				return datapath.HopState{Err: errors.New("no route leads to 10.66.0.1")}
			case a == outside[0], a == outside[1]:
				return datapath.HopState{Device: "wan"}
			case found[0]["lan"].Addresses[0].Contains(a):
				return datapath.HopState{Device: "lan"}
			}
			return datapath.HopState{}
		},
	})
	n := New(o)
	t.Cleanup(n.watch.Close)
	w := n.readWorld(nil)
	w.devices = attached
	return w
}

// TestRulesOfDevices: a rule without devices names the devices that it does not apply to; a rule
// that names a device needs it attached wherever it exists, and under the name by which packets
// match.
func TestRulesOfDevices(t *testing.T) {
	bridge := map[string]datapath.Device{"br0": {Kind: "bridge", Ports: []string{"wan"}}}
	for name, c := range map[string]struct {
		host     map[string]datapath.Device
		inSwitch []string
		match    datapath.Match
		ready    bool
		words    []string // of the message; none: no message
	}{
		"a device without an Interface": {nil, nil, datapath.Match{}, true, []string{"does not apply", "lan", "llcli interface add lan"}},
		"a VLAN on an attached device, a dummy, a bridge of attached ports": {map[string]datapath.Device{
			"lan": {}, "wan.7": {Kind: "vlan", Parent: "wan", Addresses: prefixes("10.2.0.1/24")}, "dummy0": {Kind: "dummy", Addresses: prefixes("10.3.0.1/32")},
			"br0": {Kind: "bridge", Ports: []string{"wan"}, Addresses: prefixes("10.4.0.1/24")},
		}, nil, datapath.Match{}, true, nil},
		"an attached device":              {nil, nil, datapath.Match{In: []string{"wan"}}, true, nil},
		"a device that is not attached":   {nil, nil, datapath.Match{In: []string{"lan"}}, false, []string{"run llcli interface add lan"}},
		"a bridge whose port is attached": {bridge, nil, datapath.Match{In: []string{"br0"}}, false, []string{`"br0"`, `"wan"`, "Interface/wan", "name wan in spec.match.in"}},
		"the port of that bridge":         {bridge, nil, datapath.Match{In: []string{"wan"}}, true, nil},
		"attached in the switch only": {map[string]datapath.Device{"x": device("10.5.0.1/24")}, []string{"x"}, datapath.Match{In: []string{"x"}}, false,
			[]string{"of the host", "llcli interface add x-host --device x"}},
		"attached in the host only": {nil, []string{"x"}, datapath.Match{In: []string{"x", "wan"}}, true, nil},
		"the node's addresses":      {nil, nil, datapath.Match{In: []string{"wan"}, DestinationGroups: []datapath.GroupName{datapath.LocalGroup}}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := seenWorld(t, c.host, c.inSwitch...)
			is := w.ofRule(&state.FirewallRule{FirewallRule: datapath.FirewallRule{Hooks: datapath.HookAll, Action: datapath.ActionDeny, Match: c.match}})
			wantCondition(t, is, c.ready, c.words)
		})
	}
}

func wantCondition(t *testing.T, is condition, ready bool, words []string) {
	t.Helper()
	if is.isMet() != ready || len(words) == 0 && is.message != "" {
		t.Errorf("ready %v, message %q; want ready %v, with %q", is.isMet(), is.message, ready, words)
	}
	for _, word := range words {
		if !strings.Contains(is.message, word) {
			t.Errorf("message %q, want %q in it", is.message, word)
		}
	}
}

// TestSourcesAndTargets: a masquerade needs an address of each family that leaves by its device,
// and a DNAT a route to its targets.
func TestSourcesAndTargets(t *testing.T) {
	bare := map[string]datapath.Device{"wan": device()}
	source := func(list ...string) datapath.Match {
		return datapath.Match{Out: []string{"wan"}, Source: prefixes(list...)}
	}
	masquerade := func(m datapath.Match) datapath.NAT { return datapath.NAT{Type: datapath.Masquerade, Match: m} }
	for name, c := range map[string]struct {
		host  map[string]datapath.Device
		nat   datapath.NAT
		off6  bool // the host does not forward IPv6
		words []string
	}{
		"IPv4":                             {nil, masquerade(source("10.1.0.0/24")), false, nil},
		"IPv6 without an address":          {nil, masquerade(source("fd01::/64")), false, []string{`"wan"`, "IPv6 address", "ip address add ADDRESS dev wan"}},
		"no family, IPv6 leaves there":     {nil, masquerade(source()), false, []string{`"wan"`, "IPv6 address", "0.0.0.0/0"}},
		"no family, IPv6 is not forwarded": {nil, masquerade(source()), true, nil},
		"no family, no address at all":     {bare, masquerade(source()), true, []string{"no IPv4 address"}},
		"IPv4 without an address":          {bare, masquerade(source("10.1.0.0/24")), true, []string{"no IPv4 address"}},
		"a target with a route":            {nil, datapath.NAT{Type: datapath.DNAT, Addresses: prefixes("10.1.0.9/32"), Match: datapath.Match{In: []string{"wan"}}}, false, nil},
		"one of two targets without a route": {nil, datapath.NAT{
			Type: datapath.DNAT, Addresses: prefixes("10.1.0.9/32", "10.66.0.1/32"), Match: datapath.Match{In: []string{"wan"}},
		}, false, []string{"no route leads to 10.66.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := seenWorld(t, c.host)
			w.forwarding[0].IPv6 = !c.off6
			wantCondition(t, w.ofNAT(&state.NAT{NAT: c.nat}, 0), len(c.words) == 0, c.words)
		})
	}
}

// TestInnerDeviceWithoutForwarding: a device that a NAT does not name counts if its packets are to
// be translated.
func TestInnerDeviceWithoutForwarding(t *testing.T) {
	w := seenWorld(t, map[string]datapath.Device{"mgmt": device("10.9.0.1/24")})
	of := func(list ...string) condition {
		return w.ofNAT(&state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{"wan"}, Source: prefixes(list...)}}}, 0)
	}
	w.forwarding[0].Off4 = []string{"lan"}
	wantCondition(t, of("10.1.0.0/16"), false, []string{"sysctl -w net.ipv4.conf.lan.forwarding=1"})
	wantCondition(t, of("0.0.0.0/0"), true, []string{"sysctl -w net.ipv4.conf.lan.forwarding=1"})
	wantCondition(t, of("10.9.0.0/24"), true, nil)
}

// TestServiceOnTheNode: a Service is Ready only if packets to it are seen, its address is announced
// if it says so, and its backends are reached. The messages of both families are kept.
func TestServiceOnTheNode(t *testing.T) {
	of := func(w *world, v datapath.Service) condition {
		v.Frontends = []datapath.Frontend{{Addr: netip.MustParseAddrPort("192.0.2.200:80"), Protocol: datapath.TCP}}
		return w.ofService(objectOf(state.KindService, "web", &state.Service{Service: v}), &state.Service{Service: v})
	}
	backend := func(addr string, s datapath.BackendState, weight uint16) datapath.Backend {
		return datapath.Backend{Addr: netip.MustParseAddrPort(addr), State: s, Weight: weight}
	}
	with := func(list ...datapath.Backend) datapath.Service { return datapath.Service{Backends: list} }
	w := seenWorld(t, map[string]datapath.Device{"lan": device("10.1.0.1/24")})
	unseen := []string{"does not apply to packets that arrive on lan", "llcli interface add lan"}
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendActive, 1))), true, unseen)
	wantCondition(t, of(w, with(backend("10.1.0.9:80", datapath.BackendActive, 1))), true, []string{"of the node itself", "10.1.0.9:80", "llcli interface add lan"})
	wantCondition(t, of(w, with(backend("10.66.0.1:80", datapath.BackendActive, 1))), false, []string{"backend 10.66.0.1:80", "no route"})
	wantCondition(t, of(w, with(backend("10.66.0.1:80", datapath.BackendActive, 1), backend("127.0.0.1:80", datapath.BackendActive, 1))), true,
		[]string{"backend 10.66.0.1:80", "no route"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendDraining, 1), backend("127.0.0.1:81", datapath.BackendActive, 0))), true,
		[]string{"2 that are draining or of weight 0 get the connections"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendDown, 1))), true, []string{"all 1 are down"})
	announced := with(backend("127.0.0.1:80", datapath.BackendActive, 1))
	announced.Announce = true
	wantCondition(t, of(w, announced), false, []string{"192.0.2.200 is not announced", "llcli interface add"})
	w.forwarding[0].IPv4 = false
	wantCondition(t, of(w, with(backend("10.1.0.9:80", datapath.BackendActive, 1))), false, []string{"sysctl -w net.ipv4.ip_forward=1"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendActive, 1))), true, unseen)
	w.forwarding[0].IPv4 = true
	w.forwarding[0].Off4 = []string{"wan"}
	wantCondition(t, of(w, with(backend("10.1.0.9:80", datapath.BackendActive, 1))), false, []string{"sysctl -w net.ipv4.conf.wan.forwarding=1"})
	w.found[0]["wan2"] = device("203.0.113.7/24")
	w.devices["wan2"] = w.devices["wan"]
	wantCondition(t, of(w, with(backend("10.1.0.9:80", datapath.BackendActive, 1))), true, []string{"sysctl -w net.ipv4.conf.wan.forwarding=1"})
	w.devices = nil
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendActive, 1))), false, []string{"no device is attached", "llcli interface add"})
}

// TestServiceWithALostBackend: a Service with a backend that no route leads to counts for the health,
// although its other backend works.
func TestServiceWithALostBackend(t *testing.T) {
	v := &state.Service{Service: datapath.Service{
		Frontends: []datapath.Frontend{{Addr: netip.MustParseAddrPort("192.0.2.200:80")}},
		Backends:  []datapath.Backend{{Addr: netip.MustParseAddrPort("10.66.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("127.0.0.1:80"), Weight: 1}},
	}}
	is := seenWorld(t, nil).ofService(objectOf(state.KindService, "web", v), v)
	if !is.ready || is.quiet {
		t.Errorf("%+v, want it ready, and part of the health", is)
	}
}

// TestRuleOutOfAPort: a rule that names a port of a bridge as out says that routed packets leave by
// the bridge.
func TestRuleOutOfAPort(t *testing.T) {
	bridge := device("10.8.0.1/24")
	bridge.Kind, bridge.Ports = "bridge", []string{"wan"}
	w := seenWorld(t, map[string]datapath.Device{"br0": bridge})
	of := func(out ...string) condition {
		return w.leavesRouted(out)
	}
	wantCondition(t, of("wan"), true, []string{`"wan" is a port of bridge "br0"`, "spec.match.out"})
	wantCondition(t, of("wan", "br0"), true, nil)
	wantCondition(t, of("lan"), true, nil)
}

// TestRulesOfARenamedDevice: packets of a renamed device match rules by the name of its Interface, and
// rules that name it are Ready. A rule with a name by which no packet matches is not.
func TestRulesOfARenamedDevice(t *testing.T) {
	w := seenWorld(t, map[string]datapath.Device{"wan7": device("192.0.2.7/24"), "lan": {}})
	absent := func() (Status, bool) { return Status{State: reconcile.Pending, Message: "absent"}, true }
	a := attachment{object: state.Key{Kind: state.KindInterface, Name: "in0"}, status: absent, matches: "in0", now: "wan7"}
	w.devices = map[string][]attachment{"in0": {a}}
	w.renamed = map[string]attachment{"wan7": a}
	of := func(m datapath.Match) condition {
		return w.ofRule(&state.FirewallRule{FirewallRule: datapath.FirewallRule{Hooks: datapath.HookAll, Action: datapath.ActionDeny, Match: m}})
	}
	renamed := []string{`"in0"`, `"wan7"`, "ip link set wan7 name in0", "Interface/in0"}
	wantCondition(t, of(datapath.Match{In: []string{"in0"}}), true, renamed)
	wantCondition(t, of(datapath.Match{Out: []string{"in0"}}), true, renamed)
	wantCondition(t, of(datapath.Match{In: []string{"in0", "lan"}}), false, []string{"llcli interface add lan"})
	wantCondition(t, of(datapath.Match{In: []string{"wan7"}}), false, []string{"llcli interface add wan7"})
	if is := of(datapath.Match{}); !is.isMet() || strings.Contains(is.message, "wan7") {
		t.Errorf("a rule without devices: %+v, want that it applies to wan7", is)
	}
	nat := &state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{"in0"}, Source: prefixes("10.1.0.0/24")}}}
	wantCondition(t, w.ofNAT(nat, 0), true, renamed)
	// The name of an uplink that NATs use changes after the NATs.
	w.devices = map[string][]attachment{"in0": {a}, "wan7": {a}}
	wantCondition(t, of(datapath.Match{In: []string{"wan7"}}), false, []string{`former name "in0"`})
}

// TestMessagesOfBothFamilies: neither family's message replaces the other's.
func TestMessagesOfBothFamilies(t *testing.T) {
	w := seenWorld(t, nil)
	v := &state.Service{Service: datapath.Service{
		Frontends: []datapath.Frontend{{Addr: netip.MustParseAddrPort("192.0.2.200:80")}, {Addr: netip.MustParseAddrPort("[2001:db8::200]:80")}},
		Backends:  []datapath.Backend{{Addr: netip.MustParseAddrPort("[2001:db8::9]:80"), Weight: 1}},
	}, Health: &state.HealthCheck{}}
	is := w.ofService(objectOf(state.KindService, "web", v), v)
	wantCondition(t, is, false, []string{"no IPv4 backend is configured", "no IPv6 backend has been checked"})
	if is.quiet || is.untried {
		t.Errorf("%+v: the first part counts for the health, and does not change by itself", is)
	}
}

// TestFrontendWithoutBackendOfItsFamily: a frontend whose family has no backend serves nobody, so the
// message names it. For Kubernetes a dual-stack Service with endpoints of one family is normal.
func TestFrontendWithoutBackendOfItsFamily(t *testing.T) {
	w := seenWorld(t, nil)
	for _, c := range []struct {
		owner, backend string // no backend: none of either family
		ready          bool
		words          []string
	}{
		{"cli", "192.0.2.9:80", false, []string{"no IPv6 backend", "frontend [2001:db8::200]:80/tcp", "llcli service backend add web"}},
		{"cli", "[2001:db8:1::9]:80", false, []string{"no IPv4 backend", "frontend 192.0.2.200:80/tcp", "llcli service backend add web"}},
		{ownerK8s, "192.0.2.9:80", true, []string{"no IPv6 backend", "frontend [2001:db8::200]:80/tcp"}},
		{"cli", "", true, []string{"no IPv4 backend is configured", "no IPv6 backend is configured"}},
	} {
		v := &state.Service{Service: datapath.Service{Frontends: []datapath.Frontend{
			{Addr: netip.MustParseAddrPort("192.0.2.200:80"), Protocol: datapath.TCP}, {Addr: netip.MustParseAddrPort("[2001:db8::200]:80"), Protocol: datapath.TCP},
		}}}
		if c.backend != "" {
			v.Backends = []datapath.Backend{{Addr: netip.MustParseAddrPort(c.backend), Weight: 1}}
		}
		o := objectOf(state.KindService, "web", v)
		o.Owner = c.owner
		is := w.ofService(o, v)
		wantCondition(t, is, c.ready, c.words)
		if is.quiet != (c.owner == ownerK8s) {
			t.Errorf("%+v of owner %s: only Kubernetes does not count it for the health", is, c.owner)
		}
	}
}
