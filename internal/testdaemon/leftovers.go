// SPDX-License-Identifier: Apache-2.0

package testdaemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// leftovers returns what this test run left behind: namespaces, mounts, processes, and files other
// than the programs in its directory.
func leftovers(dir string) (left []string) {
	mine := fmt.Sprintf("llt-%d-", os.Getpid())
	for _, pattern := range []string{"/run/netns/" + mine + "*", "/run/" + mine + "*", dir + "/*"} {
		found, _ := filepath.Glob(pattern) // the pattern is valid
		for _, path := range found {
			if path != filepath.Join(dir, "bin") {
				left = append(left, path)
			}
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err == nil {
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, mine) {
				left = append(left, "mount "+strings.TrimSpace(line))
			}
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		if line, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(line), dir) {
			left = append(left, "process "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return left
}
