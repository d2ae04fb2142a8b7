// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// segment is a TCP segment of the client (c) or the server (s).
type segment struct {
	from     byte
	flags    uint8
	seq, ack uint32
	window   uint16
	options  []byte
}

const (
	clientISN = 0x01000000
	serverISN = 0x70000000
	bothSay   = 501 // the window that both announce, in bytes unless scaled
)

// segments contains segments by their short names: sender and flags.
var segments = map[string]segment{
	"cSYN":  {'c', testpkt.SYN, clientISN, 0, bothSay, nil},
	"cSYNA": {'c', testpkt.SYN | testpkt.ACK, clientISN, serverISN + 1, bothSay, nil},
	"cACK":  {'c', testpkt.ACK, clientISN + 1, serverISN + 1, bothSay, nil},
	"cFIN":  {'c', testpkt.FIN | testpkt.ACK, clientISN + 1, serverISN + 1, bothSay, nil},
	"cRST":  {'c', testpkt.RST | testpkt.ACK, clientISN + 1, serverISN + 1, 0, nil},
	"sSYN":  {'s', testpkt.SYN, serverISN, 0, bothSay, nil},
	"sSYNA": {'s', testpkt.SYN | testpkt.ACK, serverISN, clientISN + 1, bothSay, nil},
	"sACK":  {'s', testpkt.ACK, serverISN + 1, clientISN + 1, bothSay, nil},
	"sFIN":  {'s', testpkt.FIN | testpkt.ACK, serverISN + 1, clientISN + 1, bothSay, nil},
	"sRST":  {'s', testpkt.RST | testpkt.ACK, serverISN + 1, clientISN + 1, 0, nil},
}

// send sends a segment through the ingress hook.
func (r *rig) send(p path, s segment) {
	r.t.Helper()
	build := func(dev rigPort, from, to netip.AddrPort, ttl uint8) []byte {
		return testpkt.Build(dev.arrives(), ipHeader(from.Addr(), to.Addr(), ttl), testpkt.TCP{
			Source: from.Port(), Destination: to.Port(), Flags: s.flags, Seq: s.seq, Ack: s.ack,
			Window: s.window, Options: s.options})
	}
	if s.from == 'c' {
		action, ttl := p.outcome(61)
		r.step("client", p.clientPort, build(p.clientPort, p.client, p.vip, 61), action, build(p.clientPort, p.source, p.backend, ttl))
	} else {
		r.step("server", p.beport, build(p.beport, p.backend, p.source, 61), actUnspec, build(p.beport, p.vip, p.client, 61))
	}
}

// play deletes the connection of p, then sends the segments with these names.
func (r *rig) play(p path, names ...string) {
	r.t.Helper()
	for _, t := range []rigTuple{p.forth(), p.back()} {
		if _, found := r.conn(t); found {
			r.forget(t)
		}
	}
	for _, name := range names {
		r.send(p, segments[name])
	}
}

// stateOf returns the state of the connection, which must be the same in both entries, followed by
// + if it is lasting.
func (r *rig) stateOf(p path) string {
	r.t.Helper()
	forth, _ := r.conn(p.forth())
	back, found := r.conn(p.back())
	if !found || forth.State != back.State || forth.half != back.half {
		r.t.Errorf("the entries differ: %+v and %+v (there: %t)", forth, back, found)
	}
	name := []string{"NEW", "ANSWERED", "ESTABLISHED", "ONE_WAY", "FIN", "TIME_WAIT", "CLOSED"}[forth.State]
	if !forth.half {
		name += "+"
	}
	return name
}

