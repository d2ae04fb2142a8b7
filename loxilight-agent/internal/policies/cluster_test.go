// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
)

// clusterPolicy returns the ClusterNetworkPolicy p with a spec in YAML.
func clusterPolicy(t *testing.T, spec string) *ClusterPolicy {
	t.Helper()
	var v any
	err := yaml.Unmarshal([]byte(spec), &v)
	raw, failure := json.Marshal(v)
	if err = errors.Join(err, failure); err != nil {
		t.Fatalf("%v\n%s", err, spec)
	}
	return &ClusterPolicy{Name: "p", Spec: raw}
}

const (
	ownNodePeer   = `{"set":"nodes","entities":{"matchLabels":{"/here":"true"}}}`
	ownNodePasses = `{"action":"pass","from":[` + ownNodePeer + `]}`
	deniedIn      = ownNodePasses + `,{"action":"deny"}`
	deniedOut     = `{"action":"deny"}`
)

// TestClusterCornerCases has the rows of the table in docs/kubernetes-policy.md that concern one
// ClusterNetworkPolicy, each with the exact Policy. A problem is a part of the text for the user.
func TestClusterCornerCases(t *testing.T) {
	policy := func(rules string) string {
		return `{"tier":"admin","priority":7,"appliedTo":[{"namespaces":{}}]` + rules + `}`
	}
	in := func(rules string) string { return policy(`,"ingress":[` + rules + `]`) }
	out := func(rules string) string { return policy(`,"egress":[` + rules + `]`) }
	spec := func(rules string) string {
		return "{tier: Admin, priority: 7, subject: {namespaces: {}}, " + rules + "}"
	}
	from := func(action, peer string) string {
		return spec("ingress: [{action: " + action + ", from: [" + peer + "]}]")
	}
	to := func(action, peer string) string {
		return spec("egress: [{action: " + action + ", to: [" + peer + "]}]")
	}
	on := func(action, protocol string) string {
		return spec("egress: [{action: " + action + ", to: [{namespaces: {}}], protocols: [" + protocol + "]}]")
	}
	onPort := func(port string) string {
		return out(`{"action":"deny","to":[{"namespaces":{}}],"ports":[` + port + `]}`)
	}
	subject := func(s string) string {
		return "{tier: Baseline, priority: 0, subject: " + s + ", ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Pass, from: [{pods: {podSelector: {}}}]}]}"
	}
	// Accept rules match nothing, and Pass rules deny.
	closed := func(tier, applied string) string {
		return `{"tier":"` + tier + `","priority":0,"appliedTo":[` + applied + `],"ingress":[{"action":"deny","from":[{"namespaces":{}}]}]}`
	}
	selects := func(applied string) string {
		return `{"tier":"baseline","priority":0,"appliedTo":[` + applied + `],"ingress":[{"action":"allow","from":[{"namespaces":{}}]},{"action":"pass","from":[{"namespaces":{}}]}]}`
	}
	for _, tt := range []struct{ name, spec, want, problem string }{
		{"no rules", spec(""), policy(""), ""},
		{"tier Baseline", "{tier: Baseline, priority: 1000, subject: {namespaces: {}}}", `{"tier":"baseline","priority":1000,"appliedTo":[{"namespaces":{}}]}`, ""},
		{"actions in order", spec("ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}, {action: Pass, from: [{namespaces: {}}]}]"),
			in(`{"action":"allow","from":[{"namespaces":{}}]},{"action":"deny","from":[{"namespaces":{}}]},{"action":"pass","from":[{"namespaces":{}}]}`), ""},
		{"names of rules", spec("ingress: [{name: a, action: Deny, from: [{namespaces: {}}]}, {name: a, action: Pass, from: [{namespaces: {}}]}]"),
			in(`{"name":"a","action":"deny","from":[{"namespaces":{}}]},{"name":"a (ingress[1])","action":"pass","from":[{"namespaces":{}}]}`), ""},

		{"subject namespaces", subject("{namespaces: {matchLabels: {a: b}}}"), selects(`{"namespaces":{"matchLabels":{"a":"b"}}}`), ""},
		{"subject pods", subject("{pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchExpressions: [{key: c, operator: Exists}]}}}"),
			selects(`{"namespaces":{"matchLabels":{"a":"b"}},"entities":{"matchExpressions":[{"key":"c","operator":"Exists"}]}}`), ""},
		{"subject pods of all namespaces", subject("{pods: {podSelector: {matchLabels: {a: b}}}}"), selects(`{"namespaces":{},"entities":{"matchLabels":{"a":"b"}}}`), ""},

		{"peer namespaces", from("Deny", "{namespaces: {matchLabels: {a: b}}}"), in(`{"action":"deny","from":[{"namespaces":{"matchLabels":{"a":"b"}}}]}`), ""},
		{"peer pods", to("Deny", "{pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}}"),
			out(`{"action":"deny","to":[{"namespaces":{"matchLabels":{"a":"b"}},"entities":{"matchLabels":{"c":"d"}}}]}`), ""},
		{"peer pods, all", to("Pass", "{pods: {namespaceSelector: {}, podSelector: {}}}"), out(`{"action":"pass","to":[{"namespaces":{}}]}`), ""},
		{"peer nodes", to("Accept", "{nodes: {matchLabels: {a: b}}}"), out(`{"action":"allow","to":[{"set":"nodes","entities":{"matchLabels":{"a":"b"}}}]}`), ""},
		{"peer nodes, all", to("Deny", "{nodes: {}}"), out(`{"action":"deny","to":[{"set":"nodes"}]}`), ""},
		{"peer networks", to("Deny", "{networks: [10.0.0.1/8, '2001:db8::/32']}"), out(`{"action":"deny","to":[{"prefixes":["10.0.0.0/8","2001:db8::/32"]}]}`), ""},
		{"several peers", to("Deny", "{networks: [0.0.0.0/0]}, {nodes: {}}"), out(`{"action":"deny","to":[{"prefixes":["0.0.0.0/0"]},{"set":"nodes"}]}`), ""},
		{"networks that contain everything", to("Deny", "{networks: ['::/0', 0.0.0.0/0]}"), out(`{"action":"deny","to":[{"prefixes":["::/0","0.0.0.0/0"]},` + ownNodePeer + `]}`), ""},
		{"networks of two peers that contain everything", to("Accept", "{networks: ['::/0']}, {networks: [0.0.0.0/0]}"), out(`{"action":"allow","to":[{"prefixes":["::/0"]},{"prefixes":["0.0.0.0/0"]},` + ownNodePeer + `]}`), ""},

		{"tcp port", on("Deny", "{tcp: {destinationPort: {number: 80}}}"), onPort(`{"protocol":"tcp","port":80}`), ""},
		{"udp range", on("Deny", "{udp: {destinationPort: {range: {start: 80, end: 89}}}}"), onPort(`{"protocol":"udp","port":80,"end":89}`), ""},
		{"sctp port", on("Deny", "{sctp: {destinationPort: {number: 9003}}}"), onPort(`{"protocol":"sctp","port":9003}`), ""},
		{"named port, of every protocol", on("Deny", "{destinationNamedPort: web}"), onPort(`{"name":"web"}`), ""},
		{"several protocols", on("Deny", "{tcp: {destinationPort: {number: 80}}}, {destinationNamedPort: dns}"), onPort(`{"protocol":"tcp","port":80},{"name":"dns"}`), ""},

		{"peer of a newer CRD, Accept", from("Accept", "{serviceAccounts: {}}, {namespaces: {}}"), policy(""), `spec.ingress[0].from[0]: is not understood (unknown field "serviceAccounts"); spec.ingress[0]: is not understood; the rule matches nothing`},
		{"peer of a newer CRD, Deny", from("Deny", "{serviceAccounts: {}}"), in(deniedIn), `spec.ingress[0].from[0]: is not understood (unknown field "serviceAccounts"); spec.ingress[0]: is not understood; the rule denies everything`},
		{"peer of a newer CRD, Pass", to("Pass", "{serviceAccounts: {}}, {namespaces: {}}"), out(deniedOut), `spec.egress[0].to[0]`},
		{"peer empty, Accept", to("Accept", "{}"), policy(""), "spec.egress[0].to[0]: has not exactly one of namespaces, pods, nodes, networks, domainNames"},
		{"peer empty, Deny", to("Deny", "{}"), out(deniedOut), "spec.egress[0].to[0]: has not exactly one"},
		{"peer empty, Pass", from("Pass", "{}"), in(deniedIn), "spec.ingress[0].from[0]: has not exactly one"},
		{"peer with two fields", to("Deny", "{namespaces: {}, nodes: {}}"), out(deniedOut), "spec.egress[0].to[0]: has not exactly one"},
		{"peer with a part of a newer CRD", from("Accept", "{pods: {namespaceSelector: {}, podSelector: {}, owner: x}}"), policy(""), `spec.ingress[0].from[0].pods: is not understood (unknown field "owner")`},
		{"peer pods without podSelector", from("Accept", "{pods: {namespaceSelector: {}}}"), policy(""), "spec.ingress[0].from[0].pods.podSelector: is missing"},
		{"peer nodes of an ingress rule", from("Accept", "{nodes: {}}"), policy(""), "spec.ingress[0].from[0]: has a field that only peers of egress rules have"},
		{"no peers, Accept", to("Accept", ""), policy(""), "spec.egress[0].to: is empty"},
		{"no peers, Deny", from("Deny", ""), in(deniedIn), "spec.ingress[0].from: is empty"},
		{"to in an ingress rule", spec("ingress: [{action: Accept, from: [{namespaces: {}}], to: [{nodes: {}}]}]"), policy(""), "spec.ingress[0].to: is not a field of ingress rules"},
		{"networks empty", to("Deny", "{networks: []}"), out(deniedOut), "spec.egress[0].to[0].networks: is empty"},
		{"networks that is not a prefix, Accept", to("Accept", "{networks: [10.0.0.0/8, x]}"), policy(""), `spec.egress[0].to[0].networks[1]: "x" is not a prefix`},
		{"networks that is not a prefix, Deny", to("Deny", "{networks: [10.0.0.0/8, 10.0.0.7]}"), out(deniedOut), `spec.egress[0].to[0].networks[1]: "10.0.0.7" is not a prefix`},
		{"domainNames", to("Accept", "{domainNames: [www.example.org, '*.Example.ORG.', a-b._srv.x9.example.net]}"),
			out(`{"action":"allow","to":[{"names":["www.example.org","*.example.org","a-b._srv.x9.example.net"]}]}`), ""},
		{"domainNames that are equal", to("Accept", "{domainNames: [example.org, EXAMPLE.org, example.org.]}"), out(`{"action":"allow","to":[{"names":["example.org"]}]}`), ""},
		{"domainNames beside networks", to("Accept", "{domainNames: [example.org]}, {networks: [192.0.2.0/24]}"), out(`{"action":"allow","to":[{"names":["example.org"]},{"prefixes":["192.0.2.0/24"]}]}`), ""},
		{"domainNames, Deny", to("Deny", "{domainNames: [example.org]}"), out(deniedOut), "spec.egress[0].to[0].domainNames: is only for rules with action Accept; spec.egress[0]: is not understood; the rule denies everything"},
		{"domainNames, Pass", to("Pass", "{domainNames: [example.org]}"), out(deniedOut), "spec.egress[0].to[0].domainNames: is only for rules with action Accept"},
		{"domainNames, action of a newer CRD", to("Audit", "{domainNames: [example.org]}"), out(deniedOut), "spec.egress[0].to[0].domainNames: is only for"},
		{"domainNames of an ingress rule", from("Accept", "{domainNames: [example.org]}"), policy(""), "spec.ingress[0].from[0]: has a field that only peers of egress rules have"},
		{"domainNames empty", to("Accept", "{domainNames: []}"), policy(""), "spec.egress[0].to[0].domainNames: is empty"},
		{"domainNames with one label", to("Accept", "{domainNames: [example.org, org]}"), policy(""), `spec.egress[0].to[0].domainNames[1]: "org" is not a domain name`},
		{"domainNames below one label", to("Accept", "{domainNames: ['*.org']}"), policy(""), `domainNames[0]: "*.org" is not a domain name`},
		{"domainNames, every name", to("Accept", "{domainNames: ['*']}"), policy(""), `domainNames[0]: "*" is not a domain name`},
		{"domainNames, * within a name", to("Accept", "{domainNames: [a.*.example.org]}"), policy(""), `domainNames[0]: "a.*.example.org" is not a domain name`},
		{"domainNames, * as part of a label", to("Accept", "{domainNames: ['*a.example.org']}"), policy(""), `domainNames[0]: "*a.example.org" is not a domain name`},
		{"domainNames, an address", to("Accept", "{domainNames: [192.0.2.7]}"), policy(""), `domainNames[0]: "192.0.2.7" is not a domain name`},
		{"domainNames, another character", to("Accept", "{domainNames: ['^a.example.org']}"), policy(""), `domainNames[0]: "^a.example.org" is not a domain name`},
		{"domainNames, a long label", to("Accept", "{domainNames: ["+strings.Repeat("a", 64)+".example.org]}"), policy(""), `aaa.example.org" is not a domain name`},
		{"domainNames, a long name", to("Accept", "{domainNames: ["+strings.Repeat("aaaaaaa.", 31)+"example.org]}"), policy(""), `aaa.example.org" is not a domain name`},

		{"action of a newer CRD", to("Audit", "{nodes: {}}"), out(`{"action":"deny","to":[{"set":"nodes"}]}`), `spec.egress[0].action: "Audit" is not one of Accept, Deny, Pass; the rule denies`},
		{"action absent", spec("ingress: [{from: [{namespaces: {}}]}]"), in(`{"action":"deny","from":[{"namespaces":{}}]}`), `spec.ingress[0].action: "" is not one of`},
		{"action and peer of a newer CRD", from("Audit", "{x: {}}"), in(deniedIn), `spec.ingress[0].action: "Audit"`},
		{"rule with a field of a newer CRD, Accept", spec("ingress: [{action: Accept, from: [{namespaces: {}}], schedule: x}]"), policy(""), `spec.ingress[0]: is not understood (unknown field "schedule")`},
		{"rule with a field of a newer CRD, Deny", spec("egress: [{action: Deny, to: [{namespaces: {}}], schedule: x}]"), out(deniedOut), `spec.egress[0]: is not understood (unknown field "schedule")`},
		{"rules that are no list", spec("egress: x"), out(deniedOut), "spec.egress: is not a list of rules; all traffic is denied"},

		{"operator of a newer CRD, Accept", from("Accept", "{namespaces: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}}"), policy(""), `spec.ingress[0].from[0].namespaces.matchExpressions[0].operator: "Gt" is not one of`},
		{"operator of a newer CRD, Deny", to("Deny", "{nodes: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}}"), out(deniedOut), `spec.egress[0].to[0].nodes.matchExpressions[0].operator`},
		{"selector of a newer CRD", from("Accept", "{namespaces: {matchNames: [a]}}"), policy(""), `spec.ingress[0].from[0].namespaces: is not understood (unknown field "matchNames")`},

		{"protocol of a newer CRD, Accept", on("Accept", "{icmp: {}}, {tcp: {destinationPort: {number: 80}}}"), policy(""), `spec.egress[0].protocols[0]: is not understood (unknown field "icmp")`},
		{"protocol of a newer CRD, Deny", on("Deny", "{icmp: {}}"), out(deniedOut), "spec.egress[0].protocols[0]"},
		{"protocol empty", on("Accept", "{}"), policy(""), "spec.egress[0].protocols[0]: has not exactly one of tcp, udp, sctp, destinationNamedPort"},
		{"two protocols in one", on("Accept", "{tcp: {destinationPort: {number: 80}}, udp: {destinationPort: {number: 80}}}"), policy(""), "spec.egress[0].protocols[0]: has not exactly one"},
		{"protocol without a port", on("Accept", "{tcp: {}}"), policy(""), "spec.egress[0].protocols[0].tcp.destinationPort: is missing"},
		{"port empty", on("Accept", "{tcp: {destinationPort: {}}}"), policy(""), "spec.egress[0].protocols[0].tcp.destinationPort: has not exactly one of number, range"},
		{"port 0", on("Deny", "{tcp: {destinationPort: {number: 0}}}"), out(deniedOut), "spec.egress[0].protocols[0].tcp.destinationPort.number: 0 is not between"},
		{"range reversed", on("Accept", "{sctp: {destinationPort: {range: {start: 9, end: 8}}}}"), policy(""), "spec.egress[0].protocols[0].sctp.destinationPort.range: 9 to 8 is not a range"},
		{"name of a port invalid", on("Deny", "{destinationNamedPort: 'a b'}"), out(deniedOut), `spec.egress[0].protocols[0].destinationNamedPort: "a b" is not the name of a port`},
		{"protocols empty", on("Accept", ""), policy(""), "spec.egress[0].protocols: is empty"},

		{"subject of a newer CRD", subject("{nodes: {}}"), closed("baseline", `{"namespaces":{}}`), `spec.subject: is not understood (unknown field "nodes"); all pods are selected`},
		{"subject empty", subject("{}"), closed("baseline", `{"namespaces":{}}`), "spec.subject: has not exactly one of namespaces, pods; all pods are selected"},
		{"subject with an unknown operator", subject("{pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchExpressions: [{key: a, operator: Gt}]}}}"),
			closed("baseline", `{"namespaces":{"matchLabels":{"a":"b"}}}`), "spec.subject.pods: is not understood; more pods may be selected: Accept rules match nothing"},
		{"subject in unknown namespaces", subject("{pods: {namespaceSelector: {matchExpressions: [{key: a, operator: Gt}]}, podSelector: {matchLabels: {a: b}}}}"),
			closed("baseline", `{"namespaces":{},"entities":{"matchLabels":{"a":"b"}}}`), "spec.subject.pods.namespaceSelector.matchExpressions[0].operator"},
		{"tier of a newer CRD", strings.Replace(subject("{namespaces: {}}"), "Baseline", "Infra", 1), closed("admin", `{"namespaces":{}}`), `spec.tier: "Infra" is not one of Admin, Baseline; it is evaluated as Admin`},
		{"priority that is not a number", strings.Replace(subject("{namespaces: {}}"), "priority: 0", "priority: high", 1), closed("baseline", `{"namespaces":{}}`), `spec.priority: "high" is not a priority`},
		{"spec with a field of a newer CRD", strings.Replace(subject("{namespaces: {}}"), "priority: 0", "priority: 0, default: Deny", 1), closed("baseline", `{"namespaces":{}}`), "spec.default: is not understood: Accept rules match nothing, and Pass rules deny"},
		{"spec that is no object", "x", `{"tier":"admin","priority":0,"appliedTo":[{"namespaces":{}}],"ingress":[` + deniedIn + `],"egress":[` + deniedOut + `]}`, "spec: is not an object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := TranslateCluster(clusterPolicy(t, tt.spec), &here)
			if !sameJSON(t, string(got.Object.Spec), tt.want) {
				t.Errorf("%s\nwant %s", got.Object.Spec, tt.want)
			}
			if all := strings.Join(got.Problems, "; "); !strings.Contains(all, tt.problem) || (all == "") != (tt.problem == "") {
				t.Errorf("problems %q, want %q", got.Problems, tt.problem)
			}
			if got.Object.Kind != api.KindPolicy || got.Object.Name != "cnp/p" || !maps.Equal(got.Object.Labels, map[string]string{"policy": "p"}) {
				t.Errorf("%+v", got.Object)
			}
		})
	}
}

