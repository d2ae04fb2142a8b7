// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var policyKind = Kind{
	Name:    api.KindPolicy,
	Words:   []string{"policy", "policies"},
	Plural:  "Policies",
	Meaning: "which traffic Endpoints of this node may send and receive",
	Columns: []output.Column{
		{Title: "TIER"}, {Title: "PRIORITY", Right: true}, {Title: "STAGE", Optional: 2}, {Title: "APPLIED TO", Flexible: true}, {Title: "SUBJECTS", Right: true},
		{Title: "ISOLATE", Optional: 1}, {Title: "INGRESS", Right: true, Optional: 1}, {Title: "EGRESS", Right: true, Optional: 1},
	},
	Wide:     []output.Column{{Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:    policyCells,
	Spec:     func() any { return &api.PolicySpec{} },
	Schema:   policySchema,
	details:  showPolicyRules,
	Topics:   []string{api.TopicChanges, api.TopicStatus, api.TopicDrops, api.TopicPolicy},
	fields:   policyFields,
	complete: completePolicy,
	AddExample: "  llcli policy add db --tier main --applied-to namespace:shop,app=db --isolate ingress --ingress \"allow from namespace:shop,app=web port tcp/5432-5440\"\n" +
		"  llcli policy add no-mail --tier main --applied-to all --egress \"reject to 0.0.0.0/0 to ::/0 port tcp/25\"",
	SetExample: "  llcli policy set db --stage staged\n  llcli policy set db --add-ingress \"allow name metrics from group:monitors port metrics\"",
}

func policyCells(o *api.Object, wide bool) []output.Cell {
	var spec api.PolicySpec
	var status api.PolicyStatus
	Decode(o, &spec, &status)
	var to []string
	for i := range spec.AppliedTo {
		s := &spec.AppliedTo[i]
		to = append(to, selectorText(s.Set, s.Namespaces, s.Entities))
	}
	priority := "1000"
	if spec.Priority != nil {
		priority = strconv.Itoa(int(*spec.Priority))
	}
	isolate := output.Join(spec.Isolate)
	if spec.IsolateAction == api.IsolateActions[1] {
		isolate += " (reject)"
	}
	cells := []output.Cell{
		{Text: spec.Tier}, {Text: priority}, {Text: cmp.Or(spec.Stage, api.PolicyStages[0])}, {Text: strings.Join(to, " or ")}, {Text: strconv.Itoa(status.Subjects)},
		{Text: isolate}, {Text: strconv.Itoa(len(spec.Ingress))}, {Text: strconv.Itoa(len(spec.Egress))},
	}
	if wide {
		cells = append(cells, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

// showPolicyRules shows the rules in the order in which they are evaluated.
func showPolicyRules(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
	var spec api.PolicySpec
	Decode(o, &spec, &struct{}{})
	var in, out []string
	for i := range spec.Ingress {
		r := &spec.Ingress[i]
		in = append(in, ruleText(r.Name, r.Action, "from", r.From, r.Ports))
	}
	for i := range spec.Egress {
		r := &spec.Egress[i]
		out = append(out, ruleText(r.Name, r.Action, "to", r.To, r.Ports))
	}
	a.Lines("Ingress rules", in)
	a.Lines("Egress rules", out)
	counters, err := a.Counters(ctx, d, o.Kind, o.Name)
	if err != nil {
		a.Note("the counters of %s: %v", o.Name, err)
		return
	}
	a.Section(DecisionsTable(a, counters.Rules))
}

// DecisionsTable shows how often rules of a Policy decided.
func DecisionsTable(a *command.App, rules []api.PolicyRuleCounters) *output.Table {
	t := a.Table(
		output.Column{Title: "DIRECTION"}, output.Column{Title: "RULE", Flexible: true}, output.Column{Title: "ACTION"},
		output.Column{Title: "CONNECTIONS", Right: true}, output.Column{Title: "PACKETS", Right: true}, output.Column{Title: "BYTES", Right: true},
		output.Column{Title: "LAST", Right: true, Optional: 1}, output.Column{Title: "COUNTED FOR", Right: true, Optional: 2},
	)
	for i := range rules {
		t.Add(DecisionCells(a, &rules[i])...)
	}
	return t
}

// DecisionCells are the cells of a row of a [DecisionsTable].
func DecisionCells(a *command.App, r *api.PolicyRuleCounters) []output.Cell {
	return []output.Cell{
		{Text: r.Direction}, {Text: output.Clean(cmp.Or(r.Rule, "isolation"))}, {Text: r.Action},
		{Text: output.Count(r.Connections)}, {Text: output.Count(r.Packets)}, {Text: output.Size(r.Bytes)},
		{Text: agoText(a, r.Last)}, {Text: agoText(a, r.Since)},
	}
}

// agoText returns how long ago a time was; empty: never.
func agoText(a *command.App, text string) string {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return "-"
	}
	return output.Short(api.Duration(max(0, a.Now().Sub(at))))
}

// ruleText returns a rule in the form of a flag, except for expressions.
func ruleText(name, action, side string, peers []api.PolicyPeer, ports []api.PolicyPort) string {
	text := action
	if name != "" {
		text += " name " + name
	}
	for i := range peers {
		text += " " + side + " " + PeerText(&peers[i])
	}
	for i := range ports {
		text += " port " + PolicyPortText(&ports[i])
	}
	return text
}

// PeerText returns a peer of a rule in the form of a flag, except for expressions.
func PeerText(p *api.PolicyPeer) string {
	text := selectorText(p.Set, p.Namespaces, p.Entities)
	if len(p.Prefixes) > 0 {
		text = strings.Join(p.Prefixes.Strings(), ",")
	}
	if len(p.Names) > 0 {
		text = nameWord + strings.Join(p.Names, ","+nameWord)
	}
	if len(p.Except) > 0 {
		text += " except " + strings.Join(p.Except.Strings(), ",")
	}
	return text
}

// PolicyPortText returns a port of a rule in the form of a flag.
func PolicyPortText(p *api.PolicyPort) string {
	if p.Name != "" {
		return strings.TrimPrefix(p.Protocol+"/"+p.Name, "/")
	}
	text := cmp.Or(p.Protocol, api.ServiceProtocols[0])
	if p.Port != nil {
		text += "/" + strconv.Itoa(*p.Port)
	}
	if p.End != nil {
		text += "-" + strconv.Itoa(*p.End)
	}
	return text
}

// selectorText returns a selector in the form of a flag, except for expressions.
func selectorText(set string, namespaces *api.NamespaceSelector, entities *api.LabelSelector) string {
	var words []string
	add := func(prefix string, labels map[string]string, expressions []api.LabelExpression) {
		if len(labels) > 0 {
			words = append(words, prefix+output.Labels(labels))
		}
		for _, e := range expressions {
			text := fmt.Sprintf("%s%s %s", prefix, e.Key, e.Operator)
			if len(e.Values) > 0 {
				text += " (" + strings.Join(e.Values, ",") + ")"
			}
			words = append(words, text)
		}
	}
	if set != "" {
		words = append(words, "set:"+set)
	}
	if namespaces != nil {
		for _, name := range namespaces.Names {
			words = append(words, "namespace:"+name)
		}
		add("namespace ", namespaces.MatchLabels, namespaces.MatchExpressions)
		if len(words) == 0 {
			words = append(words, "any namespace")
		}
	}
	if entities != nil {
		add("", entities.MatchLabels, entities.MatchExpressions)
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, ",")
}

var policyFields = []specField{
	{flag: "tier", path: "tier", kind: api.KindTier, usage: "the Tier `NAME` in which it is evaluated"},
	{flag: "priority", path: "priority", form: formNumber, usage: "Policies of a tier are evaluated in the order of this `NUMBER`, lowest first (default: 1000)"},
	{flag: "stage", path: "stage", values: api.PolicyStages, usage: "`STAGE`: enforced (default) or staged, so that no packet obeys it"},
	{flag: "isolate", path: "isolate", form: formWords, values: api.PolicyDirections, usage: "deny what no rule of the tier decides, in this `DIRECTION`: ingress, egress; may be repeated"},
	{flag: "isolate-action", path: "isolateAction", values: api.IsolateActions, usage: "`ACTION` of isolation: deny (default: drop silently) or reject (drop and notify)"},
	{flag: "log", path: "log", form: formWords, values: api.PolicyLogs, usage: "report the packets with this `RESULT`, allow or deny, as events of the topic policy, and in the log; may be repeated"},
	{flag: "applied-to", path: "appliedTo", form: formItems, item: selectorItem, usage: "`SELECTOR` of its subjects: all, or a list of set:NAME, namespace:NAME and KEY=VALUE; may be repeated"},
	{flag: "ingress", path: "ingress", form: formItems, item: ruleItem("from"), key: ruleKey, usage: "`RULE` for what subjects receive: ACTION [name NAME] [from PEER]… [port PORT]…; may be repeated"},
	{flag: "egress", path: "egress", form: formItems, item: ruleItem("to"), key: ruleKey, usage: "`RULE` for what subjects send: ACTION [name NAME] [to PEER]… [port PORT]…; may be repeated"},
}

func ruleKey(rule map[string]any) string {
	if name, ok := rule["name"].(string); ok {
		return name
	}
	return fmt.Sprint(rule)
}

func completePolicy(_ string, spec map[string]any) error {
	switch {
	case spec["tier"] == nil:
		return command.Usagef("the tier is missing; set --tier NAME, see llcli get tiers")
	case spec["appliedTo"] == nil:
		return command.Usagef("the subjects are missing; set --applied-to SELECTOR, such as app=db, or all")
	}
	return nil
}

// selectorItem reads a selector: all, or a list of set:NAME, namespace:NAME and KEY=VALUE.
func selectorItem(text string) (any, error) {
	selector, labels, names := map[string]any{}, map[string]any{}, []any{}
	for word := range strings.SplitSeq(text, ",") {
		key, value, isLabel := strings.Cut(word, "=")
		set, isSet := strings.CutPrefix(word, "set:")
		name, isNamespace := strings.CutPrefix(word, "namespace:")
		switch {
		case isLabel && key != "":
			labels[key] = value
		case isSet && set != "":
			selector["set"] = set
		case isNamespace && name != "":
			names = append(names, name)
		case text == "all":
		default:
			return nil, fmt.Errorf("%q: want all, or a list of set:NAME, namespace:NAME and KEY=VALUE; other selectors need llcli apply or edit", word)
		}
	}
	if len(names) > 0 {
		selector["namespaces"] = map[string]any{"names": names}
	}
	if len(labels) > 0 {
		selector["entities"] = map[string]any{"matchLabels": labels}
	}
	return selector, nil
}

// ruleItem returns a function that reads ACTION [name NAME] [SIDE PEER]… [port PORT]….
func ruleItem(side string) func(string) (any, error) {
	return func(text string) (any, error) {
		words := strings.Fields(text)
		if len(words)%2 == 0 {
			return nil, fmt.Errorf("want ACTION [name NAME] [%s PEER]… [port PORT]…", side)
		}
		rule := map[string]any{"action": strings.ToLower(words[0])}
		var peers, ports []any
		for i := 1; i < len(words); i += 2 {
			switch word, value := words[i], words[i+1]; word {
			case "name":
				rule["name"] = value
			case side:
				peer, err := peerItem(value)
				if err != nil {
					return nil, err
				}
				peers = append(peers, peer)
			case "port":
				port, err := portItem(value)
				if err != nil {
					return nil, err
				}
				ports = append(ports, port)
			default:
				return nil, fmt.Errorf("%q: want name, %s or port", word, side)
			}
		}
		if peers != nil {
			rule[side] = peers
		}
		if ports != nil {
			rule["ports"] = ports
		}
		return rule, nil
	}
}

// portItem reads PROTOCOL, PROTOCOL/PORT, PROTOCOL/FIRST-LAST, NAME or PROTOCOL/NAME.
func portItem(text string) (any, error) {
	protocol, ports, hasPorts := strings.Cut(text, "/")
	isProtocol := false
	for _, known := range api.ServiceProtocols {
		isProtocol = isProtocol || strings.EqualFold(protocol, known)
	}
	switch {
	case !isProtocol && hasPorts:
		return nil, fmt.Errorf("%q: the protocol must be %s", text, AnyOf(api.ServiceProtocols))
	case !isProtocol && isNumber(protocol):
		return nil, fmt.Errorf("%q: write the protocol too, such as tcp/%s", text, protocol)
	case !isProtocol:
		return map[string]any{"name": text}, nil
	case !hasPorts:
		return map[string]any{"protocol": strings.ToLower(protocol)}, nil
	}
	port := map[string]any{"protocol": strings.ToLower(protocol)}
	if ports != "" && !isNumber(ports[:1]) {
		port["name"] = ports
		return port, nil
	}
	first, last, isRange := strings.Cut(ports, "-")
	for i, number := range []string{first, last} {
		if i == 1 && !isRange {
			break
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q: want PROTOCOL/PORT or PROTOCOL/FIRST-LAST, such as tcp/80", text)
		}
		port[[...]string{"port", "end"}[i]] = n
	}
	return port, nil
}

const policySchema = `kind: Policy
name: db                      # a-z, 0-9 and - . / : inside; unique among Policies
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  tier: main                  # a Tier, which must exist
  priority: 100               # in the tier: lower first, then by name; default: 1000
  stage: enforced             # default; staged: no packet obeys it
  isolate: [ingress]          # deny what no rule of the tier decides; also egress
  isolateAction: deny         # default; reject: notify the sender
  log: [deny]                 # report denied packets as events, and in the log; also allow
  appliedTo:                  # the subjects: Entities that are Endpoints of this node
    - set: pods               # default
      namespaces:             # absent: all, and Entities without a namespace
        names: [shop]
        matchLabels: {team: shop}
        matchExpressions: [{key: stage, operator: NotIn, values: [test]}] # In, NotIn, Exists, DoesNotExist
      entities:               # by their own labels; absent: all
        matchLabels: {app: db}
        matchExpressions: [{key: old, operator: DoesNotExist}]
  ingress:                    # the first rule that matches decides
    - name: web               # optional
      action: allow           # deny (drop silently), reject (drop and notify), pass (continue with the next tier)
      from:                   # absent: every peer
        - set: pods           # a selector, as in appliedTo
          namespaces: {matchLabels: {team: shop}}
          entities: {matchLabels: {app: web}}
      ports:                  # of the subject; absent: every protocol
        - {protocol: tcp, port: 5432, end: 5440} # or udp, sctp; without port: every port
  egress:
    - name: nodes
      action: deny
      to:
        - {set: nodes}
      ports:                  # of the peer
        - {protocol: tcp, port: 22}
    - action: allow
      to:                     # addresses that resolvers return for names: only to allow
        - names: [db.example.org, "*.example.net"] # *. in front: all names below it
---
kind: Policy
name: monitors
spec:
  tier: main
  appliedTo:
    - entities:
        matchExpressions: [{key: app, operator: In, values: [db, web]}]
  ingress:
    - action: allow
      from:
        - prefixes: [10.0.0.0/8, "group:offices"] # addresses, prefixes and AddressGroups
          except: [10.1.0.0/16]
      ports:
        - name: metrics       # as in the Entity
`
