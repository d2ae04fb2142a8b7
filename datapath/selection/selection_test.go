// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/loxilight/loxilight/datapath"
)

// farm returns n backends of weight 1 with random addresses.
func farm(n int, seed uint64) []Weighted {
	rng := rand.New(rand.NewPCG(seed, 7))
	seen := map[netip.AddrPort]bool{}
	var backends []Weighted
	for len(backends) < n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], rng.Uint32())
		addr := netip.AddrPortFrom(netip.AddrFrom4(b), uint16(rng.Uint32()))
		if !seen[addr] {
			seen[addr] = true
			backends = append(backends, Weighted{Addr: addr, Weight: 1})
		}
	}
	return backends
}

func counts(table []uint32, n int) []int {
	c := make([]int, n)
	for _, index := range table {
		c[index]++
	}
	return c
}

// moved counts the slots whose backend changed, except changes from or to the backend that gone
// names.
func moved(before, after []uint32, was, is []Weighted, gone netip.AddrPort) int {
	n := 0
	for i := range before {
		x, y := was[before[i]].Addr, is[after[i]].Addr
		if x != y && x != gone && y != gone {
			n++
		}
	}
	return n
}

var fillers = map[string]func([]uint32, []Weighted){"maglev": Maglev, "proportional": Proportional}

// TestSharesFollowWeights: the share of each backend differs from its quota by at most two slots,
// for any weights.
func TestSharesFollowWeights(t *testing.T) {
	for name, fillTable := range fillers {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			backends := farm(rapid.IntRange(1, 60).Draw(t, "backends"), rapid.Uint64().Draw(t, "seed"))
			total := 0
			for i := range backends {
				backends[i].Weight = rapid.Uint16Range(0, 40).Draw(t, "weight")
				total += int(backends[i].Weight)
			}
			table := make([]uint32, datapath.SlotCount(len(backends)))
			fillTable(table, backends)
			if total == 0 {
				if slices.ContainsFunc(table, func(v uint32) bool { return v != None }) {
					t.Fatal("a slot is taken, and no backend has a weight")
				}
				return
			}
			for i, got := range counts(table, len(backends)) {
				quota := float64(len(table)) * float64(backends[i].Weight) / float64(total)
				if math.Abs(float64(got)-quota) > 2 {
					t.Errorf("backend %d of weight %d of %d has %d slots of %d, quota %.1f",
						i, backends[i].Weight, total, got, len(table), quota)
				}
			}
		}))
	}
}

// TestOrderDoesNotMatter: neither the order of the list nor backends without weight change the
// table.
func TestOrderDoesNotMatter(t *testing.T) {
	for name, fillTable := range fillers {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			backends := farm(rapid.IntRange(1, 40).Draw(t, "backends"), rapid.Uint64().Draw(t, "seed"))
			for i := range backends {
				backends[i].Weight = rapid.Uint16Range(1, 4).Draw(t, "weight")
			}
			size := datapath.SlotCount(len(backends))
			want, got := make([]uint32, size), make([]uint32, size)
			fillTable(want, backends)
			other := append(rapid.Permutation(backends).Draw(t, "order"),
				Weighted{Addr: netip.MustParseAddrPort("203.0.113.77:1"), Weight: 0})
			fillTable(got, other)
			for i := range want {
				if backends[want[i]].Addr != other[got[i]].Addr {
					t.Fatalf("slot %d: %s, in another order %s", i, backends[want[i]].Addr, other[got[i]].Addr)
				}
			}
		}))
	}
}

// TestMaglevIsEven: as in section 5.3 of the paper, with 1000 backends and 65537 slots, the shares
// of equal weights differ by at most one slot.
func TestMaglevIsEven(t *testing.T) {
	table := make([]uint32, 65537)
	Maglev(table, farm(1000, 1))
	c := counts(table, 1000)
	if low, high := slices.Min(c), slices.Max(c); high-low > 1 {
		t.Errorf("from %d to %d slots each, want a difference of 1", low, high)
	}
}

