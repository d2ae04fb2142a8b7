// SPDX-License-Identifier: Apache-2.0

package object

import (
	"net/netip"
	"os"
	"regexp"
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
	v, _, err := ParseSpec(kind, []byte(spec), nil)
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
	v, _, err := ParseSpec("AddressGroup", []byte(`{"members":["::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]}`), nil)
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
	page, err := os.ReadFile("../../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```json (\\w+)Spec\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		seen[m[1]]++
		if _, _, err := ParseSpec(m[1], []byte(m[2]), nil); err != nil {
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
