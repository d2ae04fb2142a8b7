// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestLocal: with policy Local, the client's address is kept, and a node without servers reports
// that to the load balancer.
func TestLocal(t *testing.T) {
	p := newSpace(t)
	server := p.pod("web", "node2", "app: web", "")
	svc := p.service("web", "type: NodePort, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	out := p.outside()
	for i, at := range nodePorts(p.Nodes[1], svc, 0) {
		serves(t, out, at, 1)
		who, err := out.get(at, "/clientip")
		if source, parseErr := netip.ParseAddrPort(who); err != nil || parseErr != nil || source.Addr() != p.Outsides()[i] {
			t.Errorf("the server sees %q, %v by %s; want the client's own address", who, err, at)
		}
	}
	for _, at := range nodePorts(p.Nodes[0], svc, 0) {
		if _, err := out.getWithin(1500*time.Millisecond, at, "/hostname"); err == nil {
			t.Errorf("a node without a server serves at %s", at)
		}
	}
	for _, n := range p.Nodes { // pods reach all servers through their own node
		pod := p.pod("client-"+n.Name, n.Name, "role: client", "")
		for _, at := range nodePorts(n, svc, 0) {
			serves(t, p.inside(pod), at, 1)
		}
	}

	p.service("balanced", "type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	port := p.getService("balanced").Spec.HealthCheckNodePort
	for _, n := range p.Nodes {
		want := 0
		if n.Name == server.Spec.NodeName {
			want = 1
		}
		at := netip.AddrPortFrom(n.IP(), port)
		var text string
		var err error
		soon(t, fmt.Sprintf("%s says that it has %d servers", n.Name, want), func() bool {
			text, err = out.get(at, "/")
			var said struct{ LocalEndpoints int }
			return strings.Contains(text+fmt.Sprint(err), fmt.Sprintf(`"localEndpoints": %d`, want)) ||
				json.Unmarshal([]byte(text), &said) == nil && said.LocalEndpoints == want && (err == nil) == (want > 0)
		})
		if (err == nil) != (want > 0) {
			t.Errorf("%s answers %v, want success where there are servers", n.Name, err)
		}
	}
	inner := p.service("inner", "internalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	serves(t, on(p.Nodes[1]), clusterIP(inner, 0), 1)
	if _, err := on(p.Nodes[0]).getWithin(1500*time.Millisecond, clusterIP(inner, 0), "/hostname"); err == nil {
		t.Error("internal policy Local: another node's server answers")
	}
}
