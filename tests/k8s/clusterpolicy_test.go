// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
)

// defineClusterPolicies gives the cluster the resource ClusterNetworkPolicy until the test ends.
func (s *site) defineClusterPolicies(t *testing.T) {
	t.Helper()
	text, err := s.NetworkPolicyAPI()
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(t, text)
	t.Cleanup(func() { s.undefineClusterPolicies(t) })
	testnet.Eventually(t, 30*time.Second, "the API server serves ClusterNetworkPolicies", func() bool {
		_, err := s.Kubectl("", "get", "clusternetworkpolicies")
		return err == nil
	})
}

func (s *site) undefineClusterPolicies(t *testing.T) {
	t.Helper()
	if _, err := s.Kubectl("", "delete", "--ignore-not-found", "crd", "clusternetworkpolicies.policy.networking.k8s.io"); err != nil {
		t.Error(err)
	}
}

// clusterPolicy applies a ClusterNetworkPolicy.
func (p *space) clusterPolicy(name, spec string) {
	p.t.Helper()
	p.Apply(p.t, fmt.Sprintf("{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: %s}, spec: {%s}}", name, spec))
}

func (p *space) deleteClusterPolicy(name string) {
	p.t.Helper()
	if _, err := p.Kubectl("", "delete", "clusternetworkpolicy", name); err != nil {
		p.t.Fatal(err)
	}
}

// onHost creates a server with the network of a node, and returns its addresses.
func (p *space) onHost(name, node string) []netip.AddrPort {
	p.t.Helper()
	const port = 18080
	p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {name: %[1]s}}
spec:
  nodeName: %[2]s
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: web
      image: %[3]s
      imagePullPolicy: Never
      args: [netexec, --http-port=%[4]d, --udp-port=-1]
