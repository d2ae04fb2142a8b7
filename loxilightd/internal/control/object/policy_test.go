// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// refusal returns the field and the text with which a spec is rejected.
func refusal(t *testing.T, kind, spec string) (field, text string) {
	t.Helper()
	_, err := Parse(&api.Object{Kind: kind, Name: "x", Spec: []byte(spec)}, "cli", 0, decode.NewBudget(1<<20, 100))
	if err == nil {
		t.Errorf("%s %s is accepted", kind, spec)
		return "", ""
	}
	if err.Data == nil || err.Data.Object != kind+"/x" {
		t.Errorf("%s %s: the error does not name the object: %+v", kind, spec, err)
		return "", err.Message
	}
	return err.Data.Field, err.Message
}

// TestEntitiesRefused contains one error of each kind.
func TestEntitiesRefused(t *testing.T) {
	for _, tt := range []struct{ kind, spec, field, text string }{
		{"Entity", `{}`, "spec.addresses", "is missing: set addresses, or endpoint"},
		{"Entity", `{"addresses":[]}`, "spec.addresses", "is missing"},
		{"Entity", `{"addresses":["10.1.0.7"],"endpoint":{"name":"a"}}`, "spec.endpoint", "cannot be combined with spec.addresses"},
		{"Entity", `{"here":true,"endpoint":{"name":"a"}}`, "spec.here", "cannot be combined with spec.endpoint"},
		{"Entity", `{"here":true,"addresses":["10.1.0.7"]}`, "spec.here", "identified by its origin"},
		{"Entity", `{"endpoint":{}}`, "spec.endpoint", "is empty: set the name of an Endpoint"},
		{"Entity", `{"endpoint":{"namespace":"shop"}}`, "spec.endpoint", "is empty"},
		{"Entity", `{"endpoint":{"name":"a","pod":"b"}}`, "spec.endpoint.name", "cannot be combined with namespace, pod and uid"},
		{"Entity", `{"endpoint":{"name":"A"}}`, "spec.endpoint.name", `"A" is not a name of an Endpoint`},
		{"Entity", `{"endpoint":{"name":"a","uid":"7"}}`, "spec.endpoint.name", "cannot be combined with namespace, pod and uid"},
		{"Entity", `{"endpoint":{"uid":"7"}}`, "spec.endpoint", "is empty: set the name of an Endpoint"},
		{"Entity", `{"endpoint":{"pod":"a","uid":"\u0007"}}`, "spec.endpoint.uid", "printable"},
		{"Entity", `{"endpoint":{"pod":"a\u0007"}}`, "spec.endpoint.pod", "printable"},
		{"Entity", `{"addresses":["10.1.0.7/24"]}`, "spec.addresses[0]", "write 10.1.0.7"},
		{"Entity", `{"addresses":["10.1.0.7","10.1.0.7"]}`, "spec.addresses[1]", "duplicates addresses[0]"},
		{"Entity", `{"addresses":["127.0.0.1"]}`, "spec.addresses[0]", "loopback"},
		{"Entity", `{"addresses":["fe80::7"]}`, "spec.addresses[0]", "is a link-local address"},
		{"Entity", `{"here":true,"set":"Pods"}`, "spec.set", `"Pods" is not the name of a set`},
		{"Entity", `{"here":true,"namespace":"a\u0007"}`, "spec.namespace", "printable"},
		{"Entity", `{"here":true,"labels":{"":"a"}}`, "spec.labels", "names have 1 to 253 bytes"},
		{"Entity", `{"here":true,"ports":[{"port":80}]}`, "spec.ports[0].name", "is missing"},
		{"Entity", `{"here":true,"ports":[{"name":"web"}]}`, "spec.ports[0].port", "0 is not a port"},
		{"Entity", `{"here":true,"ports":[{"name":"web","port":65536}]}`, "spec.ports[0].port", "65536 is not a port"},
		{"Entity", `{"here":true,"ports":[{"name":"web","port":80,"protocol":"icmp"}]}`, "spec.ports[0].protocol", "not one of tcp, udp, sctp"},
		{"Entity", `{"here":true,"ports":[{"name":"web","port":80},{"name":"web","port":80,"protocol":"tcp"}]}`, "spec.ports[1]", "duplicates ports[0]"},
		{"Namespace", `{"labels":{"a":"` + strings.Repeat("v", 254) + `"}}`, "spec.labels", "values at most 253"},
		{"Namespace", `{"label":{}}`, "spec.label", "unknown field"},
		{"Tier", `{}`, "spec.order", "is missing"},
		{"Tier", `{"order":2147483648}`, "spec.order", "2147483648"},
		{"Tier", `{"order":1,"always":["nodes"]}`, "spec.always[0]", "not one of self, node"},
		{"Tier", `{"order":1,"always":["self","self"]}`, "spec.always[1]", "occurs twice"},
		{"Tier", `{"order":1,"always":[""]}`, "spec.always[0]", "is missing: want one of self, node"},
	} {
		if field, text := refusal(t, tt.kind, tt.spec); field != tt.field || !strings.Contains(text, tt.text) {
			t.Errorf("%s %s: %s: %s, want %s: …%s…", tt.kind, tt.spec, field, text, tt.field, tt.text)
		}
	}
}

