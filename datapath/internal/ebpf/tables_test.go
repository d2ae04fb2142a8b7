// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// sized sets the size of the connection tables, in connections.
func sized(connections uint32) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		blocks := kernel.ConnBlocks(connections)
		withBlocks(spec, [2]uint32{blocks, blocks})
	}
}

// withBlocks sets the number of blocks of a segment of each connection table.
func withBlocks(spec *ebpf.CollectionSpec, blocks [2]uint32) {
	spec.Maps[kernel.MapLlCt4].InnerMap.MaxEntries, spec.Maps[kernel.MapLlCt6].InnerMap.MaxEntries = blocks[0], blocks[1]
	if err := spec.Variables[kernel.VarConfigCtBlocks].Set(blocks); err != nil {
		panic(err)
	}
}

// from returns p with another client port.
func (p path) from(port uint16) path {
	p.client = netip.AddrPortFrom(p.client.Addr(), port)
	p.source = p.client
	return p
}

// open sends a complete TCP handshake.
func (r *rig) open(p path) {
	r.t.Helper()
	r.play(p, "cSYN", "sSYNA", "cACK")
}

// flood begins far more connections than the table holds, each with repeated SYNs.
func (r *rig) flood(f family, p path) {
	r.t.Helper()
	syn := packet(r.in.arrives(), p.proto, p.client, p.vip, stageOpen, 61)
	l4 := len(syn) - 28
	for n := range 8000 {
		i := n / 4
		syn[l4], syn[l4+1] = byte(i>>8)|0x80, byte(i)
		if action, _ := r.run(r.ingress, r.in, syn); action != actUnspec {
			r.t.Fatalf("%s: SYN %d of the flood: action %d", f.name, i, action)
		}
	}
}

// TestFloodSparesConnections is T01: an established connection stays, however many connections are
// opened.
func TestFloodSparesConnections(t *testing.T) {
	for _, f := range families {
		r := newRig(t, sized(160))
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		for port := range uint16(20) {
			r.open(p.from(1000 + port))
		}
		r.flood(f, p)
		for port := range uint16(20) {
			if got := r.stateOf(p.from(1000 + port)); got != "ESTABLISHED+" {
				t.Errorf("%s: connection %d is %s after the flood", f.name, port, got)
			}
			r.send(p.from(1000+port), segments["sACK"])
		}
	}
}

// TestFloodSparesHalfClosed is T01: a connection whose client closed with its first packet after
// the reply, or whose server closed before that, is as live as any other, since the server may
// still send for a long time.
func TestFloodSparesHalfClosed(t *testing.T) {
	for _, f := range families {
		r := newRig(t, sized(160))
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		for port, history := range map[uint16][]string{
			1000: {"cSYN", "sSYNA", "cFIN"}, 1001: {"cSYN", "sSYNA", "cFIN", "sACK"}, 1002: {"cSYN", "sSYNA", "sFIN", "cACK"},
		} {
			r.play(p.from(port), history...)
		}
		r.flood(f, p)
		for port := range uint16(3) {
			if got := r.stateOf(p.from(1000 + port)); got != "FIN+" {
				t.Errorf("%s: half-closed connection %d is %s after the flood", f.name, port, got)
			}
			r.send(p.from(1000+port), segments["sACK"])
		}
	}
}

// TestFullTable is T01: if all places of the table are taken by established connections, a new
// connection is refused and counted; as soon as one of them ends, there is room.
func TestFullTable(t *testing.T) {
	for _, f := range families {
		r := newRig(t, sized(28)) // one block
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		for port := range uint16(kernel.ConnBlock / 2) {
			r.open(p.from(1000 + port))
		}
		syn := packet(r.in.arrives(), p.proto, p.from(2000).client, p.vip, stageOpen, 61)
		r.step("one too many", r.in, syn, actShot, syn)
		if n := r.counters()["DROP_TABLE_FULL"]; n != 1 {
			t.Errorf("%s: %d packets found the table full, want 1", f.name, n)
		}
		for port := range uint16(kernel.ConnBlock / 2) {
			if got := r.stateOf(p.from(1000 + port)); got != "ESTABLISHED+" {
				t.Errorf("%s: the connection that was there before is %s", f.name, got)
			}
		}
		r.send(p.from(1000), segments["cFIN"])
		r.send(p.from(1000), segments["sFIN"])
		r.open(p.from(2000))
		if got := r.stateOf(p.from(2000)); got != "ESTABLISHED+" {
			t.Errorf("%s: after another one has ended, the connection is %s", f.name, got)
		}
		if n := r.counters()["VERDICT_EVICTED"]; n != 1 {
			t.Errorf("%s: %d connections made room, want 1", f.name, n)
		}
	}
}

