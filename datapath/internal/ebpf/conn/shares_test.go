// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestSharesDuringPass: connections that begin while a pass reads the table are counted once,
// whether the pass reads them or not.
func TestSharesDuringPass(t *testing.T) {
	for _, before := range []int{0, 1, 1000, 100_000} {
		for _, during := range []int{1, 100, 100_000} {
			for _, family := range []string{"10.0.0.1", "2001:db8::1"} {
				client := netip.MustParseAddr(family)
				random := rand.New(rand.NewPCG(uint64(before), uint64(during)))
				s := newShares(new(kernel.Shares))
				place := func() (*uint32, *uint32) {
					return &s.kernel.Total[familyOf(client)], &s.kernel.Count[ShareIndex(s.kernel, client)]
				}
				all, mine := place()
				// The table is read in 100 parts; an entry is at a random place in it.
				const parts = 100
				var entries [parts]int
				open := func(n int) {
					for range n {
						entries[random.IntN(parts)]++
					}
					*all += uint32(n)
					*mine += uint32(n)
				}
				open(before)
				s.passBegins()
				opened := 0
				for part := range parts {
					s.changed()
					for range entries[part] {
						s.add(client)
					}
					s.changed()
					n := during*(part+1)/parts - opened
					open(n) // after this part, and before the next one
					opened += n
				}
				s.passEnded()
				want := before + during
				slack := 1 + during/50 + int(3*math.Sqrt(float64(during))) // the places are random
				for what, got := range map[string]uint32{"all": *all, "of the source": *mine} {
					if int(got) < want-slack || int(got) > want+slack {
						t.Errorf("%s: %d connections, and %d during the pass: %d are counted %s", family, before, during, got, what)
					}
				}
			}
		}
	}
}
