// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// BenchmarkTracked measures the fast path with BPF_PROG_RUN, without the kernel's work before and
// after it. The connection translates a packet to itself, so that the same packet can be used until
// its TTL ends. The result is the mean of the fastest quarter of all runs, since the others were
// disturbed.
func BenchmarkTracked(b *testing.B) {
	for _, bench := range []struct {
		name     string
		proto    uint8
		src, dst string
		flags    uint16
		bridge   bool // the packet arrives on a bridge port
	}{
		{"udp4", testpkt.ProtoUDP, "192.0.2.10:40000", "10.0.1.11:80", 0, false},
		{"tcp4", testpkt.ProtoTCP, "192.0.2.10:40000", "10.0.1.11:80", 0, false},
		{"tcp4 translated", testpkt.ProtoTCP, "192.0.2.10:40000", "10.0.1.11:80", kernel.CtDNAT, false},
		{"tcp4 translated, from a bridge", testpkt.ProtoTCP, "192.0.2.10:40000", "10.0.1.11:80", kernel.CtDNAT, true},
		{"udp6", testpkt.ProtoUDP, "[2001:db8:1::10]:40000", "[2001:db8:2::11]:80", 0, false},
		{"tcp6", testpkt.ProtoTCP, "[2001:db8:1::10]:40000", "[2001:db8:2::11]:80", 0, false},
		{"tcp6 translated", testpkt.ProtoTCP, "[2001:db8:1::10]:40000", "[2001:db8:2::11]:80", kernel.CtDNAT, false},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := newRig(b)
			src, dst := netip.MustParseAddrPort(bench.src), netip.MustParseAddrPort(bench.dst)
			// Without a context the device is lo, whose MAC is all zeros.
			frame := packet(testpkt.Ethernet{}, bench.proto, src, dst, stageData, 255)
			r.put(kernel.MapLlNexthop, uint32(7), kernel.Nexthop{
				Ifindex: r.out.index, MtuBytes: 1500, CheckedTick: rigTick() + 20,
			})
			if bench.bridge {
				r.put(kernel.MapLlBridged, uint32(0), uint64(1<<1)) // the bit of lo
				r.put(kernel.MapLlBridgePort, kernel.BridgePortKey{Ifindex: 1}, kernel.BridgePort{Bridge: 99, Domain: 3})
			}
			meta := kernel.CtMeta{Nexthop: 7, State: uint8(kernel.CtStateCT_ESTABLISHED), LastSeenTick: rigTick(), Flags: bench.flags}
			if src.Addr().Is4() {
				k := kernel.Ct4Key{Saddr: kernel.AddrOf(src.Addr()).Word[3], Daddr: kernel.AddrOf(dst.Addr()).Word[3], Sport: kernel.Swap16(src.Port()), Dport: kernel.Swap16(dst.Port()), Proto: bench.proto}
				r.ok(r.tables.Ct4.Put(k, kernel.Ct4Val{Meta: meta, Saddr: k.Saddr, Daddr: k.Daddr, Sport: k.Sport, Dport: k.Dport}))
			} else {
				k := kernel.Ct6Key{Saddr: kernel.AddrOf(src.Addr()), Daddr: kernel.AddrOf(dst.Addr()), Sport: kernel.Swap16(src.Port()), Dport: kernel.Swap16(dst.Port()), Proto: bench.proto}
				r.ok(r.tables.Ct6.Put(k, kernel.Ct6Val{Meta: meta, Saddr: k.Saddr, Daddr: k.Daddr, Sport: k.Sport, Dport: k.Dport}))
			}
			var runs []time.Duration
			for b.Loop() {
				r.ns.Do(b, func() error {
					action, d, err := r.ingress.Benchmark(frame, repeats, nil)
					if action != actRedirect {
						b.Fatalf("action %d, want a redirect", int32(action))
					}
					runs = append(runs, d)
					return err
				})
			}
			slices.Sort(runs)
			var sum time.Duration
			fastest := runs[:max(1, len(runs)/4)]
			for _, d := range fastest {
				sum += d
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(len(fastest)), "ns/packet")
		})
	}
}

// repeats is the number of runs with one packet, each of which decrements its TTL.
const repeats = 250
