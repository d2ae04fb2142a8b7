// SPDX-License-Identifier: Apache-2.0

package policy

import "testing"

// TestTermsDiffer: selectors that differ only in where their words begin and end are different terms.
func TestTermsDiffer(t *testing.T) {
	values := func(values ...string) Requirements {
		return Requirements{{Key: "app", Operator: NotIn, Values: values}}
	}
	var all []Peer
	for _, r := range []Requirements{values("a b"), values("a", "b"), values(""), values(), values(`a" "b`), values("]", "["), {}} {
		all = append(all, Peer{Entities: &Selector{Labels: r}},
			Peer{Entities: &Selector{Namespaces: &NamespaceSelector{Labels: r}}})
	}
	for _, names := range [][]string{{"a b"}, {"a", "b"}} {
		all = append(all, Peer{Entities: &Selector{Namespaces: &NamespaceSelector{Names: names}}})
	}
	list := terms{ids: map[string]int{}}
	for i := range all {
		if got := list.take(&all[i]); got != i {
			t.Errorf("peer %d is term %d", i, got)
		}
	}
}
