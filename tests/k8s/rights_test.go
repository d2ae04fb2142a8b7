// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// TestRights: the accounts have exactly the rights that they need.
func TestRights(t *testing.T) {
	s := need(t)
	s.defineClusterPolicies(t) // kubectl maps the name of the resource
	for account, rights := range map[string]struct{ may, mayNot []string }{
		"loxilight": {
			[]string{"list nodes", "watch services", "list endpointslices.discovery.k8s.io", "create events", "patch nodes/status",
				"list pods", "watch pods", "list namespaces", "watch namespaces", "list networkpolicies.networking.k8s.io", "watch networkpolicies.networking.k8s.io",
				"list clusternetworkpolicies.policy.networking.k8s.io", "watch clusternetworkpolicies.policy.networking.k8s.io"},
			[]string{"patch services/status", "update services/status", "update services", "create leases", "get leases", "patch pods", "patch namespaces",
				"patch networkpolicies.networking.k8s.io", "create networkpolicies.networking.k8s.io", "delete networkpolicies.networking.k8s.io",
				"patch clusternetworkpolicies.policy.networking.k8s.io/status", "patch clusternetworkpolicies.policy.networking.k8s.io"},
		},
		"loxilight-controller": {
			[]string{"list services", "watch services", "patch services/status", "create events", "create leases", "update leases/loxilight-addresses",
				"list clusternetworkpolicies.policy.networking.k8s.io", "patch clusternetworkpolicies.policy.networking.k8s.io/status"},
			[]string{"list nodes", "patch nodes/status", "update services", "list endpointslices.discovery.k8s.io", "get leases/other", "patch clusternetworkpolicies.policy.networking.k8s.io", "update clusternetworkpolicies.policy.networking.k8s.io/status", "list pods", "list namespaces", "list networkpolicies.networking.k8s.io"},
		},
	} {
		may := func(right string) bool {
			verb, what, _ := strings.Cut(right, " ")
			args := []string{"auth", "can-i", verb}
			if resource, name, found := strings.Cut(what, "/"); found && name == "status" {
				args = append(args, resource, "--subresource=status")
			} else {
				args = append(args, what)
			}
			out, _ := s.Kubectl("", append(args, "-n", "kube-system", "--as=system:serviceaccount:kube-system:"+account)...)
			return strings.HasPrefix(out, "yes")
		}
		for _, right := range rights.may {
			if !may(right) {
				t.Errorf("%s may not %s", account, right)
			}
		}
		for _, right := range append(rights.mayNot, "get secrets", "get nodes", "get pods", "get configmaps", "update nodes", "patch nodes", "delete nodes", "create pods", "get namespaces") {
			if may(right) {
				t.Errorf("%s may %s", account, right)
			}
		}
	}
}

// tokenOf returns a token that belongs to a pod of the DaemonSet on a node.
func (p *space) tokenOf(node string) string {
	t := p.t
	t.Helper()
	pods, err := p.Pods("kube-system", "app.kubernetes.io/name=loxilight")
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != node {
			continue
		}
		out, err := p.Kubectl("", "-n", "kube-system", "create", "token", "loxilight", "--bound-object-kind=Pod", "--bound-object-name="+pod.Metadata.Name, "--bound-object-uid="+pod.Metadata.UID)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	t.Fatalf("no pod of loxilight on %s", node)
	return ""
}

// try sends a patch, and compares the outcome with want: a part of the error, or empty for success.
func try(t *testing.T, api *testk8s.API, what, path, patch, want string) {
	t.Helper()
	_, err := api.Raw("PATCH", path, "application/strategic-merge-patch+json", patch)
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want an error with %q", what, err, want)
	default:
		t.Logf("%s: %v", what, err)
	}
}

