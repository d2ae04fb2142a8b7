// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// reused returns the traffic of a backend's connections whose entries were reused.
func (r *rig) reused(backend uint32) kernel.Traffic {
	r.t.Helper()
	var t kernel.BackendTotal
	r.ok(r.tables.BackendTotal.Lookup(backend, &t))
	return kernel.Traffic(t.Reused)
}

// lifeOfFive is the life of a connection in five packets.
var lifeOfFive = []string{"cSYN", "sSYNA", "cACK", "cFIN", "sFIN"}

// TestReopened: a client reuses its port. The new connection takes over the entries of the
// ended connection, including the source port towards the backend, and its counters start from
// zero; the traffic of the old connection remains counted.
func TestReopened(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range natModes {
			t.Run(f.name+"/"+m.name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, m)
				r.play(p, lifeOfFive...)
				r.nexthop(5, p.beport, 0, p.forth())
				var frames uint64 // bytes
				for _, way := range []rigTuple{p.forth(), p.back()} {
					c, _ := r.conn(way)
					frames += c.ByteCount
				}
				again := segments["cSYN"]
				build := func(from, to netip.AddrPort, eth testpkt.Ethernet, ttl uint8) []byte {
					return testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), ttl), testpkt.TCP{Source: from.Port(),
						Destination: to.Port(), Flags: again.flags, Seq: again.seq, Window: again.window})
				}
				// The packet takes the old next hop, without a FIB look-up.
				r.step("SYN", r.in, build(p.client, p.vip, r.in.arrives(), 61), actRedirect,
					build(p.source, p.backend, p.beport.leaves(), 60))
				if got := r.stateOf(p); got != "NEW" {
					t.Errorf("state %s, want NEW", got)
				}
				forth, _ := r.conn(p.forth())
				back, _ := r.conn(p.back())
				if forth.PacketCount != 1 || back.PacketCount != 0 || forth.leaves != p.back().turned() || back.leaves != p.forth().turned() {
					t.Errorf("the entries are %+v and %+v", forth, back)
				}
				if got, want := r.reused(3), (kernel.Traffic{PacketCount: 5, ByteCount: frames}); got != want {
					t.Errorf("the backend's past connections carried %+v, want %+v", got, want)
				}
				if n, m := r.entriesByClass(); n != 2 || m != 0 {
					t.Errorf("%d half-open entries and %d others, want 2 and none", n, m)
				}
			})
		}
	}
}

// TestReopenedElsewhere: if the backend has changed, only the counters of the old connection
// are kept.
func TestReopenedElsewhere(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range []natMode{natModes[0], natModes[3]} {
			t.Run(f.name+"/"+m.name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, m)
				r.play(p, lifeOfFive...)
				other := p
				other.backend = netip.AddrPortFrom(p.backend.Addr(), p.backend.Port()+1)
				r.service(rigService{id: 7, proto: p.proto, frontend: f.vip, source: m.source, backends: []rigBackend{{id: 4, addr: other.backend}}})
				r.send(other, segments["cSYN"])
				if got := r.stateOf(other); got != "NEW" {
					t.Errorf("state %s, want NEW", got)
				}
				if c, found := r.conn(p.back()); found {
					t.Errorf("the old backend's entry is still there: %+v", c)
				}
				if got := r.reused(3).PacketCount; got != 5 {
					t.Errorf("the old backend's past connections carried %d packets, want 5", got)
				}
				if half, lasting := r.entriesByClass(); half != 2 || lasting != 0 {
					t.Errorf("%d half-open entries and %d others, want 2 and 0", half, lasting)
				}
			})
		}
	}
}
