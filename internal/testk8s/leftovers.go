// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Leftovers returns what the cluster has left on the machine after it ended: files, mounts,
// namespaces, cgroups and processes. There must be nothing. within is how long processes may take
// to end.
func (c *Cluster) Leftovers(within time.Duration) (left []string) {
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		clearCgroups() // a cgroup with processes could not be removed
		if left = c.leftovers(); len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

func (c *Cluster) leftovers() (left []string) {
	patterns := []string{filepath.Join(os.TempDir(), cgroupName()+"-*"), c.Switch.Path(), c.Outside.Path()}
	for _, n := range c.Nodes {
		patterns = append(patterns, n.NS.Path())
	}
	dirs, _ := hierarchies()
	for _, dir := range dirs {
		patterns = append(patterns, filepath.Join(dir, cgroupName()))
	}
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // the pattern is valid
		left = append(left, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return append(left, err.Error())
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, cgroupName()+"-") {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return append(left, processesLeft()...)
}

// processesLeft returns the processes in our cgroups, and the processes whose command lines name
// one of our directories.
func processesLeft() (left []string) {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, proc := range all {
		words, _ := os.ReadFile(filepath.Join(proc, "cmdline")) // the process may have ended
		cgroup, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
		if strings.Contains(string(words), cgroupName()+"-") || strings.Contains(string(cgroup), "/"+cgroupName()+"/") {
			left = append(left, "process "+filepath.Base(proc)+" "+strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	return left
}
