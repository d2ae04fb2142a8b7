// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// oneWayTicks is how long a client must have been sending: ONE_WAY_TICKS.
const oneWayTicks = 15

// unanswered opens a UDP connection of a service, whose client sends two packets now and sent the
// first of them long enough ago, and returns its path.
func (r *rig) unanswered(f family, m natMode) path {
	p := r.connect(f, testpkt.ProtoUDP, m)
	r.slow("first", p, stageOpen)
	r.slow("second", p, stageOpen)
	for _, tuple := range []rigTuple{p.forth(), p.back()} {
		r.change(tuple, func(m *rigMeta) { m.CreatedTick -= oneWayTicks })
	}
	return p
}

// shares returns the counts of connections.
func (r *rig) shares() (s kernel.Shares) {
	r.t.Helper()
	r.ok(r.maps[kernel.MapLlShares].Lookup(uint32(0), &s))
	return s
}

// fast sends a packet of the client that must take the fast path.
func (r *rig) fast(what string, p path) {
	r.t.Helper()
	r.step(what, p.clientPort, packet(p.clientPort.arrives(), p.proto, p.client, p.vip, stageData, 61),
		actRedirect, packet(p.beport.leaves(), p.proto, p.source, p.backend, stageData, 60))
}

// TestOneWayUDP: a UDP client that continues to send without an answer has a lasting connection and
// takes the fast path. An answer makes it half-open until the client sends again.
func TestOneWayUDP(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, f family, m natMode) {
		p := r.unanswered(f, m)
		r.slow("third", p, stageOpen)
		r.entry(p.forth(), rigConn{leaves: p.back().turned(), rigMeta: rigMeta{PacketCount: 3, State: uint8(kernel.CtStateCT_ONE_WAY)}})
		r.entry(p.back(), rigConn{leaves: p.forth().turned(), rigMeta: rigMeta{State: uint8(kernel.CtStateCT_NEW)}})
		if n := r.counters()["VERDICT_FAST"]; n != 0 {
			t.Errorf("%d packets took the fast path before there was a next hop", n)
		}
		r.slow("fourth, without next hop", p, stageOpen)
		r.nexthop(5, p.beport, 0, p.forth())
		r.fast("fifth", p)
		r.counted(map[string]uint64{"VERDICT_SLOW": 4, "VERDICT_FAST": 1})

		r.slow("answer", p, stageAnswer)
		r.entry(p.forth(), rigConn{half: true, leaves: p.back().turned(), rigMeta: rigMeta{PacketCount: 5, State: uint8(kernel.CtStateCT_ANSWERED), Nexthop: 5}})
		r.entry(p.back(), rigConn{half: true, leaves: p.forth().turned(), rigMeta: rigMeta{PacketCount: 1, State: uint8(kernel.CtStateCT_ANSWERED)}})
		if s := r.shares(); s.Total != [2]uint32{} {
			t.Errorf("%v connections are counted as lasting after an answer", s.Total)
		}
	})
}

// TestNotOneWay: two packets, packets within less than 2 s, packets of other protocols, and packets
// that come while most of the table has lasting connections leave a connection half-open.
func TestNotOneWay(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, tt := range map[string]struct {
			proto   uint8
			packets int
			ticks   uint32
			lasting uint32 // of a table of 1000
			want    bool
		}{
			"enough":             {testpkt.ProtoUDP, 3, oneWayTicks, 500, false},
			"two packets":        {testpkt.ProtoUDP, 2, oneWayTicks, 0, true},
			"less than 2 s":      {testpkt.ProtoUDP, 9, oneWayTicks - 2, 0, true},
			"SCTP":               {testpkt.ProtoSCTP, 9, oneWayTicks, 0, true},
			"the table is taken": {testpkt.ProtoUDP, 9, oneWayTicks, 501, true},
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				s := r.shares()
				s.CapacityOf, s.Total = [2]uint32{1000, 1000}, [2]uint32{tt.lasting, tt.lasting}
				r.put(kernel.MapLlShares, uint32(0), s)
				p := r.connect(f, tt.proto, natModes[0])
				r.slow("first", p, stageOpen)
				r.change(p.forth(), func(m *rigMeta) { m.CreatedTick -= tt.ticks })
				for range tt.packets - 1 {
					r.slow("another", p, stageOpen)
				}
				if c, ok := r.conn(p.forth()); !ok || c.half != tt.want {
					t.Errorf("after %d packets: %+v (there: %t), want half-open: %t", tt.packets, c, ok, tt.want)
				}
			})
		}
	}
}

