// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestRulesOfDevices: if a rule names no devices, its message names the devices to which the rule
// does not apply. If a rule names a device, the programs must be attached to that device in every
// namespace in which it exists, and the rule must use the name by which the device's packets match.
func TestRulesOfDevices(t *testing.T) {
	bridge := map[string]datapath.Device{"br0": {Kind: "bridge", Ports: []string{"wan"}}}
	for name, c := range map[string]struct {
		host     map[string]datapath.Device
		inSwitch []string
		match    datapath.Match
		ready    bool
		words    []string // words of the message; no words: no message
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
		"packets of the node":             {nil, nil, datapath.Match{}, true, []string{"leave through lan", "llcli interface add lan"}},
		"attached in the switch only": {map[string]datapath.Device{"x": device("10.5.0.1/24")}, []string{"x"}, datapath.Match{In: []string{"x"}}, false,
			[]string{"of the host", "llcli interface add x-host --device x"}},
		"attached in the host only": {nil, []string{"x"}, datapath.Match{In: []string{"x", "wan"}}, true, nil},
		"the node's addresses":      {nil, nil, datapath.Match{In: []string{"wan"}, DestinationGroups: []datapath.GroupName{datapath.LocalGroup}}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := seenWorld(t, c.host, c.inSwitch...)
			hooks := datapath.HookAll
			if name == "packets of the node" {
				hooks = datapath.HookOutput
			}
			is := w.ofRule(&state.FirewallRule{FirewallRule: datapath.FirewallRule{Hooks: hooks, Action: datapath.ActionDeny, Match: c.match}})
			wantCondition(t, is, c.ready, c.words)
		})
	}
}

// TestSourcesAndTargets: a masquerade needs an address of each family whose packets egress through
// its device, and a DNAT needs a route to its targets.
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

// TestNATWithoutDevices: the packets that a NAT should translate egress through, or arrive on,
// devices to which the programs are not attached.
func TestNATWithoutDevices(t *testing.T) {
	snat := func(m datapath.Match) datapath.NAT {
		return datapath.NAT{Type: datapath.SNAT, Addresses: prefixes("198.51.100.9/32"), Match: m}
	}
	dnat := func(m datapath.Match) datapath.NAT {
		return datapath.NAT{Type: datapath.DNAT, Addresses: prefixes("127.0.0.1/32"), Match: m}
	}
	to := func(list ...string) datapath.Match {
		return datapath.Match{Source: prefixes("10.7.0.0/24"), Destination: prefixes(list...)}
	}
	for name, c := range map[string]struct {
		nat      datapath.NAT
		attached string
		ready    bool
		words    []string
	}{
		"to the outside":          {snat(to()), "lan", false, []string{`leave through device "wan" untranslated`, "llcli interface add wan"}},
		"to the outside, seen":    {snat(to()), "wan", true, []string{"does not apply to packets that leave through lan", "llcli interface add lan"}},
		"to a network":            {snat(to("10.1.0.0/25")), "wan", false, []string{"packets to 10.1.0.1 leave through device \"lan\"", "llcli interface add lan"}},
		"to a network, seen":      {snat(to("10.1.0.0/25")), "lan", true, []string{"leave through wan"}},
		"to an address":           {dnat(to("10.1.0.1/32")), "wan", false, []string{`packets to 10.1.0.1 arrive on device "lan"`, "llcli interface add lan"}},
		"to an address, seen":     {dnat(to("10.1.0.1/32")), "lan", true, []string{"arrive on wan"}},
		"to an announced address": {dnat(to("198.51.100.77/32")), "wan", true, []string{"arrive on lan"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := seenWorld(t, nil)
			w.devices = map[string][]attachment{c.attached: w.devices["wan"]}
			wantCondition(t, w.ofNAT(&state.NAT{NAT: c.nat}, 0), c.ready, c.words)
		})
	}
}

// TestInnerDeviceWithoutForwarding: a device that a NAT does not name matters if packets that
// arrive on it are to be translated.
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

