// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// TestHostPortsApart: three pods on one node have the same host port: at the loopback, at the
// node's address, and at the node's address over UDP. The node itself is the client.
func TestHostPortsApart(t *testing.T) {
	for _, f := range need(t).Families {
		t.Run(f.Name, func(t *testing.T) { hostPortsApart(t, f) })
	}
}

func hostPortsApart(t *testing.T, f *testk8s.Family) {
	const port = 54323
	p := newSpace(t)
	n := p.Nodes[1]
	self := client{name: n.Name, ns: n.NS, from: n.IPLike(f.Loopback)}
	// The kubelet's own rule drops packets to the loopback that do not come from the loopback,
	// unless the kubelet is configured not to create such rules.
	iptables, rule := "iptables", []string{"OUTPUT", "-o", "lo", "-p", "tcp", "--dport", fmt.Sprint(port), "-j", "ACCEPT"}
	if f.Six {
		iptables = "ip6tables"
	}
	if out, err := n.Run(iptables, append([]string{"-I"}, rule...)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := n.Run(iptables, append([]string{"-D"}, rule...)...); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	for _, of := range []struct {
		name, protocol string
		host           netip.Addr
	}{{"inner", "TCP", f.Loopback}, {"outer", "TCP", self.from}, {"words", "UDP", self.from}} {
		p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {name: %[1]s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
    - name: web
      image: %s
      imagePullPolicy: Never
      args: [netexec, --http-port=8080, --udp-port=8080]
      ports: [{containerPort: 8080, hostPort: %d, hostIP: %q, protocol: %s}]
      readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}`, of.name, n.Name, testk8s.Agnhost, port, of.host, of.protocol))
	}
	for _, name := range []string{"inner", "outer", "words"} {
		p.ReadyPods(t, p.name, "name%3D"+name, 1)
	}
	outer := netip.AddrPortFrom(self.from, port)
	for at, want := range map[netip.AddrPort]string{netip.AddrPortFrom(f.Loopback, port): "inner", outer: "outer"} {
		if name, err := self.get(at, "/hostname"); err != nil || name != want {
			t.Errorf("%s asks %s: %q, %v; want %s", self.name, at, name, err, want)
		}
	}
	if name, err := self.ask(outer, 0, "hostname"); err != nil || name != "words" {
		t.Errorf("%s asks %s by UDP: %q, %v", self.name, outer, name, err)
	}
}