`, name, node, testk8s.Agnhost, port))
	return addresses(&p.ReadyPods(p.t, p.name, "name%3D"+name, 1)[0], port)
}

// TestClusterNetworkPolicy: the tiers around NetworkPolicies, by labels of pods, namespaces and nodes,
// by addresses and by names of ports, and what the policy says of itself.
func TestClusterNetworkPolicy(t *testing.T) {
	p := newSpace(t)
	p.defineClusterPolicies(t)
	db := p.pod("db", "node2", "app: db", "      ports: [{name: http, containerPort: 8080}]")
	svc := p.service("db", "selector: {app: db}, ports: [{port: 80, targetPort: 8080}]")
	near := p.inside(p.pod("near", "node2", "role: friend", ""))
	far := p.inside(p.pod("far", "node1", "role: friend", ""))
	guest := p.inside(p.pod("guest", "node3", "role: guest", ""))
	inside := append(addresses(db, 8080), clusterIPs(svc, 0)...)
	itself := p.inside(db)
	node := p.Nodes[1]
	ofNode, ofOther := p.onHost("host2", "node2"), p.onHost("host3", "node3")
	own := "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: " + p.name + "}}"
	subject := func(app string) string {
		return "subject: {pods: {" + own + ", podSelector: {matchLabels: {" + app + "}}}}"
	}
	peer := func(label string) string { return "{pods: {" + own + ", podSelector: {matchLabels: {" + label + "}}}}" }
	may(t, "without policies", true, inside, near, far, guest, on(node), itself)
	kept := openLongLived(t, guest, inside[0])
	if _, err := kept.ask(); err != nil {
		t.Fatal(err)
	}

	// Tier Admin precedes NetworkPolicies, and Pass leaves the decision to them.
	p.policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]")
	p.clusterPolicy("admin", "tier: Admin, priority: 20, "+subject("app: db")+", ingress: [{name: friends, action: Pass, from: ["+peer("role: friend")+
		"], protocols: [{destinationNamedPort: http}]}, {name: others, action: Deny, from: [{namespaces: {}}]}]")
	may(t, "admin denies", false, inside, guest)
	may(t, "admin passes friends, and the kubelet", true, inside, near, far, on(node))
	if name, err := kept.ask(); err == nil {
		t.Errorf("the connection of the guest continues: %s answers", name)
	}
	p.verdict(node, "guest", "db", "deny")
	p.verdict(node, "far", "db", "allow")
	if list := p.llcli(node, "k8s", "policies"); !strings.Contains(list, "admin  ") || !strings.Contains(list, "namespaces") {
		t.Errorf("llcli k8s policies:\n%s", list)
	}
	// A pod to itself: by its own address never evaluated, through a Service evaluated.
	may(t, "itself", true, addresses(db, 8080), itself)
	may(t, "itself through a Service", false, clusterIPs(svc, 0), itself)

	p.clusterPolicy("first", "tier: Admin, priority: 10, "+subject("app: db")+", ingress: [{action: Accept, from: ["+peer("role: guest")+"]}]")
	may(t, "a policy with precedence accepts", true, inside, guest)
	p.deleteClusterPolicy("first")
	may(t, "without it", false, inside, guest)
	p.policy("db", "podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]")
	may(t, "NetworkPolicies deny what passes", false, inside, near, far)
	p.delete("networkpolicy", "db")
	may(t, "without a NetworkPolicy", true, inside, near, far)
	p.deleteClusterPolicy("admin")

	// Tier Baseline decides for pods without a NetworkPolicy.
	p.clusterPolicy("baseline", "tier: Baseline, priority: 10, "+subject("app: db")+", ingress: [{action: Deny, from: [{namespaces: {}}]}]")
	may(t, "baseline denies", false, inside, near, far, guest)
	may(t, "the kubelet", true, inside, on(node))
	p.policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]")
	may(t, "a NetworkPolicy precedes baseline", true, inside, near, far)
	may(t, "a NetworkPolicy precedes baseline", false, inside, guest)
	p.delete("networkpolicy", "db")
	p.deleteClusterPolicy("baseline")

	// Egress to nodes and networks. Baseline evaluates egress although a NetworkPolicy selects the pod
	// for ingress.
	may(t, "nodes", true, append(ofNode, ofOther...), near)
	p.policy("near", "podSelector: {matchLabels: {role: friend}}, policyTypes: [Ingress], ingress: [{}]")
	p.clusterPolicy("nodes", "tier: Baseline, priority: 10, "+subject("role: friend")+", egress: [{action: Accept, to: [{nodes: {matchLabels: {kubernetes.io/hostname: node3}}}], "+
		"protocols: [{tcp: {destinationPort: {range: {start: 18079, end: 18080}}}}]}, {action: Deny, to: [{nodes: {}}]}]")
	may(t, "its own node", false, ofNode, near)
	may(t, "another node that is accepted", true, ofOther, near, far)
	may(t, "another node", false, ofNode, far)
	may(t, "probes", true, inside, on(node))
	p.deleteClusterPolicy("nodes")
	p.delete("networkpolicy", "near")
	var networks []string
	for _, a := range addresses(db, 0) {
		networks = append(networks, fmt.Sprintf("'%s/%d'", a.Addr(), a.Addr().BitLen()))
	}
	p.clusterPolicy("networks", "tier: Admin, priority: 10, "+subject("role: guest")+", egress: [{action: Deny, to: [{networks: ["+strings.Join(networks, ", ")+"]}]}]")
	may(t, "networks", false, inside, guest)
	may(t, "other networks", true, ofOther, guest)

	var everything []string
	for _, f := range p.Families {
		everything = append(everything, map[bool]string{true: "'::/0'", false: "0.0.0.0/0"}[f.Outside.Is6()])
	}
	may(t, "its own node", true, ofOther, guest)
	p.clusterPolicy("everything", "tier: Admin, priority: 10, "+subject("role: guest")+", egress: [{action: Deny, to: [{networks: ["+strings.Join(everything, ", ")+"]}]}]")
	may(t, "networks that contain everything", false, append(ofNode, ofOther...), guest)
	p.deleteClusterPolicy("everything")
	may(t, "without them", true, ofOther, guest)

	// An address is no name, although the resource permits it: an Accept rule matches nothing.
	p.clusterPolicy("names", "tier: Admin, priority: 5, "+subject("role: guest")+", egress: [{action: Accept, to: [{domainNames: ['*.example.org', 192.0.2.7]}]}]")
	may(t, "names", false, inside, guest)
	soon(t, "the condition names the field", func() bool {
		out, err := p.Kubectl("", "get", "clusternetworkpolicy", "names", "-o", "jsonpath={.status.conditions[*].message}")
		return err == nil && strings.Contains(out, "spec.egress[0].to[0].domainNames[1]")
	})
	soon(t, "an event names the field", func() bool {
		out, err := p.Kubectl("", "get", "events", "--field-selector=involvedObject.kind=ClusterNetworkPolicy,reason=LoxilightInvalid", "-o", "jsonpath={.items[*].message}")
		return err == nil && strings.Contains(out, "spec.egress[0].to[0].domainNames[1]")
	})
	soon(t, "a condition of a policy that is understood", func() bool {
		out, err := p.Kubectl("", "get", "clusternetworkpolicy", "networks", "-o", "jsonpath={.status.conditions[*].status}")
		return err == nil && out == "True"
	})

	// The resource ends with its policies, and returns.
	p.undefineClusterPolicies(t)
	may(t, "without the resource", true, inside, near, far, guest, itself)
	p.defineClusterPolicies(t)
	p.clusterPolicy("admin", "tier: Admin, priority: 20, "+subject("app: db")+", ingress: [{action: Deny, from: [{namespaces: {}}]}]")
	may(t, "the resource is back", false, inside, near, far, guest)
}

// TestPolicyRejects: senders on the same node are notified.
func TestPolicyRejects(t *testing.T) {
	p := newSpace(t)
	db := p.pod("db", "node2", "app: db", "")
	near := p.inside(p.pod("near", "node2", "role: friend", ""))
	p.apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, annotations: {loxilight.io/deny: reject}}, spec: {podSelector: {matchLabels: {app: db}}}}")
	for _, server := range addresses(db, 8080) {
		soon(t, "a client is refused by "+server.String(), func() bool {
			begin := time.Now()
			_, err := near.getWithin(5*time.Second, server, "/hostname")
			return err != nil && strings.Contains(err.Error(), "refused") && time.Since(begin) < time.Second
		})
	}
}
