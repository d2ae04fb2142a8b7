// SPDX-License-Identifier: Apache-2.0

package loxilight

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGlossary: every file that docs/GLOSSARY.md names exists, every term has one, and the terms
// are in alphabetical order.
func TestGlossary(t *testing.T) {
	page, err := os.ReadFile("docs/GLOSSARY.md")
	if err != nil {
		t.Fatal(err)
	}
	var terms []string
	path := regexp.MustCompile("`([a-z0-9_/.-]+)`")
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") || cells[1] == " Term " {
			continue
		}
		terms = append(terms, strings.ToLower(strings.TrimSpace(cells[1])))
		found := path.FindAllStringSubmatch(cells[3], -1)
		if len(found) == 0 {
			t.Errorf("%s: no file", cells[1])
		}
		for _, m := range found {
			name := m[1]
			if strings.HasPrefix(name, "ll_") || strings.HasPrefix(name, "addr_") {
				continue
			}
			if !strings.Contains(name, "/") {
				name = filepath.Join("ebpf-src", name)
			}
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s: %v", cells[1], err)
			}
		}
	}
	if len(terms) < 50 || !slices.IsSorted(terms) {
		t.Errorf("%d terms, in this order: %s", len(terms), strings.Join(terms, ", "))
	}
}
