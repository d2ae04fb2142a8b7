// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func wantValue(t *testing.T, kind, spec string, want state.Value) {
	t.Helper()
	v, err := Decode(kind, []byte(spec))
	if err != nil {
		t.Fatalf("%s %s: %v", kind, spec, err)
	}
	if d := cmp.Diff(want, v, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		t.Errorf("%s %s (-want +got):\n%s", kind, spec, d)
	}
}

func TestFirewallRuleMeans(t *testing.T) {
	wantValue(t, "FirewallRule", `{
		"priority": -5, "hooks": ["forward", "output"], "action": "reject", "stateful": false, "log": true,
		"match": {"source": ["10.0.0.0/8", "group:partners", "2001:db8::1"], "destination": "192.0.2.10-192.0.2.13", "protocol": ["tcp", 17],
			"ports": [80, "8000-8100"], "sourcePorts": "0-1023", "vlans": [10, "200-4094"], "dscp": ["ef", "cs6", "af41", 1], "out": ["eth0"]}}`,
		&state.FirewallRule{FirewallRule: datapath.FirewallRule{
			Priority: -5, Hooks: datapath.HookForward | datapath.HookOutput, Action: datapath.ActionReject, Stateless: true, Log: true,
			Match: datapath.Match{
				Source: prefixes("10.0.0.0/8", "2001:db8::1/128"), SourceGroups: []datapath.GroupName{"partners"},
				Destination: prefixes("192.0.2.10/31", "192.0.2.12/31"), Protocols: []datapath.Protocol{6, 17},
				Ports: []datapath.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8100}}, SourcePorts: []datapath.PortRange{{First: 0, Last: 1023}},
				VLANs: []datapath.VLANRange{{First: 10, Last: 10}, {First: 200, Last: 4094}}, DSCP: []uint8{46, 48, 34, 1}, Out: []string{"eth0"},
			},
		}})
	wantValue(t, "FirewallRule", `{"action":"allow","match":{"protocol":"icmpv6","icmp":["echo-request","port-unreachable",3,"4/1"]}}`,
		&state.FirewallRule{FirewallRule: datapath.FirewallRule{
			Priority: 1000, Hooks: datapath.HookAll, Match: datapath.Match{
				Protocols: []datapath.Protocol{58},
				ICMP:      []datapath.ICMPMatch{{Type: 128, AnyCode: true}, {Type: 1, Code: 4}, {Type: 3, AnyCode: true}, {Type: 4, Code: 1}},
			},
		}})
	wantValue(t, "FirewallRule", `{"action":"deny","match":{"protocol":"tcp","tcpFlags":"syn, !ack,!rst","in":"eth0"}}`,
		&state.FirewallRule{FirewallRule: datapath.FirewallRule{
			Priority: 1000, Hooks: datapath.HookForward | datapath.HookInput, Action: datapath.ActionDeny,
			Match: datapath.Match{Protocols: []datapath.Protocol{6}, TCPFlags: datapath.TCPFlagsMatch{Mask: 2 | 16 | 4, Flags: 2}, In: []string{"eth0"}},
		}})
}

