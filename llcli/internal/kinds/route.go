// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var routeKind = Kind{
	Name:    api.KindRoute,
	Words:   []string{"route", "routes"},
	Meaning: "an entry of the kernel's main routing table",
	Columns: []output.Column{
		{Title: "PREFIX"}, {Title: "VIA", Flexible: true}, {Title: "METRIC", Right: true, Optional: 2}, {Title: "NETNS", Optional: 1},
	},
	Wide:     []output.Column{{Title: "SOURCE", Optional: 4}, {Title: "MTU", Right: true, Optional: 4}, {Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:    routeCells,
	Spec:     func() any { return &api.RouteSpec{} },
	Schema:   routeSchema,
	fields:   routeFields,
	complete: completeRoute,
	AddExample: "  llcli route add 10.9.0.0/16 --via 10.1.0.254\n  llcli route add uplinks --prefix 0.0.0.0/0 --nexthop 192.0.2.1,weight=3 --nexthop 198.51.100.1\n" +
		"  llcli route add nowhere --prefix 10.0.0.0/8 --type blackhole --netns switch",
	SetExample: "  llcli route set uplinks --add-nexthop 203.0.113.1\n  llcli route set 10.9.0.0/16 --metric 50",
}

func routeCells(o *api.Object, wide bool) []output.Cell {
	var spec api.RouteSpec
	Decode(o, &spec, &struct{}{})
	cells := []output.Cell{{Text: spec.Prefix}, {Text: routeWays(&spec)}, {Text: output.Number(int(spec.Metric))}, {Text: cmp.Or(spec.Netns, api.Netns[0])}}
	if wide {
		cells = append(cells, output.Cell{Text: cmp.Or(spec.Source, "-")}, output.Cell{Text: output.Number(spec.MTU)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

// routeWays describes the next hops of a route, as ip route does.
func routeWays(spec *api.RouteSpec) string {
	hops := spec.NextHops
	switch {
	case spec.Type != "" && spec.Type != api.RouteTypes[0]:
		return spec.Type
	case spec.Peer != "":
		return "peer " + spec.Peer
	case len(hops) == 0:
		hops = []api.NextHop{{Via: spec.Via, Device: spec.Device}}
	}
	ways := make([]string, len(hops))
	for i, hop := range hops {
		var words []string
		if hop.Via != "" {
			words = append(words, hop.Via)
		}
		if hop.Device != "" {
			words = append(words, "dev "+hop.Device)
		}
		if hop.Weight > 1 {
			words = append(words, "weight "+strconv.Itoa(hop.Weight))
		}
		ways[i] = strings.Join(words, " ")
	}
	return strings.Join(ways, ", ")
}

var routeFields = []specField{
	{flag: "prefix", path: "prefix", usage: "`ADDRESS/LENGTH` that it leads to (default of add: NAME)"},
	{flag: "via", path: "via", usage: "`ADDRESS` of the router"},
	{flag: "device", path: "device", usage: "`DEVICE` that leads to it"},
	{flag: "peer", path: "peer", kind: api.KindPeer, usage: "`NAME` of the Peer that it leads to; no other field is needed"},
	{
		flag: "nexthop", path: "nexthops", form: formItems, usage: "one of several next hops: `ADDRESS` of the router, with ,device=D and ,weight=N if needed; may be repeated",
		item: itemOf("via", map[string]form{"via": formText, "device": formText, "weight": formNumber}),
		key:  func(item map[string]any) string { return cmp.Or(textOf(item["via"]), textOf(item["device"])) },
	},
	{flag: "type", path: "type", usage: "`WHAT` happens to the packets: " + strings.Join(withDefault(api.RouteTypes), ", "), values: api.RouteTypes},
	{flag: "netns", path: "netns", usage: "the `NAMESPACE` that it is in: " + AnyOf(withDefault(api.Netns)), values: api.Netns},
	{flag: "metric", path: "metric", form: formNumber, usage: "`N`: lower ones first (default: the kernel's)"},
	{flag: "source", path: "source", usage: "`ADDRESS` of the node's own packets (default: the kernel chooses)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "its MTU in `BYTES` (default: the MTU of the device)"},
}

// completeRoute takes the prefix of a route from its name. The name default means 0.0.0.0/0, or
// ::/0 if via is an IPv6 address.
func completeRoute(name string, spec map[string]any) error {
	if _, err := netip.ParsePrefix(name); spec["prefix"] == nil && err == nil {
		spec["prefix"] = name
	}
	if spec["prefix"] == nil && name == "0/0" {
		spec["prefix"] = "0.0.0.0/0"
	}
	if prefix, _ := spec["prefix"].(string); prefix == "default" || prefix == "" && name == "default" {
		spec["prefix"] = "0.0.0.0/0"
		if strings.Contains(textOf(spec["via"]), ":") {
			spec["prefix"] = "::/0"
		}
	}
	if spec["prefix"] == nil {
		return command.Usagef("the prefix is missing; set --prefix ADDRESS/LENGTH, such as 10.0.0.0/8")
	}
	return nil
}

const routeSchema = `kind: Route
name: branch                  # a-z, 0-9 and - . / : inside; unique among Routes
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  prefix: 10.9.0.0/16         # 0.0.0.0/0 or ::/0: the default route
  netns: switch               # host (default), or switch
  type: unicast               # or blackhole (drop silently), unreachable, prohibit
  via: 10.1.0.254             # the router; or device alone: the prefix is on that link
  device: br0
  metric: 50                  # lower first; default: the kernel's
  source: 10.1.0.1            # address of the node's own packets
  mtu: 1400                   # default: the MTU of the device
---
kind: Route
name: uplinks
spec:
  prefix: ::/0
  nexthops:                   # instead of via and device: several next hops
    - via: 2001:db8:1::fe
      device: eth0
      weight: 3               # 1 (default) to 256
    - via: fe80::1
      device: eth1
---
kind: Route
name: behind-node2
spec:
  prefix: 10.99.2.0/24
  peer: node2                 # one more prefix behind that Peer, which determines all other fields
`