// TestServiceOnTheNode: a Service is Ready only if the programs see packets to it, its address is
// announced if that is configured, and its backends are reachable. The messages of both families
// are kept.
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
	wantCondition(t, of(w, with(backend("10.66.0.1:80", datapath.BackendActive, 1), backend("10.66.0.1:81", datapath.BackendActive, 1),
		backend("127.0.0.1:80", datapath.BackendActive, 1))), true, []string{"2 of 3 backends are unreachable", "backend 10.66.0.1:80", "no route"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendDraining, 1), backend("127.0.0.1:81", datapath.BackendActive, 0))), true,
		[]string{"; 2 draining or weight-0 backends get the new connections: see"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendDraining, 1))), true,
		[]string{"; 1 draining or weight-0 backend gets the new connections: see"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendDown, 1))), true, []string{"no IPv4 backend accepts connections: the only one is down"})
	wantCondition(t, of(w, with(backend("127.0.0.1:80", datapath.BackendDown, 1), backend("127.0.0.1:81", datapath.BackendDown, 1))), true, []string{"all 2 are down"})
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

// TestAnnouncedOffLink: the message names an announced address that is not in any of the uplinks'
// networks, and these networks.
func TestAnnouncedOffLink(t *testing.T) {
	w := seenWorld(t, map[string]datapath.Device{"lan": device("10.1.0.1/24", "fd01::1/64")})
	w.devices["lan"] = []attachment{{object: state.Key{Kind: state.KindInterface, Name: "lan"}}}
	commit(t, w.opts.Store,
		objectOf(state.KindInterface, "wan", &state.Interface{Port: datapath.Port{Device: "wan"}}),
		objectOf(state.KindInterface, "lan", &state.Interface{Port: datapath.Port{Device: "lan", Role: datapath.RolePort}}),
	)
	of := func(addr string) condition { return w.offLink(netip.MustParseAddr(addr)) }
	wantCondition(t, of("198.51.100.9"), true, nil)
	wantCondition(t, of("10.1.0.9"), true, []string{"10.1.0.9 is in no network", "198.51.100.0/24 on wan", "ip route add 10.1.0.9 dev DEVICE"})
	wantCondition(t, of("fd01::9"), true, []string{"fd01::9 is in no network", "none of this family"})
	w.found[0]["wan"] = device()
	bridge := device("198.51.100.7/24", "fd02::1/64")
	bridge.Kind, bridge.Ports = "bridge", []string{"wan"}
	w.found[0]["br0"] = bridge
	wantCondition(t, of("198.51.100.9"), true, nil)
	wantCondition(t, of("fd02::9"), true, nil)
}

// TestNATWithoutALink: at least one of a masquerade's devices must have a link.
func TestNATWithoutALink(t *testing.T) {
	link := func(state datapath.LinkState) datapath.Device {
		d := device("198.51.100.7/24")
		d.Link = state
		return d
	}
	vlan := link(datapath.LinkNoCarrier)
	vlan.Kind, vlan.Parent = "vlan", "wan"
	for name, c := range map[string]struct {
		wan   datapath.LinkState
		out   []string
		ready bool
		words []string
	}{
		"up":                       {datapath.LinkUp, []string{"wan"}, true, nil},
		"unknown":                  {datapath.LinkUnknown, []string{"wan"}, true, nil},
		"down":                     {datapath.LinkDown, []string{"wan"}, false, []string{"through device wan", "run ip link set wan up"}},
		"no carrier":               {datapath.LinkNoCarrier, []string{"wan"}, false, []string{`"wan" has no carrier`}},
		"one of two":               {datapath.LinkDown, []string{"wan", "wan2"}, true, []string{"run ip link set wan up"}},
		"VLAN of a device down":    {datapath.LinkDown, []string{"wan.7"}, false, []string{"through device wan.7", "run ip link set wan up"}},
		"VLAN without its carrier": {datapath.LinkNoCarrier, []string{"wan.7"}, false, []string{`"wan" has no carrier`}},
	} {
		t.Run(name, func(t *testing.T) {
			w := seenWorld(t, map[string]datapath.Device{"wan": link(c.wan), "wan2": link(datapath.LinkUp), "wan.7": vlan})
			w.devices["wan2"], w.devices["wan.7"] = w.devices["wan"], w.devices["wan"]
			match := datapath.Match{Out: c.out, Source: prefixes("10.1.0.0/24")}
			is := w.ofNAT(&state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade, Match: match}}, 0)
			wantCondition(t, is, c.ready, c.words)
			if is.ready && !is.quiet {
				t.Errorf("%+v: the other device works", is)
			}
		})
	}
}

