// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
)

var cases = flag.Int("cases", 200, "random clusters")

// cluster is a random cluster.
type cluster struct {
	namespaces []*corev1.Namespace
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
	nodes      []*corev1.Node
	cluster    []*randomClusterPolicy
}

type generator struct{ *rand.Rand }

func pick[T any](g generator, all ...T) T { return all[g.IntN(len(all))] }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

func list[T any](g generator, least, most int, one func() T) (all []T) {
	for range least + g.IntN(most-least+1) {
		all = append(all, one())
	}
	return all
}

func (g generator) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "team"} {
		if g.chance(70) {
			labels[key] = pick(g, "a", "b", "")
		}
	}
	return labels
}

func (g generator) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.chance(40) {
		s.MatchLabels = map[string]string{pick(g, "app", "team"): pick(g, "a", "b", "")}
	}
	for g.chance(35) {
		e := metav1.LabelSelectorRequirement{Key: pick(g, "app", "team"), Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = pick(g, []string{"a"}, []string{"b", ""}, []string{"a", "b"})
		}
		if g.chance(5) {
			e.Operator = "Gt"
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func (g generator) peer() (p networkingv1.NetworkPolicyPeer) {
	switch {
	case g.chance(5): // empty
	case g.chance(40):
		p.IPBlock = &networkingv1.IPBlock{CIDR: pick(g, "10.244.0.0/16", "10.244.2.0/24", "10.244.1.1/32", "0.0.0.0/0", "::/0", "10.244.2.9/29", "2001:db8:2::/64", "::ffff:10.244.0.0/112", "10.0.0.0/33")}
		for g.chance(40) {
			p.IPBlock.Except = append(p.IPBlock.Except, pick(g, "10.244.2.0/24", "10.244.2.2/31", "192.0.2.0/24", "10.244.0.0/14", "2001:db8:2::2/128", "x"))
		}
	default:
		if g.chance(60) {
			p.NamespaceSelector = g.selector()
		}
		if p.NamespaceSelector == nil || g.chance(50) {
			p.PodSelector = g.selector()
		}
	}
	return p
}

func (g generator) port() (p networkingv1.NetworkPolicyPort) {
	if g.chance(70) {
		p.Protocol = new(pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, "DCCP"))
	}
	switch {
	case g.chance(40):
		p.Port = new(intstr.FromInt32(pick[int32](g, 79, 80, 81, 0)))
		if g.chance(50) {
			p.EndPort = new(pick[int32](g, 78, 80, 81, 90))
		}
	case g.chance(70):
		p.Port = new(intstr.FromString(pick(g, "web", "dns", "none")))
		if g.chance(10) {
			p.EndPort = new(int32(90))
		}
	}
	return p
}

func (g generator) policy(i int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(g, "x", "y", "z"), Name: fmt.Sprint("p", i)}}
	p.Spec.PodSelector = *g.selector()
	p.Spec.PolicyTypes = pick(g, nil, nil, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress})
	p.Spec.Ingress = list(g, 0, 2, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: list(g, 0, 2, g.peer), Ports: list(g, 0, 2, g.port)}
	})
	p.Spec.Egress = list(g, 0, 2, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: list(g, 0, 2, g.peer), Ports: list(g, 0, 2, g.port)}
	})
	if g.chance(10) {
		p.Annotations = map[string]string{AnnotationStage: "staged"}
	}
	return p
}

func (g generator) cluster() (c cluster) {
	for _, name := range []string{"x", "y", "z"} {
		c.namespaces = append(c.namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.labels()}})
	}
	for i := range 8 {
		n := 1 + i%2
		p := pod(pick(g, "x", "y", "z"), fmt.Sprint("pod", i), fmt.Sprint("n", n), fmt.Sprintf("10.244.%d.%d", n, i+1), fmt.Sprintf("2001:db8:%d::%d", n, i+1))
		p.Labels = g.labels()
		p.Status.Phase = pick(g, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded)
		p.Spec.Containers = []corev1.Container{{Ports: list(g, 0, 3, func() corev1.ContainerPort {
			return corev1.ContainerPort{Name: pick(g, "web", "dns", ""), ContainerPort: pick[int32](g, 80, 81, 82), Protocol: pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP)}
		})}}
		c.pods = append(c.pods, p)
	}
	c.policies = make([]*networkingv1.NetworkPolicy, 1+g.IntN(4))
	for i := range c.policies {
		c.policies[i] = g.policy(i)
	}
	g.addClusterPolicies(&c)
	return c
}

