// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReasonsAreExplained: every reason and verdict in the C source has an explanation, and all
// advice belongs to one of them.
func TestReasonsAreExplained(t *testing.T) {
	source, err := os.ReadFile("../../../ebpf-src/drop.h")
	if err != nil {
		t.Fatal(err)
	}
	for prefix, of := range map[string]struct {
		*vocabulary
		advice map[string]string
	}{"DROP_": {&dropWords, dropAdvice}, "VERDICT_": {&verdictWords, verdictAdvice}} {
		var want []string
		for _, m := range regexp.MustCompile(`(?m)^\t`+prefix+`(\w+),`).FindAllStringSubmatch(string(source), -1) {
			if m[1] != "NONE" && m[1] != "MAX" {
				want = append(want, strings.ToLower(m[1]))
			}
		}
		var got []string
		for _, w := range of.words {
			got = append(got, w.name)
			if w.meaning == "" || strings.ContainsAny(w.meaning, "*\n\t") {
				t.Errorf("%s: the sentence is %q", w.name, w.meaning)
			}
		}
		for name := range of.advice {
			if of.find(name) == nil {
				t.Errorf("advice for %s, which is no reason", name)
			}
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("words for %s…:\n got %q\nwant %q", prefix, got, want)
		}
	}
}
