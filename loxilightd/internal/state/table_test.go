// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTableAgainstMap compares tables with plain maps during random edits, and checks that older
// tables do not change.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			table *table
			want  map[Key]*Object
		}
		current := version{&table{}, map[Key]*Object{}}
		versions := []version{current}
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			e := current.table.edit()
			want := maps.Clone(current.want)
			base := rapid.IntRange(0, 600).Draw(t, "base")
			step := rapid.SampledFrom([]int{1, -1, 7}).Draw(t, "step")
			remove := rapid.Bool().Draw(t, "remove")
			for i := range rapid.IntRange(1, 500).Draw(t, "length") {
				k := Key{[]string{"A", "B"}[i%7/6], fmt.Sprintf("%04d", (base+i*step+6000)%1000)}
				if remove {
					if got := e.remove(k); got != want[k] {
						t.Fatalf("remove %s = %v, want %v", k, got, want[k])
					}
					delete(want, k)
					continue
				}
				o := &Object{Key: k}
				if got := e.put(o); got != want[k] {
					t.Fatalf("put %s = %v, want %v", k, got, want[k])
				}
				want[k] = o
			}
			current = version{e.done(), want}
			versions = append(versions, current)
		}
		for _, v := range versions {
			checkTable(t, v.table, v.want)
		}
	})
}

func checkTable(t *rapid.T, table *table, want map[Key]*Object) {
	keys := slices.SortedFunc(maps.Keys(want), Key.compare)
	var got []Key
	for o := range table.from(Key{}) {
		if want[o.Key] != o {
			t.Fatalf("%s is another object than was put", o.Key)
		}
		got = append(got, o.Key)
	}
	if !slices.Equal(got, keys) || table.count != len(keys) {
		t.Fatalf("count %d, order %v, want %v", table.count, got, keys)
	}
	for k, o := range want {
		if table.get(k) != o {
			t.Fatalf("get %s found another object", k)
		}
	}
	for _, c := range table.chunks {
		if len(c.objects) == 0 || len(c.objects) > chunkMax {
			t.Fatalf("a chunk of %d objects", len(c.objects))
		}
	}
	if sparse := len(table.chunks); sparse > 4+len(keys)/(chunkMax/8)*2 {
		t.Fatalf("%d chunks for %d objects", sparse, len(keys))
	}
}