// TestMaglevDisruptsLittle: as in figure 12 of the paper, only a few per cent of the slots of other
// backends move when one backend of many is removed or added.
func TestMaglevDisruptsLittle(t *testing.T) {
	for _, tt := range []struct {
		backends, size int
		most           float64 // of all slots
	}{{3, 509, 0.05}, {10, 1021, 0.06}, {100, 16381, 0.04}, {1000, 65537, 0.02}} {
		sum, rounds := 0, 10
		for seed := range rounds {
			all := farm(tt.backends, uint64(seed))
			before, after := make([]uint32, tt.size), make([]uint32, tt.size)
			Maglev(before, all)
			less := slices.Delete(slices.Clone(all), seed%tt.backends, seed%tt.backends+1)
			Maglev(after, less)
			sum += moved(before, after, all, less, all[seed%tt.backends].Addr)
		}
		if got := float64(sum) / float64(rounds*tt.size); got > tt.most {
			t.Errorf("%d backends, %d slots: %.3f of the slots moved needlessly, want at most %.2f",
				tt.backends, tt.size, got, tt.most)
		}
	}
}

// TestMaglevWeightChangeDisruptsLittle: a change to one weight moves few slots between the other
// backends.
func TestMaglevWeightChangeDisruptsLittle(t *testing.T) {
	all := farm(10, 5)
	for i := range all {
		all[i].Weight = 10
	}
	before, after := make([]uint32, 1021), make([]uint32, 1021)
	Maglev(before, all)
	all[4].Weight = 5
	Maglev(after, all)
	if n := moved(before, after, all, all, all[4].Addr); n > 120 {
		t.Errorf("%d of 1021 slots moved between other backends", n)
	}
}

// TestHashNeverChanges pins values of the hash: it determines the backends of connections, so nodes
// with different versions must agree.
func TestHashNeverChanges(t *testing.T) {
	for addr, want := range map[string]uint64{
		"10.0.1.2:8080":        0xb87b58a69e13d159,
		"[2001:db8::1:2]:8080": 0x3be1ce736b04b585,
	} {
		if got := hash(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("hash(%s) = %#x, want %#x", addr, got, want)
		}
	}
}

func TestProportionalInterleaves(t *testing.T) {
	backends := []Weighted{
		{netip.MustParseAddrPort("10.0.1.2:80"), 4},
		{netip.MustParseAddrPort("10.0.1.3:80"), 2},
		{netip.MustParseAddrPort("10.0.1.4:80"), 1},
	}
	table := make([]uint32, 14)
	Proportional(table, backends)
	want := []uint32{0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0}
	if !slices.Equal(table, want) {
		t.Errorf("got %v, want %v", table, want)
	}
	Proportional(table[:4], []Weighted{{backends[1].Addr, 3}, {backends[0].Addr, 3}})
	if want := []uint32{1, 0, 1, 0}; !slices.Equal(table[:4], want) {
		t.Errorf("equal weights: got %v, want %v", table[:4], want)
	}
}

// TestAnySize: tables of any size are filled.
func TestAnySize(t *testing.T) {
	for size := 1; size < 300; size++ {
		table := make([]uint32, size)
		Maglev(table, farm(7, uint64(size)))
		if slices.Contains(table, None) {
			t.Fatalf("size %d: a slot is empty", size)
		}
	}
	Maglev(nil, farm(3, 1))
}

func TestNoAllocations(t *testing.T) {
	backends, table := farm(10, 3), make([]uint32, 1021)
	Maglev(table, backends)
	if n := testing.AllocsPerRun(100, func() { Maglev(table, backends) }); n > 1 {
		t.Errorf("%v allocations a table", n)
	}
}

// BenchmarkMaglev10 fills one table: 10,000 services with 10 backends each need 10,000 of them.
func BenchmarkMaglev10(b *testing.B)  { benchmark(b, Maglev, 10, 1) }
func BenchmarkMaglev10W(b *testing.B) { benchmark(b, Maglev, 10, 9) }
func BenchmarkMaglev1000W(b *testing.B) {
	benchmark(b, Maglev, 1000, 9)
}
func BenchmarkProportional10W(b *testing.B) { benchmark(b, Proportional, 10, 9) }

func benchmark(b *testing.B, fillTable func([]uint32, []Weighted), n, weights int) {
	backends, table := farm(n, 1), make([]uint32, datapath.SlotCount(n))
	for i := range backends {
		backends[i].Weight = uint16(1 + i%weights)
	}
	for b.Loop() {
		fillTable(table, backends)
	}
}