// flow is the first packet of a connection, as one pod sees it.
type flow struct {
	subject  *corev1.Pod
	egress   bool
	peer     netip.Addr // the zero value: this node
	protocol corev1.Protocol
	port     int32
}

// The evaluator below follows the documentation of the API's fields, and not the translation.

// network returns what NetworkPolicies decide: decided is false if none isolates the pod, or isolation
// does not concern the peer.
func (c *cluster) network(f flow) (allows, decided bool) {
	isolated := false
	for _, p := range c.policies {
		if p.Namespace != f.subject.Namespace || p.Annotations[AnnotationStage] == "staged" || !c.concerns(p, f.egress) {
			continue
		}
		selects, valid := matches(&p.Spec.PodSelector, f.subject.Labels)
		if valid && !selects {
			continue
		}
		isolated = true
		if !valid {
			continue // isolates all pods of the namespace
		}
		if !f.egress {
			for _, r := range p.Spec.Ingress {
				if c.ruleAllows(p, r.From, r.Ports, f) {
					return true, true
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			if c.ruleAllows(p, r.To, r.Ports, f) {
				return true, true
			}
		}
	}
	return false, isolated && f.peer.IsValid() && !slices.ContainsFunc(f.subject.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == f.peer.String() })
}

func (c *cluster) concerns(p *networkingv1.NetworkPolicy, egress bool) bool {
	switch {
	case len(p.Spec.PolicyTypes) == 0:
		return !egress || len(p.Spec.Egress) > 0
	case egress:
		return slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	return slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
}

func (c *cluster) ruleAllows(p *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, f flow) bool {
	onPeer := len(peers) == 0 || slices.ContainsFunc(peers, func(peer networkingv1.NetworkPolicyPeer) bool { return c.isPeer(p, peer, f) })
	onPort := len(ports) == 0 || slices.ContainsFunc(ports, func(port networkingv1.NetworkPolicyPort) bool { return c.isPort(port, f) })
	return onPeer && onPort
}

// podWith returns the pod that has an address, if policies select it.
func (c *cluster) podWith(a netip.Addr) *corev1.Pod {
	for _, p := range c.pods {
		if p.Status.Phase != corev1.PodSucceeded && slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == a.String() }) {
			return p
		}
	}
	return nil
}

func (c *cluster) isPeer(p *networkingv1.NetworkPolicy, peer networkingv1.NetworkPolicyPeer, f flow) bool {
	if b := peer.IPBlock; b != nil {
		// The prefixes are few: here they are written as they must be read.
		read := map[string]string{"10.244.2.9/29": "10.244.2.8/29", "::ffff:10.244.0.0/112": "10.244.0.0/16"}
		within := func(text string) (inside, valid bool) {
			if short := read[text]; short != "" {
				text = short
			}
			prefix, err := netip.ParsePrefix(text)
			return err == nil && prefix.Masked().Contains(f.peer), err == nil
		}
		if slices.ContainsFunc(b.Except, func(e string) bool { inside, valid := within(e); return inside || !valid }) {
			return false
		}
		inside, _ := within(b.CIDR)
		return inside
	}
	pod := c.podWith(f.peer)
	if pod == nil || peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return false
	}
	if peer.NamespaceSelector == nil && pod.Namespace != p.Namespace {
		return false
	}
	if peer.NamespaceSelector != nil {
		i := slices.IndexFunc(c.namespaces, func(n *corev1.Namespace) bool { return n.Name == pod.Namespace })
		if selects, valid := matches(peer.NamespaceSelector, c.namespaces[i].Labels); !selects || !valid {
			return false
		}
	}
	if peer.PodSelector != nil {
		if selects, valid := matches(peer.PodSelector, pod.Labels); !selects || !valid {
			return false
		}
	}
	return true
}

func (c *cluster) isPort(port networkingv1.NetworkPolicyPort, f flow) bool {
	if port.Protocol != nil && *port.Protocol != f.protocol || port.Protocol == nil && f.protocol != corev1.ProtocolTCP {
		return false
	}
	if port.Protocol != nil && *port.Protocol == "DCCP" {
		return false
	}
	switch {
	case port.Port == nil:
		return port.EndPort == nil
	case port.Port.Type == intstr.Int && port.EndPort == nil:
		return port.Port.IntVal == f.port
	case port.Port.Type == intstr.Int:
		return port.Port.IntVal > 0 && port.Port.IntVal <= f.port && f.port <= *port.EndPort
	case port.EndPort != nil:
		return false
	}
	owner := f.subject
	if f.egress {
		if owner = c.podWith(f.peer); owner == nil {
			return false
		}
	}
	return slices.ContainsFunc(owner.Spec.Containers[0].Ports, func(cp corev1.ContainerPort) bool {
		return cp.Name == port.Port.StrVal && cp.ContainerPort == f.port && cp.Protocol == f.protocol
	})
}

