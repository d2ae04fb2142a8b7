// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
)

// The types below have the fields of a ClusterNetworkPolicy, and some of a newer version.

type randomClusterPolicy struct {
	Name   string `json:"-"`
	Staged bool   `json:"-"`

	Tier     string        `json:"tier"`
	Priority int           `json:"priority"`
	Subject  randomSubject `json:"subject"`
	Ingress  []randomRule  `json:"ingress,omitempty"`
	Egress   []randomRule  `json:"egress,omitempty"`
}

type randomPods struct {
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       metav1.LabelSelector  `json:"podSelector"`
}

type randomSubject struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *randomPods           `json:"pods,omitempty"`
	Hosts      string                `json:"hosts,omitempty"` // unknown
}

type randomRule struct {
	Action    string           `json:"action"`
	From      []randomPeer     `json:"from,omitempty"`
	To        []randomPeer     `json:"to,omitempty"`
	Protocols []randomProtocol `json:"protocols,omitempty"`
}

type randomPeer struct {
	randomSubject
	Nodes    *metav1.LabelSelector `json:"nodes,omitempty"`
	Networks []string              `json:"networks,omitempty"`
	Names    []string              `json:"domainNames,omitempty"`
}

type randomProtocol struct {
	TCP  *randomPorts `json:"tcp,omitempty"`
	UDP  *randomPorts `json:"udp,omitempty"`
	SCTP *randomPorts `json:"sctp,omitempty"`
	Name string       `json:"destinationNamedPort,omitempty"`
	ICMP string       `json:"icmp,omitempty"` // unknown
}

type randomPorts struct {
	Port struct {
		Number int32 `json:"number,omitempty"`
		Range  *struct {
			Start int32 `json:"start"`
			End   int32 `json:"end"`
		} `json:"range,omitempty"`
	} `json:"destinationPort"`
}

func (g generator) subject() (s randomSubject) {
	switch {
	case g.chance(3): // empty
	case g.chance(3):
		s.Hosts = "all"
	case g.chance(50):
		s.Namespaces = g.selector()
	default:
		s.Pods = &randomPods{PodSelector: *g.selector()}
		if g.chance(70) {
			s.Pods.NamespaceSelector = g.selector()
		}
	}
	return s
}

func (g generator) clusterPeer(egress bool) (p randomPeer) {
	switch {
	case !egress || g.chance(50):
		p.randomSubject = g.subject()
	case g.chance(45):
		p.Nodes = g.selector()
	case g.chance(90):
		p.Networks = list(g, 1, 3, func() string {
			return pick(g, "10.244.0.0/16", "10.244.2.0/24", "10.244.1.1/32", "0.0.0.0/0", "::/0", "10.244.2.9/29", "2001:db8:2::/64", "192.0.2.0/24")
		})
		if g.chance(5) {
			p.Networks[0] = "10.0.0.0/33"
		}
	default:
		p.Names = list(g, 1, 2, func() string { return pick(g, "www.example.org", "*.Example.org", "example.org", "mail.example.org") })
		if g.chance(5) {
			p.Names[0] = "*"
		}
	}
	return p
}

func (g generator) clusterProtocol() (p randomProtocol) {
	ports := &randomPorts{}
	switch {
	case g.chance(60):
		ports.Port.Number = pick[int32](g, 80, 81, 82)
	case g.chance(95):
		ports.Port.Range = &struct {
			Start int32 `json:"start"`
			End   int32 `json:"end"`
		}{pick[int32](g, 79, 80, 81), pick[int32](g, 81, 90)}
	}
	switch g.IntN(20) {
	case 0:
		p.ICMP = "echo"
	case 1, 2, 3, 4, 5:
		p.Name = pick(g, "web", "dns", "none")
	case 6, 7, 8, 9, 10:
		p.UDP = ports
	case 11, 12:
		p.SCTP = ports
	default:
		p.TCP = ports
	}
	return p
}

