// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
)

var (
	bridgeKind = kind{
		name:    api.KindBridge,
		words:   []string{"bridge", "bridges", "br"},
		meaning: "a bridge in the switch's network namespace, with its ports and VLANs",
		columns: []column{
			{title: "DEVICE"}, {title: "PORTS", flexible: true}, {title: "VLANS", optional: 2}, {title: "ADDRESSES", flexible: true, optional: 1},
		},
		wide:  []column{{title: "AGEING", optional: 5}, {title: "MTU", right: true, optional: 4}, {title: "LABELS", flexible: true, optional: 5}},
		cells: bridgeCells, spec: func() any { return &api.BridgeSpec{} },
	}
	routeKind = kind{
		name:    api.KindRoute,
		words:   []string{"route", "routes"},
		meaning: "an entry of the kernel's main routing table",
		columns: []column{
			{title: "PREFIX"}, {title: "VIA", flexible: true}, {title: "METRIC", right: true, optional: 2}, {title: "NETNS", optional: 1},
		},
		wide:  []column{{title: "SOURCE", optional: 4}, {title: "MTU", right: true, optional: 4}, {title: "LABELS", flexible: true, optional: 5}},
		cells: routeCells, spec: func() any { return &api.RouteSpec{} },
	}
	groupKind = kind{
		name:    api.KindAddressGroup,
		words:   []string{"addressgroup", "addressgroups", "group", "groups"},
		meaning: "addresses under a name, for rules to refer to",
		columns: []column{{title: "MEMBERS", right: true}, {title: "FIRST", flexible: true, optional: 1}},
		wide:    []column{{title: "LABELS", flexible: true, optional: 5}},
		cells:   groupCells, spec: func() any { return &api.AddressGroupSpec{} },
	}
	natKind = kind{
		name:    api.KindNAT,
		words:   []string{"nat", "nats"},
		meaning: "which addresses are translated, and to what",
		columns: []column{
			{title: "PRIORITY", right: true, optional: 1}, {title: "TYPE"}, {title: "MATCH", flexible: true}, {title: "TO", flexible: true},
		},
		wide: []column{
			{title: "MAPPING", optional: 4}, {title: "FILTERING", optional: 4}, {title: "BLOCK", right: true, optional: 5}, {title: "LOG", optional: 5},
			{title: "LABELS", flexible: true, optional: 5},
		},
		cells: natCells, order: byPriority, spec: func() any { return &api.NATSpec{} },
	}
	firewallKind = kind{
		name:    api.KindFirewallRule,
		words:   []string{"firewall", "firewallrule", "firewallrules", "fw", "rule", "rules"},
		meaning: "which packets are let through, and which are not",
		columns: []column{
			{title: "PRIORITY", right: true}, {title: "ACTION"}, {title: "HOOKS", optional: 1}, {title: "MATCH", flexible: true},
		},
		wide:  []column{{title: "STATEFUL", optional: 4}, {title: "LOG", optional: 4}, {title: "LABELS", flexible: true, optional: 5}},
		cells: firewallCells, order: byPriority, spec: func() any { return &api.FirewallRuleSpec{} },
	}
)

// defaultPriority is the priority of a rule without one.
const defaultPriority = 1000

