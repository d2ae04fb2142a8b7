// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// lifePackets are the packets of a TCP connection with one request.
var lifePackets = []struct {
	name    string
	reply   bool
	flags   uint8
	options []byte
}{
	{"syn", false, testpkt.SYN, synOptions}, {"synack", true, testpkt.SYN | testpkt.ACK, synOptions}, {"ack", false, testpkt.ACK, nil},
	{"request", false, testpkt.ACK | testpkt.PSH, nil}, {"response", true, testpkt.ACK | testpkt.PSH, nil},
	{"fin", true, testpkt.ACK | testpkt.FIN, nil}, {"finack", false, testpkt.ACK | testpkt.FIN, nil}, {"lastack", true, testpkt.ACK, nil},
}

// synOptions are the options that Linux sends: MSS, SACK permitted, timestamps, window scale.
var synOptions = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}

// BenchmarkConnection measures each packet of a TCP connection's life with BPF_PROG_RUN, in tables
// of the default size: for new connections, and for clients that reuse their ports. About 70 ns of
// each result are measurement overhead.
func BenchmarkConnection(b *testing.B) {
	r := newRig(b, sized(1<<20))
	r.ns.Run(b, "ip", "neigh", "replace", "192.0.2.10", "lladdr", "02:00:5e:10:01:17", "dev", "in0", "nud", "permanent")
	r.ns.Run(b, "ip", "neigh", "replace", "10.0.1.11", "lladdr", "02:00:5e:10:02:34", "dev", "out0", "nud", "permanent")
	frontend, backend := netip.MustParseAddrPort("198.51.100.10:80"), netip.MustParseAddrPort("10.0.1.11:8080")
	r.service(rigService{id: 1, proto: testpkt.ProtoTCP, frontend: frontend, backends: []rigBackend{{id: 1, addr: backend}}})
	for i := range uint32(64) {
		r.ok(r.maps[kernel.MapLlNexthopFree].Put(nil, i+1))
	}
	for _, bench := range []struct {
		name  string
		ports int // ports that the client uses in turn
	}{{"new", 60_000}, {"again", 2_000}} {
		b.Run(bench.name, func(b *testing.B) {
			total := make([]time.Duration, len(lifePackets))
			n := 0
			for b.Loop() {
				client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), uint16(1024+n%bench.ports))
				r.live(client, frontend, backend, total)
				if bench.name == "new" {
					r.forget(rigTuple{testpkt.ProtoTCP, client, frontend})
					r.forget(rigTuple{testpkt.ProtoTCP, backend, client})
				}
				n++
			}
			var sum time.Duration
			for i, p := range lifePackets {
				b.ReportMetric(float64(total[i].Nanoseconds())/float64(n), "ns/"+p.name)
				sum += total[i]
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(n), "ns/connection")
		})
	}
}

// live sends the packets of a connection's life, and adds the run time of each to total.
func (r *rig) live(client, frontend, backend netip.AddrPort, total []time.Duration) {
	r.t.Helper()
	r.ns.Do(r.t, func() error {
		for i, p := range lifePackets {
			eth, from, to, dev := r.in.arrives(), client, frontend, r.in
			if p.reply {
				eth, from, to, dev = r.out.arrives(), backend, client, r.out
			}
			frame := testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), 64),
				testpkt.TCP{Source: from.Port(), Destination: to.Port(), Seq: sequence(p.flags), Ack: 2, Window: 501, Flags: p.flags, Options: p.options})
			d, action, err := timeOne(r.ingress, frame, dev)
			if err != nil {
				return err
			}
			if total[i] += d; action != actRedirect {
				r.t.Fatalf("%s: action %d, counters %v", p.name, action, r.counters())
			}
		}
		return nil
	})
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
