// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/policies"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// rigPolicies are policies for the Endpoints a and b, behind in0 and out0.
type rigPolicies struct {
	*policies.Policies
	r *rig
	s policy.State
}

func (r *rig) policies(a, b netip.Addr) *rigPolicies {
	r.t.Helper()
	table, err := policies.Adopt(policies.Options{Tables: r.tables, Maps: r.maps, Raise: rules.NewEpoch(r.tables).RaisePorts, Released: func([]netip.Addr) {}, SetInUse: func(bool) error { return nil }})
	r.ok(err)
	r.ok(table.Attach("a", kernel.PolicyPortOf(r.in.index, 0)))
	r.ok(table.Attach("b", kernel.PolicyPortOf(r.out.index, 0)))
	entity := func(name string, addr netip.Addr) *policy.Entity {
		return &policy.Entity{Name: name, Set: "pods", Labels: map[string]string{"app": name}, Endpoint: name, Addrs: []netip.Addr{addr}}
	}
	return &rigPolicies{table, r, policy.State{
		Entities: map[string]*policy.Entity{"a": entity("a", a), "b": entity("b", b)},
		Tiers:    []*policy.Tier{{Name: "tier", Always: policy.Always{Node: true}}},
	}}
}

func pod(name string) policy.Selector {
	return policy.Selector{Set: "pods", Labels: policy.Requirements{{Key: "app", Operator: policy.In, Values: []string{name}}}}
}

// set puts one policy in force: for an Endpoint in a direction, which is isolated but for these rules.
func (p *rigPolicies) set(of string, d policy.Direction, list ...policy.Rule) {
	p.r.t.Helper()
	one := &policy.Policy{Name: "one", Tier: "tier", AppliedTo: []policy.Selector{pod(of)}}
	one.Isolates[d], one.Rules[d] = true, list
	s := p.s
	s.Policies = map[string]*policy.Policy{"one": one}
	p.r.ok(p.Update(context.Background(), datapath.NodeSet, &s))
}

// to returns a rule for traffic with an Endpoint on a port.
func to(action policy.Action, peer string, proto uint8, port uint16) policy.Rule {
	other := pod(peer)
	return policy.Rule{
		Action: action, Peers: []policy.Peer{{Entities: &other}},
		Ports: []policy.Port{{Protocol: policy.Protocol(proto), First: port, Last: port}},
	}
}

// TestPolicyOfConnections: policies of either end decide about the first packet, which creates no entry
// if it is denied; about each packet of a connection after they have changed, whichever end sends
// first; and about no others. Plain connections, and connections to services, with and without SNAT.
func TestPolicyOfConnections(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			for mode, open := range map[string]func(r *rig) path{
				"plain":         func(r *rig) path { return rigPlain(r, f, proto) },
				"service":       func(r *rig) path { return r.connect(f, proto, natModes[0]) },
				"service, SNAT": func(r *rig) path { return r.connect(f, proto, natModes[1]) },
			} {
				for _, end := range []policyEnd{{"b", policy.Ingress, "a"}, {"a", policy.Egress, "b"}} {
					t.Run(f.name+"/"+name+"/"+mode+"/"+end.name, func(t *testing.T) {
						r := base.fresh(t)
						way := open(r)
						p := r.policies(f.client.Addr(), f.far.Addr())
						defer func() { r.ok(p.Delete(context.Background(), datapath.NodeSet)) }()
						p.decide(way, end)
					})
				}
			}
		}
	}
}

// policyEnd is an Endpoint with a policy, and the other end of its connections.
type policyEnd struct {
	name string
	d    policy.Direction
	peer string
}

// decide runs a connection under policies of one end.
func (p *rigPolicies) decide(way path, end policyEnd) {
	r, dropped := p.r, uint64(0)
	shot := func(what string, dev rigPort, frame []byte) {
		r.t.Helper()
		r.step(what, dev, frame, actShot, frame)
		if dropped++; r.counters()["DROP_POLICY"] != dropped {
			r.t.Errorf("%s: counters %v, want %d drops by policies", what, r.counters(), dropped)
		}
	}
	first := packet(r.in.arrives(), way.proto, way.client, way.vip, stageOpen, 61)
	forth := packet(r.in.arrives(), way.proto, way.client, way.vip, stageData, 61)
	back := packet(r.out.arrives(), way.proto, way.backend, way.source, stageData, 61)
	port := way.backend.Port()
	p.set(end.name, end.d)
	shot("isolated "+end.name, r.in, first)
	p.set(end.name, end.d, to(policy.Allow, end.peer, way.proto, port+1), to(policy.Allow, end.name, way.proto, port), to(policy.Allow, end.peer, 0, port))
	shot("another port, peer or protocol", r.in, first)
	if n := r.entries(); n != 0 {
		r.t.Errorf("denied packets have created %d entries", n)
	}
	p.set(end.name, end.d, to(policy.Reject, end.peer, way.proto, port))
	if action, _ := r.run(r.ingress, r.in, first); action != actRedirect {
		r.t.Errorf("rejected: action %d, counters %v", action, r.counters())
	}
	dropped++
	p.set(end.name, end.d, to(policy.Allow, end.peer, way.proto, port))
	for s := stageOpen; s <= stageConfirm; s++ {
		r.slow("allowed", way, s)
	}
	data := func(what string) {
		r.t.Helper()
		r.nexthop(5, way.beport, 0, way.forth())
		r.nexthop(6, way.clientPort, 1, way.back())
		r.step(what, r.in, forth, actRedirect, packet(way.beport.leaves(), way.proto, way.source, way.backend, stageData, 60))
		r.step(what+", back", r.out, back, actRedirect, packet(way.clientPort.leaves(), way.proto, way.vip, way.client, stageData, 60))
	}
	data("allowed data")
	for i, frames := range [][2][]byte{{forth, back}, {back, forth}} {
		dev := [2]rigPort{r.in, r.out}
		p.set(end.name, end.d)
		shot("denied meanwhile", dev[i], frames[0])
		shot("denied meanwhile, the other way", dev[1-i], frames[1])
		shot("denied still", dev[i], frames[0])
		p.set(end.name, end.d, to(policy.Allow, end.peer, way.proto, port))
		data("allowed again")
	}
}

