// SPDX-License-Identifier: Apache-2.0

package testdaemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// leftovers names the leftovers of this run of the tests: namespaces, mounts, processes, and files
// in its folder besides the programs.
func leftovers(dir string) (left []string) {
	mine := fmt.Sprintf("llt-%d-", os.Getpid())
	for _, pattern := range []string{"/run/netns/" + mine + "*", "/run/" + mine + "*", dir + "/*"} {
		found, _ := filepath.Glob(pattern) // the pattern is right
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
