// SPDX-License-Identifier: Apache-2.0

package testreport

import (
	"os"
	"strings"
	"testing"
)

const bare = "# Benchmarks\n\n## Packets\n| 7 |\n\n## Review notes\n- Was it so?\n"

// TestParts: a part is added, replaced, and removed, and nothing else changes.
func TestParts(t *testing.T) {
	const first = "# Benchmarks\n\n## Packets\n| 7 |\n\n<!-- part kubernetes -->\n## Scale\n| 1 |\n<!-- end of part kubernetes -->\n\n## Review notes\n- Was it so?\n"
	got, err := Put(bare, Kubernetes, "## Scale\n| 1 |\n")
	if err != nil || got != first {
		t.Fatalf("%v:\n%s", err, got)
	}
	got, err = Put(first, Kubernetes, "## Scale\n| 2 |\n")
	if err != nil || got != strings.Replace(first, "| 1 |", "| 2 |", 1) {
		t.Errorf("%v:\n%s", err, got)
	}
	part, err := Part(got, Kubernetes)
	if err != nil || part != "## Scale\n| 2 |\n" {
		t.Errorf("the part is %q, %v", part, err)
	}
	if again, err := Put(bare, Kubernetes, part); err != nil || again != got {
		t.Errorf("carried along, %v:\n%s", err, again)
	}
	if part, err := Part(bare, Kubernetes); err != nil || part != "" {
		t.Errorf("of none: %q, %v", part, err)
	}
	if got, err := Put(bare, Kubernetes, ""); err != nil || got != bare {
		t.Errorf("nothing put, %v:\n%s", err, got)
	}
}

// TestDamagedMarks: a report with edited marks is rejected, not overwritten.
func TestDamagedMarks(t *testing.T) {
	begin, end := marks(Kubernetes)
	for name, text := range map[string]string{
		"no end": bare + begin, "no beginning": bare + end, "the other way round": bare + end + begin, "twice": bare + begin + end + begin + end,
	} {
		if got, err := Put(text, Kubernetes, "x\n"); err == nil || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if _, err := Part(text, Kubernetes); err == nil {
			t.Errorf("%s: no error of Part", name)
		}
	}
	if _, err := Put("# Benchmarks\n", Kubernetes, "x\n"); err == nil {
		t.Error("no error without review notes")
	}
}

// TestDocument: the committed report contains the parts.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	part, err := Part(string(text), Kubernetes)
	if err != nil || !strings.HasPrefix(part, "## Kubernetes") {
		t.Errorf("the part of Kubernetes is %.40q, %v", part, err)
	}
}