func bridgeCells(o *api.Object, wide bool) []cell {
	var spec api.BridgeSpec
	decode(o, &spec, &struct{}{})
	ports := make([]string, len(spec.Ports))
	for i, p := range spec.Ports {
		ports[i] = p.Device
	}
	cells := []cell{{text: spec.Device}, {text: join(ports)}, {text: yesNo(spec.VLANFiltering)}, {text: join(spec.Addresses)}}
	if wide {
		ageing := "5m"
		if spec.Ageing != 0 {
			ageing = short(spec.Ageing)
		}
		cells = append(cells, cell{text: ageing}, cell{text: number(spec.MTU)}, cell{text: labels(o.Labels)})
	}
	return cells
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func routeCells(o *api.Object, wide bool) []cell {
	var spec api.RouteSpec
	decode(o, &spec, &struct{}{})
	cells := []cell{{text: spec.Prefix}, {text: routeWays(&spec)}, {text: number(int(spec.Metric))}, {text: or(spec.Netns, "host")}}
	if wide {
		cells = append(cells, cell{text: or(spec.Source, "-")}, cell{text: number(spec.MTU)}, cell{text: labels(o.Labels)})
	}
	return cells
}

// routeWays describes the next hops of a route, as ip route does.
func routeWays(spec *api.RouteSpec) string {
	hops := spec.NextHops
	switch {
	case spec.Type != "" && spec.Type != "unicast":
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

func groupCells(o *api.Object, wide bool) []cell {
	var spec api.AddressGroupSpec
	decode(o, &spec, &struct{}{})
	const few = 4
	var first []string
	for i, m := range spec.Members {
		if i == few {
			first = append(first, "…")
			break
		}
		first = append(first, m.Text)
	}
	cells := []cell{{text: strconv.Itoa(len(spec.Members))}, {text: join(first)}}
	if wide {
		cells = append(cells, cell{text: labels(o.Labels)})
	}
	return cells
}

func natCells(o *api.Object, wide bool) []cell {
	var spec api.NATSpec
	decode(o, &spec, &struct{}{})
	to := "-"
	if spec.To != nil {
		to = join(spec.To.Addresses.Strings())
		if ports := spec.To.Ports.Strings(); len(ports) > 0 {
			to += " ports " + join(ports)
		}
	}
	kind := spec.Type
	if spec.OneToOne {
		kind += " 1:1"
	}
	cells := []cell{{text: priority(spec.Priority)}, {text: kind}, {text: matchText(spec.Match)}, {text: to}}
	if wide {
		cells = append(cells, cell{text: or(spec.Mapping, "-")}, cell{text: or(spec.Filtering, "-")}, cell{text: number(spec.PortBlock)},
			cell{text: yesNo(spec.Log)}, cell{text: labels(o.Labels)})
	}
	return cells
}

func firewallCells(o *api.Object, wide bool) []cell {
	var spec api.FirewallRuleSpec
	decode(o, &spec, &struct{}{})
	action := cell{text: spec.Action}
	if spec.Action == "deny" || spec.Action == "reject" {
		action.color = yellow
	}
	cells := []cell{{text: priority(spec.Priority)}, action, {text: or(strings.Join(spec.Hooks.Strings(), ","), "all")}, {text: matchText(spec.Match)}}
	if wide {
		cells = append(cells, cell{text: yesNo(spec.Stateful == nil || *spec.Stateful)}, cell{text: yesNo(spec.Log)}, cell{text: labels(o.Labels)})
	}
	return cells
}

// byPriority is the order in which rules are evaluated.
func byPriority(a, b *api.Object) int {
	of := func(o *api.Object) int32 {
		var spec struct {
			Priority *int32 `json:"priority"`
		}
		decode(o, &spec, &struct{}{})
		if spec.Priority == nil {
			return defaultPriority
		}
		return *spec.Priority
	}
	return cmp.Or(cmp.Compare(of(a), of(b)), cmp.Compare(a.Name, b.Name))
}

func priority(p *int32) string {
	if p == nil {
		return strconv.Itoa(defaultPriority)
	}
	return strconv.Itoa(int(*p))
}

// matchText writes a match in one line.
func matchText(m *api.Match) string {
	if m == nil {
		return "everything"
	}
	var parts []string
	for _, field := range []struct {
		word string
		list api.Words
	}{
		{"", m.Protocol}, {"from", m.Source}, {"port", m.SourcePorts}, {"to", m.Destination}, {"port", m.Ports}, {"type", m.ICMP},
		{"flags", flagWords(m.TCPFlags)}, {"in", m.In}, {"out", m.Out}, {"vlan", m.VLANs}, {"dscp", m.DSCP},
	} {
		if len(field.list) > 0 {
			parts = append(parts, strings.TrimSpace(fmt.Sprint(field.word, " ", strings.Join(field.list.Strings(), ","))))
		}
	}
	return or(strings.Join(parts, " "), "everything")
}

func flagWords(text string) api.Words {
	if text == "" {
		return nil
	}
	return api.Words{api.Word(text)}
}
