// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// hereObjects isolate the node itself; pods with label app=a may use port 8080 of the node, and the node
// their port 4660.
const hereObjects = `
kind: Entity
name: this-node
spec: {set: nodes, here: true}
---
kind: Tier
name: main
spec: {order: 200}
---
kind: Policy
name: lock
spec:
  tier: main
  isolate: [ingress, egress]
  appliedTo: [{set: nodes}]
  ingress: [{name: pods, action: allow, from: [{entities: {matchLabels: {app: a}}}], ports: [{protocol: tcp, port: 8080}]}]
  egress: [{action: allow, to: [{entities: {matchLabels: {app: a}}}], ports: [{protocol: tcp, port: 4660}]}]
`

// podObjects isolate pods with label app=a from the node.
const podObjects = `
kind: Policy
name: pod
spec:
  tier: main
  appliedTo: [{entities: {matchLabels: {app: a}}}]
  ingress: [{action: deny, from: [{set: nodes}]}]
  egress: [{action: deny, to: [{set: nodes}]}]
`

// TestPoliciesOfNodeAndPods: traffic between a pod and its node must be allowed by the policies of
// both; policies of the node decide neither about traffic that it forwards, nor about masqueraded
// traffic; and they decide about the addresses of the switch too.
func TestPoliciesOfNodeAndPods(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	pods := map[string]*pod{}
	for _, app := range []string{"a", "x"} {
		s.mustSetEntity(app, "u-"+app, app)
		p := s.newPodOf(app, "u-"+app)
		if err := s.tryAdd(list, p); err != nil {
			t.Fatal(err)
		}
		pods[app] = p
		for _, is4 := range []bool{true, false} {
			p.ServeTCP(t, net.JoinHostPort(p.address(is4).String(), "4660"), app)
		}
	}
	nodes, outside := []string{"192.0.2.1", "2001:db8:2::1"}, []string{"192.0.2.77", "2001:db8:2::77"}
	for i := range nodes {
		s.node.ServeTCP(t, net.JoinHostPort(nodes[i], "8080"), "node")
		s.outside.ServeTCP(t, net.JoinHostPort(outside[i], "8080"), "outside")
	}
	passes := func(from *testnet.NS, to, port string) bool {
		c, err := from.Dial("tcp", "", net.JoinHostPort(to, port), 500*time.Millisecond)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	wants := func(when string, aToNode, xToNode, nodeToA, nodeToX, gateway bool) {
		t.Helper()
		for i, is4 := range []bool{true, false} {
			for _, x := range []struct {
				what      string
				got, want bool
			}{
				{"a to the node", passes(pods["a"].NS, nodes[i], "8080"), aToNode},
				{"x to the node", passes(pods["x"].NS, nodes[i], "8080"), xToNode},
				{"the node to a", passes(s.node, pods["a"].address(is4).String(), "4660"), nodeToA},
				{"the node to x", passes(s.node, pods["x"].address(is4).String(), "4660"), nodeToX},
				{"x to its gateway", pods["x"].pingWithin(gateways[i], 500*time.Millisecond) == nil, gateway},
				{"x to the outside", passes(pods["x"].NS, outside[i], "8080"), true},
				{"the outside to x", passes(s.outside, pods["x"].address(is4).String(), "4660"), true},
				{"x to a", passes(pods["x"].NS, pods["a"].address(is4).String(), "4660"), true},
			} {
				if x.got != x.want {
					t.Errorf("%s, to %s: %s passes: %t, want %t", when, nodes[i], x.what, x.got, x.want)
				}
			}
		}
	}
	wants("without policies", true, true, true, true, true)
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(hereObjects))
	wants("the node is isolated", true, false, true, false, false)
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(podObjects))
	wants("a is isolated from the node", false, false, false, false, false)
	s.LLCLI("delete", "policy", "lock", "--wait", "5s")
	wants("only a has a policy", false, true, false, true, true)
	s.LLCLI("delete", "policy", "pod", "--wait", "5s")
	wants("again without policies", true, true, true, true, true)
}
