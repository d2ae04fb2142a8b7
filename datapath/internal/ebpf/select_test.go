// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// backendsOf returns n backends of a family, behind out0, with ids from 11 on.
func backendsOf(f family, n int) (out []rigBackend) {
	addr := f.far.Addr()
	for i := range n {
		addr = addr.Next()
		out = append(out, rigBackend{id: uint32(11 + i), addr: netip.AddrPortFrom(addr, f.far.Port())})
	}
	return out
}

// chosen opens a UDP connection from a client and returns its backend.
func (r *rig) chosen(s rigService, client netip.AddrPort) netip.AddrPort {
	r.t.Helper()
	action, out := r.run(r.ingress, r.in, packet(r.in.arrives(), s.proto, client, s.frontend, stageOpen, 61))
	if action != actUnspec {
		r.t.Fatalf("client %s: action %d, counters %v", client, action, r.counters())
	}
	return testpkt.Parse(out).Destination()
}

func TestAlgorithms(t *testing.T) {
	base := newRig(t)
	const clients = 300
	for _, f := range families {
		for name, algorithm := range map[string]kernel.Algorithm{
			"maglev": kernel.AlgorithmALG_MAGLEV, "random": kernel.AlgorithmALG_RANDOM,
			"round-robin": kernel.AlgorithmALG_ROUND_ROBIN, "least-connections": kernel.AlgorithmALG_LEAST_CONNECTIONS,
			"source-hash": kernel.AlgorithmALG_SOURCE_HASH,
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				s := rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: backendsOf(f, 3), algorithm: algorithm}
				r.service(s)
				got := make(map[netip.AddrPort]int)
				oneAddr := make(map[netip.AddrPort]bool)
				addr := f.client.Addr()
				for i := range clients {
					got[r.chosen(s, netip.AddrPortFrom(addr, uint16(1000+i)))]++
					oneAddr[r.chosen(s, netip.AddrPortFrom(f.client.Addr(), uint16(20000+i)))] = true
					addr = addr.Next()
				}
				low, high := clients/5, clients/2
				if algorithm == kernel.AlgorithmALG_ROUND_ROBIN || algorithm == kernel.AlgorithmALG_LEAST_CONNECTIONS {
					// got contains only every second connection.
					low, high = clients/3-clients/10, clients/3+clients/10
				}
				for _, b := range s.backends {
					if n := got[b.addr]; n < low || n > high {
						t.Errorf("backend %s got %d of %d connections", b.addr, n, clients)
					}
				}
				if one := len(oneAddr) == 1; one != (algorithm == kernel.AlgorithmALG_SOURCE_HASH) {
					t.Errorf("the ports of one client got %d backends", len(oneAddr))
				}
			})
		}
	}
}

// TestSelectionIsExact: round-robin selects backends in turn, least-connections in proportion to
// their weights.
func TestSelectionIsExact(t *testing.T) {
	f := families[0]
	r := newRig(t)
	s := rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: backendsOf(f, 3), algorithm: kernel.AlgorithmALG_ROUND_ROBIN}
	r.service(s)
	for i := range 9 {
		if got := r.chosen(s, netip.AddrPortFrom(f.client.Addr(), uint16(1000+i))); got != s.backends[i%3].addr {
			t.Errorf("round-robin, connection %d: %s", i, got)
		}
	}
	s.algorithm = kernel.AlgorithmALG_LEAST_CONNECTIONS
	s.backends[2].weight = 2
	r.service(s)
	for _, b := range s.backends {
		r.ok(r.tables.BackendLoad.Put(b.id, 0))
	}
	got := make(map[netip.AddrPort]int)
	for i := range 40 {
		got[r.chosen(s, netip.AddrPortFrom(f.client.Addr(), uint16(2000+i)))]++
	}
	if want := fmt.Sprint(map[netip.AddrPort]int{s.backends[0].addr: 10, s.backends[1].addr: 10, s.backends[2].addr: 20}); fmt.Sprint(got) != want {
		t.Errorf("least-connections: got %v, want %v", got, want)
	}
}

