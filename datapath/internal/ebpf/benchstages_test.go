// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testreport"
)

// life is a connection with its packets in order.
type life struct {
	name    string
	proto   uint8
	prepare func(r *rig, f family)
	target  func(f family, i int) netip.AddrPort // the destination of the client's packets
	packets []lifePacket
}

type lifePacket struct {
	name    string
	reply   bool
	flags   uint8 // of TCP
	options []byte
	after   time.Duration // since the packets before it, if many connections are open
}

// synOptions are the options that Linux sends: MSS, SACK permitted, timestamps, window scale.
var synOptions = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}

var (
	tcpPackets = []lifePacket{
		{name: "SYN", flags: testpkt.SYN, options: synOptions}, {name: "SYN-ACK", reply: true, flags: testpkt.SYN | testpkt.ACK, options: synOptions},
		{name: "ACK", flags: testpkt.ACK}, {name: "request", flags: testpkt.ACK | testpkt.PSH}, {name: "response", reply: true, flags: testpkt.ACK | testpkt.PSH},
		{name: "FIN", reply: true, flags: testpkt.ACK | testpkt.FIN}, {name: "FIN of the client", flags: testpkt.ACK | testpkt.FIN},
		{name: "last ACK", reply: true, flags: testpkt.ACK},
	}
	udpPackets = []lifePacket{{name: "first packet"}, {name: "its answer", reply: true}, {name: "second packet"}, {name: "its answer", reply: true}}
	// A connection is one-way from its third packet on, if that comes 2 s or more after the first one.
	oneWayPackets = []lifePacket{{name: "first packet"}, {name: "second packet"}, {name: "third packet", after: 2200 * time.Millisecond}, {name: "fourth packet"}}
)

var lives = []life{
	{"UDP through a Service", testpkt.ProtoUDP, toService(testpkt.ProtoUDP), frontendOf, udpPackets},
	{"one-way UDP through a Service", testpkt.ProtoUDP, toService(testpkt.ProtoUDP), frontendOf, oneWayPackets},
	{"masqueraded UDP", testpkt.ProtoUDP, masqueraded, oneOfMany, udpPackets},
	{"TCP through a Service", testpkt.ProtoTCP, toService(testpkt.ProtoTCP), frontendOf, tcpPackets},
	{"masqueraded TCP", testpkt.ProtoTCP, masqueraded, oneOfMany, tcpPackets},
}

func frontendOf(f family, _ int) netip.AddrPort { return f.vip }

// oneOfMany returns one of many ports of a host: a NAT has 4,500 source ports for each.
func oneOfMany(f family, i int) netip.AddrPort {
	return netip.AddrPortFrom(f.far.Addr(), uint16(1024+i/4000))
}

func toService(proto uint8) func(*rig, family) {
	return func(r *rig, f family) {
		r.t.Helper()
		r.service(rigService{id: 1, proto: proto, frontend: f.vip, backends: []rigBackend{{id: 1, addr: f.far}}})
	}
}

func masqueraded(r *rig, _ family) {
	r.t.Helper()
	r.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
}

// sideBySide is the number of connections of which one packet each is sent in turn.
const sideBySide = 20_000

// BenchmarkStages measures each packet of connections with BPF_PROG_RUN, in tables of the size with
// which they begin: one connection after the other, whose entries are in the processor's caches except for the
// first packet; and many connections side by side, whose entries are not. With LOXILIGHT_REPORT, the
// results are written into that document.
func BenchmarkStages(b *testing.B) {
	machine, err := testreport.Machine()
	if err != nil {
		b.Fatal(err)
	}
	var rows []string
	for b.Loop() {
		rows = nil
		for _, l := range lives {
			var columns [][]time.Duration
			for _, f := range families {
				columns = append(columns, l.inTurn(b, f), l.sideBySide(b, f))
			}
			for i, p := range l.packets {
				row := fmt.Sprintf("| %s: %s |", l.name, p.name)
				for _, c := range columns {
					if c == nil {
						row += " – |"
						continue
					}
					row += fmt.Sprintf(" %d |", c[i].Nanoseconds())
				}
				rows = append(rows, row)
			}
		}
		empty := fmt.Sprint(emptyRun(b).Nanoseconds())
		rows = append(rows, "| an empty program"+strings.Repeat(" | "+empty, 4)+" |")
	}
	part := fmt.Sprintf(`## The packets of a connection
Written by %[1]smake bench-stages%[1]s on %s: %s; loxilight %s. Do not edit; run it again.

ns of our programs alone, medians of %s connections, in a table that is a third full: one
connection after the other, and one packet of each connection before the next packet of any. Each
packet is one system call, between which other code uses the processor's caches. The last row is the
cost of the measurement.

| packet | IPv4, in turn | IPv4, side by side | IPv6, in turn | IPv6, side by side |
|---|---|---|---|---|
%s
`, "`", time.Now().Format(time.DateOnly), machine, os.Getenv("LOXILIGHT_VERSION"), "20,000", strings.Join(rows, "\n"))
	b.Log("\n" + part)
	if path := os.Getenv("LOXILIGHT_REPORT"); path != "" {
		if err := testreport.Write(path, testreport.Stages, part); err != nil {
			b.Fatal(err)
		}
	}
}

