// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// knowNeighbours enters client and server as the kernel's neighbours, and adds free next hops.
func (r *rig) knowNeighbours(f family) {
	r.t.Helper()
	r.ns.Run(r.t, "ip", "neigh", "replace", f.client.Addr().String(), "lladdr", "02:00:5e:10:01:17", "dev", "in0", "nud", "permanent")
	r.ns.Run(r.t, "ip", "neigh", "replace", f.far.Addr().String(), "lladdr", "02:00:5e:10:02:34", "dev", "out0", "nud", "permanent")
	for i := range uint32(4) {
		r.ok(r.maps[kernel.MapLlNexthopFree].Put(nil, 100+i))
	}
}

// begins sends the first packet of a connection, and returns the action and the resulting packet.
func (r *rig) begins(f family, proto uint8, from netip.AddrPort) (int32, []byte) {
	r.t.Helper()
	return r.run(r.ingress, r.in, message(r.in.arrives(), proto, from, f.server(proto, from), stageOpen, 61))
}

// server returns the destination to which from sends. For echo messages the identifier is both the
// source and the destination port.
func (f family) server(proto uint8, from netip.AddrPort) netip.AddrPort {
	if proto == testpkt.ProtoICMP || proto == testpkt.ProtoICMPv6 {
		return netip.AddrPortFrom(f.far.Addr(), from.Port())
	}
	return f.far
}

// TestTranslatedAtOnce: if nothing else needs the original source, a connection gets SNAT at
// ingress, and its first packet takes the fast path like all others. The connection has two
// entries, one for each direction.
func TestTranslatedAtOnce(t *testing.T) {
	base := newRig(t)
	for typeName, st := range sourceTypes {
		for i, f := range families {
			for protoName, proto := range protocolsOf(f) {
				t.Run(typeName+"/"+f.name+"/"+protoName, func(t *testing.T) {
					r := base.fresh(t)
					r.knowNeighbours(f)
					r.translate(map[datapath.NATName]datapath.NAT{"away": st.nat("out0")})
					r.followAtOnce(f, proto, st.want[i], st.keep)
				})
			}
		}
	}
}

func (r *rig) followAtOnce(f family, proto uint8, want netip.Prefix, keep bool) {
	r.t.Helper()
	server := f.server(proto, f.client)
	// If the neighbour were unknown, the first packet would go to the kernel, which resolves it.
	action, out := r.begins(f, proto, f.client)
	outer := netip.AddrPortFrom(addressOf(out), sourcePort(out, proto))
	if action != actRedirect || !want.Contains(outer.Addr()) || (outer.Port() == f.client.Port()) != keep {
		r.t.Fatalf("first packet: action %d, source %s, counters %v", action, outer, r.counters())
	}
	far := server
	if far.Port() == f.client.Port() && far != f.far {
		far = netip.AddrPortFrom(far.Addr(), outer.Port())
	}
	if d := testpkt.Diff(message(r.in.arrives(), proto, outer, far, stageOpen, 60), out); d != "" {
		r.t.Errorf("first packet (- want, + got):\n%s", d)
	}
	if n, _ := r.entriesByClass(); n != 2 {
		r.t.Errorf("%d entries, want one for each direction", n)
	}
	_, _ = r.run(r.ingress, r.out, message(r.out.arrives(), proto, far, outer, stageAnswer, 61)) // the next packets check the result
	r.step("confirmation", r.in, message(r.in.arrives(), proto, f.client, server, stageConfirm, 61),
		actRedirect, message(r.out.leaves(), proto, outer, far, stageConfirm, 60))
	r.step("data back", r.out, message(r.out.arrives(), proto, far, outer, stageAnswer, 61),
		actRedirect, message(r.in.leaves(), proto, server, f.client, stageAnswer, 60))
	other := netip.AddrPortFrom(f.client.Addr(), f.client.Port()+1)
	if action, out := r.begins(f, proto, other); action != actRedirect || (sourcePort(out, proto) == outer.Port()) || addressOf(out) != outer.Addr() {
		r.t.Errorf("the second connection: action %d, %s port %d, the first %s", action, addressOf(out), sourcePort(out, proto), outer)
	}
	if c, ok := r.conn(rigTuple{proto, f.client, server}); !ok || c.leaves != (rigTuple{proto, outer, far}) || c.NatId == 0 {
		r.t.Errorf("the client's entry is %+v, %t", c, ok)
	}
}

// TestNotTranslatedAtOnce: if another component may need the original source, or the kernel may
// answer the sender, the first packet goes to the kernel unchanged.
func TestNotTranslatedAtOnce(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, tt := range map[string]struct {
			prepare func(r *rig, f family)
			frame   func(r *rig, f family) []byte // nil: the first packet of a connection
		}{
			"netfilter has rules": {prepare: func(r *rig, _ family) { r.put(kernel.MapLlNetfilter, uint32(0), uint32(1)) }},
			"last hop": {frame: func(r *rig, f family) []byte {
				return message(r.in.arrives(), testpkt.ProtoUDP, f.client, f.far, stageOpen, 1)
			}},
			"no neighbour": {prepare: func(r *rig, f family) {
				r.ns.Run(r.t, "ip", "neigh", "del", f.far.Addr().String(), "dev", "out0")
			}},
			"forged source": {frame: func(r *rig, f family) []byte {
				return message(r.in.arrives(), testpkt.ProtoUDP, f.far2(), f.far, stageOpen, 61)
			}},
			"unspecified source": {frame: func(r *rig, f family) []byte {
				from := map[string]string{"IPv4": "0.0.0.9", "IPv6": "fe80::9"}[f.name]
				return message(r.in.arrives(), testpkt.ProtoUDP, netip.AddrPortFrom(netip.MustParseAddr(from), 777), f.far, stageOpen, 61)
			}},
			"no rule": {prepare: func(r *rig, _ family) {
				r.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("in0")})
			}},
			"in the middle": {frame: func(r *rig, f family) []byte {
				return message(r.in.arrives(), testpkt.ProtoTCP, f.client, f.far, stageData, 61)
			}},
		} {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				r := base.fresh(t)
				r.knowNeighbours(f)
				r.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
				frame := message(r.in.arrives(), testpkt.ProtoUDP, f.client, f.far, stageOpen, 61)
				if tt.frame != nil {
					frame = tt.frame(r, f)
				}
				if tt.prepare != nil {
					tt.prepare(r, f)
				}
				r.step("first packet", r.in, frame, actUnspec, frame)
			})
		}
	}
}

// far2 returns a host behind the other device.
func (f family) far2() netip.AddrPort {
	return netip.AddrPortFrom(f.far.Addr().Next(), 40001)
}