// transitions lists the state of a connection after each possible next segment; a row begins with
// the segments that lead to the current state. A SYN, or a SYN-ACK alone, does not establish a
// connection; a FIN of the client after both does. A reset leads to a separate state, which ends if the
// side that seems to have sent the reset continues: the connection is half-open again.
const transitions = `
                      cSYN         cSYNA        cACK         cFIN       cRST     sSYN         sSYNA        sACK         sFIN       sRST
cSYN                  NEW          NEW          NEW          FIN        CLOSED   NEW          ANSWERED     ANSWERED     FIN        CLOSED
cSYN,sSYNA            ANSWERED     ANSWERED     ESTABLISHED+ FIN+       CLOSED   ANSWERED     ANSWERED     ANSWERED     FIN        CLOSED
cSYN,sSYNA,sFIN       FIN          FIN          FIN+         TIME_WAIT  CLOSED   FIN          FIN          FIN          FIN        CLOSED
cSYN,sSYNA,cACK       ESTABLISHED+ ESTABLISHED+ ESTABLISHED+ FIN+       CLOSED   ESTABLISHED+ ESTABLISHED+ ESTABLISHED+ FIN+       CLOSED
cSYN,sSYNA,cACK,cFIN  FIN+         FIN+         FIN+         FIN+       CLOSED   FIN+         FIN+         FIN+         TIME_WAIT  CLOSED
cSYN,sSYNA,cACK,sFIN  FIN+         FIN+         FIN+         TIME_WAIT  CLOSED   FIN+         FIN+         FIN+         FIN+       CLOSED
cSYN,sSYNA,cACK,cFIN,sFIN NEW      TIME_WAIT    TIME_WAIT    TIME_WAIT  CLOSED   TIME_WAIT    TIME_WAIT    TIME_WAIT    TIME_WAIT  CLOSED
cSYN,cRST             NEW          CLOSED       NEW          CLOSED     CLOSED   CLOSED       CLOSED       CLOSED       CLOSED     CLOSED
cSYN,sRST             NEW          CLOSED       CLOSED       CLOSED     CLOSED   CLOSED       CLOSED       ANSWERED     CLOSED     CLOSED
cSYN,sSYNA,cRST       NEW          CLOSED       NEW          CLOSED     CLOSED   CLOSED       CLOSED       CLOSED       CLOSED     CLOSED
cSYN,sSYNA,cACK,cRST  NEW          CLOSED       NEW          CLOSED     CLOSED   CLOSED       CLOSED       CLOSED       CLOSED     CLOSED
cSYN,sSYNA,cACK,sRST  NEW          CLOSED       CLOSED       CLOSED     CLOSED   CLOSED       CLOSED       ANSWERED     CLOSED     CLOSED
`

func TestTCPStates(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		rows := strings.Split(strings.TrimSpace(transitions), "\n")
		columns := strings.Fields(rows[0])
		for _, row := range rows[1:] {
			cells := strings.Fields(row)
			if len(cells) != len(columns)+1 {
				t.Fatalf("row %q has %d states", row, len(cells)-1)
			}
			for i, next := range columns {
				r.play(p, append(strings.Split(cells[0], ","), next)...)
				if got := r.stateOf(p); got != cells[i+1] {
					t.Errorf("%s: after %s, %s makes it %s, want %s", f.name, cells[0], next, got, cells[i+1])
				}
			}
		}
	}
}

// TestResetsOutOfTheWindow: a reset that cannot be genuine changes nothing. The windows are
// as announced by both sides, with the negotiated scale.
func TestResetsOutOfTheWindow(t *testing.T) {
	base := newRig(t)
	scaled := map[string]segment{
		"cSYN":  {'c', testpkt.SYN, clientISN, 0, bothSay, []byte{2, 4, 5, 0xb4, 1, 3, 3, 3}},
		"sSYNA": {'s', testpkt.SYN | testpkt.ACK, serverISN, clientISN + 1, bothSay, []byte{4, 2, 3, 3, 5, 0}},
	}
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		for _, tt := range []struct {
			scaled bool
			from   byte
			seq    int64 // relative to the other side's acknowledgement
			want   string
		}{
			{false, 'c', -1, "ESTABLISHED+"}, {false, 'c', 0, "CLOSED"}, {false, 'c', bothSay, "CLOSED"},
			{false, 'c', bothSay + 1, "ESTABLISHED+"}, {false, 'c', 1 << 30, "ESTABLISHED+"},
			{false, 's', -1, "ESTABLISHED+"}, {false, 's', 0, "CLOSED"}, {false, 's', bothSay + 1, "ESTABLISHED+"},
			{true, 'c', bothSay << 5, "CLOSED"}, {true, 'c', bothSay<<5 + 1, "ESTABLISHED+"},
			{true, 's', bothSay << 3, "CLOSED"}, {true, 's', bothSay<<3 + 1, "ESTABLISHED+"}, {true, 's', -1, "ESTABLISHED+"},
		} {
			if tt.scaled {
				r.play(p)
				r.send(p, scaled["cSYN"])
				r.send(p, scaled["sSYNA"])
			} else {
				r.play(p, "cSYN", "sSYNA")
			}
			r.send(p, segments["cACK"])
			r.send(p, segments["sACK"])
			reset := segments["cRST"]
			if tt.from == 's' {
				reset = segments["sRST"]
			}
			reset.seq += uint32(tt.seq)
			r.send(p, reset)
			if got := r.stateOf(p); got != tt.want {
				t.Errorf("%s: %s: state %s, want %s", f.name, fmt.Sprintf("%+v", tt), got, tt.want)
			}
		}
	}
}