func TestNATMeans(t *testing.T) {
	wantValue(t, "NAT", `{"type":"snat","match":{"source":"10.0.0.0/8","out":"eth0"},"to":{"addresses":["192.0.2.1","192.0.2.3-192.0.2.4"],"ports":["1024-2047",5000]},
		"mapping":"endpoint-independent","filtering":"endpoint-independent","portBlock":512,"log":true,"priority":7}`,
		&state.NAT{NAT: datapath.NAT{
			Type: datapath.SNAT, Priority: 7, Match: datapath.Match{Source: prefixes("10.0.0.0/8"), Out: []string{"eth0"}},
			Addresses: prefixes("192.0.2.1/32", "192.0.2.3/32", "192.0.2.4/32"), Ports: []datapath.PortRange{{First: 1024, Last: 2047}, {First: 5000, Last: 5000}},
			Mapping: datapath.EndpointIndependent, Filtering: datapath.EndpointIndependent, BlockSize: 512, Log: true,
		}})
	wantValue(t, "NAT", `{"type":"masquerade"}`, &state.NAT{NAT: datapath.NAT{Type: datapath.Masquerade, Priority: 1000}})
	wantValue(t, "NAT", `{"type":"dnat","match":{"in":"eth0","protocol":"tcp","ports":"8000-8009"},"to":{"addresses":"2001:db8::7","ports":"9000-9009"}}`,
		&state.NAT{NAT: datapath.NAT{
			Type: datapath.DNAT, Priority: 1000, Addresses: prefixes("2001:db8::7/128"), Ports: []datapath.PortRange{{First: 9000, Last: 9009}},
			Match: datapath.Match{In: []string{"eth0"}, Protocols: []datapath.Protocol{6}, Ports: []datapath.PortRange{{First: 8000, Last: 8009}}},
		}})
	wantValue(t, "NAT", `{"type":"snat","match":{"source":["10.0.5.0/28","2001:db8:5::/64"]},"to":{"addresses":["192.0.2.16/28","2001:db8:6::/64"]},"oneToOne":true}`,
		&state.NAT{NAT: datapath.NAT{
			Type: datapath.SNAT, Priority: 1000, OneToOne: true, Match: datapath.Match{Source: prefixes("10.0.5.0/28", "2001:db8:5::/64")},
			Addresses: prefixes("192.0.2.16/28", "2001:db8:6::/64"),
		}})
}

func TestAddressGroupMeans(t *testing.T) {
	wantValue(t, "AddressGroup", `{"members":["192.0.2.7","10.0.0.0/8","group:a.b","2001:db8::/32","10.1.0.255-10.1.2.0"]}`, &state.AddressGroup{
		AddressGroup: datapath.AddressGroup{Prefixes: prefixes("192.0.2.7/32", "10.0.0.0/8", "2001:db8::/32", "10.1.0.255/32", "10.1.1.0/24", "10.1.2.0/32")},
		Groups:       []datapath.GroupName{"a.b"},
	})
	wantValue(t, "AddressGroup", `{}`, &state.AddressGroup{})
	wantValue(t, "AddressGroup", `{"members":["0.0.0.0-255.255.255.255","::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]}`,
		&state.AddressGroup{AddressGroup: datapath.AddressGroup{Prefixes: prefixes("0.0.0.0/0", "::/0")}})
	v, err := Decode("AddressGroup", []byte(`{"members":["::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]}`))
	if err != nil || len(v.(*state.AddressGroup).Prefixes) != 254 {
		t.Errorf("the worst range: %v, %d prefixes, want 254", err, len(v.(*state.AddressGroup).Prefixes))
	}
}

func TestBridgeMeans(t *testing.T) {
	wantValue(t, "Bridge", `{"device":"br0","vlanFiltering":true,"addresses":["10.1.0.1/24","2001:db8::1/64"],"ageing":"90s","mtu":9000,
		"ports":[{"device":"a"},{"device":"b","pvid":10,"vlans":[10,"20-29"],"isolated":true},{"device":"c","vlans":[5]},{"device":"d","pvid":7,"untagged":["7-8"]}]}`,
		&state.Bridge{Bridge: datapath.Bridge{
			Device: "br0", VLANFiltering: true, Ageing: 90 * time.Second, MTU: 9000, Addresses: prefixes("10.1.0.1/24", "2001:db8::1/64"),
			Ports: []datapath.BridgePort{
				{Device: "a", PVID: 1, Untagged: []datapath.VLANRange{{First: 1, Last: 1}}},
				{Device: "b", PVID: 10, VLANs: []datapath.VLANRange{{First: 10, Last: 10}, {First: 20, Last: 29}}, Untagged: []datapath.VLANRange{{First: 10, Last: 10}}, Isolated: true},
				{Device: "c", VLANs: []datapath.VLANRange{{First: 5, Last: 5}}},
				{Device: "d", PVID: 7, Untagged: []datapath.VLANRange{{First: 7, Last: 8}}},
			},
		}})
	wantValue(t, "Bridge", `{"device":"br0","ports":[{"device":"a"}]}`,
		&state.Bridge{Bridge: datapath.Bridge{Device: "br0", Ports: []datapath.BridgePort{{Device: "a"}}}})
}