func (g generator) addClusterPolicies(c *cluster) {
	for i := range 3 {
		c.nodes = append(c.nodes, k8sNode(fmt.Sprint("n", i+1), g.labels(), fmt.Sprintf("InternalIP 192.0.2.%d", i+1)))
	}
	rule := func(egress bool) randomRule {
		r := randomRule{Action: pick(g, "Accept", "Accept", "Deny", "Deny", "Pass", "Pass"), Protocols: list(g, 0, 2, g.clusterProtocol)}
		if g.chance(3) {
			r.Action = "Audit"
		}
		peers := list(g, 1, 2, func() randomPeer { return g.clusterPeer(egress) })
		if egress {
			r.To = peers
		} else {
			r.From = peers
		}
		return r
	}
	for i := range g.IntN(6) {
		p := &randomClusterPolicy{
			Name: fmt.Sprint("c", i), Staged: g.chance(10), Tier: pick(g, "Admin", "Baseline"), Priority: g.IntN(3), Subject: g.subject(),
			Ingress: list(g, 0, 3, func() randomRule { return rule(false) }), Egress: list(g, 0, 3, func() randomRule { return rule(true) }),
		}
		if g.chance(3) {
			p.Tier = "Infra"
		}
		c.cluster = append(c.cluster, p)
	}
}

// addClusterState adds the translated nodes and ClusterNetworkPolicies to a state.
func (c *cluster) addClusterState(t *testing.T, s *policy.State) {
	t.Helper()
	var owners NodeAddresses
	for _, n := range c.nodes {
		owners.Set(n.Name, n)
	}
	for _, n := range c.nodes {
		for _, o := range here.NodeEntities(n, &owners, nil) {
			var v api.EntitySpec
			decode(t, o, &v)
			e := &policy.Entity{Name: o.Name, Set: v.Set, Labels: v.Labels, Here: v.Here}
			for _, text := range v.Addresses {
				e.Addrs = append(e.Addrs, netip.MustParseAddr(text))
			}
			s.Entities[o.Name] = e
		}
	}
	for _, p := range c.cluster {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		of := &ClusterPolicy{Name: p.Name, Spec: raw}
		if p.Staged {
			of.Annotations = map[string]string{AnnotationStage: "staged"}
		}
		o := TranslateCluster(of, &here).Object
		var v api.PolicySpec
		decode(t, o, &v)
		s.Policies[o.Name] = policyOf(t, o.Name, &v)
	}
}

// The evaluator below follows the documentation of the API's fields, and not the translation.

// allowed reports whether all policies allow a flow.
func (c *cluster) allowed(f flow) bool {
	if allows, decided := c.tier("Admin", f); decided {
		return allows
	}
	if allows, decided := c.network(f); decided {
		return allows
	}
	allows, decided := c.tier("Baseline", f)
	return allows || !decided
}

