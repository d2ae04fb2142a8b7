// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestManualPages checks the parts of every page, and that roff interprets no text as a request.
func TestManualPages(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{"SOURCE_DATE_EPOCH": "86400"}}
	dir := filepath.Join(t.TempDir(), "man1")
	if code, _, errs := s.run(t.Context(), "man", dir); code != 0 {
		t.Fatalf("llcli man: exit code %d, %s", code, errs)
	}
	pages, err := filepath.Glob(dir + "/*.1")
	if err != nil || !slices.Contains(pages, dir+"/llcli.1") || !slices.Contains(pages, dir+"/llcli-service-backend-add.1") {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	known := []string{".TH", ".SH", ".PP", ".RS", ".RE", ".nf", ".fi", ".TP"}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(page), ".1")
		if want := `.TH "` + strings.ToUpper(strings.ReplaceAll(name, "-", `\-`)) + `" "1" "1970\-01\-02" "loxilight 0.9" "loxilight"`; !strings.HasPrefix(string(text), want+"\n") {
			t.Errorf("%s begins with %.80q, want %q", name, text, want)
		}
		for line := range strings.Lines(string(text)) {
			request, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains(known, request) {
				t.Errorf("%s: %q is a request to roff", name, line)
			}
		}
	}
}

func TestManualDate(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{"SOURCE_DATE_EPOCH": "soon"}}
	code, _, errs := s.run(t.Context(), "man", t.TempDir())
	if want := "llcli: SOURCE_DATE_EPOCH \"soon\": want seconds since 1970\n"; code != ExitFailed || errs != want {
		t.Errorf("exit code %d, %q; want 1, %q", code, errs, want)
	}
}
