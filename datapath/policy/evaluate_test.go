// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath/policy"
)

// TestEvaluateLargeState: the Entity of the peer is not searched once for each rule.
func TestEvaluateLargeState(t *testing.T) {
	s := &policy.State{Entities: map[string]*policy.Entity{}, Tiers: []*policy.Tier{{Name: "main"}}}
	for i := range 20_000 {
		name := fmt.Sprint("e", i)
		s.Entities[name] = &policy.Entity{Name: name, Set: "pods", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}}
	}
	subject := s.Entities["e7"]
	subject.Endpoint = "pod"
	p := &policy.Policy{Name: "p", Tier: "main", AppliedTo: []policy.Selector{{Set: "pods"}}, Isolates: [2]bool{true, true}}
	for range 4000 {
		p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], policy.Rule{Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}})
	}
	s.Policies = map[string]*policy.Policy{"p": p}
	begin := time.Now()
	v := s.Evaluate(subject, policy.Ingress, policy.Traffic{Peer: netip.MustParseAddr("203.0.113.7"), Protocol: policy.TCP, Port: 4660}, false)
	if v != (policy.Verdict{Action: policy.Deny, Tier: "main", Policy: "p", Rule: -1}) {
		t.Errorf("verdict %+v", v)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the verdict took %s", took)
	}
}

// TestIsolationRejects: the first policy that isolates decides how traffic is denied. A later rule of
// the tier still allows it.
func TestIsolationRejects(t *testing.T) {
	everyone := []policy.Selector{{Set: "pods"}}
	drops := &policy.Policy{Name: "a", Tier: "main", AppliedTo: everyone, Isolates: [2]bool{policy.Egress: true}}
	rejects := &policy.Policy{Name: "b", Tier: "main", AppliedTo: everyone, Isolates: [2]bool{true, true}, Rejects: true}
	rejects.Rules[policy.Ingress] = []policy.Rule{{Action: policy.Allow, Ports: []policy.Port{{Protocol: policy.TCP, First: 80, Last: 80}}}}
	s := &policy.State{
		Entities: map[string]*policy.Entity{"e": {Name: "e", Set: "pods", Endpoint: "pod", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.7")}}},
		Tiers:    []*policy.Tier{{Name: "main"}}, Policies: map[string]*policy.Policy{"a": drops, "b": rejects},
	}
	for _, tt := range []struct {
		d    policy.Direction
		port uint16
		want policy.Verdict
	}{
		{policy.Ingress, 80, policy.Verdict{Action: policy.Allow, Tier: "main", Policy: "b", Rule: 0}},
		{policy.Ingress, 81, policy.Verdict{Action: policy.Reject, Tier: "main", Policy: "b", Rule: -1}},
		{policy.Egress, 81, policy.Verdict{Action: policy.Deny, Tier: "main", Policy: "a", Direction: policy.Egress, Rule: -1}},
	} {
		traffic := policy.Traffic{Peer: netip.MustParseAddr("203.0.113.7"), Protocol: policy.TCP, Port: tt.port}
		if v := s.Evaluate(s.Entities["e"], tt.d, traffic, false); v != tt.want {
			t.Errorf("%s %d: %+v, want %+v", tt.d, tt.port, v, tt.want)
		}
	}
}
