// SPDX-License-Identifier: Apache-2.0

package listing

import "testing"

func TestFirst(t *testing.T) {
	for want, all := range map[string][]string{"": nil, "a": {"a"}, "a, b": {"a", "b"}, "a, b and 2 more": {"a", "b", "c", "d"}} {
		if got := First(all, 2); got != want {
			t.Errorf("%q: got %q, want %q", all, got, want)
		}
	}
}