func TestRouteMeans(t *testing.T) {
	addr := netip.MustParseAddr
	wantValue(t, "Route", `{"prefix":"10.9.0.0/16","netns":"switch","via":"10.1.0.254","device":"br0","metric":4294967295,"source":"10.1.0.1","mtu":1400}`,
		&state.Route{Route: datapath.Route{
			Prefix: netip.MustParsePrefix("10.9.0.0/16"), Switch: true, Metric: 4294967295, Source: addr("10.1.0.1"), MTU: 1400,
			NextHops: []datapath.NextHop{{Via: addr("10.1.0.254"), Device: "br0", Weight: 1}},
		}})
	wantValue(t, "Route", `{"prefix":"::/0","nexthops":[{"via":"2001:db8::fe","weight":256},{"device":"ppp0"},{"via":"fe80::1","device":"eth0"}]}`,
		&state.Route{Route: datapath.Route{
			Prefix:   netip.MustParsePrefix("::/0"),
			NextHops: []datapath.NextHop{{Via: addr("2001:db8::fe"), Weight: 256}, {Device: "ppp0", Weight: 1}, {Via: addr("fe80::1"), Device: "eth0", Weight: 1}},
		}})
	for i, word := range []string{"blackhole", "unreachable", "prohibit"} {
		wantValue(t, "Route", `{"prefix":"10.9.0.0/16","type":"`+word+`"}`, &state.Route{Route: datapath.Route{
			Prefix: netip.MustParsePrefix("10.9.0.0/16"), Type: datapath.RouteBlackhole + datapath.RouteType(i),
		}})
	}
}

