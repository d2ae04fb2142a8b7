// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// BenchmarkTranslatedConnection measures the first packet of a masqueraded UDP connection and its
// answer with BPF_PROG_RUN, in tables of the default size, for new connections. About 70 ns of each
// result are measurement overhead.
func BenchmarkTranslatedConnection(b *testing.B) {
	r := newRig(b, sized(1<<20))
	f := families[0]
	r.knowNeighbours(f)
	r.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	var total [2]time.Duration
	n := 0
	for b.Loop() {
		r.ns.Do(b, func() error {
			client := netip.AddrPortFrom(f.client.Addr(), uint16(1024+n%60000))
			server := netip.AddrPortFrom(f.far.Addr(), uint16(1024+n/4000)) // 4,500 ports
			first := packet(r.in.arrives(), testpkt.ProtoUDP, client, server, stageOpen, 61)
			d, action, err := timeOne(r.ingress, first, r.in)
			if err != nil || action != actRedirect {
				b.Fatalf("first packet: action %d, %v, counters %v", action, err, r.counters())
			}
			total[0] += d
			c, _ := r.conn(rigTuple{testpkt.ProtoUDP, client, server})
			answer := packet(r.out.arrives(), testpkt.ProtoUDP, server, c.leaves.src, stageAnswer, 61)
			if d, action, err = timeOne(r.ingress, answer, r.out); err != nil || action != actRedirect {
				b.Fatalf("answer: action %d, %v, counters %v", action, err, r.counters())
			}
			total[1] += d
			n++
			return nil
		})
	}
	b.ReportMetric(float64(total[0].Nanoseconds())/float64(n), "ns/first")
	b.ReportMetric(float64(total[1].Nanoseconds())/float64(n), "ns/answer")
}
