// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/policies"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// longerThanTick is a time after which a change of policies is older than the next packet.
const longerThanTick = 2 << 27 * time.Nanosecond

var everything = policy.Rule{Action: policy.Allow}

// done deletes the policies at the end of a test.
func (p *rigPolicies) done() { p.r.ok(p.Delete(context.Background(), datapath.NodeSet)) }

// behind returns policies for the Endpoint b alone, whose port is in the switch netns, behind out0.
func (r *rig) behind(b netip.Addr, port kernel.PolicyPortID) *rigPolicies {
	r.t.Helper()
	table, err := policies.Adopt(policies.Options{
		Tables: r.tables, Maps: r.maps, Raise: rules.NewEpoch(r.tables).RaisePorts,
		Released: func([]netip.Addr) {}, SetInUse: func(bool) error { return nil },
	})
	r.ok(err)
	r.ok(table.Attach("b", port))
	return &rigPolicies{table, r, policy.State{
		Entities: map[string]*policy.Entity{"b": {Name: "b", Set: "pods", Labels: map[string]string{"app": "b"}, Endpoint: "b", Addrs: []netip.Addr{b}}},
		Tiers:    []*policy.Tier{{Name: "tier", Always: policy.Always{Node: true}}},
	}}
}

// wantAction runs a frame through the ingress hook of dev.
func (r *rig) wantAction(what string, dev rigPort, frame []byte, want int32) {
	r.t.Helper()
	if got, _ := r.run(r.ingress, dev, frame); got != want {
		r.t.Errorf("%s: action %d, want %d; %v", what, got, want, r.counters())
	}
}

// TestPolicyOfMoved: a packet to a frontend that is about to leave through one port is evaluated for
// the Endpoint to which it is redirected; when it opens a connection, and after a change.
func TestPolicyOfMoved(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			way := r.connect(f, testpkt.ProtoUDP, natModes[0])
			p := r.policies(f.farRouter, f.far.Addr())
			defer p.done()
			frame := packet(r.in.leaves(), way.proto, way.client, way.vip, stageOpen, 61)
			back := packet(r.out.arrives(), way.proto, way.backend, way.client, stageAnswer, 61)
			sent := func(what string, want int32) {
				t.Helper()
				if got, _ := r.leave(rigPort{index: 1}, r.in, frame); got != want {
					t.Errorf("%s: action %d, want %d; %v", what, got, want, r.counters())
				}
			}
			p.set("b", policy.Ingress)
			sent("isolated", actShot)
			p.set("b", policy.Ingress, everything)
			sent("allowed", actRedirect)
			_, _ = r.run(r.ingress, r.out, back)
			r.nexthop(5, r.out, 0, way.forth())
			sent("data", actRedirect)
			time.Sleep(longerThanTick)
			p.set("b", policy.Ingress)
			for range 2 {
				sent("denied meanwhile", actShot)
				r.wantAction("the answer", r.out, back, actShot)
			}
		})
	}
}

// TestPolicyBehindLink: the host evaluates policies of Endpoints in the switch, before it translates the
// source of a packet: the switch sees the node as the client then. Changes reach running connections.
func TestPolicyBehindLink(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range []natMode{natModes[0], natModes[3]} {
			t.Run(f.name+"/"+m.name, func(t *testing.T) {
				r := base.fresh(t)
				way := r.connect(f, testpkt.ProtoUDP, m)
				p := r.behind(f.far.Addr(), kernel.PolicyPortOf(r.out.index+77, 1))
				defer p.done()
				var link kernel.Device
				r.ok(r.maps[kernel.MapLlDevice].Lookup(kernel.DeviceKey{Ifindex: r.out.index}, &link))
				link.Flags |= kernel.DeviceLink
				r.put(kernel.MapLlDevice, kernel.DeviceKey{Ifindex: r.out.index}, link)
				p.set("b", policy.Ingress)
				first := packet(r.in.arrives(), way.proto, way.client, way.vip, stageOpen, 61)
				r.wantAction("isolated", r.in, first, actShot)
				if got, _ := r.leave(rigPort{index: 1}, r.in, packet(r.in.leaves(), way.proto, way.client, way.vip, stageOpen, 61)); got != actShot {
					t.Errorf("isolated, at the egress hook: action %d", got)
				}
				p.set("b", policy.Ingress, everything)
				for s := stageOpen; s <= stageConfirm; s++ {
					r.slow("allowed", way, s)
				}
				r.nexthop(5, r.out, 0, way.forth())
				forth := packet(r.in.arrives(), way.proto, way.client, way.vip, stageData, 61)
				back := packet(r.out.arrives(), way.proto, way.backend, way.source, stageData, 61)
				for i, first := range []rigPort{r.in, r.out} {
					r.nexthop(5, r.out, 0, way.forth())
					r.nexthop(6, way.clientPort, 0, way.back())
					r.wantAction("data", r.in, forth, actRedirect)
					r.wantAction("data from the server", r.out, back, actRedirect)
					time.Sleep(longerThanTick)
					p.set("b", policy.Ingress)
					for k := range 4 { // whichever end sends first
						if (first == r.in) == (k%2 == 0) {
							r.wantAction("denied meanwhile", r.in, forth, actShot)
						} else {
							r.wantAction("denied meanwhile, from the server", r.out, back, actShot)
						}
					}
					if i == 0 {
						p.set("b", policy.Ingress, everything)
					}
				}
			})
		}
	}
}

