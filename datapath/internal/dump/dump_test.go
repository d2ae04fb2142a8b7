// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestListingsAreRetried: dumps that concurrent changes may interrupt use [Retry],
// because the kernel then reports the dump as incomplete and the library returns an error.
func TestListingsAreRetried(t *testing.T) {
	lists := regexp.MustCompile(`\.(Link|Addr|Neigh|Route|Rule|Filter|Qdisc|Class|Chain)List(Filtered)?\b`)
	found := 0
	err := filepath.WalkDir("../../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/internal/test") || strings.Contains(path, "/tests/") {
			return err
		}
		text, err := os.ReadFile(path)
		before := ""
		for i, line := range strings.Split(string(text), "\n") {
			call := before + line
			before = line
			if !lists.MatchString(line) {
				continue
			}
			found++
			if !strings.Contains(call, "retry(") && !strings.Contains(call, "dump.Retry(") {
				t.Errorf("%s:%d: a listing that may be interrupted: use retry: %s", path, i+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d listings found, %v", found, err)
	}
}