// tier returns what ClusterNetworkPolicies of a tier decide. A tier of a newer version is evaluated as
// Admin.
func (c *cluster) tier(name string, f flow) (allows, decided bool) {
	all := slices.SortedFunc(slices.Values(c.cluster), func(a, b *randomClusterPolicy) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range all {
		isKnown := p.Tier == "Admin" || p.Tier == "Baseline"
		if p.Staged || p.Tier != name && (isKnown || name != "Admin") {
			continue
		}
		selects, understood := c.selectsSubject(&p.Subject, f.subject)
		if !selects {
			continue
		}
		rules := p.Ingress
		if f.egress {
			rules = p.Egress
		}
		for i := range rules {
			switch c.clusterRule(&rules[i], f, isKnown && understood) {
			case "Accept":
				return true, true
			case "Deny":
				return false, true
			case "Pass":
				return false, false
			}
		}
	}
	return false, false
}

// clusterRule returns what a rule does with a flow; empty: it does not match. trusted: the tier and the
// subject of its policy are understood.
func (c *cluster) clusterRule(r *randomRule, f flow, trusted bool) string {
	understood, onPeer, onPort := true, false, len(r.Protocols) == 0
	for _, peer := range append(slices.Clone(r.From), r.To...) {
		matches, ok := c.clusterPeer(&peer, f)
		ok = ok && (peer.Names == nil || r.Action == "Accept")
		understood, onPeer = understood && ok, onPeer || matches
	}
	if !f.peer.IsValid() && f.egress && r.hasNetwork("0.0.0.0/0") && r.hasNetwork("::/0") {
		onPeer = true // the node has one of these addresses
	}
	for _, p := range r.Protocols {
		matches, ok := c.clusterPort(&p, f)
		understood, onPort = understood && ok, onPort || matches
	}
	switch {
	case r.Action == "Accept" && (!trusted || !understood):
		return ""
	case !understood && !f.egress && !f.peer.IsValid():
		return "Pass" // no rule denies what the pod's own node sends
	case !understood:
		return "Deny"
	case !onPeer || !onPort:
		return ""
	case r.Action == "Accept":
		return "Accept"
	case r.Action == "Pass" && trusted:
		return "Pass"
	}
	return "Deny"
}

func (r *randomRule) hasNetwork(text string) bool {
	return slices.ContainsFunc(r.To, func(p randomPeer) bool { return slices.Contains(p.Networks, text) })
}

// selectsSubject reports whether a pod is a subject; if the selector is not understood, at least the
// pods that are meant are subjects.
func (c *cluster) selectsSubject(s *randomSubject, pod *corev1.Pod) (selects, understood bool) {
	if s.Hosts != "" || s.Namespaces == nil && s.Pods == nil {
		return true, false
	}
	inNamespace, inPods, nsValid, podsValid := c.parts(s, pod)
	return (inNamespace || !nsValid) && (inPods || !podsValid), nsValid && podsValid
}

// parts evaluates the selectors of namespaces and of pods.
func (c *cluster) parts(s *randomSubject, pod *corev1.Pod) (inNamespace, inPods, nsValid, podsValid bool) {
	namespaces, pods := s.Namespaces, &metav1.LabelSelector{}
	if s.Pods != nil {
		namespaces, pods = s.Pods.NamespaceSelector, &s.Pods.PodSelector
	}
	if namespaces == nil {
		namespaces = &metav1.LabelSelector{}
	}
	i := slices.IndexFunc(c.namespaces, func(n *corev1.Namespace) bool { return n.Name == pod.Namespace })
	inNamespace, nsValid = matches(namespaces, c.namespaces[i].Labels)
	inPods, podsValid = matches(pods, pod.Labels)
	return inNamespace, inPods, nsValid, podsValid
}

func (c *cluster) clusterPeer(p *randomPeer, f flow) (matched, understood bool) {
	switch {
	case p.Nodes != nil:
		_, understood = matches(p.Nodes, nil)
		for i, n := range c.nodes {
			isPeer := f.peer == netip.MustParseAddr(n.Status.Addresses[0].Address) || !f.peer.IsValid() && i == 0
			if selects, _ := matches(p.Nodes, n.Labels); selects && isPeer {
				matched = true
			}
		}
		return matched, understood
	case p.Networks != nil:
		read := map[string]string{"10.244.2.9/29": "10.244.2.8/29"}
		understood = true
		for _, text := range p.Networks {
			prefix, err := netip.ParsePrefix(cmp.Or(read[text], text))
			understood = understood && err == nil
			matched = matched || err == nil && prefix.Contains(f.peer)
		}
		return matched, understood
	case p.Names != nil:
		isKnown := f.peer.Is4()
		return isKnown && (slices.Contains(p.Names, "www.example.org") || slices.Contains(p.Names, "*.Example.org")), !slices.Contains(p.Names, "*")
	case p.Hosts != "" || p.Namespaces == nil && p.Pods == nil:
		return false, false
	}
	// Whether the selectors are valid does not depend on the pod.
	_, _, nsValid, podsValid := c.parts(&p.randomSubject, c.pods[0])
	if pod := c.podWith(f.peer); pod != nil && f.peer.IsValid() {
		inNamespace, inPods, _, _ := c.parts(&p.randomSubject, pod)
		matched = inNamespace && inPods
	}
	return matched, nsValid && podsValid
}

func (c *cluster) clusterPort(p *randomProtocol, f flow) (matched, understood bool) {
	if p.ICMP != "" {
		return false, false
	}
	if p.Name != "" {
		owner := f.subject
		if f.egress {
			owner = c.podWith(f.peer)
		}
		return owner != nil && slices.ContainsFunc(owner.Spec.Containers[0].Ports, func(cp corev1.ContainerPort) bool {
			return cp.Name == p.Name && cp.ContainerPort == f.port && cp.Protocol == f.protocol
		}), true
	}
	for protocol, ports := range map[corev1.Protocol]*randomPorts{corev1.ProtocolTCP: p.TCP, corev1.ProtocolUDP: p.UDP, corev1.ProtocolSCTP: p.SCTP} {
		switch {
		case ports == nil:
		case ports.Port.Range != nil:
			r := ports.Port.Range
			return protocol == f.protocol && r.Start <= f.port && f.port <= r.End, true
		case ports.Port.Number != 0:
			return protocol == f.protocol && ports.Port.Number == f.port, true
		}
	}
	return false, false
}
