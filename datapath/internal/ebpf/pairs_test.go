// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/snat"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// expireEntry returns a request to delete the connection of tuple, whose other entry has the key twin,
// at tick now if it had no packet for more than idle ticks.
func expireEntry(tuple, twin rigTuple, now, idle uint32) (e kernel.ExpirerExpire) {
	parts := func(of rigTuple) (src, dst [4]uint32, sport, dport uint16) {
		return rigWords(of.src.Addr().String()), rigWords(of.dst.Addr().String()), kernel.Swap16(of.src.Port()), kernel.Swap16(of.dst.Port())
	}
	if tuple.src.Addr().Is4() {
		key := func(of rigTuple) *kernel.Ct4Key {
			src, dst, sport, dport := parts(of)
			return &kernel.Ct4Key{Saddr: src[3], Daddr: dst[3], Sport: sport, Dport: dport, Proto: of.proto}
		}
		key(tuple).Expire(&e, key(twin))
	} else {
		key := func(of rigTuple) *kernel.Ct6Key {
			src, dst, sport, dport := parts(of)
			k := &kernel.Ct6Key{Sport: sport, Dport: dport, Proto: of.proto}
			k.Saddr.Word, k.Daddr.Word = src, dst
			return k
		}
		key(tuple).Expire(&e, key(twin))
	}
	e.NowTick, e.IdleTicks = now, idle
	return e
}

// expire deletes the connection of tuple at tick now if it had no packet for more than idle ticks;
// force: in any case.
func (r *rig) expire(x *conn.Expirer, tuple rigTuple, now, idle uint32, force bool) kernel.ExpirerExpireResult {
	r.t.Helper()
	twin := tuple.turned() // of a connection that does not exist: does not matter
	if c, found := r.conn(tuple); found {
		twin = c.leaves.turned()
	}
	return r.expireSeen(x, tuple, twin, now, idle, force)
}

// expireSeen is expire for a connection whose other entry was seen to have the key twin.
func (r *rig) expireSeen(x *conn.Expirer, tuple, twin rigTuple, now, idle uint32, force bool) kernel.ExpirerExpireResult {
	r.t.Helper()
	e := append(make([]kernel.ExpirerExpire, 0, conn.ExpireBatch), expireEntry(tuple, twin, now, idle))
	if force {
		e[0].Force = 1
	}
	r.ok(x.Run(e))
	return e[0].Result
}

// TestBothDirectionsEnd: a connection is deleted as a whole, whichever of its entries is given,
// unless one of its directions was seen within the idle time.
func TestBothDirectionsEnd(t *testing.T) {
	base := newRig(t)
	x, err := conn.NewExpirer(base.maps)
	base.ok(err)
	defer func() { base.ok(x.Close()) }()
	const idle = 100
	for _, f := range families {
		for name, proto := range protocols {
			for _, m := range natModes {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) {
					r := base.fresh(t)
					p := r.connect(f, proto, m)
					for _, named := range []rigTuple{p.forth(), p.back()} {
						r.slow("opening", p, stageOpen)
						r.slow("answer", p, stageAnswer)
						r.slow("confirmation", p, stageConfirm)
						now := rigTick() + idle + 1
						r.change(p.forth(), func(m *rigMeta) { m.LastSeenTick = now - idle - 1 })
						r.change(p.back(), func(m *rigMeta) { m.LastSeenTick = now - idle })
						if got := r.expire(x, named, now, idle, false); got != kernel.ExpirerExpireResultEXPIRE_STAYS {
							t.Errorf("%s, seen %d ticks ago: %d, want that it stays", named, idle, got)
						}
						for _, tuple := range []rigTuple{p.forth(), p.back()} {
							if c, found := r.conn(tuple); !found || c.State != uint8(kernel.CtStateCT_ESTABLISHED) {
								t.Errorf("%s afterwards: %+v, %t", tuple, c, found)
							}
						}
						if got := r.expire(x, named, now+1, idle, false); got != kernel.ExpirerExpireResultEXPIRE_BOTH {
							t.Errorf("%s, idle: %d, want that both directions are deleted", named, got)
						}
						if n := r.entries(); n != 0 {
							t.Errorf("%d entries are left", n)
						}
						if got := r.expire(x, named, now+1, idle, false); got != kernel.ExpirerExpireResultEXPIRE_ABSENT {
							t.Errorf("%s, deleted: %d", named, got)
						}
					}
					r.slow("opening", p, stageOpen)
					other := p.back()
					other.src = netip.AddrPortFrom(other.src.Addr().Next(), other.src.Port())
					if got := r.expireSeen(x, p.forth(), other, rigTick(), idle, true); got != kernel.ExpirerExpireResultEXPIRE_STAYS || r.entries() != 2 {
						t.Errorf("meant was an earlier connection to another host: %d, and %d entries are left; want that it stays", got, r.entries())
					}
					if got := r.expire(x, p.back(), rigTick(), idle, true); got != kernel.ExpirerExpireResultEXPIRE_BOTH || r.entries() != 0 {
						t.Errorf("by force: %d, and %d entries are left", got, r.entries())
					}
				})
			}
		}
	}
}