// TestOneWayFindsItsService: a client sends in one direction to an address that becomes a frontend
// later. Its next packet goes to the backend, also from the fast path.
func TestOneWayFindsItsService(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.unanswered(f, natModes[0])
			for _, tuple := range []rigTuple{p.forth(), p.back()} { // as if there had been no service
				r.change(tuple, func(m *rigMeta) { m.BackendId, m.Flags = 0, m.Flags&kernel.CtReply })
			}
			r.slow("third", p, stageOpen)
			if c, ok := r.conn(p.forth()); !ok || c.BackendId != 3 || c.PacketCount != 1 {
				t.Errorf("%+v (there: %t), want a new connection of service 7", c, ok)
			}
		})
	}
}

// TestOneWayMakesRoom: a connection in one direction makes room for a new one only if no half-open
// connection can.
func TestOneWayMakesRoom(t *testing.T) {
	const places = 64 // of one block
	base := newRig(t, sized(1))
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoUDP, natModes[0])
			first := uint16(0)
			for ; first < 10*places; first++ {
				q := p.from(1000 + first)
				r.slow("opening", q, stageOpen)
				half, lasting := r.entriesByClass()
				if half+lasting < 2*int(first+1) {
					break // it has displaced another one
				}
				r.change(q.forth(), func(m *rigMeta) { m.CreatedTick -= oneWayTicks })
				r.slow("second", q, stageOpen)
				r.slow("third", q, stageOpen)
				if c, ok := r.conn(q.forth()); !ok || c.half {
					t.Fatalf("connection %d: %+v (there: %t), want a lasting one", first, c, ok)
				}
			}
			if first < places/4 || first == 10*places {
				t.Fatalf("connection %d of a table of %d entries displaces another one", first, places)
			}
			// That one is half-open: it makes room, none of the others.
			_, before := r.entriesByClass()
			for n := range uint16(50) {
				r.slow("opening", p.from(5000+n), stageOpen)
				if _, ok := r.conn(p.from(5000 + n).forth()); !ok {
					t.Fatalf("connection %d does not exist", n)
				}
			}
			if _, after := r.entriesByClass(); after < before-2*3 { // both blocks of a home may be full otherwise
				t.Errorf("%d lasting entries of %d are left", after, before)
			}
		})
	}
}

// TestFamiliesOfTwoSizes: the tables of the two families can have different sizes.
func TestFamiliesOfTwoSizes(t *testing.T) {
	for _, blocks := range [][2]uint32{{2, 16}, {16, 2}} {
		r := newRig(t, func(spec *ebpf.CollectionSpec) { withBlocks(spec, blocks) })
		for _, f := range families {
			p := r.connect(f, testpkt.ProtoUDP, natModes[0])
			for n := range uint16(40) {
				r.slow("opening", p.from(1000+n), stageOpen)
				r.slow("again", p.from(1000+n), stageOpen)
				if c, ok := r.conn(p.from(1000 + n).forth()); !ok || c.PacketCount != 2 {
					t.Errorf("%d blocks: %s: connection %d: %+v (there: %t), want one with 2 packets", blocks, f.name, n, c, ok)
				}
			}
		}
		spec, err := kernel.LoadKernel()
		r.ok(err)
		r.ok(kernel.SetConnTable(spec, r.maps))
		var got [2]uint32
		if r.ok(spec.Variables[kernel.VarConfigCtBlocks].Get(&got)); got != blocks {
			t.Errorf("the programs get %d blocks, want %d", got, blocks)
		}
	}
}