// TestPortReuse: a SYN on an ended connection begins a new one, with a backend from the
// current tables; a repeated SYN stays with its backend.
func TestPortReuse(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		next := p
		next.backend = netip.AddrPortFrom(p.backend.Addr(), 9031)
		for _, history := range [][]string{
			{"cSYN"}, {"cSYN", "sSYNA"}, {"cSYN", "sSYNA", "cACK"}, {"cSYN", "sSYNA", "cACK", "cFIN"},
		} {
			r.play(p, history...)
			r.service(rigService{id: 7, proto: p.proto, frontend: p.vip, backends: []rigBackend{{id: 4, addr: next.backend}}})
			r.send(p, segments["cSYN"])
			r.service(rigService{id: 7, proto: p.proto, frontend: p.vip, backends: []rigBackend{{id: 3, addr: p.backend}}})
		}
		for _, history := range [][]string{
			{"cSYN", "sSYNA", "cACK", "cFIN", "sFIN", "cACK"}, {"cSYN", "sRST"}, {"cSYN", "sSYNA", "cACK", "cRST"},
		} {
			r.play(p, history...)
			r.service(rigService{id: 7, proto: p.proto, frontend: p.vip, backends: []rigBackend{{id: 4, addr: next.backend}}})
			r.send(next, segments["cSYN"])
			r.send(next, segments["sSYNA"])
			r.send(next, segments["cACK"])
			if got := r.stateOf(next); got != "ESTABLISHED+" {
				t.Errorf("%s: after %v the new connection is %s", f.name, history, got)
			}
			if _, found := r.conn(p.back()); found {
				t.Errorf("%s: after %v the old connection's answers are still known", f.name, history)
			}
			r.play(next)
			r.service(rigService{id: 7, proto: p.proto, frontend: p.vip, backends: []rigBackend{{id: 3, addr: p.backend}}})
		}
	}
}

// TestOtherStates: UDP is established by the client's packet after the reply, SCTP by the COOKIE
// ECHO, and the end of an association is detected.
func TestOtherStates(t *testing.T) {
	base := newRig(t)
	const chunkInit, chunkInitAck, chunkAbort, chunkShutdown, chunkCookieEcho, chunkShutdownComplete = 1, 2, 6, 7, 10, 14
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoUDP, natModes[0])
		for i, want := range []string{"NEW", "NEW", "ANSWERED", "ESTABLISHED+"} {
			r.slow("datagram", p, []stage{stageOpen, stageConfirm, stageAnswer, stageConfirm}[i])
			if got := r.stateOf(p); got != want {
				t.Errorf("%s: UDP after %d packets: %s, want %s", f.name, i+1, got, want)
			}
		}
		p = r.connect(f, testpkt.ProtoSCTP, natModes[0])
		chunk := func(from byte, kind uint8) {
			t.Helper()
			build := func(dev rigPort, from, to netip.AddrPort) []byte {
				return testpkt.Build(dev.arrives(), ipHeader(from.Addr(), to.Addr(), 61), testpkt.SCTP{Source: from.Port(),
					Destination: to.Port(), Tag: 5, Chunks: []testpkt.Chunk{{Type: kind, Value: []byte{9}}}})
			}
			if from == 'c' {
				r.step("client", r.in, build(r.in, p.client, p.vip), actUnspec, build(r.in, p.source, p.backend))
			} else {
				r.step("server", r.out, build(r.out, p.backend, p.source), actUnspec, build(r.out, p.vip, p.client))
			}
		}
		expect := func(want string) {
			t.Helper()
			if got := r.stateOf(p); got != want {
				t.Errorf("%s: SCTP: %s, want %s", f.name, got, want)
			}
		}
		for range 2 { // the second is opened in place of the first
			chunk('c', chunkInit)
			expect("NEW")
			chunk('s', chunkInitAck)
			expect("ANSWERED")
			chunk('c', chunkCookieEcho)
			expect("ESTABLISHED+")
			chunk('s', chunkShutdown)
			expect("FIN+")
			chunk('s', chunkShutdownComplete)
			expect("TIME_WAIT")
		}
		chunk('c', chunkInit)
		chunk('s', chunkInitAck)
		chunk('c', chunkCookieEcho)
		chunk('s', chunkAbort)
		expect("CLOSED")
	}
}