// matches evaluates a selector; valid is false if it has an unknown operator.
func matches(s *metav1.LabelSelector, labels map[string]string) (selects, valid bool) {
	selects = true
	for key, want := range s.MatchLabels {
		if got, ok := labels[key]; !ok || got != want {
			selects = false
		}
	}
	for _, e := range s.MatchExpressions {
		value, ok := labels[e.Key]
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			selects = selects && ok && slices.Contains(e.Values, value)
		case metav1.LabelSelectorOpNotIn:
			selects = selects && !(ok && slices.Contains(e.Values, value))
		case metav1.LabelSelectorOpExists:
			selects = selects && ok
		case metav1.LabelSelectorOpDoesNotExist:
			selects = selects && !ok
		default:
			return false, false
		}
	}
	return selects, true
}

// state makes the state of policies from translated objects as the daemon does.
func (c *cluster) state(t *testing.T) *policy.State {
	t.Helper()
	s := &policy.State{Entities: map[string]*policy.Entity{}, Namespaces: map[string]*policy.Namespace{}, Policies: map[string]*policy.Policy{}}
	for _, o := range Tiers() { // in order
		var v api.TierSpec
		decode(t, o, &v)
		s.Tiers = append(s.Tiers, &policy.Tier{Name: o.Name, Always: policy.Always{Self: slices.Contains(v.Always, "self"), Node: slices.Contains(v.Always, "node")}})
	}
	c.addClusterState(t, s)
	for _, n := range c.namespaces {
		var v api.NamespaceSpec
		decode(t, Namespace(n), &v)
		s.Namespaces[n.Name] = &policy.Namespace{Labels: v.Labels}
	}
	var owners Addresses
	var compact []*Pod
	for _, p := range c.pods {
		compact = append(compact, NewPod(p))
		owners.Set(compact[len(compact)-1].Key(), compact[len(compact)-1])
	}
	for i, p := range compact {
		o := here.Entity(p, &owners)
		if o == nil {
			continue
		}
		var v api.EntitySpec
		decode(t, *o, &v)
		e := &policy.Entity{Name: o.Name, Set: "pods", Namespace: v.Namespace, Labels: v.Labels}
		for _, named := range v.Ports {
			e.Ports = append(e.Ports, policy.NamedPort{Name: named.Name, Protocol: protocols[named.Protocol], Number: uint16(named.Port)})
		}
		if v.Endpoint != nil {
			e.Endpoint = v.Endpoint.Pod
			v.Addresses = nil
			for _, ip := range c.pods[i].Status.PodIPs {
				v.Addresses = append(v.Addresses, ip.IP)
			}
		}
		for _, text := range v.Addresses {
			e.Addrs = append(e.Addrs, netip.MustParseAddr(text))
		}
		s.Entities[o.Name] = e
	}
	for _, p := range c.policies {
		o := Translate(p, nil).Object
		var v api.PolicySpec
		decode(t, o, &v)
		s.Policies[o.Name] = policyOf(t, o.Name, &v)
	}
	return s
}

var protocols = map[string]policy.Protocol{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP}

func decode(t *testing.T, o api.Object, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(o.Spec)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s/%s: %v", o.Kind, o.Name, err)
	}
}

func policyOf(t *testing.T, name string, v *api.PolicySpec) *policy.Policy {
	t.Helper()
	p := &policy.Policy{Name: name, Tier: v.Tier, Priority: 1000, Staged: v.Stage == "staged", Rejects: v.IsolateAction == "reject"}
	if v.Priority != nil {
		p.Priority = int(*v.Priority)
	}
	p.Isolates = [2]bool{policy.Ingress: slices.Contains(v.Isolate, "ingress"), policy.Egress: slices.Contains(v.Isolate, "egress")}
	for _, s := range v.AppliedTo {
		p.AppliedTo = append(p.AppliedTo, selectorOf(s.Set, s.Namespaces, s.Entities))
	}
	for _, r := range v.Ingress {
		p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], ruleOf(t, r.Action, r.From, r.Ports))
	}
	for _, r := range v.Egress {
		p.Rules[policy.Egress] = append(p.Rules[policy.Egress], ruleOf(t, r.Action, r.To, r.Ports))
	}
	return p
}

