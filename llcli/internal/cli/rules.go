// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noun is a word for a kind of which each field is a flag.
type noun struct {
	kind     *kind
	fields   []specField
	complete func(name string, spec map[string]any) error
	adjust   func(spec map[string]any, given *pflag.FlagSet) error
	add, set string // examples
}

func (a *app) fieldsCommand(n noun) *cobra.Command {
	flags := func() *fieldFlags {
		return &fieldFlags{app: a, kind: n.kind, fields: slices.Clone(n.fields), complete: n.complete, adjust: n.adjust}
	}
	cmd := a.nounCommand(n.kind, flags(), n.add)
	cmd.AddCommand(a.setCommand(n.kind, flags(), n.set))
	return cmd
}

// nouns are the words for those kinds.
func nouns() []noun {
	return append(append(podNouns(), overlayNouns()...), []noun{
		{
			kind: findKind(api.KindBridge), fields: bridgeFields,
			complete: func(name string, spec map[string]any) error {
				if spec["device"] == nil {
					spec["device"] = name
				}
				return nil
			},
			add: "  llcli bridge add br0 --port hs1 --port hs2 --address 10.1.0.1/24\n" +
				"  llcli bridge add br0 --vlan-filtering --port hs1,pvid=10 --port hs2,vlans=10+200-299,isolated",
			set: "  llcli bridge set br0 --add-port hs3,pvid=20\n  llcli bridge set br0 --remove-port hs1",
		},
		{
			kind: findKind(api.KindRoute), fields: routeFields,
			complete: completeRoute,
			add: "  llcli route add 10.9.0.0/16 --via 10.1.0.254\n  llcli route add uplinks --prefix 0.0.0.0/0 --nexthop 192.0.2.1,weight=3 --nexthop 198.51.100.1\n" +
				"  llcli route add nowhere --prefix 10.0.0.0/8 --type blackhole --netns switch",
			set: "  llcli route set uplinks --add-nexthop 203.0.113.1\n  llcli route set 10.9.0.0/16 --metric 50",
		},
		{
			kind: findKind(api.KindAddressGroup), fields: groupFields,
			add: "  llcli addressgroup add partners --member 192.0.2.7,198.51.100.0/24 --member group:others",
			set: "  llcli addressgroup set partners --add-member 203.0.113.9 --remove-member 192.0.2.7",
		},
		{
			kind: findKind(api.KindNAT), fields: natFields,
			complete: completeNAT, adjust: splitTo,
			add: "  llcli nat add out --masquerade --source 10.0.0.0/8 --out eth0\n" +
				"  llcli nat add pool --snat --source 10.0.0.0/8 --to 192.0.2.10-192.0.2.20 --port-block 512 --log\n" +
				"  llcli nat add web --dnat --destination 192.0.2.10 --protocol tcp --port 80 --to 10.0.0.7 --to-port 8080",
			set: "  llcli nat set pool --add-to 192.0.2.30\n  llcli nat set web --to-port 8081",
		},
		{
			kind: findKind(api.KindFirewallRule), fields: firewallFields,
			complete: func(_ string, spec map[string]any) error {
				if spec["action"] == nil {
					return usagef("the action is missing; set --action allow, deny or reject")
				}
				return nil
			},
			add: "  llcli firewall add no-web --priority 100 --source 10.0.0.0/8 --protocol tcp --port 80 --action deny\n" +
				"  llcli firewall add ssh --hook input --protocol tcp --port 22 --source group:admins --action allow",
			set: "  llcli firewall set no-web --add-port 8000-8100 --action reject\n  llcli firewall set no-web --remove-source 10.0.0.0/8 --log",
		},
	}...)
}

var (
	netnsValues     = []string{"host", "switch"}
	behaviourValues = []string{"address-and-port-dependent", "endpoint-independent"}
	protocolValues  = []string{"tcp", "udp", "sctp", "icmp", "icmpv6", "gre", "esp", "ah"}
)