// entries returns the number of entries in the connection tables.
func (r *rig) entries() (n int) {
	half, lasting := r.entriesByClass()
	return half + lasting
}

// TestEndingIsSeen: packets of both directions of a connection that is marked for deletion are
// dropped and counted for that reason, whether the last packet was recent or long ago.
func TestEndingIsSeen(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, proto, natModes[0])
				r.slow("opening", p, stageOpen)
				r.slow("answer", p, stageAnswer)
				r.slow("confirmation", p, stageConfirm)
				r.nexthop(5, p.beport, 0, p.forth())
				r.nexthop(6, p.clientPort, 0, p.back())
				forth := packet(p.clientPort.arrives(), proto, p.client, p.vip, stageData, 61)
				back := packet(p.beport.arrives(), proto, p.backend, p.source, stageData, 61)
				for i, seen := range []uint32{0, 60} { // ticks ago
					set := func(state kernel.CtState) {
						for _, x := range []rigTuple{p.forth(), p.back()} {
							r.change(x, func(m *rigMeta) { m.LastSeenTick, m.State = rigTick()-seen, uint8(state) })
						}
					}
					set(kernel.CtStateCT_ENDING)
					r.step("marked", p.clientPort, forth, actShot, forth)
					r.step("answer", p.beport, back, actShot, back)
					set(kernel.CtStateCT_ESTABLISHED)
					r.step("not marked", p.clientPort, forth, actRedirect,
						packet(p.beport.leaves(), proto, p.source, p.backend, stageData, 60))
					if got, want := r.counters()["DROP_ENDING"], uint64(2*i+2); got != want {
						t.Errorf("%d packets dropped since their connection is deleted, want %d", got, want)
					}
				}
			})
		}
	}
}

// TestLeftOverEntry: the entry of the client's direction is lost, and the client reuses its port:
// the new connection is established, and no entry of the old one is left.
func TestLeftOverEntry(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range natModes[:2] {
			t.Run(f.name+"/"+m.name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, m)
				r.play(p, "cSYN", "sSYNA", "cACK", "cFIN", "sFIN")
				r.forget(p.forth())
				for _, name := range []string{"cSYN", "sSYNA", "cACK"} {
					r.send(p, segments[name])
				}
				if got := r.stateOf(p); got != "ESTABLISHED+" || r.entries() != 2 {
					t.Errorf("TCP: %s with %d entries, want ESTABLISHED+ with 2", got, r.entries())
				}
				p = r.connect(f, testpkt.ProtoUDP, m)
				for _, s := range []stage{stageOpen, stageAnswer, stageConfirm} {
					r.slow("datagram", p, s)
				}
				r.forget(p.forth())
				for _, s := range []stage{stageOpen, stageAnswer, stageConfirm} {
					r.slow("datagram again", p, s)
				}
				if got := r.stateOf(p); got != "ESTABLISHED+" || r.entries() != 4 {
					t.Errorf("UDP: %s with %d entries, want ESTABLISHED+ with 4", got, r.entries())
				}
			})
		}
	}
}