func ruleOf(t *testing.T, action string, peers []api.PolicyPeer, ports []api.PolicyPort) (r policy.Rule) {
	t.Helper()
	n := slices.Index(api.PolicyActions, action)
	if n < 0 {
		t.Fatalf("action %q", action)
	}
	r.Action = policy.Action(n)
	for _, p := range peers {
		peer := policy.Peer{}
		peer.Names = p.Names
		if len(p.Prefixes)+len(p.Names) == 0 {
			s := selectorOf(p.Set, p.Namespaces, p.Entities)
			peer.Entities = &s
		}
		for _, w := range p.Prefixes {
			peer.Prefixes = append(peer.Prefixes, netip.MustParsePrefix(string(w)))
		}
		for _, w := range p.Except {
			peer.Except = append(peer.Except, netip.MustParsePrefix(string(w)))
		}
		r.Peers = append(r.Peers, peer)
	}
	for _, p := range ports {
		port := policy.Port{Protocol: protocols[p.Protocol], Name: p.Name, Last: 65535}
		if p.Port != nil {
			port.First, port.Last = uint16(*p.Port), uint16(*p.Port)
		}
		if p.End != nil {
			port.Last = uint16(*p.End)
		}
		r.Ports = append(r.Ports, port)
	}
	return r
}

func selectorOf(set string, n *api.NamespaceSelector, e *api.LabelSelector) policy.Selector {
	s := policy.Selector{Set: cmp.Or(set, "pods")}
	if n != nil {
		s.Namespaces = &policy.NamespaceSelector{Names: n.Names, Labels: requirementsOf(n.MatchLabels, n.MatchExpressions)}
	}
	if e != nil {
		s.Labels = requirementsOf(e.MatchLabels, e.MatchExpressions)
	}
	return s
}

func requirementsOf(labels map[string]string, expressions []api.LabelExpression) (r policy.Requirements) {
	for key, value := range labels {
		r = append(r, policy.Requirement{Key: key, Operator: policy.In, Values: []string{value}})
	}
	operators := []string{"In", "NotIn", "Exists", "DoesNotExist"}
	for _, e := range expressions {
		r = append(r, policy.Requirement{Key: e.Key, Operator: policy.Operator(slices.Index(operators, e.Operator)), Values: e.Values})
	}
	return r
}

// TestRandomClusters compares the translation, evaluated as the daemon does, with an evaluator of
// NetworkPolicies and ClusterNetworkPolicies. -cases sets the number of clusters.
func TestRandomClusters(t *testing.T) {
	numbers := map[corev1.Protocol]policy.Protocol{corev1.ProtocolTCP: policy.TCP, corev1.ProtocolUDP: policy.UDP, corev1.ProtocolSCTP: policy.SCTP}
	denied, total := 0, 0
	for seed := range *cases {
		g := generator{rand.New(rand.NewPCG(uint64(seed), 18))}
		c := g.cluster()
		s := c.state(t)
		peers := []netip.Addr{{}, {}, netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("10.244.2.200"), netip.MustParseAddr("2001:db8:2::99")}
		for _, p := range c.pods {
			for _, ip := range p.Status.PodIPs {
				peers = append(peers, netip.MustParseAddr(ip.IP))
			}
		}
		for _, subject := range c.pods {
			e := s.Entities[EntityName(subject.Namespace, subject.Name)]
			if e == nil || e.Endpoint == "" {
				continue
			}
			for range 100 {
				f := flow{subject, g.chance(50), pick(g, peers...), pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP), pick[int32](g, 80, 81, 82, 90, 91)}
				direction := policy.Ingress
				if f.egress {
					direction = policy.Egress
				}
				traffic := policy.Traffic{Peer: f.peer, Node: !f.peer.IsValid(), Protocol: numbers[f.protocol], Port: uint16(f.port)}
				if f.peer.Is4() { // www.example.org has all IPv4 addresses
					traffic.Names = []string{"*.example.org", "www.example.org"}
				}
				got := s.Evaluate(e, direction, traffic, false)
				want := c.allowed(f)
				total++
				if !want {
					denied++
				}
				if (got.Action == policy.Allow) != want {
					raw, _ := json.MarshalIndent(c.policies, "", " ")
					more, _ := json.MarshalIndent(c.cluster, "", " ")
					t.Fatalf("seed %d: %s/%s %v of %s port %d with %s: %+v, want allowed: %v\n%s\n%s", seed, subject.Namespace, subject.Name, direction, f.protocol, f.port, f.peer, got, want, raw, more)
				}
			}
		}
	}
	if denied < total/10 || denied > total*9/10 {
		t.Errorf("%d of %d flows are denied: the clusters say little", denied, total)
	}
}