// TestClusterAnnotations: a staged policy is not in force, and a policy that rejects notifies senders.
func TestClusterAnnotations(t *testing.T) {
	p := clusterPolicy(t, "{tier: Admin, priority: 7, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}, {action: Deny, from: [{x: {}}]}], egress: [{action: Pass, to: [{x: {}}]}]}")
	p.Annotations = map[string]string{AnnotationStage: "staged", AnnotationDeny: "reject", AnnotationLog: "deny"}
	got := TranslateCluster(p, &here)
	want := `{"tier":"admin","priority":7,"stage":"staged","log":["deny"],"appliedTo":[{"namespaces":{}}],"ingress":[{"action":"reject","from":[{"namespaces":{}}]},` +
		ownNodePasses + `,{"action":"reject"}],"egress":[{"action":"reject"}]}`
	if !sameJSON(t, string(got.Object.Spec), want) {
		t.Errorf("%s\nwant %s", got.Object.Spec, want)
	}
	p.Annotations = map[string]string{AnnotationStage: "off", AnnotationDeny: "loudly"}
	got = TranslateCluster(p, &here)
	if s := spec(t, &got.Object); s.Stage != "" || s.Ingress[0].Action != "deny" {
		t.Errorf("%+v", s)
	}
	all := strings.Join(got.Problems, "; ")
	for _, want := range []string{`annotation loxilight.io/stage: "off" is not one of enforced, staged`, `annotation loxilight.io/deny: "loudly" is not one of drop, reject`} {
		if !strings.Contains(all, want) {
			t.Errorf("problems %q lack %q", all, want)
		}
	}
}

