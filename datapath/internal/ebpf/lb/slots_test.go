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