// TestDocumentedSpecs: the examples in docs/api.md are accepted.
func TestDocumentedSpecs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```json (\\w+)Spec\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		seen[m[1]]++
		if _, err := Decode(m[1], []byte(m[2])); err != nil {
			t.Errorf("%s: %v in\n%s", m[1], err, m[2])
		}
	}
	for _, kind := range api.Kinds {
		if seen[kind] == 0 {
			t.Errorf("no example of a %s", kind)
		}
	}
}

// TestCanonical: equal specs are stored as the same text, in the preferred notation.
func TestCanonical(t *testing.T) {
	for spec, want := range map[string]string{
		`{"match":{"ports":"80","protocol":["tcp"]},"action":"deny"}`:              `{"match":{"protocol":["tcp"],"ports":[80]},"action":"deny"}`,
		`{"action":"deny","match":{"protocol":"tcp","ports":[80]},"log":false}`:    `{"match":{"protocol":["tcp"],"ports":[80]},"action":"deny"}`,
		`{"action":"deny","match":{"protocol":47,"dscp":["007","ef"]}}`:            `{"match":{"protocol":[47],"dscp":["007","ef"]},"action":"deny"}`,
		`{"action":"deny","priority":0,"stateful":true,"match":{"in":["0","12"]}}`: `{"priority":0,"match":{"in":[0,12]},"action":"deny","stateful":true}`,
	} {
		_, got, err := kindSpecs["FirewallRule"].parse([]byte(spec), nil)
		if err != nil || string(got) != want {
			t.Errorf("%s:\n got %s, %v\nwant %s", spec, got, err, want)
		}
	}
}

func TestGroupsThatAreReferredTo(t *testing.T) {
	h := newHarness(t)
	h.wantError("apply", `{"objects":[{"kind":"FirewallRule","name":"r","spec":{"action":"deny","match":{"destination":["group:g"]}}}]}`,
		1, "FirewallRule/r", "spec.match.destination", "there is no AddressGroup/g")
	h.wantError("apply", `{"objects":[{"kind":"AddressGroup","name":"a","spec":{"members":["group:b"]}},{"kind":"AddressGroup","name":"b","spec":{"members":["group:a"]}}]}`,
		1, "AddressGroup/a", "spec.members", "form a cycle")
	h.wantError("apply", `{"objects":[{"kind":"AddressGroup","name":"a","spec":{"members":["group:a"]}}]}`, 1, "AddressGroup/a", "spec.members", "form a cycle")
	h.want("apply", `{"objects":[{"kind":"FirewallRule","name":"r","spec":{"action":"deny","match":{"source":"group:g"}}},
		{"kind":"AddressGroup","name":"g","spec":{"members":["group:in"]}},{"kind":"AddressGroup","name":"in","spec":{"members":["10.0.0.0/8"]}}]}`,
		`{"revision":1,"changes":[{"kind":"FirewallRule","name":"r","action":"created"},{"kind":"AddressGroup","name":"g","action":"created"},{"kind":"AddressGroup","name":"in","action":"created"}],"summary":{"created":3}}`)
	h.wantError("delete", `{"objects":[{"kind":"AddressGroup","name":"g"}]}`, 3, "AddressGroup/g", "", "FirewallRule/r refers to it in spec.match.source")
	h.wantError("delete", `{"objects":[{"kind":"AddressGroup","name":"in"}]}`, 3, "AddressGroup/in", "", "AddressGroup/g refers to it in spec.members")
	h.wantError("replace", `{"owner":"cli","kinds":["AddressGroup"],"objects":[{"kind":"AddressGroup","name":"in","spec":{}}]}`,
		3, "AddressGroup/g", "", "FirewallRule/r refers")
	h.want("replace", `{"owner":"cli","kinds":["AddressGroup","FirewallRule"],"objects":[]}`,
		`{"revision":2,"changes":[{"kind":"AddressGroup","name":"g","action":"deleted"},{"kind":"AddressGroup","name":"in","action":"deleted"},{"kind":"FirewallRule","name":"r","action":"deleted"}],"summary":{"deleted":3}}`)
}

// TestOneNamespace: if host and switch are the same namespace, two objects cannot have the same
// claim even if they name different namespaces.
func TestOneNamespace(t *testing.T) {
	route := func(name, rest string) string {
		return `{"kind":"Route","name":"` + name + `","spec":{"prefix":"10.9.0.0/16","via":"10.1.0.254"` + rest + `}}`
	}
	port := func(name, rest string) string {
		return `{"kind":"Interface","name":"` + name + `","spec":{` + rest + `}}`
	}
	apply := func(objects ...string) string { return `{"objects":[` + strings.Join(objects, ",") + `]}` }
	for _, tt := range []struct{ first, second, object, field, text string }{
		{route("a", ``), route("b", `,"netns":"switch"`), "Route/b", "spec.prefix", "the route to 10.9.0.0/16 in the switch with metric 0 belongs to Route/a already, which has netns host"},
		{route("a", `,"netns":"switch"`), route("b", ``), "Route/b", "spec.prefix", "the route to 10.9.0.0/16 with metric 0 belongs to Route/a already, which has netns switch"},
		{port("a", `"device":"eth0"`), port("b", `"device":"eth0","netns":"switch"`), "Interface/b", "spec.device", "device eth0 in the switch belongs to Interface/a already"},
		{port("a", `"address":"192.0.2.1","netns":"switch"`), port("b", `"address":"192.0.2.1"`), "Interface/b", "spec.address", "the device of address 192.0.2.1 belongs to Interface/a already"},
	} {
		h := newHarnessWith(t, state.Config{Dir: t.TempDir(), Tables: datapath.DefaultTables(), OneNamespace: true})
		h.wantError("apply", apply(tt.first, tt.second), 3, tt.object, tt.field, tt.text)
		h.ask(admin, "apply", apply(tt.first))
		h.wantError("apply", apply(tt.second), 3, tt.object, tt.field, "with switch.namespace: host both are one network namespace: ")
		if got := h.ask(admin, "apply", apply(tt.first)); !strings.Contains(got, `"unchanged":1`) {
			t.Errorf("reported once more: %s", got)
		}
		instead := `{"owner":"cli","kinds":["Route","Interface"],"objects":[` + tt.second + `]}`
		if got := h.ask(admin, "replace", instead); !strings.Contains(got, `"summary":{"created":1,"deleted":1}`) {
			t.Errorf("one instead of the other: %s", got)
		}
		h.ask(admin, "replace", `{"owner":"cli","kinds":["Route","Interface"],"objects":[],"confirm":"1h"}`)
		h.wantError("apply", apply(strings.Replace(tt.first, `"spec"`, `"owner":"k8s","spec"`, 1)), 3, strings.Replace(tt.object, "/b", "/a", 1), tt.field, " belongs to "+tt.object+" already, which has netns ")
		two := newHarness(t)
		if got := two.ask(admin, "apply", apply(tt.first, tt.second)); !strings.Contains(got, `"summary":{"created":2}`) {
			t.Errorf("two namespaces: %s", got)
		}
	}
}

// TestOneNamespaceSince: if host and switch became the same namespace later, a store may contain
// two objects with the same claim. Other objects can still be changed; one of the two can be
// deleted, and restored by a rollback.
func TestOneNamespaceSince(t *testing.T) {
	dir := t.TempDir()
	two := newHarnessAt(t, dir, datapath.DefaultTables())
	two.ask(admin, "apply", `{"objects":[{"kind":"Route","name":"a","spec":{"prefix":"10.9.0.0/16","device":"e"}},
		{"kind":"Route","name":"b","spec":{"prefix":"10.9.0.0/16","device":"e","netns":"switch"}}]}`)
	if err := two.Store.Close(); err != nil {
		t.Fatal(err)
	}
	h := newHarnessWith(t, state.Config{Dir: dir, Tables: datapath.DefaultTables(), OneNamespace: true})
	for _, step := range []struct{ method, params, want string }{
		{"apply", `{"objects":[{"kind":"Route","name":"c","spec":{"prefix":"10.8.0.0/16","device":"e"}}]}`, `"created":1`},
		{"delete", `{"objects":[{"kind":"Route","name":"b"}]}`, `"deleted":1`},
		{"rollback", `{"revision":2}`, `"created":1`},
	} {
		if got := h.ask(admin, step.method, step.params); !strings.Contains(got, step.want) {
			t.Errorf("%s: %s", step.method, got)
		}
	}
}

func TestNetworkConflicts(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[{"kind":"Bridge","name":"a","spec":{"device":"br0","ports":[{"device":"p1"}]}},
		{"kind":"Route","name":"r","spec":{"prefix":"2001:db8::/32","device":"e"}},{"kind":"Interface","name":"p1","spec":{"device":"p1","netns":"switch"}}]}`)
	h.wantError("apply", `{"objects":[{"kind":"Bridge","name":"b","spec":{"device":"br1","ports":[{"device":"p2"},{"device":"p1"}]}}]}`,
		3, "Bridge/b", "spec.ports[1].device", "device p1 in the switch belongs to Bridge/a already")
	h.wantError("apply", `{"objects":[{"kind":"Bridge","name":"b","spec":{"device":"p1"}}]}`, 3, "Bridge/b", "spec.device", "belongs to Bridge/a")
	h.wantError("apply", `{"objects":[{"kind":"Route","name":"s","spec":{"prefix":"2001:db8::/32","device":"f","metric":1024}}]}`,
		3, "Route/s", "spec.prefix", "the route to 2001:db8::/32 with metric 1024 belongs to Route/r")
	got := h.ask(admin, "apply", `{"objects":[{"kind":"Route","name":"s","spec":{"prefix":"2001:db8::/32","device":"f","netns":"switch"}},
		{"kind":"Bridge","name":"a","spec":{"device":"br0"}},{"kind":"Bridge","name":"b","spec":{"device":"br1","ports":[{"device":"p1"}]}}]}`)
	if !strings.Contains(got, `"summary":{"created":2,"updated":1}`) {
		t.Errorf("a port that moves, and a route elsewhere: %s", got)
	}
}