// TestHalfOfAPair is T02: the table may lose one entry of a half-open connection; the next packet
// of the other direction restores it.
func TestHalfOfAPair(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range natModes {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoTCP, m)
			r.play(p, "cSYN", "sSYNA")
			r.forget(p.back())
			r.send(p, segments["cSYN"])
			r.send(p, segments["sSYNA"])
			r.forget(p.forth())
			r.send(p, segments["sSYNA"])
			r.send(p, segments["cACK"])
			if got := r.stateOf(p); got != "ESTABLISHED+" {
				t.Errorf("%s %s: the connection is %s", f.name, m.name, got)
			}
			// The client's next packet is the first one of a new connection, and gets the same
			// backend.
			r.forget(p.forth())
			if !m.snat {
				r.send(p, segments["cACK"])
				r.send(p, segments["sACK"])
			}
		}
	}
}

// TestSourcePorts is F10: every connection to a backend has its own source port, and if no port is
// free, the next connection is refused and counted; a port is free again after its connection was
// deleted.
func TestSourcePorts(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			r := base.fresh(t)
			p := r.connect(f, proto, natModes[3])
			want, _ := p.outcome(61)
			var pool []uint16
			for i := range uint16(64) {
				pool = append(pool, 32768+7*i)
			}
			r.ports(pool...)
			used := make(map[netip.AddrPort]uint16)
			first := make(map[uint16]rigTuple)
			for i := range uint16(64) {
				client := p.from(1000 + i)
				action, out := r.run(r.ingress, r.in, packet(r.in.arrives(), proto, client.client, p.vip, stageOpen, 61))
				source := testpkt.Parse(out).Source()
				if action != want || used[source] != 0 || source.Addr() != f.outAddr {
					t.Fatalf("%s %s: connection %d: action %d, source %s, which has client port %d", f.name, name, i, action, source, used[source])
				}
				used[source] = 1000 + i
				first[1000+i] = rigTuple{proto, p.backend, source}
			}
			for _, port := range pool {
				if used[netip.AddrPortFrom(f.outAddr, port)] == 0 {
					t.Errorf("%s %s: port %d was not given out", f.name, name, port)
				}
			}
			next := packet(r.in.arrives(), proto, p.from(3000).client, p.vip, stageOpen, 61)
			r.step("one too many", r.in, next, actShot, next)
			r.counted(map[string]uint64{"VERDICT_SLOW": 64, "DROP_NO_PORT": 1})
			if s := r.stats(7); s.DropCount[2] != 1 || s.ConnectionCount != 64 {
				t.Errorf("%s %s: the service counted %+v", f.name, name, s)
			}
			for port := range uint16(8) { // several, since not the whole pool is searched each time
				r.forget(first[1000+8*port])
			}
			if action, _ := r.run(r.ingress, r.in, next); action != want {
				t.Errorf("%s %s: with ports free again: action %d", f.name, name, action)
			}
		}
	}
}

// TestTwoFrontendsOneBackend is F10: a client that uses one source port towards two frontends of
// one backend has two connections to it. Only the port distinguishes their replies, so the second
// connection gets another port.
func TestTwoFrontendsOneBackend(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			r := base.fresh(t)
			p := r.connect(f, proto, natModes[0])
			other := p
			other.vip = netip.AddrPortFrom(p.vip.Addr(), 4662)
			other.source = netip.AddrPortFrom(p.client.Addr(), 61057)
			r.service(rigService{id: 8, proto: proto, frontend: other.vip, source: kernel.SourceModeSOURCE_KEEP,
				backends: []rigBackend{{id: 4, addr: p.backend}}})
			for s := stageOpen; s <= stageData; s++ {
				r.slow(f.name+" "+name+" first", p, s)
				r.slow(f.name+" "+name+" second", other, s)
			}
			if proto == testpkt.ProtoTCP && (r.stateOf(p) != "ESTABLISHED+" || r.stateOf(other) != "ESTABLISHED+") {
				t.Errorf("%s: connections are %s and %s", f.name, r.stateOf(p), r.stateOf(other))
			}
		}
	}
}