var bridgeFields = []specField{
	{flag: "device", path: "device", usage: "the name of the bridge `DEVICE`, which is made (default of add: NAME)"},
	{flag: "vlan-filtering", path: "vlanFiltering", form: formTruth, usage: "keep frames apart by VLAN"},
	{flag: "address", path: "addresses", form: formWords, usage: "`ADDRESS/LENGTH` of the bridge device; may be repeated"},
	{
		flag: "port", path: "ports", form: formItems,
		usage: "`DEVICE` that belongs to it, with ,pvid=N ,vlans=N+N-N ,untagged=N and ,isolated if need be; may be repeated",
		item:  itemOf("device", map[string]form{"device": formText, "pvid": formNumber, "vlans": formWords, "untagged": formWords, "isolated": formTruth}),
		key:   func(item map[string]any) string { return textOf(item["device"]) },
	},
	{flag: "ageing", path: "ageing", form: formTime, usage: "remember a silent host for this `TIME` (default 5m)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "its MTU in `BYTES` (default: the kernel chooses)"},
}

var routeFields = []specField{
	{flag: "prefix", path: "prefix", usage: "`ADDRESS/LENGTH` that it leads to (default of add: NAME)"},
	{flag: "via", path: "via", usage: "`ADDRESS` of the router"},
	{flag: "device", path: "device", usage: "`DEVICE` that leads to it"},
	{flag: "peer", path: "peer", kind: api.KindPeer, usage: "`NAME` of the Peer that it leads to; no other field is needed"},
	{
		flag: "nexthop", path: "nexthops", form: formItems, usage: "one of several ways: `ADDRESS` of the router, with ,device=D and ,weight=N if need be; may be repeated",
		item: itemOf("via", map[string]form{"via": formText, "device": formText, "weight": formNumber}),
		key:  func(item map[string]any) string { return or(textOf(item["via"]), textOf(item["device"])) },
	},
	{flag: "type", path: "type", usage: "`WHAT` becomes of the packets: unicast (default), blackhole, unreachable, prohibit", values: []string{"unicast", "blackhole", "unreachable", "prohibit"}},
	{flag: "netns", path: "netns", usage: "the `NAMESPACE` that it is in: host (default) or switch", values: netnsValues},
	{flag: "metric", path: "metric", form: formNumber, usage: "`N`: lower ones first (default: the kernel's)"},
	{flag: "source", path: "source", usage: "`ADDRESS` of the node's own packets (default: the kernel chooses)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "its MTU in `BYTES` (default: the MTU of the device)"},
}

var groupFields = []specField{
	{flag: "member", path: "members", form: formWords, groups: true, usage: "`ADDRESS`, prefix, range of addresses or group:NAME; may be repeated"},
}

// matchFields are common to all rules.
var matchFields = []specField{
	{flag: "priority", path: "priority", form: formNumber, usage: "`N`: lower ones first (default 1000)"},
	{flag: "source", path: "match.source", form: formWords, groups: true, usage: "source `ADDRESS`, prefix, range, group:NAME or local (the addresses of the node); may be repeated"},
	{flag: "destination", path: "match.destination", form: formWords, groups: true, usage: "destination `ADDRESS`, prefix, range, group:NAME or local (the addresses of the node); may be repeated"},
	{flag: "protocol", path: "match.protocol", form: formWords, usage: "their `PROTOCOL`, by name or number; may be repeated", values: protocolValues},
	{flag: "port", path: "match.ports", form: formWords, usage: "destination `PORT`, a range such as 8000-8100, or a name such as ssh; may be repeated. Rules see the port before a NAT or Service translates it"},
	{flag: "source-port", path: "match.sourcePorts", form: formWords, usage: "source `PORT` or range; may be repeated"},
	{flag: "icmp", path: "match.icmp", form: formWords, usage: "`TYPE` of ICMP messages, by name or number, or TYPE/CODE; may be repeated"},
	{flag: "tcp-flags", path: "match.tcpFlags", usage: "`FLAGS` that are set, and with ! those that are not: syn,!ack"},
	{flag: "in", path: "match.in", form: formWords, usage: "incoming `DEVICE`; may be repeated"},
	{flag: "out", path: "match.out", form: formWords, usage: "outgoing `DEVICE`; may be repeated"},
	{flag: "vlan", path: "match.vlans", form: formWords, usage: "`VLAN`, or a range; may be repeated"},
	{flag: "dscp", path: "match.dscp", form: formWords, usage: "`DSCP`, by name or number; may be repeated"},
}

var natFields = append([]specField{
	{flag: "type", path: "type", usage: "`TYPE`: snat, dnat or masquerade", values: []string{"snat", "dnat", "masquerade"}},
	{flag: "masquerade", path: "type", form: formMeans, means: "masquerade", usage: "translate the source to the address of the device that they leave by"},
	{flag: "snat", path: "type", form: formMeans, means: "snat", usage: "translate the source to an address of --to"},
	{flag: "dnat", path: "type", form: formMeans, means: "dnat", usage: "translate the destination to an address of --to"},
	{flag: "to", path: "to.addresses", form: formWords, usage: "`ADDRESS` to translate to, a prefix or a range; may be repeated"},
	{flag: "to-port", path: "to.ports", form: formWords, usage: "`PORT` or range to translate to; may be repeated"},
	{flag: "one-to-one", path: "oneToOne", form: formTruth, usage: "each address has one of its own"},
	{flag: "mapping", path: "mapping", usage: "`HOW` far a mapping depends on the other side: address-and-port-dependent (default) or endpoint-independent", values: behaviourValues},
	{flag: "filtering", path: "filtering", usage: "`WHO` may use a mapping: address-and-port-dependent (default) or endpoint-independent", values: behaviourValues},
	{flag: "port-block", path: "portBlock", form: formNumber, usage: "`N` ports for each inner address at a time, 64 to 4096 (default: one by one)"},
	{flag: "log", path: "log", form: formTruth, usage: "an event for each block or mapping"},
}, matchFields...)

var firewallFields = append([]specField{
	{flag: "action", path: "action", usage: "`ACTION`: allow, deny (drop silently) or reject (drop and answer the sender)", values: []string{"allow", "deny", "reject"}},
	{flag: "hook", path: "hooks", form: formWords, usage: "`HOOK` that it applies to: forward, input, output (default: all); may be repeated", values: []string{"forward", "input", "output"}},
	{flag: "stateful", path: "stateful", form: formTruth, usage: "allow replies to allowed connections (default); =false: evaluate each direction"},
	{flag: "log", path: "log", form: formTruth, usage: "log a sample of matching packets"},
}, matchFields...)

// textOf returns value if it is a string, else the empty string.
func textOf(value any) string {
	text, _ := value.(string)
	return text
}