// TestEqualPriority: the names of Policies define the order of ClusterNetworkPolicies with one place.
func TestEqualPriority(t *testing.T) {
	got := Equals(map[string]Place{"a": {"admin", 7}, "b": {"admin", 8}, "c": {"admin", 7}, "d": {"baseline", 7}})
	want := map[string]string{
		"a": "spec.priority: 7 in tier admin is also the priority of c; they are evaluated in the order of their names, on all nodes",
		"c": "spec.priority: 7 in tier admin is also the priority of a; they are evaluated in the order of their names, on all nodes",
	}
	if !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
	many := map[string]Place{}
	for i := range 6 {
		many[fmt.Sprint("p", i)] = Place{"admin", 1}
	}
	if text := Equals(many)["p2"]; !strings.Contains(text, "of p0, p1, p3 and 2 others;") {
		t.Errorf("%q", text)
	}
}

// TestClusterFallback: a refused Policy denies all traffic in the directions of its rules; each attempt
// selects more pods.
func TestClusterFallback(t *testing.T) {
	o := TranslateCluster(clusterPolicy(t, "{tier: Admin, priority: 7, subject: {pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}}, ingress: [{action: Accept, from: [{namespaces: {}}]}]}"), &here).Object
	for i, applied := range []string{`{"namespaces":{"matchLabels":{"a":"b"}},"entities":{"matchLabels":{"c":"d"}}}`, `{"namespaces":{"matchLabels":{"a":"b"}}}`, `{"namespaces":{}}`} {
		f := Fallback(&o, i+1)
		want := `{"tier":"admin","priority":7,"appliedTo":[` + applied + `],"ingress":[` + deniedIn + `]}`
		if f == nil || f.Name != o.Name || !maps.Equal(f.Labels, o.Labels) || !sameJSON(t, string(f.Spec), want) {
			t.Errorf("attempt %d: %+v, want %s", i+1, f, want)
		}
	}
	if f := Fallback(&o, 4); f != nil {
		t.Errorf("attempt 4: %+v", f)
	}
}