// TestPoliciesRefused contains one error of each kind, in the whole policy or in its only rule.
func TestPoliciesRefused(t *testing.T) {
	ingress := func(rule string) string {
		return `{"tier":"main","appliedTo":[{}],"ingress":[` + rule + `]}`
	}
	peer := func(p string) string { return ingress(`{"action":"allow","from":[` + p + `]}`) }
	port := func(p string) string { return ingress(`{"action":"allow","ports":[` + p + `]}`) }
	selector := func(s string) string { return `{"tier":"main","appliedTo":[` + s + `]}` }
	egress := func(action, p string) string {
		return `{"tier":"main","appliedTo":[{}],"egress":[{"action":"` + action + `","to":[` + p + `]}]}`
	}
	const one, to = "spec.ingress[0]", "spec.egress[0].to[0]"
	for _, tt := range []struct{ spec, field, text string }{
		{`{"appliedTo":[{}]}`, "spec.tier", "is missing"},
		{`{"tier":"Main","appliedTo":[{}]}`, "spec.tier", "is not a name of a Tier"},
		{`{"tier":"main"}`, "spec.appliedTo", "is missing: set at least one selector"},
		{`{"tier":"main","appliedTo":[]}`, "spec.appliedTo", "is missing"},
		{`{"tier":"main","appliedTo":[{}],"priority":-2147483649}`, "spec.priority", "-2147483649"},
		{`{"tier":"main","appliedTo":[{}],"stage":"off"}`, "spec.stage", "not one of enforced, staged"},
		{`{"tier":"main","appliedTo":[{}],"isolate":["in"]}`, "spec.isolate[0]", "not one of ingress, egress"},
		{`{"tier":"main","appliedTo":[{}],"isolate":["egress","egress"]}`, "spec.isolate[1]", "occurs twice"},
		{`{"tier":"main","appliedTo":[{}],"log":["reject"]}`, "spec.log[0]", "not one of allow, deny"},
		{`{"tier":"main","appliedTo":[{}],"log":["deny","allow","deny"]}`, "spec.log[2]", "occurs twice"},
		{`{"tier":"main","appliedTo":[{}],"isolateAction":"reject"}`, "spec.isolateAction", "needs spec.isolate"},
		{`{"tier":"main","appliedTo":[{}],"isolate":["ingress"],"isolateAction":"drop"}`, "spec.isolateAction", "not one of deny, reject"},
		{selector(`{"set":"a b"}`), "spec.appliedTo[0].set", "is not the name of a set"},
		{selector(`{"pods":{}}`), "spec.appliedTo[0].pods", "unknown field"},
		{selector(`{"namespaces":{"names":[""]}}`), "spec.appliedTo[0].namespaces.names[0]", "is empty"},
		{selector(`{"entities":{"matchLabels":{"":"x"}}}`), "spec.appliedTo[0].entities.matchLabels", "names have 1 to 253 bytes"},
		{selector(`{"entities":{"matchExpressions":[{"operator":"In","values":["a"]}]}}`), "spec.appliedTo[0].entities.matchExpressions[0].key", "not the name of a label"},
		{selector(`{"entities":{"matchExpressions":[{"key":"a"}]}}`), "spec.appliedTo[0].entities.matchExpressions[0].operator", "is missing: want one of In, NotIn"},
		{selector(`{"entities":{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}}`), "spec.appliedTo[0].entities.matchExpressions[0].operator", "not one of In"},
		{selector(`{"entities":{"matchExpressions":[{"key":"a","operator":"In"}]}}`), "spec.appliedTo[0].entities.matchExpressions[0].values", "needs at least one value"},
		{selector(`{"namespaces":{"matchExpressions":[{"key":"a","operator":"Exists","values":["1"]}]}}`), "spec.appliedTo[0].namespaces.matchExpressions[0].values", "takes no values"},
		{ingress(`{}`), one + ".action", "is missing: want one of allow, deny, reject, pass"},
		{ingress(`{"action":"drop"}`), one + ".action", `"drop" is called deny`},
		{ingress(`{"action":"permit"}`), one + ".action", "not one of allow"},
		{ingress(`{"action":"allow","to":[]}`), one + ".to", "unknown field"},
		{ingress(`{"action":"allow","name":"a"},{"action":"deny","name":"a"}`), "spec.ingress[1].name", "is the name of ingress[0] already"},
		{peer(`{}`), one + ".from[0]", "is empty: set namespaces, entities, prefixes or names"},
		{peer(`{"names":["*.example.org"]}`), one + ".from[0].names", "is only for egress rules"},
		{egress("deny", `{"names":["example.org"]}`), to + ".names", "is only for rules with action allow"},
		{egress("pass", `{"names":["example.org"]}`), to + ".names", "is only for rules with action allow"},
		{egress("allow", `{"names":["example.org"],"prefixes":["10.0.0.0/8"]}`), to + ".names", "cannot be combined with prefixes"},
		{egress("allow", `{"names":["example.org"],"entities":{}}`), to + ".names", "cannot be combined with prefixes or a selector"},
		{egress("allow", `{"names":["*"]}`), to + ".names[0]", "matches every name"},
		{egress("allow", `{"names":["*."]}`), to + ".names[0]", "matches every name"},
		{egress("allow", `{"names":[""]}`), to + ".names[0]", "matches every name"},
		{egress("allow", `{"names":["a.*.org"]}`), to + ".names[0]", "has * in another place than in front"},
		{egress("allow", `{"names":["*a.org"]}`), to + ".names[0]", "has * in another place than in front"},
		{egress("allow", `{"names":["a..org"]}`), to + ".names[0]", "is not a DNS name"},
		{egress("allow", `{"names":["münchen.example"]}`), to + ".names[0]", "in their ASCII form"},
		{egress("allow", `{"names":["192.0.2.7"]}`), to + ".names[0]", "is an address: use prefixes"},
		{egress("allow", `{"names":["`+strings.Repeat("a", 64)+`.org"]}`), to + ".names[0]", "has a label of 64 characters"},
		{egress("allow", `{"names":["`+strings.Repeat("a.", 127)+`org"]}`), to + ".names[0]", "has 257 characters"},
		{egress("allow", `{"names":["example.org","EXAMPLE.org."]}`), to + ".names[1]", "duplicates names[0]"},
		{peer(`{"entities":{},"prefixes":["10.0.0.0/8"]}`), one + ".from[0].prefixes", "cannot be combined with a selector"},
		{peer(`{"except":["10.0.0.0/8"]}`), one + ".from[0].prefixes", "is missing: except limits prefixes"},
		{peer(`{"prefixes":["10.0.0.1/8"]}`), one + ".from[0].prefixes[0]", "write 10.0.0.0/8"},
		{peer(`{"prefixes":["group:A"]}`), one + ".from[0].prefixes[0]", "not a valid name of an AddressGroup"},
		{peer(`{"prefixes":["10.0.0.0/8"],"except":["11.1.0.0/16"]}`), one + ".from[0].except[0]", "11.1.0.0/16 is outside the prefixes of this peer"},
		{peer(`{"prefixes":["10.0.0.0/8"],"except":["10.0.0.0/7"]}`), one + ".from[0].except[0]", "10.0.0.0/7 is outside"},
		{peer(`{"prefixes":["10.0.0.0/8"],"except":["group:a"]}`), one + ".from[0].except[0]", "is not an address or prefix"},
		{port(`{}`), one + ".ports[0]", "is empty: set protocol, port or name"},
		{port(`{"protocol":"icmp"}`), one + ".ports[0].protocol", `"icmp" is not one of tcp, udp, sctp`},
		{port(`{"port":0}`), one + ".ports[0].port", "0 is not a port"},
		{port(`{"port":80,"end":79}`), one + ".ports[0].end", "79 is below the first port 80"},
		{port(`{"port":80,"end":65536}`), one + ".ports[0].end", "65536 is not a port"},
		{port(`{"protocol":"tcp","end":79}`), one + ".ports[0].end", "has no first port"},
		{port(`{"name":"web","port":80}`), one + ".ports[0].name", "cannot be combined with port and end"},
		{port(`{"name":"web","protocol":"icmp"}`), one + ".ports[0].protocol", `"icmp" is not one of tcp, udp, sctp`},
	} {
		if field, text := refusal(t, "Policy", tt.spec); field != tt.field || !strings.Contains(text, tt.text) {
			t.Errorf("%s: %s: %s, want %s: …%s…", tt.spec, field, text, tt.field, tt.text)
		}
	}
}