// TestBlockedPorts: the message names a port whose frames the bridge drops, and the command, for
// the host and for the switch.
func TestBlockedPorts(t *testing.T) {
	port := func(link datapath.LinkState, is datapath.PortBridging) datapath.Device {
		return datapath.Device{Kind: "veth", Link: link, Bridging: is}
	}
	w := seenWorld(t, map[string]datapath.Device{
		"p1": port(datapath.LinkUp, datapath.BridgingForwarding), "p2": port(datapath.LinkUp, datapath.BridgingBlocking),
		"p3": port(datapath.LinkNoCarrier, datapath.BridgingDisabled),
	}, "x")
	w.found[1]["x"] = port(datapath.LinkUp, datapath.BridgingDisabled)
	wantCondition(t, w.notBridged("p1", false), true, nil)
	wantCondition(t, w.notBridged("p2", false), false, []string{"is blocking", "run bridge link set dev p2 state 3"})
	wantCondition(t, w.notBridged("p3", false), true, nil)
	wantCondition(t, w.notBridged("x", true), false, []string{"is disabled", "run bridge -n sw link set dev x state 3"})
}

// TestServiceWithALostBackend: a Service that has a backend without a route affects the health,
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

// TestRuleOutOfAPort: if a rule names a bridge port as out, its message states that routed packets
// leave through the bridge.
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

// TestRulesOfARenamedDevice: packets on a renamed device match rules by the name in its Interface,
// and rules with that name are Ready. A rule with a name that no packet matches is not Ready.
func TestRulesOfARenamedDevice(t *testing.T) {
	w := seenWorld(t, map[string]datapath.Device{"wan7": device("192.0.2.7/24"), "lan": {}})
	absent := func() (reconcile.Status, bool) {
		return reconcile.Status{State: reconcile.Pending, Message: "absent"}, true
	}
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
	// Rules match an uplink by its former name until the NAT rules in force contain the new name.
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
	if is.quiet || !is.untried {
		t.Errorf("%+v: the first part counts for the health, the second one is about to change", is)
	}
}

// TestFrontendWithoutBackendOfItsFamily: the message names a frontend for whose address family
// there is no backend. In Kubernetes, a dual-stack Service whose endpoints have only one family is
// normal.
func TestFrontendWithoutBackendOfItsFamily(t *testing.T) {
	w := seenWorld(t, nil)
	for _, c := range []struct {
		owner, backend string // empty: no backend of either family
		ready          bool
		words          []string
	}{
		{"cli", "192.0.2.9:80", true, []string{"no IPv6 backend", "frontend [2001:db8::200]:80/tcp", "llcli service backend add web"}},
		{"cli", "[2001:db8:1::9]:80", true, []string{"no IPv4 backend", "frontend 192.0.2.200:80/tcp", "llcli service backend add web"}},
		{state.OwnerK8s, "192.0.2.9:80", true, []string{"no IPv6 backend", "frontend [2001:db8::200]:80/tcp"}},
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
		if is.quiet != (c.owner == state.OwnerK8s) {
			t.Errorf("%+v of owner %s: only Kubernetes does not count it for the health", is, c.owner)
		}
	}
}