func k8sNode(name string, labels map[string]string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	for _, a := range addresses {
		kind, address, _ := strings.Cut(a, " ")
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(kind), Address: address})
	}
	return n
}

// TestNodeEntities: another node is its addresses, and this node is itself.
func TestNodeEntities(t *testing.T) {
	var owners NodeAddresses
	own := k8sNode("n1", map[string]string{"zone": "a"}, "Hostname n1", "InternalIP 192.0.2.1", "InternalIP 2001:db8::1", "ExternalIP 198.51.100.1")
	other := k8sNode("n2", map[string]string{"zone": "b"}, "InternalIP 192.0.2.2", "ExternalIP 198.51.100.2", "InternalIP fe80::2", "InternalIP 127.0.0.1", "InternalIP 10.244.1.9", "ExternalDNS n2.example.org")
	stale := k8sNode("n0", nil, "InternalIP 192.0.2.2", "InternalIP 192.0.2.3")
	other.CreationTimestamp = metav1.Unix(1700000000, 0)
	for _, n := range []*corev1.Node{own, other, stale} {
		owners.Set(n.Name, n)
	}
	for _, tt := range []struct {
		node *corev1.Node
		want []string
	}{
		{own, []string{`node/n1{"set":"nodes","labels":{"/here":"true","zone":"a"},"here":true}`, `node-external/n1{"set":"nodes","labels":{"zone":"a"},"addresses":["198.51.100.1"]}`}},
		{other, []string{`node/n2{"set":"nodes","labels":{"zone":"b"},"addresses":["192.0.2.2","198.51.100.2"]}`}},
		{stale, []string{`node/n0{"set":"nodes","addresses":["192.0.2.3"]}`}},
		{k8sNode("n9", nil), nil},
	} {
		var got []string
		for _, o := range here.NodeEntities(tt.node, &owners, nil) {
			got = append(got, o.Name+string(o.Spec))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.node.Name, got, tt.want)
		}
	}
	if affected := owners.Set("n2", nil); !slices.Equal(affected, []string{"n0"}) {
		t.Errorf("without n2, %q are affected", affected)
	}
	if got := here.NodeEntities(stale, &owners, nil); len(got) != 1 || !strings.Contains(string(got[0].Spec), "192.0.2.2") {
		t.Errorf("without n2: %+v", got)
	}
}

