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

// policy applies a NetworkPolicy.
func (p *space) policy(name, spec string) {
	p.t.Helper()
	p.apply(fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: {%s}}", name, spec))
}

// label changes a label of a pod.
func (p *space) label(pod, label string) {
	p.t.Helper()
	if _, err := p.Kubectl("", "-n", p.name, "label", "--overwrite", "pod", pod, label); err != nil {
		p.t.Fatal(err)
	}
}

// verdict compares what llcli policy check says, on the node of the pod to, about TCP to port 8080.
func (p *space) verdict(n *testk8s.Node, from, to, want string) {
	p.t.Helper()
	out := p.llcli(n, "policy", "check", p.name+"/"+from, p.name+"/"+to, "tcp/8080")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "→") && !strings.HasPrefix(line, want) {
			p.t.Errorf("%s to %s, want %s:\n%s", from, to, want, out)
		}
	}
	if !strings.Contains(out, "→") {
		p.t.Errorf("%s to %s, want %s:\n%s", from, to, want, out)
	}
}

// delete deletes an object, and waits for it.
func (p *space) delete(kind, name string) {
	p.t.Helper()
	if _, err := p.Kubectl("", "-n", p.name, "delete", kind, name); err != nil {
		p.t.Fatal(err)
	}
}

// addresses are the addresses of a pod with a port, of all families.
func addresses(pod *testk8s.Object, port uint16) (all []netip.AddrPort) {
	for _, ip := range pod.Status.PodIPs {
		all = append(all, netip.AddrPortFrom(ip.IP, port))
	}
	return all
}

// may waits until clients reach some servers, or not.
func may(t *testing.T, when string, allowed bool, servers []netip.AddrPort, clients ...client) {
	t.Helper()
	for _, c := range clients {
		for _, server := range servers {
			soon(t, fmt.Sprintf("%s: %s reaches %s: %t", when, c.name, server, allowed), func() bool {
				_, err := c.getWithin(500*time.Millisecond, server, "/hostname")
				return (err == nil) == allowed
			})
		}
	}
}