// TestPolicyBudget: prefixes count against the budget of the request.
func TestPolicyBudget(t *testing.T) {
	list := strings.Repeat(`"10.0.0.0/8",`, 100) + `"10.0.0.0/8"`
	spec := `{"tier":"main","appliedTo":[{}],"egress":[{"action":"deny","to":[{"prefixes":[` + list + `]}]}]}`
	if field, text := refusal(t, "Policy", spec); field != "spec.egress[0].to[0].prefixes[100]" || !strings.Contains(text, "more than 100 prefixes") {
		t.Errorf("%s: %s", field, text)
	}
}

// TestPolicyParsed compares every field with its value.
func TestPolicyParsed(t *testing.T) {
	spec := `{"tier":"main","priority":-7,"stage":"staged","isolate":["egress"],"isolateAction":"reject","log":["deny"],
		"appliedTo":[{"set":"vms","namespaces":{"names":["shop"],"matchLabels":{"b":"2","a":"1"}},
			"entities":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["db"]},{"key":"old","operator":"DoesNotExist"}]}}],
		"ingress":[{"name":"web","action":"allow","from":[{"entities":{}},{"prefixes":["group:far","10.0.0.0/8","192.0.2.7"],"except":"10.1.0.0/16"}],
			"ports":[{"port":5432,"end":5440},{"protocol":"udp"},{"name":"metrics"},{"protocol":"sctp","port":9}]},{"action":"reject"}],
		"egress":[{"action":"pass","to":[{"set":"nodes"}]},{"action":"deny"}]}`
	value, _, err := ParseSpec("Policy", []byte(spec), nil)
	if err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix
	want := &state.Policy{
		Policy: policy.Policy{
			Tier: "main", Priority: -7, Staged: true, Isolates: [2]bool{policy.Egress: true}, Rejects: true, LogsDeny: true,
			AppliedTo: []policy.Selector{{
				Set: "vms",
				Namespaces: &policy.NamespaceSelector{Names: []string{"shop"}, Labels: policy.Requirements{
					{Key: "a", Operator: policy.In, Values: []string{"1"}}, {Key: "b", Operator: policy.In, Values: []string{"2"}},
				}},
				Labels: policy.Requirements{{Key: "app", Operator: policy.NotIn, Values: []string{"db"}}, {Key: "old", Operator: policy.DoesNotExist}},
			}},
			Rules: [2][]policy.Rule{
				policy.Ingress: {
					{
						Action: policy.Allow,
						Peers: []policy.Peer{
							{Entities: &policy.Selector{Set: "pods"}},
							{Prefixes: []netip.Prefix{prefix("10.0.0.0/8"), prefix("192.0.2.7/32")}, Except: []netip.Prefix{prefix("10.1.0.0/16")}},
						},
						Ports: []policy.Port{
							{Protocol: policy.TCP, First: 5432, Last: 5440}, {Protocol: policy.UDP, Last: 65535}, {Name: "metrics"}, {Protocol: policy.SCTP, First: 9, Last: 9},
						},
					},
					{Action: policy.Reject},
				},
				policy.Egress: {
					{Action: policy.Pass, Peers: []policy.Peer{{Entities: &policy.Selector{Set: "nodes"}}}}, {Action: policy.Deny},
				},
			},
		},
		Groups: []state.PeerGroups{{Direction: policy.Ingress, Rule: 0, Peer: 1, Names: []datapath.GroupName{"far"}}},
	}
	for _, rules := range value.(*state.Policy).Rules {
		for i := range rules {
			rules[i].ID = "" // see TestRulesIdentified
		}
	}
	if !reflect.DeepEqual(value, want) {
		t.Errorf("%+v\nwant %+v", value, want)
	}
}