// TestNodeWithManyLabels: the labels by which policies select nodes are never omitted.
func TestNodeWithManyLabels(t *testing.T) {
	labels := map[string]string{"zone": "a"}
	for i := range 100 {
		labels[fmt.Sprintf("feature-%03d", i)] = "true"
	}
	n := k8sNode("n1", labels, "InternalIP 192.0.2.1")
	var owners NodeAddresses
	owners.Set(n.Name, n)
	for _, named := range []map[string]bool{nil, {"zone": true}} {
		var s api.EntitySpec
		decode(t, here.NodeEntities(n, &owners, named)[0], &s)
		if len(s.Labels) != 64 || s.Labels["feature-000"] == "" || (s.Labels["zone"] == "a") != named["zone"] || s.Labels[labelHere] != "true" {
			t.Errorf("named %v: %d labels: %v", named, len(s.Labels), s.Labels)
		}
	}
}

// TestNodeLabelsOfPolicies: labels by which rules select nodes, and not others.
func TestNodeLabelsOfPolicies(t *testing.T) {
	got := TranslateCluster(clusterPolicy(t, `{tier: Admin, priority: 7, subject: {namespaces: {matchLabels: {x: y}}}, egress: [
		{action: Deny, to: [{nodes: {matchLabels: {zone: a}}}, {nodes: {matchExpressions: [{key: rack, operator: Exists}]}}, {namespaces: {matchLabels: {team: a}}}]}]}`), &here).NodeLabels
	if !slices.Equal(got, []string{"rack", "zone"}) {
		t.Errorf("%q", got)
	}
}

// TestNetworksOfOneFamily: on a node whose pods have one family, its prefix contains everything.
func TestNetworksOfOneFamily(t *testing.T) {
	p := clusterPolicy(t, "{tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]}")
	for subnet, want := range map[string]string{
		"10.244.1.0/24": `,` + ownNodePeer, "2001:db8:1::/64": "", "": "",
	} {
		n := Node{Name: "n1"}
		if subnet != "" {
			n.Subnets = []netip.Prefix{netip.MustParsePrefix(subnet)}
		}
		got := TranslateCluster(p, &n)
		if s := `{"tier":"admin","priority":7,"appliedTo":[{"namespaces":{}}],"egress":[{"action":"deny","to":[{"prefixes":["0.0.0.0/0"]}` + want + `]}]}`; !sameJSON(t, string(got.Object.Spec), s) {
			t.Errorf("%s: %s, want %s", subnet, got.Object.Spec, s)
		}
	}
}
