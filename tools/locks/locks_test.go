// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDetecting: a source with other mutexes is valid, and its lines stay where they are.
func TestDetecting(t *testing.T) {
	for _, source := range []string{
		"package a\n\nimport \"sync\"\n\nvar mu sync.Mutex\n",
		"package a\n\nimport (\n\t\"fmt\"\n\t\"sync\"\n)\n\ntype t struct {\n\tmu sync.RWMutex\n\tonce sync.Once\n}\n\nvar _ = fmt.Sprint\n",
	} {
		got := detecting(source)
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", got, 0)
		if err != nil {
			t.Fatalf("%v:\n%s", err, got)
		}
		if first := file.Imports[0].Path.Value; first != `"`+detector+`"` {
			t.Errorf("the first import is %s:\n%s", first, got)
		}
		before, after := strings.Split(source, "\n"), strings.Split(got, "\n")
		for i, line := range before {
			if strings.Contains(line, "Mutex") && after[i] != strings.Replace(line, "sync.", "deadlock.", 1) {
				t.Errorf("line %d is %q, want %q with another package", i+1, after[i], line)
			}
		}
	}
}

// TestRead: reports about the same places are one report.
func TestRead(t *testing.T) {
	folder := t.TempDir()
	report := func(a, b string) string {
		return separator + " Inconsistent locking:\n" + a + " p.mu.Lock() <<<<<\nx.go:1 caller\n\n" + b + " o.mu.Lock() <<<<<\n"
	}
	for name, content := range map[string]string{
		"1": report("a.go:1", "b.go:2") + report("b.go:2", "a.go:1"),
		"2": report("a.go:1", "c.go:3"),
		"3": "",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := read(folder); err != nil || len(got) != 2 {
		t.Errorf("%d reports, want 2: %q (%v)", len(got), got, err)
	}
}