// TestPolicyOfArrival: an Endpoint that may not send cannot use a connection that another host has
// opened with its address.
func TestPolicyOfArrival(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.policies(f.client.Addr(), f.farRouter)
				defer p.done()
				p.set("a", policy.Egress)
				time.Sleep(longerThanTick)
				r.guard(true)
				r.put(kernel.MapLlGuard, kernel.GuardKey{Ifindex: r.in.index, Addr: kernel.AddrOf(f.client.Addr())}, kernel.Guard{Mac: podMAC})
				arrives := testpkt.Ethernet{Source: podMAC, Destination: r.in.mac}
				r.wantAction("from a", r.in, packet(arrives, proto, f.client, f.far, stageOpen, 61), actShot)
				r.wantAction("from another port with its address", r.out, packet(r.out.arrives(), proto, f.client, f.far, stageOpen, 61), actUnspec)
				for range 3 {
					r.wantAction("from a, then", r.in, packet(arrives, proto, f.client, f.far, stageConfirm, 61), actShot)
				}
			})
		}
	}
}

// TestPolicyOfLink: in the switch netns, only packets through the link to the host are of the node.
func TestPolicyOfLink(t *testing.T) {
	r := newRig(t, func(s *ebpf.CollectionSpec) {
		if err := s.Variables[kernel.VarConfigNetns].Set(uint8(1)); err != nil {
			t.Fatal(err)
		}
	})
	f := families[0]
	node := netip.MustParseAddr("203.0.113.9") // of the host netns
	r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(node)}, uint8(1))
	p := r.behind(f.far.Addr(), kernel.PolicyPortOf(r.out.index, 1))
	defer p.done()
	p.set("b", policy.Ingress)
	frame := packet(r.in.arrives(), testpkt.ProtoUDP, netip.AddrPortFrom(node, 999), f.far, stageOpen, 61)
	r.wantAction("through another port", r.in, frame, actShot)
	r.put(kernel.MapLlDevice, kernel.DeviceKey{Ifindex: r.in.index, Netns: 1}, kernel.Device{MtuBytes: 1500, Mac: r.in.mac, Flags: kernel.DevicePort | kernel.DeviceLink})
	r.wantAction("through the link", r.in, frame, actUnspec)
}

// TestPolicyOfOtherAddresses: packets that leave through the port of an Endpoint to addresses that it
// does not have take no next hop there, since the egress hook of that port evaluates them: a next hop
// from before the policy, and one of SNAT at ingress.
func TestPolicyOfOtherAddresses(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name+"/next hop", func(t *testing.T) {
			r := base.fresh(t)
			way := rigPlain(r, f, testpkt.ProtoUDP)
			p := r.policies(f.client.Addr(), f.farRouter)
			defer p.done()
			p.set("b", policy.Ingress, everything)
			time.Sleep(longerThanTick)
			for s := stageOpen; s <= stageConfirm; s++ {
				r.slow("allowed", way, s)
			}
			r.nexthop(5, r.out, 0, way.forth())
			forth := packet(r.in.arrives(), way.proto, way.client, way.vip, stageData, 61)
			r.wantAction("data", r.in, forth, actRedirect)
			time.Sleep(longerThanTick)
			p.set("b", policy.Ingress)
			for range 3 {
				r.wantAction("denied at the egress hook", r.in, forth, actUnspec)
				time.Sleep(longerThanTick)
			}
			if got, _ := r.leave(r.in, r.out, packet(r.out.leaves(), way.proto, way.client, way.vip, stageData, 60)); got != actShot {
				t.Errorf("at the egress hook of b: action %d", got)
			}
		})
		t.Run(f.name+"/SNAT", func(t *testing.T) {
			r := base.fresh(t)
			r.knowNeighbours(f)
			r.translate(map[datapath.NATName]datapath.NAT{"away": sourceTypes["masquerade"].nat("out0")})
			p := r.policies(f.farRouter, f.vip.Addr())
			defer p.done()
			p.set("b", policy.Ingress)
			if got, _ := r.begins(f, testpkt.ProtoUDP, f.client); got != actUnspec {
				t.Errorf("action %d; %v", got, r.counters())
			}
		})
	}
}