// TestNetworkPolicy: who reaches a pod and whom it reaches follows NetworkPolicies, by labels of pods
// and namespaces and by addresses, directly and through Services, also for running connections.
func TestNetworkPolicy(t *testing.T) {
	p := newSpace(t)
	db := p.pod("db", "node2", "app: db", "")
	svc := p.service("db", "type: NodePort, externalTrafficPolicy: Local, selector: {app: db}, ports: [{port: 80, targetPort: 8080}]")
	near := p.inside(p.pod("near", "node2", "role: friend", ""))
	far := p.inside(p.pod("far", "node1", "role: friend", ""))
	guest := p.inside(p.pod("guest", "node3", "role: guest", ""))
	inside := append(addresses(db, 8080), clusterIPs(svc, 0)...)
	node, outside, ports := on(p.Nodes[1]), p.outside(), nodePorts(p.Nodes[1], svc, 0)
	may(t, "without policies", true, inside, near, far, guest, node)
	may(t, "without policies", true, ports, outside)
	kept := map[string]*longLived{}
	for _, c := range []client{near, far, guest} {
		kept[c.name] = openLongLived(t, c, inside[0])
		if _, err := kept[c.name].ask(); err != nil {
			t.Fatal(err)
		}
	}

	p.policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}], ports: [{port: 8080}]}]")
	may(t, "friends only", false, inside, guest)
	may(t, "friends only", false, ports, outside)
	may(t, "friends only", true, inside, near, far, node)
	for from, want := range map[string]string{"guest": "deny", "near": "allow", "far": "allow"} {
		p.verdict(p.Nodes[1], from, "db", want)
	}
	if list := p.llcli(p.Nodes[1], "k8s", "policies", "-n", p.name); !strings.Contains(list, "db") || !strings.Contains(list, "Ready") {
		t.Errorf("llcli k8s policies:\n%s", list)
	}
	for _, c := range []client{near, far} {
		if _, err := kept[c.name].ask(); err != nil {
			t.Errorf("the connection of %s: %v", c.name, err)
		}
	}
	if name, err := kept[guest.name].ask(); err == nil {
		t.Errorf("the connection of %s continues: %s answers", guest.name, name)
	}
	for _, c := range []client{far, near} {
		if answer, err := c.ask(netip.AddrPortFrom(inside[0].Addr(), 8081), 0, "hostname"); err == nil {
			t.Errorf("%s reaches another port: %q", c.name, answer)
		}
	}

	p.label("guest", "role=friend")
	may(t, "the guest is a friend", true, inside, guest)
	p.label("guest", "role=guest")
	may(t, "the guest is no friend again", false, inside, guest)
	p.label("db", "app=other")
	may(t, "another label of the server", true, addresses(db, 8080), guest)
	p.label("db", "app=db")
	may(t, "its label again", false, inside, guest)

	// With every daemon and agent killed, packets obey as before.
	for _, program := range []string{"loxilight-agent", "loxilightd"} {
		for _, pid := range p.processes(t, p.Nodes[1], "/usr/sbin/"+program) {
			p.Nodes[1].MustRun(t, "kill", "-9", fmt.Sprint(pid))
		}
	}
	for range 10 {
		if _, err := guest.getWithin(200*time.Millisecond, inside[0], "/hostname"); err == nil {
			t.Fatal("the guest reaches the server while the daemon restarts")
		}
	}
	may(t, "with the daemon killed", true, inside, near, far)

	var blocks []string
	for _, f := range p.Families {
		bits := 32
		if f.Outside.Is6() {
			bits = 128
		}
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: %s/%d}}", f.Outside, bits))
	}
	p.policy("outside", "podSelector: {}, policyTypes: [Ingress], ingress: [{from: ["+strings.Join(blocks, ", ")+"]}]")
	may(t, "an address outside", true, ports, outside)
	may(t, "an address outside", false, inside, guest)

	// Egress, and the labels of another namespace.
	other := newSpaceNamed(t, p.name+"-far")
	target := other.pod("target", "node1", "app: target", "")
	may(t, "another namespace", true, addresses(target, 8080), guest)
	p.policy("out", "podSelector: {matchLabels: {role: guest}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {team: far}}}], ports: [{port: 8080}]}]")
	may(t, "egress", false, addresses(target, 8080), guest)
	if _, err := p.Kubectl("", "label", "namespace", other.name, "team=far"); err != nil {
		t.Fatal(err)
	}
	may(t, "the label of its namespace", true, addresses(target, 8080), guest)

	for _, name := range []string{"db", "outside", "out"} {
		p.delete("networkpolicy", name)
	}
	may(t, "without policies again", true, inside, near, far, guest, node)
	may(t, "without policies again", true, ports, outside)
}

// TestPodWaitsForAgent: while the agent is stopped, a new pod does not start, and an event says why;
// it starts when the agent continues, under the policy that was created in between.
func TestPodWaitsForAgent(t *testing.T) {
	p := newSpace(t)
	client := p.inside(p.pod("client", "node1", "role: client", ""))
	agents := p.processes(t, p.Nodes[1], "/usr/sbin/loxilight-agent")
	if len(agents) != 1 {
		t.Fatalf("agents %v on %s", agents, p.Nodes[1].Name)
	}
	pid := fmt.Sprint(agents[0])
	p.Nodes[1].MustRun(t, "kill", "-STOP", pid)
	t.Cleanup(func() { _, _ = p.Nodes[1].Run("kill", "-CONT", pid) }) // it may have been restarted
	p.policy("closed", "podSelector: {matchLabels: {app: late}}, policyTypes: [Ingress]")
	p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: late, labels: {name: late, app: late}}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: %s, imagePullPolicy: Never, args: [netexec, --http-port=8080]}]
`, testk8s.Agnhost))
	testnet.Eventually(t, 60*time.Second, "an event says why the pod does not start", func() bool {
		out, err := p.Kubectl("", "-n", p.name, "get", "events", "-o", "jsonpath={.items[*].message}")
		return err == nil && strings.Contains(out, "no Entity names pod "+p.name+"/late")
	})
	p.Nodes[1].MustRun(t, "kill", "-CONT", pid)
	late := p.ReadyPods(t, p.name, "name%3Dlate", 1)[0]
	if _, err := client.getWithin(time.Second, addresses(&late, 8080)[0], "/hostname"); err == nil {
		t.Error("a client reaches the pod, which its policy forbids")
	}
	p.delete("networkpolicy", "closed")
	may(t, "without the policy", true, addresses(&late, 8080), client)
}
