// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var firewallKind = Kind{
	Name:    api.KindFirewallRule,
	Words:   []string{"firewall", "firewallrule", "firewallrules", "fw", "rule", "rules"},
	Meaning: "which packets are let through, and which are not",
	Columns: []output.Column{
		{Title: "PRIORITY", Right: true}, {Title: "ACTION"}, {Title: "HOOKS", Optional: 1}, {Title: "MATCH", Flexible: true},
	},
	Wide:    []output.Column{{Title: "STATEFUL", Optional: 4}, {Title: "LOG", Optional: 4}, {Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:   firewallCells,
	Order:   byPriority,
	Spec:    func() any { return &api.FirewallRuleSpec{} },
	Schema:  firewallSchema,
	Hits:    true,
	details: showHits,
	Topics:  []string{api.TopicChanges, api.TopicStatus, api.TopicDrops, api.TopicFirewall},
	fields:  firewallFields,
	complete: func(_ string, spec map[string]any) error {
		if spec["action"] == nil {
			return command.Usagef("the action is missing; set --action %s", AnyOf(api.FirewallActions))
		}
		return nil
	},
	AddExample: "  llcli firewall add no-web --priority 100 --source 10.0.0.0/8 --protocol tcp --port 80 --action deny\n" +
		"  llcli firewall add ssh --hook input --protocol tcp --port 22 --source group:admins --action allow",
	SetExample: "  llcli firewall set no-web --add-port 8000-8100 --action reject\n  llcli firewall set no-web --remove-source 10.0.0.0/8 --log",
}

func firewallCells(o *api.Object, wide bool) []output.Cell {
	var spec api.FirewallRuleSpec
	Decode(o, &spec, &struct{}{})
	action := output.Cell{Text: spec.Action}
	if spec.Action == "deny" || spec.Action == "reject" {
		action.Color = output.Yellow
	}
	cells := []output.Cell{{Text: priority(spec.Priority)}, action, {Text: cmp.Or(strings.Join(spec.Hooks.Strings(), ","), "all")}, {Text: matchText(spec.Match)}}
	if wide {
		cells = append(cells, output.Cell{Text: output.YesNo(spec.Stateful == nil || *spec.Stateful)}, output.Cell{Text: output.YesNo(spec.Log)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

var firewallFields = append([]specField{
	{flag: "action", path: "action", usage: "`ACTION`: allow, deny (drop silently) or reject (drop and answer the sender)", values: api.FirewallActions},
	{flag: "hook", path: "hooks", form: formWords, usage: "`HOOK` that it applies to: " + strings.Join(api.FirewallHooks, ", ") + " (default: all); may be repeated", values: api.FirewallHooks},
	{flag: "stateful", path: "stateful", form: formTruth, usage: "allow replies to allowed connections (default); =false: evaluate each direction"},
	{flag: "log", path: "log", form: formTruth, usage: "log a sample of matching packets"},
}, matchFields...)

const firewallSchema = `kind: FirewallRule
name: web                     # a-z, 0-9 and - . / : inside; unique among FirewallRules
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  priority: 100               # lower first, then by name; default 1000
  hooks: [forward, input]     # and output; default: all hooks at which in and out are known
  match:                      # absent: every packet; all fields must match, and one element of a list
    source:                   # addresses, prefixes, ranges, group:NAME, local (the node's)
      - 10.0.0.0/8
      - 192.0.2.10-192.0.2.20
    destination: 198.51.100.10  # a single value needs no list
    protocol: tcp             # udp, sctp, icmp, icmpv6, gre, esp, …, or a number
    ports: [80, 8000-8100]    # with protocol tcp, udp, sctp
    sourcePorts: 1024-65535
    tcpFlags: "syn,!ack"      # with protocol tcp; !: not set
    in: eth0                  # devices
    vlans: [10, 200-299]
    dscp: [ef, 12]
  # A rule is evaluated before translation: for a port forward or a Service, it matches the
  # address and port that the client used.
  action: reject              # allow, deny (drop silently) or reject (drop and answer)
  stateful: true              # replies to allowed packets are allowed; default true
  log: true                   # log a sample of matching packets
---
kind: FirewallRule
name: ping
spec:
  match:
    protocol: icmp            # or icmpv6, which has different types
    icmp: [echo-request, 3/4] # types by name or number, or type/code
    out: eth1
  action: allow
`