// TestOwnNode: a token of the DaemonSet changes one condition of its own Node, and nothing else.
// A kubelet cannot write our annotations.
func TestOwnNode(t *testing.T) {
	p := newSpace(t)
	api := p.API.As(p.tokenOf("node2"))
	condition := func(kind, status string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Test","message":"test"}]}}`, kind, status)
	}
	const own, other = "/api/v1/nodes/node2/status", "/api/v1/nodes/node1/status"
	try(t, api, "its own condition", own, condition("NetworkUnavailable", "False"), "")
	try(t, api, "the condition of another node", other, condition("NetworkUnavailable", "True"), "only the status of its own node")
	try(t, api, "another condition of its own", own, condition("Ready", "False"), "only the condition NetworkUnavailable")
	try(t, api, "a new condition", own, condition("Mine", "True"), "only the condition NetworkUnavailable")
	try(t, api, "an address of its own", own, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.66"}]}}`, "addresses")
	try(t, api, "an address of another node", other, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.66"}]}}`, "only the status of its own node")
	try(t, api, "an annotation by the status", own, `{"metadata":{"annotations":{"loxilight.io/underlay":"192.0.2.66"}}}`, "annotations")
	try(t, api, "a label by the status", own, `{"metadata":{"labels":{"mine":"1"}}}`, "labels")
	try(t, api, "an annotation", "/api/v1/nodes/node2", `{"metadata":{"annotations":{"loxilight.io/underlay":"192.0.2.66"}}}`, "forbidden")
	p.service("web", "type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]")
	status := fmt.Sprintf("/api/v1/namespaces/%s/services/web/status", p.name)
	try(t, api, "the status of a Service", status, `{"status":{"loadBalancer":{"ingress":[{"ip":"10.222.0.11"}]}}}`, "forbidden")
	p.balancers("web") // the controller assigns them

	unbound, err := p.Kubectl("", "-n", "kube-system", "create", "token", "loxilight")
	if err != nil {
		t.Fatal(err)
	}
	try(t, p.API.As(strings.TrimSpace(unbound)), "a token of no node", own, condition("NetworkUnavailable", "False"), "only the status of its own node")

	kubelet := p.Kubeconfig(t, "node2-again", "system:node:node2", "system:nodes")
	for annotation, want := range map[string]bool{"loxilight.io/underlay": false, "loxilight.io/uplink": false, "example.com/mine": true} {
		_, err := p.Kubectl("", "--kubeconfig", kubelet, "annotate", "node", "node2", annotation+"=192.0.2.66")
		if (err == nil) != want {
			t.Errorf("a kubelet annotates its node with %s: %v", annotation, err)
		}
	}
	if _, err := p.Kubectl("", "annotate", "node", "node2", "example.com/mine-"); err != nil {
		t.Error(err)
	}
}

// TestUsers: loxilight's containers are not root unless necessary.
func TestUsers(t *testing.T) {
	s := need(t)
	for program, uid := range map[string]string{"/usr/sbin/loxilight-agent": "64252", "/usr/bin/llcli": "64253"} {
		for _, n := range s.Nodes {
			found := false
			for _, pid := range s.processes(t, n, program) {
				text, err := n.Run("cat", fmt.Sprintf("/proc/%d/status", pid))
				if err != nil || program == "/usr/bin/llcli" && strings.Contains(text, "Uid:\t0\t") {
					continue // it has ended, or it is a probe in the daemon's container
				}
				found = true
				for _, want := range []string{"Uid:\t" + uid + "\t" + uid, "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
					if !strings.Contains(text, want) {
						t.Errorf("%s on %s: no %q in\n%s", program, n.Name, want, text)
					}
				}
			}
			if !found {
				t.Errorf("no %s on %s", program, n.Name)
			}
		}
	}
}

// TestExternalIPsAreRefused: external IPs are rejected if they are not allowed, or belong to the
// cluster itself (S4).
func TestExternalIPsAreRefused(t *testing.T) {
	p := newSpace(t)
	p.pod("thief", "node3", "app: thief", "")
	foreign := map[*testk8s.Family]string{testk8s.IPv4: "8.8.8.8", testk8s.IPv6: "2001:db8:66::6"}[p.Families[0]]
	victim := p.pod("victim", "node2", "app: victim", "")
	for i, address := range []string{foreign, p.Nodes[0].IP().String(), victim.Status.PodIP.String()} {
		name := fmt.Sprint("thief", i)
		p.service(name, fmt.Sprintf("externalIPs: ['%s'], selector: {app: thief}, ports: [{port: 80, targetPort: 8080}]", address))
		soon(t, "an event says that "+address+" is refused", func() bool {
			out, err := p.Kubectl("", "-n", p.name, "get", "events", "--field-selector=reason=LoxilightInvalid,involvedObject.name="+name)
			return err == nil && strings.Contains(out, address+" is refused")
		})
		for _, n := range p.Nodes {
			if out := p.llcli(n, "get", "services", "-o", "json"); strings.Contains(out, netip.AddrPortFrom(netip.MustParseAddr(address), 80).String()+"/") {
				t.Errorf("%s serves %s", n.Name, address)
			}
		}
	}
}