// TestSelectionList: if the selection table has a list, a slot is the index of a member: a byte, or two
// bytes if there are more than 256 members. The list and the slots take several chunks.
func TestSelectionList(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for members, slots := range map[int]int{1: 460, 5: 1021, 256: 500, 257: 500, 400: 800} {
			t.Run(fmt.Sprint(f.name, "/", members), func(t *testing.T) {
				r := base.fresh(t)
				s := rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: backendsOf(f, members), algorithm: kernel.AlgorithmALG_ROUND_ROBIN}
				for slot := range slots {
					s.spread = append(s.spread, (slot*11+3)%members)
				}
				r.service(s)
				for slot, index := range s.spread {
					client := netip.AddrPortFrom(f.client.Addr(), uint16(1000+slot))
					if got := r.chosen(s, client); got != s.backends[index].addr {
						t.Fatalf("slot %d: %s, want %s", slot, got, s.backends[index].addr)
					}
				}
			})
		}
	}
}

// TestMaglevIsTheSameEverywhere: on every node the selection depends on the tuple alone.
func TestMaglevIsTheSameEverywhere(t *testing.T) {
	for _, f := range families {
		one, other := newRig(t), newRig(t)
		s := rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: backendsOf(f, 5)}
		one.service(s)
		other.service(s)
		for i := range 100 {
			client := netip.AddrPortFrom(f.client.Addr(), uint16(1000+i))
			if a, b := one.chosen(s, client), other.chosen(s, client); a != b {
				t.Errorf("%s: one node chose %s, another %s", client, a, b)
			}
		}
	}
}

// TestAffinity: a client returns to its backend, from any port, until it has been away for the
// configured time or the backend is not usable.
func TestAffinity(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		s := rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: backendsOf(f, 5),
			algorithm: kernel.AlgorithmALG_ROUND_ROBIN, affinity: 1000}
		r.service(s)
		client := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(f.client.Addr(), port) }
		first := r.chosen(s, client(1000))
		for i := range uint16(10) {
			if got := r.chosen(s, client(2000+i)); got != first {
				t.Errorf("%s: connection %d went to %s, not to %s", f.name, i, got, first)
			}
		}
		neighbour := netip.AddrPortFrom(f.client.Addr().Next(), 1000)
		if got := r.chosen(s, neighbour); got == first {
			t.Errorf("%s: another client went to %s as well", f.name, got)
		}
		key := kernel.AffinityKey{ServiceId: 7}
		key.Client.Word = rigWords(f.client.Addr().String())
		var known kernel.Affinity
		r.ok(r.maps[kernel.MapLlAffinity].Lookup(key, &known))
		known.UsedTick -= 1002
		r.put(kernel.MapLlAffinity, key, known)
		second := r.chosen(s, client(3000))
		if second == first {
			t.Errorf("%s: after its time the client still went to %s", f.name, first)
		}
		r.ok(r.maps[kernel.MapLlAffinity].Lookup(key, &known))
		var b kernel.Backend
		r.ok(r.tables.Backend.Lookup(known.BackendId, &b))
		b.Flags = 0
		r.ok(r.tables.Backend.Put(known.BackendId, b))
		if got := r.chosen(s, client(3001)); got == second {
			t.Errorf("%s: the client went to %s, which takes no new ones", f.name, got)
		}
	}
}

// TestSourceRanges: packets of clients outside the ranges are dropped and counted, packets of
// clients inside are not.
func TestSourceRanges(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		addr := f.client.Addr()
		wide, err := addr.Prefix(addr.BitLen() - 4)
		r.ok(err)
		r.service(rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: []rigBackend{{id: 3, addr: f.far}},
			ranges: []netip.Prefix{wide, netip.PrefixFrom(f.far.Addr(), f.far.Addr().BitLen())}})
		r.service(rigService{id: 8, proto: testpkt.ProtoUDP, frontend: netip.AddrPortFrom(f.vip.Addr(), 4662),
			backends: []rigBackend{{id: 4, addr: f.far}}, ranges: []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}})
		last := addr
		for wide.Contains(last.Next()) {
			last = last.Next()
		}
		for client, action := range map[netip.Addr]int32{addr: actUnspec, last: actUnspec, last.Next(): actShot, f.farRouter: actShot} {
			frame := packet(r.in.arrives(), testpkt.ProtoUDP, netip.AddrPortFrom(client, 1000), f.vip, stageOpen, 61)
			if got, _ := r.run(r.ingress, r.in, frame); got != action {
				t.Errorf("%s: client %s: action %d, want %d", f.name, client, got, action)
			}
		}
		if s := r.stats(7); s.DropCount[1] != 2 || s.ConnectionCount != 2 {
			t.Errorf("%s: the service counted %+v", f.name, s)
		}
		r.counted(map[string]uint64{"VERDICT_SLOW": 2, "DROP_SOURCE_RANGE": 2})
	}
}
