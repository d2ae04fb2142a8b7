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

// TestGlossary: every file that docs/GLOSSARY.md names exists, every term has one sentence and at
// least one file, and the terms are in alphabetical order.
func TestGlossary(t *testing.T) {
	page, err := os.ReadFile("docs/GLOSSARY.md")
	if err != nil {
		t.Fatal(err)
	}
	var terms []string
	path := regexp.MustCompile("`([a-z0-9_/.-]+)`")
	entries := strings.Split(string(page), "\n- **")
	for _, entry := range entries[1:] {
		term, rest, _ := strings.Cut(strings.Join(strings.Fields(entry), " "), "**: ")
		meaning, code, ok := strings.Cut(rest, ". Code: ")
		if !ok || strings.Contains(meaning, ". ") {
			t.Errorf("%s: %q is not one sentence and \"Code: FILES\"", term, rest)
		}
		terms = append(terms, strings.ToLower(term))
		found := path.FindAllStringSubmatch(code, -1)
		if len(found) == 0 {
			t.Errorf("%s: no file", term)
		}
		for _, m := range found {
			name := m[1]
			if strings.HasPrefix(name, "ll_") || strings.HasPrefix(name, "addr_") || name == "verdict_count" {
				continue
			}
			if !strings.Contains(name, "/") {
				name = filepath.Join("ebpf-src", name)
			}
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s: %v", term, err)
			}
		}
	}
	if len(terms) < 50 || !slices.IsSorted(terms) {
		t.Errorf("%d terms, in this order: %s", len(terms), strings.Join(terms, ", "))
	}
}