// TestRulesIdentified: a rule with a name is known by it, any other rule by its content, wherever it
// is in its list; rules with the same content are distinguished by their order.
func TestRulesIdentified(t *testing.T) {
	ids := func(d policy.Direction, rules string) (list []string) {
		t.Helper()
		value, _, err := ParseSpec("Policy", []byte(fmt.Sprintf(`{"tier":"main","appliedTo":[{}],"%s":[%s]}`, d, rules)), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range value.(*state.Policy).Rules[d] {
			list = append(list, r.ID)
		}
		return list
	}
	tcp, udp, web := `{"action":"allow","ports":[{"port":1}]}`, `{"action":"allow","ports":[{"protocol":"udp","port":1}]}`, `{"name":"web","action":"%s"}`
	all := ids(policy.Ingress, tcp+","+fmt.Sprintf(web, "allow")+","+tcp)
	moved := ids(policy.Ingress, udp+","+fmt.Sprintf(web, "deny")+","+tcp+","+tcp)
	if !slices.Equal(moved[1:], []string{all[1], all[0], all[2]}) || slices.Contains(all, moved[0]) || all[0] == all[2] {
		t.Errorf("%q, then %q", all, moved)
	}
	if out := ids(policy.Egress, tcp); out[0] == all[0] {
		t.Errorf("%q is a rule of either direction", out[0])
	}
}

// TestEntityParsed compares every field with its value, and the defaults.
func TestEntityParsed(t *testing.T) {
	for _, tt := range []struct {
		kind, spec string
		want       state.Value
	}{
		{"Entity", `{"namespace":"shop","labels":{"app":"db"},"ports":[{"name":"sql","port":5432},{"name":"sql","protocol":"sctp","port":5433}],"addresses":["10.1.0.7","2001:db8::7"]}`,
			&state.Entity{Entity: policy.Entity{
				Set: "pods", Namespace: "shop", Labels: map[string]string{"app": "db"},
				Ports: []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Number: 5432}, {Name: "sql", Protocol: policy.SCTP, Number: 5433}},
				Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("2001:db8::7")},
			}}},
		{"Entity", `{"endpoint":{"namespace":"shop","pod":"db-0"}}`,
			&state.Entity{Entity: policy.Entity{Set: "pods"}, Of: state.EndpointRef{Namespace: "shop", Pod: "db-0"}}},
		{"Entity", `{"endpoint":{"name":"vm7"}}`, &state.Entity{Entity: policy.Entity{Set: "pods"}, Of: state.EndpointRef{Name: "vm7"}}},
		{"Entity", `{"set":"nodes","here":true}`, &state.Entity{Entity: policy.Entity{Set: "nodes", Here: true}}},
		{"Namespace", `{}`, &state.Namespace{}},
		{"Namespace", `{"labels":{"team":"shop"}}`, &state.Namespace{Namespace: policy.Namespace{Labels: map[string]string{"team": "shop"}}}},
		{"Tier", `{"order":-3,"always":["node"]}`, &state.Tier{Tier: policy.Tier{Always: policy.Always{Node: true}}, Order: -3}},
	} {
		value, _, err := ParseSpec(tt.kind, []byte(tt.spec), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(value, tt.want) {
			t.Errorf("%s %s: %+v, want %+v", tt.kind, tt.spec, value, tt.want)
		}
	}
}