// TestPolicyOfErrors: an ICMP error about a connection is dropped if policies deny the connection.
func TestPolicyOfErrors(t *testing.T) {
	base := newRig(t)
	f := families[0]
	r := base.fresh(t)
	way := rigPlain(r, f, testpkt.ProtoUDP)
	p := r.policies(f.client.Addr(), f.far.Addr())
	defer p.done()
	p.set("a", policy.Egress, everything)
	for s := stageOpen; s <= stageConfirm; s++ {
		r.slow("allowed", way, s)
	}
	quoted := packet(r.out.leaves(), way.proto, way.client, way.vip, stageData, 60)[14:]
	about := testpkt.Build(r.out.arrives(), testpkt.IPv4{Source: way.vip.Addr(), Destination: way.client.Addr(), TTL: 61, Protocol: 1},
		testpkt.ICMP{Type: 3, Code: 3}, testpkt.Raw(quoted))
	r.wantAction("allowed", r.out, about, actUnspec)
	p.set("a", policy.Egress)
	r.wantAction("denied", r.out, about, actShot)
	r.wantAction("data", r.in, packet(r.in.arrives(), way.proto, way.client, way.vip, stageData, 61), actShot)
	r.wantAction("denied still", r.out, about, actShot)
}

// TestPolicyOfFloods: a copy of the node's packet to another host, which a bridge floods to an Endpoint
// that rejects it, is dropped and not answered.
func TestPolicyOfFloods(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.policies(f.client.Addr(), f.farRouter)
		p.s.Tiers = []*policy.Tier{{Name: "tier"}}
		p.set("b", policy.Ingress, policy.Rule{Action: policy.Reject})
		frame := packet(r.out.leaves(), testpkt.ProtoTCP, netip.AddrPortFrom(f.outAddr, 40123), f.far, stageOpen, 64)
		r.compare(f.name, r.egress, r.out, frame, actShot, frame)
		r.counted(map[string]uint64{"DROP_POLICY": 1})
		p.done()
	}
}

// TestPolicyEpochTick: a change that takes until the next tick, during which packets arrive, is not
// older than these packets.
func TestPolicyEpochTick(t *testing.T) {
	base := newRig(t)
	f := families[0]
	r := base.fresh(t)
	way := rigPlain(r, f, testpkt.ProtoUDP)
	p := r.policies(f.client.Addr(), f.far.Addr())
	defer p.done()
	p.set("b", policy.Ingress, everything)
	for s := stageOpen; s <= stageConfirm; s++ {
		r.slow("allowed", way, s)
	}
	r.nexthop(5, r.out, 0, way.forth())
	forth := packet(r.in.arrives(), way.proto, way.client, way.vip, stageData, 61)
	time.Sleep(longerThanTick)
	real, slow := p.Raise, 3
	p.Raise = func(ports []kernel.PolicyPortID) error {
		kernel.AtStep = func(step string) error {
			if step == "raise last epoch" && slow > 0 {
				slow--
				time.Sleep(longerThanTick)
				_, _ = r.run(r.ingress, r.in, forth)
			}
			return nil
		}
		defer func() { kernel.AtStep = func(string) error { return nil } }()
		return real(ports)
	}
	p.set("b", policy.Ingress)
	if slow != 0 {
		t.Errorf("the epoch was raised %d times less than expected", slow)
	}
	for range 3 {
		r.wantAction("after the change", r.in, forth, actShot)
		time.Sleep(longerThanTick)
	}
}
