// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"slices"
	"strings"
	"testing"
)

// TestDiffLines restores both texts from the diff: the lines without + are the text before, the
// lines without - are the text after.
func TestDiffLines(t *testing.T) {
	for _, texts := range [][2]string{
		{"", "a\n"}, {"a\n", ""}, {"a\n", "b\n"}, {"a\nb\nc\n", "a\nc\n"}, {"a\nc\n", "a\nb\nc\n"},
		{"a\nb\nc\nd\n", "b\na\nd\nc\n"}, {"x\nx\nx\n", "x\nx\n"},
	} {
		before, after := splitLines(texts[0]), splitLines(texts[1])
		script := editScript(before, after)
		var was, is []string
		changed := 0
		for _, line := range script {
			if line[0] != '+' {
				was = append(was, line[2:])
			}
			if line[0] != '-' {
				is = append(is, line[2:])
			}
			if line[0] != ' ' {
				changed++
			}
		}
		if !slices.Equal(was, before) || !slices.Equal(is, after) || changed == 0 {
			t.Errorf("%q to %q: %q", texts[0], texts[1], script)
		}
	}
	long := strings.Repeat("a\n", 50)
	want := []string{"  …", "  a", "  a", "  a", "- x", "+ y", "  a", "  a", "  a", "  …"}
	if got := diffLines(long+"x\n"+long, long+"y\n"+long); !slices.Equal(got, want) {
		t.Errorf("in the middle of equal lines: %q, want %q", got, want)
	}
	if got := diffLines(long, long); got != nil {
		t.Errorf("equal texts: %q", got)
	}
}