// TestLeftOverOfNAT does the same for connections with a fixed outer address and port: their
// packets are not taken for packets of another connection.
func TestLeftOverOfNAT(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		outer := netip.PrefixFrom(f.vip.Addr(), f.vip.Addr().BitLen())
		inner := netip.PrefixFrom(f.client.Addr(), f.client.Addr().BitLen())
		match := datapath.Match{Source: []netip.Prefix{inner}}
		for name, nat := range map[string]datapath.NAT{
			"one to one":           {Type: datapath.SNAT, OneToOne: true, Match: match, Addresses: []netip.Prefix{outer}},
			"endpoint-independent": {Type: datapath.SNAT, Match: match, Addresses: []netip.Prefix{outer}, Mapping: datapath.EndpointIndependent},
		} {
			for _, proto := range []uint8{testpkt.ProtoTCP, testpkt.ProtoUDP} {
				t.Run(f.name+"/"+name, func(t *testing.T) {
					r := base.fresh(t)
					r.knowNeighbours(f)
					r.translate(map[datapath.NATName]datapath.NAT{"away": nat})
					open := func() (int32, netip.AddrPort) {
						action, out := r.run(r.ingress, r.in, packet(r.in.arrives(), proto, f.client, f.far, stageOpen, 61))
						return action, netip.AddrPortFrom(addressOf(out), sourcePort(out, proto))
					}
					action, first := open()
					if action != actRedirect || first.Addr() != f.vip.Addr() {
						t.Fatalf("action %d, from %s; counters %v", action, first, r.counters())
					}
					r.forget(rigTuple{proto, f.client, f.far})
					if action, again := open(); action != actRedirect || again != first {
						t.Errorf("after a loss: action %d, from %s, want %s; counters %v", action, again, first, r.counters())
					}
				})
			}
		}
	}
}

// TestTwinOfAnother: if the entry at the key of a connection's replies belongs to another
// connection, that entry is not changed.
func TestTwinOfAnother(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		r.play(p, "cSYN", "sSYNA", "cACK")
		// This makes it the entry of another connection, whose replies leave from another frontend.
		other := p.back()
		c, _ := r.conn(other)
		c.leaves.src = netip.AddrPortFrom(c.leaves.src.Addr(), c.leaves.src.Port()+1)
		r.write(other, c)
		before, _ := r.conn(other)
		for _, flags := range []uint8{testpkt.FIN | testpkt.ACK, testpkt.RST | testpkt.ACK, testpkt.SYN} {
			r.run(r.ingress, r.in, testpkt.Build(r.in.arrives(), ipHeader(p.client.Addr(), p.vip.Addr(), 61), testpkt.TCP{
				Source: p.client.Port(), Destination: p.vip.Port(), Flags: flags, Seq: clientISN + 1, Ack: serverISN + 1, Window: 501,
			}))
			after, found := r.conn(other)
			if !found || after != before {
				t.Errorf("%s: flags %#x: the other connection's entry was %+v and is %+v, %t", f.name, flags, before, after, found)
			}
		}
	}
}

// TestDirectAndByFrontend: a client that uses one source port to reach a backend through a frontend
// and then directly has two connections, and each gets its own replies; also if rules translate
// other connections.
func TestDirectAndByFrontend(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			for _, half := range []bool{true, false} {
				for _, rules := range []bool{false, true} {
					t.Run(f.name+"/"+name, func(t *testing.T) {
						r := base.fresh(t)
						p := r.connect(f, proto, natModes[0])
						if rules {
							r.translate(map[datapath.NATName]datapath.NAT{"other": {
								Type: datapath.Masquerade, Match: datapath.Match{Source: []netip.Prefix{netip.PrefixFrom(f.far.Addr(), f.far.Addr().BitLen())}},
							}})
						}
						r.slow("opening", p, stageOpen)
						if !half {
							r.slow("answer", p, stageAnswer)
							r.slow("confirmation", p, stageConfirm)
						}
						_, out := r.run(r.ingress, r.in, packet(r.in.arrives(), proto, p.client, p.backend, stageOpen, 61))
						source := netip.AddrPortFrom(p.client.Addr(), sourcePort(out, proto))
						if source == p.client {
							t.Errorf("the direct connection continues from %s, as the other one", source)
						}
						if half {
							r.slow("answer", p, stageAnswer)
						}
						answer := packet(r.out.arrives(), proto, p.backend, source, stageAnswer, 61)
						r.step("direct answer", r.out, answer, actUnspec, packet(r.out.arrives(), proto, p.backend, p.client, stageAnswer, 61))
					})
				}
			}
		}
	}
}

