// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight"
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
		for _, w := range of.words() {
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

// TestFindingsAreExplained: every row of docs/findings.md is explained, and what --fix repairs.
func TestFindingsAreExplained(t *testing.T) {
	if rows := strings.Count(loxilight.Findings, "\n| `"); rows < 80 || len(findingWords.words()) != rows {
		t.Errorf("%d of %d rows are explained", len(findingWords.words()), rows)
	}
	repairs := 0
	for _, w := range findingWords.words() {
		if w.meaning == "" || strings.ContainsAny(w.meaning+w.advice, "*|`") {
			t.Errorf("%s: %q, %q", w.name, w.meaning, w.advice)
		}
		if w.advice != "" {
			repairs++
		}
	}
	if want := strings.Count(loxilight.Findings, "; *repaired"); repairs != want {
		t.Errorf("%d findings are repaired, want %d", repairs, want)
	}
}