// rigFor returns a rig in which all packets of the connections can take the fast path. Its table has
// half-open connections already: on a virtual machine, the first access to a page may take the
// hypervisor microseconds.
func (l *life) rigFor(b *testing.B, f family) *rig {
	b.Helper()
	r := newRig(b, sized(65_536))
	r.knowNeighbours(f)
	l.prepare(r, f)
	r.ns.Do(b, func() error {
		for i := range sideBySide {
			l.time(r, f, sideBySide+i, &l.packets[0])
		}
		return nil
	})
	return r
}

// frame returns packet p of connection i, and the port on which it arrives.
func (l *life) frame(r *rig, f family, i int, p *lifePacket) ([]byte, rigPort) {
	client, target := netip.AddrPortFrom(f.client.Addr(), uint16(1024+i)), l.target(f, i)
	eth, from, to, dev := r.in.arrives(), client, target, r.in
	if p.reply {
		c, found := r.conn(rigTuple{l.proto, client, target})
		if !found {
			r.t.Fatalf("%s, connection %d: not tracked before the %s", l.name, i, p.name)
		}
		eth, from, to, dev = r.out.arrives(), c.leaves.dst, c.leaves.src, r.out
	}
	if l.proto == testpkt.ProtoUDP {
		return packet(eth, l.proto, from, to, stageData, 61), dev
	}
	return testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), 64),
		testpkt.TCP{Source: from.Port(), Destination: to.Port(), Seq: sequence(p.flags), Ack: 2, Window: 501, Flags: p.flags, Options: p.options}), dev
}

// time returns how long the programs take for packet p of connection i.
func (l *life) time(r *rig, f family, i int, p *lifePacket) time.Duration {
	frame, dev := l.frame(r, f, i, p)
	d, action, err := timeOne(r.ingress, frame, dev)
	if err != nil || action != actRedirect {
		r.t.Fatalf("%s, connection %d, %s: action %d, %v, counters %v", l.name, i, p.name, int32(action), err, r.counters())
	}
	return d
}

// inTurn measures one connection after the other, or returns nil if a packet must wait.
func (l *life) inTurn(b *testing.B, f family) []time.Duration {
	b.Helper()
	if slices.ContainsFunc(l.packets, func(p lifePacket) bool { return p.after > 0 }) {
		return nil
	}
	r := l.rigFor(b, f)
	all := make([][]time.Duration, len(l.packets))
	r.ns.Do(b, func() error {
		for i := range sideBySide {
			for j := range l.packets {
				all[j] = append(all[j], l.time(r, f, i, &l.packets[j]))
			}
		}
		return nil
	})
	return medians(all)
}

func (l *life) sideBySide(b *testing.B, f family) []time.Duration {
	b.Helper()
	r := l.rigFor(b, f)
	all := make([][]time.Duration, len(l.packets))
	r.ns.Do(b, func() error {
		for j := range l.packets {
			time.Sleep(l.packets[j].after)
			for i := range sideBySide {
				all[j] = append(all[j], l.time(r, f, i, &l.packets[j]))
			}
		}
		return nil
	})
	return medians(all)
}

func medians(all [][]time.Duration) (m []time.Duration) {
	for _, one := range all {
		slices.Sort(one)
		m = append(m, one[len(one)/2])
	}
	return m
}

// emptyRun returns how long a program that does nothing takes.
func emptyRun(b *testing.B) time.Duration {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	var all []time.Duration
	frame := make([]byte, 64)
	for range 1000 {
		d, _, err := timeOne(p, frame, rigPort{index: 1})
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, d)
	}
	return medians([][]time.Duration{all})[0]
}

// timeOne runs p on a frame that arrives on dev, and returns the run time of the program, which
// [ebpf.Program.Run] does not return.
func timeOne(p *ebpf.Program, frame []byte, dev rigPort) (d time.Duration, action uint32, err error) {
	var ctx [44]uint32 // struct __sk_buff
	ctx[10] = dev.index
	attr := struct {
		fd, retval, sizeIn, sizeOut uint32
		in, out                     unsafe.Pointer
		repeat, duration            uint32
		ctxIn, ctxOut               uint32
		ctx, ctxTo                  unsafe.Pointer
		flags, cpu, batch, _        uint32
	}{
		fd: uint32(p.FD()), sizeIn: uint32(len(frame)), in: unsafe.Pointer(&frame[0]),
		ctxIn: uint32(unsafe.Sizeof(ctx)), ctx: unsafe.Pointer(&ctx), repeat: 1,
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, 0, errno
	}
	return time.Duration(attr.duration), attr.retval, nil
}