// targetPort makes port one to which services lead.
func (r *rig) targetPort(port uint16) {
	r.t.Helper()
	targets, err := snat.AdoptTargets(r.tables)
	r.ok(err)
	r.ok(targets.Settle())
	r.ok(targets.Add(port))
}

// TestDirectToNode: the same for a backend on the node itself, in either order, and for a client on
// the node itself.
func TestDirectToNode(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			for _, order := range []string{"by the frontend first", "directly first", "from the node"} {
				t.Run(f.name+"/"+name+"/"+order, func(t *testing.T) {
					r := base.fresh(t)
					client, backend := f.client, netip.AddrPortFrom(f.inAddr, f.far.Port())
					there, back, in, out := r.ingress, r.egress, r.in, r.in
					r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.inAddr)}, uint8(1))
					if order == "from the node" {
						client, backend = netip.AddrPortFrom(f.inAddr, f.client.Port()), f.far
						there, back, in, out = r.egress, r.ingress, r.out, r.out
					}
					r.service(rigService{id: 7, proto: proto, frontend: f.vip, source: kernel.SourceModeSOURCE_KEEP, backends: []rigBackend{{id: 3, addr: backend}}})
					r.targetPort(backend.Port())
					to := []netip.AddrPort{f.vip, backend}
					if order == "directly first" {
						slices.Reverse(to)
					}
					var seen [2]netip.AddrPort
					for i, server := range to {
						_, frame := r.run(there, in, packet(in.arrives(), proto, client, server, stageOpen, 61))
						seen[i] = netip.AddrPortFrom(client.Addr(), sourcePort(frame, proto))
					}
					if seen[0] != client || seen[1] == client {
						t.Errorf("the backend sees %s, want the client %s and another port of it", seen, client)
					}
					for i, server := range to {
						_, frame := r.run(back, out, packet(out.arrives(), proto, backend, seen[i], stageAnswer, 61))
						if d := testpkt.Diff(packet(out.arrives(), proto, server, client, stageAnswer, 61), frame); d != "" {
							t.Errorf("answer of %s (- want, + got):\n%s", server, d)
						}
					}
				})
			}
		}
	}
}

// TestForgedEnds: a segment that would end a connection has no effect if its receiver would not
// accept it, and a connection whose endpoint challenges the segment becomes established again.
func TestForgedEnds(t *testing.T) {
	base := newRig(t)
	const fin, rst = testpkt.FIN | testpkt.ACK, testpkt.RST | testpkt.ACK
	serverData := segment{'s', testpkt.ACK, serverISN + 1, clientISN + 1, bothSay, nil}
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		for _, c := range []struct {
			name  string
			sends []segment
			want  string
		}{
			{"a FIN out of the window", []segment{{'s', fin, serverISN + 1 + 1<<30, clientISN + 1, bothSay, nil}}, "ESTABLISHED+"},
			{"a FIN before the window", []segment{{'s', fin, serverISN, clientISN + 1, bothSay, nil}}, "ESTABLISHED+"},
			{"FINs out of the window", []segment{
				{'s', fin, serverISN + 1 + 1<<30, clientISN + 1, bothSay, nil}, {'c', fin, clientISN + 1 + 1<<30, serverISN + 1, bothSay, nil},
			}, "ESTABLISHED+"},
			{"a reset out of the window", []segment{{'c', rst, clientISN + 1 + 1<<30, 0, 0, nil}}, "ESTABLISHED+"},
			{"a reset that is challenged", []segment{{'c', rst, clientISN + 100, 0, 0, nil}, serverData, segments["cACK"]}, "ESTABLISHED+"},
			{"an exact reset", []segment{{'c', rst, clientISN + 1, 0, 0, nil}, serverData}, "CLOSED"},
			{"a forged acknowledgement and its reset", []segment{
				{'s', testpkt.ACK, serverISN + 1, 0x55667788, bothSay, nil}, {'c', rst, 0x55667788, 0, 0, nil},
			}, "ESTABLISHED+"},
		} {
			r.play(p, "cSYN", "sSYNA", "cACK")
			for _, s := range c.sends {
				r.send(p, s)
			}
			if got := r.stateOf(p); got != c.want {
				t.Errorf("%s: %s: %s, want %s", f.name, c.name, got, c.want)
			}
		}
	}
}

