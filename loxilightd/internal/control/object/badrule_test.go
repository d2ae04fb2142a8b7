// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// badRules contains one error of each kind. If kind is "match", spec is only the match part of a
// FirewallRule.
var badRules = []struct{ kind, spec, field, text string }{
	{"FirewallRule", `{}`, "action", "one of allow, deny, reject"},
	{"FirewallRule", `{"action":"drop"}`, "action", "\"drop\" is called deny here"},
	{"FirewallRule", `{"action":"maybe"}`, "action", "not one of allow, deny, reject"},
	{"FirewallRule", `{"action":"deny","priority":2147483648}`, "priority", "2147483648 is not between -2147483648 and 2147483647"},
	{"FirewallRule", `{"action":"deny","hooks":["prerouting"]}`, "hooks[0]", "not one of forward, input, output"},
	{"FirewallRule", `{"action":"deny","hooks":["input","input"]}`, "hooks[1]", "twice"},
	{"FirewallRule", `{"action":"deny","hooks":["input"],"match":{"out":"eth0"}}`, "match.out", "remove input from spec.hooks"},
	{"FirewallRule", `{"action":"deny","hooks":"output","match":{"in":["eth0"]}}`, "match.in", "remove output from spec.hooks"},
	{"match", `{"source":["10.0.0.1/8"]}`, "match.source[0]", "write 10.0.0.0/8"},
	{"match", `{"source":["10.0.0.0/8","10.0.0.0/8"]}`, "match.source[1]", "duplicates source[0]"},
	{"match", `{"source":["10.0.0"]}`, "match.source[0]", "not an address or prefix"},
	{"match", `{"destination":["::ffff:10.0.0.0/104"]}`, "match.destination[0]", "write 10.0.0.0"},
	{"match", `{"destination":["::ffff:10.0.0.1"]}`, "match.destination[0]", "write 10.0.0.1"},
	{"match", `{"destination":["fe80::1%eth0"]}`, "match.destination[0]", "omit %eth0"},
	{"match", `{"source":["192.0.2.9-192.0.2.1"]}`, "match.source[0]", "is reversed: write 192.0.2.1-192.0.2.9"},
	{"match", `{"source":["192.0.2.9-2001:db8::1"]}`, "match.source[0]", "ends in the other"},
	{"match", `{"source":["a-b"]}`, "match.source[0]", "not a range of addresses"},
	{"match", `{"source":["group:"]}`, "match.source[0]", "not a valid name of an AddressGroup"},
	{"match", `{"source":["group:A_B"]}`, "match.source[0]", "not a valid name of an AddressGroup"},
	{"match", `{"source":{}}`, "match.source", "neither a string nor a whole number"},
	{"match", `{"source":["10.0.0.0/8"],"destination":["2001:db8::/32"]}`, "match.destination", "is IPv6 only, but the rest of the match is IPv4 only"},
	{"match", `{"source":["2001:db8::/32"],"protocol":"icmp"}`, "match.source", "no packet matches both"},
	{"match", `{"destination":["10.0.0.0/8"],"protocol":"icmpv6"}`, "match.destination", "no packet matches both"},
	{"match", `{"protocol":"http"}`, "match.protocol[0]", "not a valid protocol"},
	{"match", `{"protocol":[256]}`, "match.protocol[0]", "number up to 255"},
	{"match", `{"protocol":["tcp","6"]}`, "match.protocol[1]", "duplicates protocol[0]"},
	{"match", `{"ports":[80]}`, "match.ports", "set spec.match.protocol"},
	{"match", `{"protocol":["tcp","gre"],"ports":[80]}`, "match.ports", "only tcp, udp and sctp have ports"},
	{"match", `{"protocol":"icmp","sourcePorts":[80]}`, "match.sourcePorts", "only tcp, udp and sctp"},
	{"match", `{"protocol":"tcp","ports":["90-80"]}`, "match.ports[0]", "is reversed: write 80-90"},
	{"match", `{"protocol":"tcp","ports":[80,65536]}`, "match.ports[1]", "0 to 65535"},
	{"match", `{"protocol":"tcp","ports":["-80"]}`, "match.ports[0]", "0 to 65535"},
	{"match", `{"protocol":"tcp","ports":[-80]}`, "match.ports[0]", "0 to 65535"},
	{"match", `{"protocol":"tcp","ports":["http"]}`, "match.ports[0]", "0 to 65535"},
	{"match", `{"protocol":"tcp","ports":[80.5]}`, "match.ports[0]", "whole number"},
	{"match", `{"icmp":["echo-request"]}`, "match.icmp", "to icmp alone or to icmpv6 alone"},
	{"match", `{"protocol":["icmp","icmpv6"],"icmp":[8]}`, "match.icmp", "have different types"},
	{"match", `{"protocol":"tcp","icmp":[8]}`, "match.icmp", "to icmp alone or to icmpv6 alone"},
	{"match", `{"protocol":"icmp","icmp":["packet-too-big"]}`, "match.icmp[0]", "not a valid type of icmp"},
	{"match", `{"protocol":"icmp","icmp":["3/"]}`, "match.icmp[0]", "not a valid type"},
	{"match", `{"protocol":"icmp","icmp":["3/256"]}`, "match.icmp[0]", "not a valid type"},
	{"match", `{"protocol":"icmpv6","icmp":[256]}`, "match.icmp[0]", "not a valid type of icmpv6"},
	{"match", `{"tcpFlags":"syn"}`, "match.tcpFlags", "only tcp has flags"},
	{"match", `{"protocol":["tcp","udp"],"tcpFlags":"syn"}`, "match.tcpFlags", "to tcp alone"},
	{"match", `{"protocol":"tcp","tcpFlags":"syn,hop"}`, "match.tcpFlags", "not one of fin, syn"},
	{"match", `{"protocol":"tcp","tcpFlags":"syn,!syn"}`, "match.tcpFlags", "twice"},
	{"match", `{"in":["a/b"]}`, "match.in[0]", "not a device name"},
	{"FirewallRule", `{"action":"deny","match":{"in":["eth0","all"]}}`, "match.in[1]", "to match all devices, omit spec.match.in"},
	{"FirewallRule", `{"action":"deny","match":{"out":"any"}}`, "match.out[0]", "omit spec.match.out"},
	{"NAT", `{"type":"masquerade","match":{"out":"*"}}`, "match.out[0]", "omit spec.match.out"},
	{"match", `{"out":["eth0","eth0"]}`, "match.out[1]", "duplicates"},
	{"match", `{"vlans":[0]}`, "match.vlans[0]", "1 to 4094"},
	{"match", `{"vlans":["1-4095"]}`, "match.vlans[0]", "1 to 4094"},
	{"match", `{"vlans":["20-10"]}`, "match.vlans[0]", "write 10-20"},
	{"match", `{"dscp":[64]}`, "match.dscp[0]", "0 to 63"},
	{"match", `{"dscp":["cs8"]}`, "match.dscp[0]", "cs0 to cs7"},
	{"match", `{"dscp":["af44"]}`, "match.dscp[0]", "af11 to af43"},
	{"match", `{"dscp":["ef",46]}`, "match.dscp[1]", "46 duplicates dscp[0]"},

	{"AddressGroup", `{"members":["10.0.0.1/8"]}`, "members[0]", "write 10.0.0.0/8"},
	{"AddressGroup", `{"members":["10.0.0.0/8","web"]}`, "members[1]", "or group:NAME for another AddressGroup"},
	{"AddressGroup", `{"members":[10]}`, "members[0]", "in quotes"},
	{"AddressGroup", `{"members":["{}"]}`, "members[0]", "is not a valid member"},
	{"AddressGroup", `{"members":["10.0.0.0/8",{"labels":{}}]}`, "members[1].labels", "is missing"},
	{"AddressGroup", `{"members":["10.0.0.0/8",{"label":{"a":"b"}}]}`, "members[1].label", "unknown"},
	{"AddressGroup", `{"members":[{"labels":{"a":7}}]}`, "members[0].labels.a", "string"},

	{"NAT", `{}`, "type", "one of snat, dnat, masquerade"},
	{"NAT", `{"type":"nat64"}`, "type", "not one of snat, dnat, masquerade"},
	{"NAT", `{"type":"snat"}`, "to.addresses", "is missing"},
	{"NAT", `{"type":"dnat","match":{"in":"e"},"to":{"ports":80}}`, "to.addresses", "is missing"},
	{"NAT", `{"type":"dnat","to":{"addresses":"10.0.0.1"}}`, "match.destination", "is missing"},
	{"NAT", `{"type":"masquerade","to":{"addresses":["10.0.0.1"]}}`, "to.addresses", "set spec.type to snat"},
	{"NAT", `{"type":"masquerade","match":{"in":"eth0"}}`, "match.in", "applies to dnat only: set spec.match.out"},
	{"NAT", `{"type":"dnat","match":{"out":"eth0","destination":"10.0.0.1"},"to":{"addresses":"10.0.0.2"}}`, "match.out", "set spec.match.in"},
	{"NAT", `{"type":"snat","to":{"addresses":["127.0.0.1"]}}`, "to.addresses[0]", "loopback"},
	{"NAT", `{"type":"snat","to":{"addresses":["10.0.0.1","224.0.0.1"]}}`, "to.addresses[1]", "one host"},
	{"NAT", `{"type":"snat","to":{"addresses":["group:g"]}}`, "to.addresses[0]", "not an address"},
	{"NAT", `{"type":"snat","to":{"addresses":["10.0.0.9-10.0.0.1"]}}`, "to.addresses[0]", "is reversed"},
	{"NAT", `{"type":"snat","match":{"source":"10.0.0.0/8"},"to":{"addresses":["192.0.2.1","2001:db8::1"]}}`, "to.addresses[1]", "IPv6, but the rule matches only IPv4"},
	{"NAT", `{"type":"dnat","match":{"destination":"2001:db8::1"},"to":{"addresses":"10.0.0.1"}}`, "to.addresses[0]", "from one family to the other"},
	{"NAT", `{"type":"snat","to":{"addresses":"10.0.0.1","ports":[0]}}`, "to.ports[0]", "1 to 65535"},
	{"NAT", `{"type":"masquerade","to":{"ports":["2000-1000"]}}`, "to.ports[0]", "write 1000-2000"},
	{"NAT", `{"type":"dnat","match":{"in":"e"},"to":{"addresses":"10.0.0.1","ports":80}}`, "to.ports", "only tcp, udp and sctp have ports"},
	{"NAT", `{"type":"dnat","match":{"in":"e","protocol":"tcp"},"to":{"addresses":"10.0.0.1","ports":[80,81]}}`, "to.ports", "one range of the same length"},
	{"NAT", `{"type":"dnat","match":{"in":"e","protocol":"tcp"},"to":{"addresses":"10.0.0.1","ports":"80-81"}}`, "to.ports", "80-81 has 2 ports"},
	{"NAT", `{"type":"dnat","match":{"in":"e","protocol":"tcp","ports":"80-82"},"to":{"addresses":"10.0.0.1","ports":"80-81"}}`, "to.ports", "one range of the same length"},
	{"NAT", `{"type":"dnat","match":{"in":"e","protocol":"tcp","ports":[80,81]},"to":{"addresses":"10.0.0.1","ports":"80-81"}}`, "to.ports", "one range of the same length"},
	{"NAT", `{"type":"masquerade","oneToOne":true}`, "oneToOne", "set spec.type to snat"},
	{"NAT", `{"type":"snat","oneToOne":true,"to":{"addresses":"10.0.0.1"}}`, "to.addresses", "as many prefixes as spec.match.source has: 0, not 1"},
	{"NAT", `{"type":"snat","oneToOne":true,"match":{"source":"group:g"},"to":{"addresses":"10.0.0.1"}}`, "match.source", "list the prefixes"},
	{"NAT", `{"type":"snat","oneToOne":true,"match":{"source":"10.1.0.0/24"},"to":{"addresses":"10.0.0.0/25"}}`, "to.addresses[0]", "10.0.0.0/25 and 10.1.0.0/24 must have the same length"},
	{"NAT", `{"type":"dnat","oneToOne":true,"match":{"destination":["10.1.0.0/24","2001:db8::/64"]},"to":{"addresses":["2001:db8:1::/64","10.0.0.0/24"]}}`, "to.addresses[0]", "same length and family"},
	{"NAT", `{"type":"snat","oneToOne":true,"match":{"source":"10.1.0.1"},"to":{"addresses":"10.0.0.1-10.0.0.2"}}`, "to.addresses[0]", "not a prefix, which oneToOne requires"},
	{"NAT", `{"type":"snat","oneToOne":true,"match":{"source":"10.1.0.1"},"to":{"addresses":"10.0.0.1","ports":80}}`, "to.ports", "keeps the ports"},
	{"NAT", `{"type":"masquerade","mapping":"full-cone"}`, "mapping", "address-and-port-dependent, endpoint-independent"},
	{"NAT", `{"type":"masquerade","filtering":"endpoint-independent"}`, "filtering", "set spec.mapping"},
	{"NAT", `{"type":"dnat","match":{"in":"e"},"to":{"addresses":"10.0.0.1"},"mapping":"endpoint-independent"}`, "mapping", "not to dnat"},
	{"NAT", `{"type":"masquerade","portBlock":100}`, "portBlock", "power of two"},
	{"NAT", `{"type":"masquerade","portBlock":8192}`, "portBlock", "64 to 4096"},
	{"NAT", `{"type":"dnat","match":{"in":"e"},"to":{"addresses":"10.0.0.1"},"portBlock":64}`, "portBlock", "not to dnat"},

	{"Bridge", `{}`, "device", "is missing: want the name of a device"},
	{"Bridge", `{"device":"b","mtu":67}`, "mtu", "68 and 65535"},
	{"Bridge", `{"device":"b","ageing":"10ms"}`, "ageing", "1s"},
	{"Bridge", `{"device":"b","addresses":["10.0.0.1"]}`, "addresses[0]", "address with a prefix length"},
	{"Bridge", `{"device":"b","addresses":["10.0.0.0/24"]}`, "addresses[0]", "address of the network"},
	{"Bridge", `{"device":"b","addresses":["::ffff:10.0.0.1/104"]}`, "addresses[0]", "write 10.0.0.1"},
	{"Bridge", `{"device":"b","addresses":["127.0.0.1/8"]}`, "addresses[0]", "loopback"},
	{"Bridge", `{"device":"b","addresses":["10.0.0.1/0"]}`, "addresses[0]", "prefix length 0"},
	{"Bridge", `{"device":"b","addresses":["ff02::1/64"]}`, "addresses[0]", "one host"},
	{"Bridge", `{"device":"b","addresses":["10.0.0.1/24","10.0.0.1/16"]}`, "addresses[1]", "duplicates"},
	{"Bridge", `{"device":"b","ports":[{}]}`, "ports[0].device", "is missing: want the name of a device"},
	{"Bridge", `{"device":"b","ports":[{"device":"b"}]}`, "ports[0].device", "the bridge itself"},
	{"Bridge", `{"device":"b","ports":[{"device":"p"},{"device":"p"}]}`, "ports[1].device", "duplicates ports[0]"},
	{"Bridge", `{"device":"b","ports":[{"device":"p","pvid":1}]}`, "ports[0].pvid", "set spec.vlanFiltering to true"},
	{"Bridge", `{"device":"b","ports":[{"device":"p","vlans":[1]}]}`, "ports[0].vlans", "set spec.vlanFiltering"},
	{"Bridge", `{"device":"b","ports":[{"device":"p","untagged":[1]}]}`, "ports[0].untagged", "set spec.vlanFiltering"},
	{"Bridge", `{"device":"b","vlanFiltering":true,"ports":[{"device":"p","pvid":4095}]}`, "ports[0].pvid", "1 to 4094"},
	{"Bridge", `{"device":"b","vlanFiltering":true,"ports":[{"device":"p","pvid":-1}]}`, "ports[0].pvid", "not a valid VLAN"},
	{"Bridge", `{"device":"b","vlanFiltering":true,"ports":[{"device":"p","pvid":0}]}`, "ports[0].vlans", "forwards nothing"},
	{"Bridge", `{"device":"b","vlanFiltering":true,"ports":[{"device":"p","vlans":[4095]}]}`, "ports[0].vlans[0]", "1 to 4094"},
	{"Bridge", `{"device":"b","vlanFiltering":true,"ports":[{"device":"p","untagged":["9-8"]}]}`, "ports[0].untagged[0]", "is reversed"},

	{"Route", `{}`, "prefix", "0.0.0.0/0 or ::/0"},
	{"Route", `{"prefix":"default"}`, "prefix", "for the default route"},
	{"Route", `{"prefix":"10.0.0.1/8"}`, "prefix", "write 10.0.0.0/8"},
	{"Route", `{"prefix":"::ffff:10.0.0.0/104"}`, "prefix", "write it as IPv4"},
	{"Route", `{"prefix":"10.0.0.0/8"}`, "via", "is missing"},
	{"Route", `{"prefix":"10.0.0.0/8","type":"local"}`, "type", "unicast, blackhole, unreachable, prohibit"},
	{"Route", `{"prefix":"10.0.0.0/8","type":"blackhole","device":"e"}`, "type", "has no next hop"},
	{"Route", `{"prefix":"10.0.0.0/8","type":"blackhole","nexthops":[{"device":"e"}]}`, "type", "has no next hop"},
	{"Route", `{"prefix":"10.0.0.0/8","type":"prohibit","mtu":1400}`, "mtu", "does not apply to a route of type prohibit"},
	{"Route", `{"prefix":"10.0.0.0/8","type":"prohibit","source":"10.1.0.1"}`, "source", "does not apply to a route of type prohibit"},
	{"Route", `{"prefix":"10.0.0.0/8","netns":"pod","device":"e"}`, "netns", "host, switch"},
	{"Tunnel", `{}`, "device", "is missing: want the name of a device"},
	{"Tunnel", `{"device":"t0","vni":-1}`, "vni", "-1 is not between 0 and 4294967295"},
	{"Tunnel", `{"device":"t0","vni":1.5}`, "vni", "1.5 is not an integer"},
	{"Tunnel", `{"device":"t0","local":"0.0.0.0"}`, "local", `"0.0.0.0" is not the address of one host`},
	{"Tunnel", `{"device":"hsvxlan1000000"}`, "device", "want 1 to 13"},
	{"Tunnel", `{"device":"hsvxlan1000000000000000"}`, "device", "want 1 to 13"},
	{"Tunnel", `{"device":"t0","type":"stt"}`, "type", "stt is not supported yet"},
	{"Tunnel", `{"device":"t0","type":"ipip"}`, "type", "not one of vxlan, geneve, gre"},
	{"Tunnel", `{"device":"t0","vni":16777216}`, "vni", "24 bits"},
	{"Tunnel", `{"device":"t0","type":"gre","port":4789}`, "port", "gre has no ports"},
	{"Tunnel", `{"device":"t0","port":65536}`, "port", "not between"},
	{"Tunnel", `{"device":"t0","local":"192.0.2.0/24"}`, "local", "192.0.2.0/24"},
	{"Tunnel", `{"device":"t0","mtu":60}`, "mtu", "not between"},
	{"Peer", `{}`, "underlay", "is missing"},
	{"Peer", `{"underlay":[["192.0.2.1"]]}`, "underlay[0]", "neither a string nor a whole number"},
	{"Peer", `{"underlay":"127.0.0.7"}`, "underlay[0]", "127.0.0.7 is a loopback address: want an address at which other nodes reach it"},
	{"Peer", `{"underlay":"::1"}`, "underlay[0]", "is a loopback address"},
	{"Peer", `{"underlay":["192.0.2.1","fe80::1"]}`, "underlay[1]", "fe80::1 is link-local: want an address that is routed"},
	{"Peer", `{"underlay":["192.0.2.1","192.0.2.1"]}`, "underlay[1]", "duplicates underlay[0]"},
	{"Peer", `{"underlay":"192.0.2.1","tunnel":"A B"}`, "tunnel", "is not a name of a"},
	{"Peer", `{"underlay":"192.0.2.1","prefixes":["10.0.0.0/8","10.0.0.1/8"]}`, "prefixes[1]", "10.0.0.0/8"},
	{"Peer", `{"underlay":"192.0.2.1","prefixes":"192.0.2.0/24"}`, "prefixes[0]", "own underlay address"},
	{"Peer", `{"underlay":"192.0.2.1","prefixes":"2001:db8::/64"}`, "prefixes[0]", "a different family"},
	{"Peer", `{"underlay":"192.0.2.1","prefixes":"224.0.0.0/4","tunnel":"t"}`, "prefixes[0]", "cannot be behind a Peer"},
	{"Route", `{"prefix":"10.0.0.0/8","peer":"A B"}`, "peer", "is not a name of a"},
	{"Route", `{"prefix":"10.0.0.0/8","peer":"a","metric":5}`, "metric", "determined by the Peer"},
	{"Route", `{"prefix":"10.0.0.0/8","peer":"a","type":"blackhole"}`, "type", "determined by the Peer"},
	{"Route", `{"prefix":"10.0.0.0/8","peer":"a","nexthops":[{"device":"e"}]}`, "nexthops", "determined by the Peer"},
	{"Route", `{"prefix":"10.0.0.0/8","device":"a/b"}`, "device", "not a device name"},
	{"Route", `{"prefix":"10.0.0.0/8","via":"router"}`, "via", "not an address"},
	{"Route", `{"prefix":"10.0.0.0/8","via":"0.0.0.0"}`, "via", "one host"},
	{"Route", `{"prefix":"10.0.0.0/8","via":"2001:db8::1"}`, "via", "is IPv6, but the prefix 10.0.0.0/8 is IPv4"},
	{"Route", `{"prefix":"2001:db8::/32","via":"fe80::1"}`, "device", "does not determine a link"},
	{"Route", `{"prefix":"10.0.0.0/8","via":"10.1.0.1","nexthops":[{"device":"e"}]}`, "nexthops", "the only next hop"},
	{"Route", `{"prefix":"10.0.0.0/8","nexthops":[{"device":"e"},{}]}`, "nexthops[1].via", "is missing"},
	{"Route", `{"prefix":"10.0.0.0/8","nexthops":[{"device":"e","weight":257}]}`, "nexthops[0].weight", "1 and 256"},
	{"Route", `{"prefix":"10.0.0.0/8","nexthops":[{"device":"e","weight":-1}]}`, "nexthops[0].weight", "1 and 256"},
	{"Route", `{"prefix":"10.0.0.0/8","nexthops":[{"device":"e"},{"device":"e","weight":2}]}`, "nexthops[1]", "same as nexthops[0]"},
	{"Route", `{"prefix":"10.0.0.0/8","device":"e","metric":4294967296}`, "metric", "4294967296 is not between 0 and 4294967295"},
	{"Route", `{"prefix":"10.0.0.0/8","device":"e","mtu":67}`, "mtu", "68"},
	{"Route", `{"prefix":"2001:db8::/32","device":"e","mtu":1279}`, "mtu", "1280"},
	{"Route", `{"prefix":"10.0.0.0/8","device":"e","source":"2001:db8::1"}`, "source", "is IPv6"},
	{"Route", `{"prefix":"10.0.0.0/8","device":"e","source":"me"}`, "source", "not an address"},
}

func TestRuleRefused(t *testing.T) {
	for _, tt := range badRules {
		kind, spec := tt.kind, tt.spec
		if kind == "match" {
			kind, spec = "FirewallRule", `{"action":"deny","match":`+spec+`}`
		}
		value, _, err := kindSpecs[kind].parse([]byte(spec), nil)
		if admit := kindSpecs[kind].admit; err == nil && admit != nil {
			err = admit(value)
		}
		if err == nil || err.Data.Field != "spec."+tt.field || !strings.Contains(err.Message, tt.text) {
			t.Errorf("%s %s:\n got %v\nwant spec.%s: …%s…", kind, spec, err, tt.field, tt.text)
			continue
		}
		want := api.ReasonInvalid
		if strings.Contains(tt.text, "in this version yet") || strings.Contains(tt.text, "is not supported yet") {
			want = api.ReasonUnsupported
		}
		if err.Reason() != want {
			t.Errorf("%s %s: reason %s, want %s", kind, spec, err.Reason(), want)
		}
	}
}