// TestPolicyOfNode: the node is a peer by the origin of its packets, not by its address: its own
// packets to an Endpoint are always allowed by this tier, others are not. The Endpoint's replies to
// them are, although it may not send.
func TestPolicyOfNode(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.policies(f.client.Addr(), f.far.Addr())
				defer func() { r.ok(p.Delete(context.Background(), datapath.NodeSet)) }()
				p.s.Policies = map[string]*policy.Policy{"all": {
					Name: "all", Tier: "tier", AppliedTo: []policy.Selector{pod("b")}, Isolates: [2]bool{true, true},
				}}
				r.ok(p.Update(context.Background(), datapath.NodeSet, &p.s))
				node := netip.AddrPortFrom(f.outAddr, 40123)
				sent := packet(r.out.leaves(), proto, node, f.far, stageOpen, 64)
				r.compare("from the node", r.egress, r.out, sent, actUnspec, sent)
				answer := packet(r.out.arrives(), proto, f.far, node, stageAnswer, 64)
				r.step("the answer", r.out, answer, actUnspec, answer)
				r.counted(map[string]uint64{"VERDICT_LOCAL": 1, "VERDICT_SLOW": 1})
				forged := packet(r.in.arrives(), proto, netip.AddrPortFrom(f.outAddr, 40124), f.far, stageOpen, 64)
				r.step("with the node's address", r.in, forged, actShot, forged)
				r.counted(map[string]uint64{"VERDICT_LOCAL": 1, "VERDICT_SLOW": 1, "DROP_POLICY": 1})
			})
		}
	}
}

// TestPolicyOfRest: packets that belong to no connection are evaluated too: of other protocols, later
// fragments, and what a group gets; neighbour discovery is exempt.
func TestPolicyOfRest(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.policies(f.client.Addr(), f.far.Addr())
			defer func() { r.ok(p.Delete(context.Background(), datapath.NodeSet)) }()
			gre := testpkt.Build(r.in.arrives(), otherHeader(f.client.Addr(), f.far.Addr(), 47), testpkt.Raw("\x00\x00\x08\x00payload"))
			p.set("b", policy.Ingress)
			r.step("GRE to b", r.in, gre, actShot, gre)
			p.set("b", policy.Ingress, to(policy.Allow, "a", testpkt.ProtoTCP, 80), policy.Rule{Action: policy.Allow, Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.PrefixFrom(f.client.Addr(), f.client.Addr().BitLen())}}}})
			r.step("GRE to b from an allowed prefix", r.in, gre, actUnspec, gre)
			p.set("a", policy.Egress, to(policy.Allow, "b", testpkt.ProtoTCP, 80))
			r.step("GRE from a", r.in, gre, actShot, gre)
			r.compare("GRE at the egress hook of b", r.egress, r.out, gre, actUnspec, gre) // of the node: b has no policy
			p.set("b", policy.Ingress)
			if f.name == "IPv6" {
				solicit := testpkt.Build(r.out.leaves(), testpkt.IPv6{Source: f.outAddr, Destination: solicited, HopLimit: 255}, testpkt.ICMP{V6: true, Type: 135}, testpkt.Raw(f.far.Addr().AsSlice()))
				r.compare("neighbour discovery", r.egress, r.out, solicit, actUnspec, solicit)
			}
			r.counted(map[string]uint64{"DROP_POLICY": 2})
		})
	}
}

// otherHeader returns an IP header for a protocol without ports.
func otherHeader(from, to netip.Addr, proto uint8) testpkt.Layer {
	if from.Is4() {
		return testpkt.IPv4{Source: from, Destination: to, TTL: 61, Protocol: proto}
	}
	return testpkt.IPv6{Source: from, Destination: to, HopLimit: 61, Protocol: proto}
}

// TestPolicyOfEcho: an echo request is evaluated like the first packet of any connection, by a rule for
// every protocol; the replies follow it.
func TestPolicyOfEcho(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.policies(f.client.Addr(), f.far.Addr())
			defer func() { r.ok(p.Delete(context.Background(), datapath.NodeSet)) }()
			request := ping(r.in.arrives(), f.client.Addr(), f.far.Addr(), true, 7, 61)
			reply := ping(r.out.arrives(), f.far.Addr(), f.client.Addr(), false, 7, 61)
			backwards := ping(r.out.arrives(), f.far.Addr(), f.client.Addr(), true, 8, 61)
			a := pod("a")
			every := policy.Rule{Action: policy.Allow, Peers: []policy.Peer{{Entities: &a}}}
			p.set("b", policy.Ingress, to(policy.Allow, "a", testpkt.ProtoTCP, 80))
			r.step("a rule for TCP", r.in, request, actShot, request)
			p.set("b", policy.Ingress, every)
			r.step("allowed", r.in, request, actUnspec, request)
			r.step("the reply", r.out, reply, actUnspec, reply)
			p.set("b", policy.Ingress)
			r.step("denied meanwhile", r.in, request, actShot, request)
			r.step("a reply meanwhile", r.out, reply, actShot, reply)
			r.step("a request of b", r.out, backwards, actUnspec, backwards)
			if n := r.counters()["DROP_POLICY"]; n != 3 {
				t.Errorf("%d drops by policies, want 3", n)
			}
		})
	}
}
