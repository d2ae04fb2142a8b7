// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/loxilight/loxilight/api"
)

// network returns the NetworkPolicy shop/p with a spec in YAML.
func network(t *testing.T, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}}
	if err := yaml.Unmarshal([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("%v\n%s", err, spec)
	}
	return p
}

const appliedToShop = `"appliedTo":[{"namespaces":{"names":["shop"]}}]`

// TestCornerCases has the rows of the table in docs/kubernetes-policy.md that concern one
// NetworkPolicy, each with the exact Policy. A problem is the beginning of the text for the user.
func TestCornerCases(t *testing.T) {
	in := func(rules string) string {
		return `{"tier":"namespaces","isolate":["ingress"],` + appliedToShop + rules + `}`
	}
	from := func(peers string) string { return in(`,"ingress":[{"action":"allow","from":[` + peers + `]}]`) }
	on := func(ports string) string { return in(`,"ingress":[{"action":"allow","ports":[` + ports + `]}]`) }
	out := func(rules string) string {
		return `{"tier":"namespaces","isolate":["egress"],` + appliedToShop + rules + `}`
	}
	peer := func(p string) string { return "ingress: [{from: [" + p + "]}]" }
	port := func(p string) string { return "ingress: [{ports: [" + p + "]}]" }
	for _, tt := range []struct{ name, spec, want, problem string }{
		{"policyTypes absent, without egress rules", "{}", in(""), ""},
		{"policyTypes absent, with egress rules", "egress: [{}]", `{"tier":"namespaces","isolate":["ingress","egress"],` + appliedToShop + `,"egress":[{"action":"allow"}]}`, ""},
		{"policyTypes absent, with an empty list of egress rules", "egress: []", in(""), ""},
		{"policyTypes Egress alone", "{policyTypes: [Egress], ingress: [{}]}", out(""), ""},
		{"policyTypes Ingress alone: egress rules have no effect", "{policyTypes: [Ingress], egress: [{}]}", in(""), ""},
		{"policyTypes both", "policyTypes: [Egress, Ingress]", `{"tier":"namespaces","isolate":["ingress","egress"],` + appliedToShop + `}`, ""},
		{"policyTypes unknown", "policyTypes: [Forward]", `{"tier":"namespaces","isolate":["ingress","egress"],` + appliedToShop + `}`, `spec.policyTypes[0]: "Forward" is not one of Ingress, Egress; `},

		{"a rule {}", "ingress: [{}]", in(`,"ingress":[{"action":"allow"}]`), ""},
		{"from empty", "ingress: [{from: [], ports: [{port: 80}]}]", on(`{"protocol":"tcp","port":80}`), ""},
		{"to empty", "{policyTypes: [Egress], egress: [{to: []}]}", out(`,"egress":[{"action":"allow"}]`), ""},
		{"to and ports", "{policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: 80}]}]}",
			out(`,"egress":[{"action":"allow","to":[{"namespaces":{"names":["shop"]}}],"ports":[{"protocol":"tcp","port":80}]}]`), ""},
		{"ports empty", "ingress: [{from: [{podSelector: {}}], ports: []}]", from(`{"namespaces":{"names":["shop"]}}`), ""},

		{"podSelector {}", "podSelector: {}", in(""), ""},
		{"podSelector with labels", "podSelector: {matchLabels: {app: db}}",
			`{"tier":"namespaces","isolate":["ingress"],"appliedTo":[{"namespaces":{"names":["shop"]},"entities":{"matchLabels":{"app":"db"}}}]}`, ""},
		{"podSelector with expressions", "podSelector: {matchExpressions: [{key: a, operator: In, values: [b, c]}, {key: d, operator: DoesNotExist}]}",
			`{"tier":"namespaces","isolate":["ingress"],"appliedTo":[{"namespaces":{"names":["shop"]},"entities":{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]},{"key":"d","operator":"DoesNotExist"}]}}]}`, ""},
		{"podSelector not understood", "{podSelector: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}, ingress: [{}]}", in(""), `spec.podSelector.matchExpressions[0].operator: "Gt" is not one of In, NotIn, Exists, DoesNotExist`},

		{"podSelector in a peer", peer("{podSelector: {matchLabels: {app: web}}}"), from(`{"namespaces":{"names":["shop"]},"entities":{"matchLabels":{"app":"web"}}}`), ""},
		{"podSelector {} in a peer", peer("{podSelector: {}}"), from(`{"namespaces":{"names":["shop"]}}`), ""},
		{"namespaceSelector", peer("{namespaceSelector: {matchLabels: {team: a}}}"), from(`{"namespaces":{"matchLabels":{"team":"a"}}}`), ""},
		{"namespaceSelector {}", peer("{namespaceSelector: {}}"), from(`{"namespaces":{}}`), ""},
		{"both in one peer", peer("{namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}, podSelector: {matchLabels: {app: web}}}"),
			from(`{"namespaces":{"matchExpressions":[{"key":"team","operator":"Exists"}]},"entities":{"matchLabels":{"app":"web"}}}`), ""},
		{"both in two peers", peer("{namespaceSelector: {matchLabels: {team: a}}}, {podSelector: {matchLabels: {app: web}}}"),
			from(`{"namespaces":{"matchLabels":{"team":"a"}}},{"namespaces":{"names":["shop"]},"entities":{"matchLabels":{"app":"web"}}}`), ""},

		{"ipBlock", peer("{ipBlock: {cidr: 10.0.0.0/8}}"), from(`{"prefixes":["10.0.0.0/8"]}`), ""},
		{"ipBlock with except", peer("{ipBlock: {cidr: 2001:db8::/32, except: ['2001:db8:1::/48']}}"), from(`{"prefixes":["2001:db8::/32"],"except":["2001:db8:1::/48"]}`), ""},
		{"ipBlock with host bits", peer("{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.7/16]}}"), from(`{"prefixes":["10.0.0.0/8"],"except":["10.1.0.0/16"]}`), ""},
		{"ipBlock with leading zeros", peer("{ipBlock: {cidr: 010.0.0.0/8}}"), from(`{"prefixes":["10.0.0.0/8"]}`), ""},
		{"ipBlock of IPv4-mapped addresses", peer("{ipBlock: {cidr: '::ffff:10.0.0.0/104', except: [10.1.0.0/16]}}"), from(`{"prefixes":["10.0.0.0/8"],"except":["10.1.0.0/16"]}`), ""},
		{"ipBlock of everything", peer("{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}"), from(`{"prefixes":["0.0.0.0/0"]},{"prefixes":["::/0"]}`), ""},
		{"except outside cidr", peer("{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16, '2001:db8::/32']}}"), from(`{"prefixes":["10.0.0.0/8"]}`), ""},
		{"except that contains cidr", peer("{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}"), in(""), `spec.ingress[0].from[0].ipBlock.except[0]: "10.0.0.0/8" contains the whole cidr`},

		{"protocol absent", port("{port: 80}"), on(`{"protocol":"tcp","port":80}`), ""},
		{"port absent", port("{protocol: UDP}"), on(`{"protocol":"udp"}`), ""},
		{"port and protocol absent", port("{}"), on(`{"protocol":"tcp"}`), ""},
		{"SCTP", port("{protocol: SCTP, port: 9}"), on(`{"protocol":"sctp","port":9}`), ""},
		{"endPort", port("{port: 80, endPort: 89}"), on(`{"protocol":"tcp","port":80,"end":89}`), ""},
		{"endPort equal to port", port("{port: 80, endPort: 80}"), on(`{"protocol":"tcp","port":80,"end":80}`), ""},
		{"named port", port("{port: web}"), on(`{"protocol":"tcp","name":"web"}`), ""},
		{"named port with protocol", port("{protocol: UDP, port: dns}"), on(`{"protocol":"udp","name":"dns"}`), ""},

		{"peer empty", peer("{}"), in(""), "spec.ingress[0].from[0]: is neither a podSelector, a namespaceSelector nor an ipBlock"},
		{"peer empty, the other is not", peer("{}, {podSelector: {}}"), from(`{"namespaces":{"names":["shop"]}}`), "spec.ingress[0].from[0]: is neither"},
		{"peer with ipBlock and selector", peer("{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}"), in(""), "spec.ingress[0].from[0].ipBlock: cannot be combined"},
		{"operator unknown", peer("{podSelector: {matchExpressions: [{key: a, operator: Lt, values: ['1']}]}}"), in(""), `spec.ingress[0].from[0].podSelector.matchExpressions[0].operator: "Lt"`},
		{"operator unknown of namespaces", peer("{podSelector: {}, namespaceSelector: {matchExpressions: [{key: a, operator: Lt}]}}"), in(""), `spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].operator: "Lt"`},
		{"In without values", peer("{podSelector: {matchExpressions: [{key: a, operator: In}]}}"), in(""), "spec.ingress[0].from[0].podSelector.matchExpressions[0].values: is empty"},
		{"Exists with values", peer("{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}"), in(""), "spec.ingress[0].from[0].podSelector.matchExpressions[0].values: is set"},
		{"label without a name", peer("{podSelector: {matchLabels: {'': b}}}"), in(""), "spec.ingress[0].from[0].podSelector.matchLabels: a label without a name"},
		{"cidr is not a prefix", peer("{ipBlock: {cidr: 10.0.0.0/33}}"), in(""), `spec.ingress[0].from[0].ipBlock.cidr: "10.0.0.0/33" is not a prefix`},
		{"cidr is an address", peer("{ipBlock: {cidr: 10.0.0.7}}"), in(""), `spec.ingress[0].from[0].ipBlock.cidr: "10.0.0.7" is not a prefix`},
		{"except is not a prefix", peer("{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}"), in(""), `spec.ingress[0].from[0].ipBlock.except[0]: "x" is not a prefix`},
		{"protocol unknown", port("{protocol: ICMP}"), in(""), `spec.ingress[0].ports[0].protocol: "ICMP" is not one of TCP, UDP, SCTP`},
		{"protocol unknown, the other is not", port("{protocol: ICMP}, {port: 80}"), on(`{"protocol":"tcp","port":80}`), `spec.ingress[0].ports[0].protocol: "ICMP"`},
		{"endPort without port", port("{endPort: 80}"), in(""), "spec.ingress[0].ports[0].endPort: has no port"},
		{"endPort with a name", port("{port: web, endPort: 80}"), in(""), "spec.ingress[0].ports[0].endPort: cannot be combined"},
		{"endPort below port", port("{port: 80, endPort: 79}"), in(""), "spec.ingress[0].ports[0].endPort: 79 is not between port 80 and 65535"},
		{"endPort too large", port("{port: 80, endPort: 65536}"), in(""), "spec.ingress[0].ports[0].endPort: 65536 is not"},
		{"port 0", port("{port: 0}"), in(""), "spec.ingress[0].ports[0].port: 0 is not between"},
		{"port too large", port("{port: 65536}"), in(""), "spec.ingress[0].ports[0].port: 65536 is not between"},
		{"port with an empty name", port("{port: ''}"), in(""), "spec.ingress[0].ports[0].port: is neither"},
		{"port with an invalid name", port("{port: 'a b'}"), in(""), `spec.ingress[0].ports[0].port: "a b" is not the name of a port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Translate(network(t, tt.spec), nil)
			if !sameJSON(t, string(got.Object.Spec), tt.want) {
				t.Errorf("%s\nwant %s", got.Object.Spec, tt.want)
			}
			if tt.problem == "" && len(got.Problems) > 0 || tt.problem != "" && (len(got.Problems) == 0 || !strings.HasPrefix(got.Problems[0], tt.problem)) {
				t.Errorf("problems %q, want %q", got.Problems, tt.problem)
			}
			if got.Object.Kind != api.KindPolicy || got.Object.Name != "np/shop/p" || !maps.Equal(got.Object.Labels, map[string]string{"namespace": "shop", "policy": "p"}) {
				t.Errorf("%+v", got.Object)
			}
		})
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	return normal(t, a) == normal(t, b)
}

// normal returns JSON with sorted keys.
func normal(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestStage: the annotation of the policy precedes the annotation of its namespace, and an unknown
// word does not end protection.
func TestStage(t *testing.T) {
	staged, enforced, unknown := map[string]string{AnnotationStage: "staged"}, map[string]string{AnnotationStage: "enforced"}, map[string]string{AnnotationStage: "off"}
	for i, tt := range []struct {
		policy, namespace map[string]string
		want, problem     string
	}{
		{nil, nil, "", ""},
		{staged, nil, "staged", ""},
		{nil, staged, "staged", ""},
		{enforced, staged, "", ""},
		{unknown, staged, "", `annotation loxilight.io/stage: "off" is not one of enforced, staged`},
		{nil, unknown, "", `annotation of the namespace loxilight.io/stage: "off"`},
	} {
		p := network(t, "{}")
		p.Annotations = tt.policy
		got := Translate(p, tt.namespace)
		if stage := spec(t, &got.Object).Stage; stage != tt.want {
			t.Errorf("%d: stage %q, want %q", i, stage, tt.want)
		}
		if all := strings.Join(got.Problems, "; "); !strings.HasPrefix(all, tt.problem) || (all == "") != (tt.problem == "") {
			t.Errorf("%d: problems %q, want %q", i, all, tt.problem)
		}
	}
}

// TestLog: the annotation of the policy precedes the annotation of its namespace, and unknown words are
// ignored.
func TestLog(t *testing.T) {
	log := func(text string) map[string]string { return map[string]string{AnnotationLog: text} }
	for i, tt := range []struct {
		policy, namespace map[string]string
		want, problem     string
	}{
		{nil, nil, "", ""},
		{log("deny"), log("allow"), "deny", ""},
		{nil, log(" allow, deny ,allow"), "allow,deny", ""},
		{log("deny,drops"), nil, "deny", `annotation loxilight.io/log: "drops" is not one of allow, deny`},
		{nil, log("on"), "", `annotation of the namespace loxilight.io/log: "on"`},
	} {
		p := network(t, "{}")
		p.Annotations = tt.policy
		got := Translate(p, tt.namespace)
		if s := strings.Join(spec(t, &got.Object).Log, ","); s != tt.want {
			t.Errorf("%d: log %q, want %q", i, s, tt.want)
		}
		if all := strings.Join(got.Problems, "; "); !strings.HasPrefix(all, tt.problem) || (all == "") != (tt.problem == "") {
			t.Errorf("%d: problems %q, want %q", i, all, tt.problem)
		}
	}
}

// TestDeny: the annotation of the policy precedes the annotation of its namespace, and an unknown word
// drops.
func TestDeny(t *testing.T) {
	rejects, drops, unknown := map[string]string{AnnotationDeny: "reject"}, map[string]string{AnnotationDeny: "drop"}, map[string]string{AnnotationDeny: "off"}
	for i, tt := range []struct {
		policy, namespace map[string]string
		want, problem     string
	}{
		{nil, nil, "", ""},
		{rejects, nil, "reject", ""},
		{nil, rejects, "reject", ""},
		{drops, rejects, "", ""},
		{unknown, rejects, "", `annotation loxilight.io/deny: "off" is not one of drop, reject`},
		{nil, unknown, "", `annotation of the namespace loxilight.io/deny: "off"`},
	} {
		p := network(t, "{ingress: [{}]}")
		p.Annotations = tt.policy
		got := Translate(p, tt.namespace)
		if s := spec(t, &got.Object); s.IsolateAction != tt.want || s.Ingress[0].Action != "allow" {
			t.Errorf("%d: %+v, want %q", i, s, tt.want)
		}
		if all := strings.Join(got.Problems, "; "); !strings.HasPrefix(all, tt.problem) || (all == "") != (tt.problem == "") {
			t.Errorf("%d: problems %q, want %q", i, all, tt.problem)
		}
	}
}

func spec(t *testing.T, o *api.Object) (s api.PolicySpec) {
	t.Helper()
	if err := json.Unmarshal(o.Spec, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFallback: a refused Policy isolates the same pods in the same directions; if that is refused
// as well, all pods of its namespace. A staged Policy stays staged.
func TestFallback(t *testing.T) {
	p := network(t, "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: [{}]}")
	p.Annotations = map[string]string{AnnotationStage: "staged"}
	o := Translate(p, nil).Object
	for i, want := range []string{
		`{"tier":"namespaces","stage":"staged","isolate":["egress"],"appliedTo":[{"namespaces":{"names":["shop"]},"entities":{"matchLabels":{"app":"db"}}}]}`,
		`{"tier":"namespaces","stage":"staged","isolate":["egress"],"appliedTo":[{"namespaces":{"names":["shop"]}}]}`,
	} {
		f := Fallback(&o, i+1)
		if f == nil || f.Kind != o.Kind || f.Name != o.Name || !maps.Equal(f.Labels, o.Labels) || !sameJSON(t, string(f.Spec), want) {
			t.Errorf("attempt %d: %+v, want %s", i+1, f, want)
		}
	}
	if f := Fallback(&o, 3); f != nil {
		t.Errorf("attempt 3: %+v", f)
	}
	if f := Fallback(&api.Object{Kind: api.KindEntity, Spec: []byte("{}")}, 1); f != nil {
		t.Errorf("of an Entity: %+v", f)
	}
}

// TestNames: names that the daemon does not accept are shortened, and stay different.
func TestNames(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253
	a, b := EntityName("shop", long), EntityName("shop", long[:252]+"b")
	if len(a) != 253 || len(b) != 253 || a == b {
		t.Errorf("%d, %d bytes, equal: %v", len(a), len(b), a == b)
	}
	if got := PolicyName("shop", "db"); got != "np/shop/db" {
		t.Error(got)
	}
	key := strings.Repeat("a", 253) + "/app"
	o := Namespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{key: "x", "team": "y"}}})
	var n api.NamespaceSpec
	if err := json.Unmarshal(o.Spec, &n); err != nil {
		t.Fatal(err)
	}
	p := network(t, fmt.Sprintf("podSelector: {matchLabels: {%q: x}}", key))
	translated := Translate(p, nil).Object
	selected := spec(t, &translated).AppliedTo[0].Entities.MatchLabels
	for name := range selected {
		if len(name) > 253 || n.Labels[name] != "x" {
			t.Errorf("selector for %q, labels %q", name, slices.Collect(maps.Keys(n.Labels)))
		}
	}
	if len(n.Labels) != 2 || n.Labels["team"] != "y" || len(selected) != 1 {
		t.Errorf("labels %v, selector %v", n.Labels, selected)
	}
}

// TestTiers: NetworkPolicies never isolate a pod from itself or from its node, and ClusterNetworkPolicies
// are evaluated before or after them.
func TestTiers(t *testing.T) {
	var got []string
	for _, o := range Tiers() {
		got = append(got, o.Kind+"/"+o.Name+string(o.Spec))
	}
	if want := []string{`Tier/admin{"order":100}`, `Tier/namespaces{"order":200,"always":["self","node"]}`, `Tier/baseline{"order":300}`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