// TestRoutesOfPeers: the route to the prefixes behind a Peer is an ordinary entry in a routing
// table, the switch's if the Peer has a tunnel.
func TestRoutesOfPeers(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[{"kind":"Peer","name":"a","spec":{"underlay":["192.0.2.2","2001:db8::2"],"prefixes":["10.9.0.0/16","fd09::/64"],"tunnel":"t"}},
		{"kind":"Peer","name":"b","spec":{"underlay":"192.0.2.3","prefixes":"10.8.0.0/16"}},{"kind":"Route","name":"r","spec":{"prefix":"10.7.0.0/16","peer":"a"}}]}`)
	route := func(name, prefix, netns string) string {
		return `{"objects":[{"kind":"Route","name":"` + name + `","spec":{"prefix":"` + prefix + `","device":"e","netns":"` + netns + `"}}]}`
	}
	h.wantError("apply", route("s", "10.9.0.0/16", "switch"), 3, "Route/s", "spec.prefix", "the route to 10.9.0.0/16 in the switch with metric 0 belongs to Peer/a")
	h.wantError("apply", route("s", "fd09::/64", "switch"), 3, "Route/s", "spec.prefix", "with metric 1024 belongs to Peer/a")
	h.wantError("apply", route("s", "10.8.0.0/16", "host"), 3, "Route/s", "spec.prefix", "the route to 10.8.0.0/16 with metric 0 belongs to Peer/b")
	h.wantError("apply", route("s", "10.7.0.0/16", "switch"), 3, "Route/s", "spec.prefix", "belongs to Route/r")
	for _, elsewhere := range []string{route("s", "10.9.0.0/16", "host"), route("t", "10.8.0.0/16", "switch")} {
		if got := h.ask(admin, "apply", elsewhere); !strings.Contains(got, `"summary":{"created":1}`) {
			t.Errorf("in the other namespace: %s", got)
		}
	}
	h.wantError("apply", `{"objects":[{"kind":"Peer","name":"b","spec":{"underlay":"192.0.2.3","prefixes":"10.8.0.0/16","tunnel":"t"}}]}`,
		3, "Peer/b", "spec.prefixes[0]", "belongs to Route/t")
}

func TestRulesNeedRoom(t *testing.T) {
	tables := datapath.DefaultTables()
	tables.Rules, tables.Prefixes = 2, 5
	h := newHarnessAt(t, t.TempDir(), tables)
	h.ask(admin, "apply", `{"objects":[{"kind":"NAT","name":"n","spec":{"type":"masquerade"}},{"kind":"FirewallRule","name":"r","spec":{"action":"deny","match":{"source":["10.0.0.1","10.0.0.3"]}}}]}`)
	h.wantError("apply", `{"objects":[{"kind":"FirewallRule","name":"s","spec":{"action":"deny"}}]}`, 4, "FirewallRule/s", "", "table rules is full: 2 of 2 entries used, 3 with this change")
	h.wantError("apply", `{"objects":[{"kind":"AddressGroup","name":"g","spec":{"members":["10.0.0.0-10.0.0.6","10.1.0.0/16"]}}]}`,
		4, "AddressGroup/g", "", "table prefixes is full: 2 of 5 entries used, 6 with this change; delete something, or raise tables.prefixes")
	status := result[api.StatusResult](h, "status", `{}`)
	if c := status.Capacity; c["rules"] != (api.Usage{Used: 2, Size: 2}) || c["prefixes"] != (api.Usage{Used: 2, Size: 5}) {
		t.Errorf("capacity %+v", c)
	}
}

func TestCountersOfRules(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[{"kind":"NAT","name":"n","spec":{"type":"masquerade"}},{"kind":"FirewallRule","name":"rr","spec":{"action":"deny"}},{"kind":"AddressGroup","name":"g","spec":{}}]}`)
	h.want("counters", `{"kind":"FirewallRule","name":"rr"}`, `{"packets":5,"bytes":2,"drops":{"firewall":5}}`)
	h.ask(admin, "apply", `{"objects":[{"kind":"FirewallRule","name":"rr","spec":{"action":"allow"}}]}`)
	h.want("counters", `{"kind":"FirewallRule","name":"rr"}`, `{"packets":5,"bytes":2,"drops":{}}`)
	h.want("counters", `{"kind":"NAT","name":"n"}`, `{"packets":0,"bytes":0,"connections":8,"drops":{}}`)
	h.wantError("counters", `{"kind":"AddressGroup","name":"g"}`, 6, "AddressGroup/g", "", "no counters")
}
