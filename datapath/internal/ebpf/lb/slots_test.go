// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"math/rand/v2"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestSelectionTableFits: whatever the number of backends, a selection table is encoded without
// loss, and takes at most as many chunks as its size class assumes.
func TestSelectionTableFits(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for _, members := range []int{1, 2, 3, 16, 112, 113, 255, 256, 257, 300, 655, 656, 5000, 65536, 65537, 131071} {
		var x selected
		for i := range members {
			x.members = append(x.members, uint32(i)*31+7)
		}
		for slot := range datapath.SlotCount(members) {
			x.indexes = append(x.indexes, uint32(slot%members))
		}
		random.Shuffle(len(x.indexes), func(i, j int) { x.indexes[i], x.indexes[j] = x.indexes[j], x.indexes[i] })
		got := x.encode()
		if n := uint32(len(x.words)); n != got.words() {
			t.Errorf("%d members: %d words, and the table says %d", members, n, got.words())
		}
		for slot, i := range x.indexes {
			if id := wordsIn(x.words).backend(got.members, slot); id != x.members[i] {
				t.Fatalf("%d members: slot %d is %d, want %d", members, slot, id, x.members[i])
			}
		}
		chunks := float64(chunksOf(got.words()))
		if most := 1.2 * float64(members); chunks > most {
			t.Errorf("%d members: %g chunks, more than %g", members, chunks, most)
		}
		if most := float64(members)/2 + 1; members >= 3 && members <= 200 && chunks > most {
			t.Errorf("%d members: %g chunks, more than %g", members, chunks, most)
		}
	}
}

// chunksFor returns the number of chunks of a Maglev table with that many members.
func chunksFor(members int) float64 {
	var x selected
	for i := range members {
		x.members = append(x.members, uint32(i)+1)
	}
	x.indexes = make([]uint32, datapath.SlotCount(members))
	t := x.encode()
	return float64(chunksOf(t.words()))
}

// TestSelectionTablesFit: a million backends in 65,536 tables need at most half a chunk each, as size
// class "chunks" assumes, however they are distributed to tables with at most 256 backends.
func TestSelectionTablesFit(t *testing.T) {
	const backends, tables = 1 << 20, 1 << 16
	var each [257]float64
	for b := 1; b < len(each); b++ {
		each[b] = chunksFor(b)
	}
	// The maximum of a linear program with two constraints has at most two sizes of tables.
	worst, of := 0.0, [2]int{}
	for low := 1; low < len(each); low++ {
		for high := low; high < len(each); high++ {
			count := min(float64(tables), backends/float64(high)) // of tables with high backends
			sum := count * each[high]
			if low < high && low*tables <= backends && backends <= high*tables {
				count = float64(backends-low*tables) / float64(high-low)
				sum = count*each[high] + (tables-count)*each[low]
			}
			if sum > worst {
				worst, of = sum, [2]int{low, high}
			}
		}
	}
	t.Logf("tables with %d and %d backends need most: %.0f chunks", of[0], of[1], worst)
	if most := 0.995 * backends / 2; worst > most {
		t.Errorf("tables with %d and %d backends need %.0f chunks, more than %.0f: old ones need some room, too", of[0], of[1], worst, most)
	}
	for b := 1; b < len(each); b++ {
		if each[b] > float64(b+1)/2 {
			t.Errorf("%d backends need %g chunks: many small tables may not fit", b, each[b])
		}
	}
}
