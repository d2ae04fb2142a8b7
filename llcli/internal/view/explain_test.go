// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReasonsAreExplained compares the words with the list of names in the C source.
func TestReasonsAreExplained(t *testing.T) {
	source, err := os.ReadFile("../../../ebpf-src/drop.h")
	if err != nil {
		t.Fatal(err)
	}
	for prefix, v := range map[string]*vocabulary{"DROP_": &dropWords, "VERDICT_": &verdictWords} {
		var want []string
		for _, m := range regexp.MustCompile(`(?m)^\t`+prefix+`(\w+),`).FindAllStringSubmatch(string(source), -1) {
			if m[1] != "NONE" && m[1] != "MAX" {
				want = append(want, strings.ToLower(m[1]))
			}
		}
		var got []string
		for _, w := range v.words {
			got = append(got, w.name)
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("words for %s…:\n got %q\nwant %q", prefix, got, want)
		}
	}
}
