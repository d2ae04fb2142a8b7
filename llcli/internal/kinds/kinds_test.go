// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestAll: each kind of the API has a descriptor, and no word means two kinds.
func TestAll(t *testing.T) {
	var names []string
	of := map[string]string{}
	for i := range All {
		k := &All[i]
		names = append(names, k.Name)
		for _, word := range k.Words {
			if other := of[word]; other != "" {
				t.Errorf("%s means %s and %s", word, other, k.Name)
			}
			of[word] = k.Name
		}
		if k.Cells == nil || k.Schema == "" || k.AddExample == "" || k.SetExample == "" || len(k.fields) == 0 && k.flags == nil {
			t.Errorf("the descriptor of %s is not complete", k.Name)
		}
	}
	want := slices.Sorted(slices.Values(api.Kinds))
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("kinds %q, want %q", names, want)
	}
}