// TestForgedEndsOfSCTP: ABORT and SHUTDOWN must have the right verification tag.
func TestForgedEndsOfSCTP(t *testing.T) {
	base := newRig(t)
	const chunkInit, chunkInitAck, chunkAbort, chunkShutdown, chunkCookieEcho, chunkComplete = 1, 2, 6, 7, 10, 14
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoSCTP, natModes[0])
		chunk := func(from byte, kind uint8, tag uint32) {
			t.Helper()
			build := func(dev rigPort, from, to netip.AddrPort) []byte {
				return testpkt.Build(dev.arrives(), ipHeader(from.Addr(), to.Addr(), 61), testpkt.SCTP{Source: from.Port(),
					Destination: to.Port(), Tag: tag, Chunks: []testpkt.Chunk{{Type: kind, Value: []byte{9}}}})
			}
			if from == 'c' {
				r.step("client", r.in, build(r.in, p.client, p.vip), actUnspec, build(r.in, p.source, p.backend))
			} else {
				r.step("server", r.out, build(r.out, p.backend, p.source), actUnspec, build(r.out, p.vip, p.client))
			}
		}
		const clientTag, serverTag = 0x01020304, 0x11121314 // of packets to the client, the server
		chunk('c', chunkInit, 0)
		chunk('s', chunkInitAck, clientTag)
		chunk('c', chunkCookieEcho, serverTag)
		for _, kind := range []uint8{chunkAbort, chunkShutdown, chunkComplete} {
			chunk('s', kind, 7)
			chunk('c', kind, 7)
			if got := r.stateOf(p); got != "ESTABLISHED+" {
				t.Errorf("%s: chunk %d with a wrong tag makes it %s", f.name, kind, got)
			}
		}
		chunk('s', chunkAbort, clientTag)
		if got := r.stateOf(p); got != "CLOSED" {
			t.Errorf("%s: an ABORT makes it %s, want CLOSED", f.name, got)
		}
		// An association picked up in the middle: its first packet already has the tag.
		r = base.fresh(t)
		p = r.connect(f, testpkt.ProtoSCTP, natModes[0])
		chunk('c', 0, serverTag)
		chunk('c', chunkAbort, 7)
		if got := r.stateOf(p); got != "NEW" {
			t.Errorf("%s: a wrong tag makes an open connection %s, want NEW", f.name, got)
		}
	}
}

// TestBlindPromotion: packets with forged sources establish no connection.
func TestBlindPromotion(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		udp := r.connect(f, testpkt.ProtoUDP, natModes[0])
		for i := range uint16(300) {
			p := udp.from(40000 + i)
			r.slow("question", p, stageOpen)
			r.slow("answer", p, stageAnswer)
		}
		tcp := r.connect(f, testpkt.ProtoTCP, natModes[0])
		for i := range uint16(300) {
			p := tcp.from(40000 + i)
			r.send(p, segments["cSYN"])
			r.send(p, segments["sSYNA"])
			r.send(p, segment{'c', testpkt.ACK, clientISN + 1, 0xdeadbeef, bothSay, nil})
			r.send(p, segment{'c', testpkt.FIN | testpkt.ACK, clientISN + 1, 0xdeadbeef, bothSay, nil})
			r.send(p, segment{'c', 0, clientISN + 1, serverISN + 1, bothSay, nil})
		}
		if _, n := r.entriesByClass(); n != 0 {
			t.Errorf("%s: %d lasting entries, want none", f.name, n)
		}
		p := tcp.from(40000)
		r.send(p, segments["cACK"])
		if got := r.stateOf(p); got != "ESTABLISHED+" {
			t.Errorf("%s: the genuine acknowledgement makes it %s", f.name, got)
		}
	}
}
