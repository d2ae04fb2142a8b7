// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// ours is the prefix of the names of cgroups and directories. It is followed by the id of the
	// process that created them.
	ours = "llk8s-"
	// watches is a machine-wide limit, which many kubelets and containerds exceed.
	watches, enoughWatches = "/proc/sys/fs/inotify/max_user_instances", 2048
	// watchesBefore holds the previous value; the file remains if a test was killed.
	watchesBefore = "/run/llk8s-inotify"
)

// prepareMachine changes settings that belong to no namespace, and restores them at the end.
func (c *Cluster) prepareMachine() {
	clearCgroups()
	c.t.Cleanup(clearCgroups)
	if err := raiseWatches(); err != nil {
		c.t.Fatalf("%v", err)
	}
	c.t.Cleanup(func() {
		if err := restoreWatches(); err != nil {
			c.t.Logf("%v", err)
		}
	})
}

func raiseWatches() error {
	if err := restoreWatches(); err != nil {
		return err
	}
	text, err := os.ReadFile(watches)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= enoughWatches {
		return nil
	}
	if err := os.WriteFile(watchesBefore, text, 0o600); err != nil {
		return err
	}
	return os.WriteFile(watches, strconv.AppendInt(nil, enoughWatches, 10), 0)
}

func restoreWatches() error {
	text, err := os.ReadFile(watchesBefore)
	if err != nil {
		return nil // nothing was changed
	}
	if err := os.WriteFile(watches, text, 0); err != nil {
		return err
	}
	return os.Remove(watchesBefore)
}

// cgroupName is the cgroup that holds the pods of all our nodes.
func cgroupName() string { return fmt.Sprint(ours, os.Getpid()) }

// hierarchies are the cgroup file systems: one, or with version 1 several.
func hierarchies() (dirs []string, unified bool) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, true
	}
	all, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs")) // the pattern is valid
	for _, file := range all {
		dirs = append(dirs, filepath.Dir(file))
	}
	return dirs, false
}

// makeCgroup makes the cgroup of a node's pods, which the kubelet expects to exist.
func makeCgroup(node string) error {
	dirs, unified := hierarchies()
	for _, dir := range dirs {
		path := filepath.Join(dir, cgroupName(), node)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if cpus := filepath.Join(dir, "cpuset.cpus"); !unified {
			for _, p := range []string{filepath.Dir(path), path} {
				for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // a new cpuset is empty
					if text, err := os.ReadFile(filepath.Join(filepath.Dir(cpus), f)); err == nil {
						_ = os.WriteFile(filepath.Join(p, f), text, 0) // not needed on machines where it is inherited
					}
				}
			}
			continue
		}
		for _, p := range []string{dir, filepath.Dir(path), path} {
			for _, controller := range []string{"cpu", "cpuset", "memory", "pids"} {
				_ = os.WriteFile(filepath.Join(p, "cgroup.subtree_control"), []byte("+"+controller), 0) // if this fails, the kubelet reports the missing controllers
			}
		}
	}
	return nil
}

// clearCgroups removes our cgroups, and the cgroups of tests that have ended.
func clearCgroups() {
	dirs, _ := hierarchies()
	for _, dir := range dirs {
		paths, _ := filepath.Glob(filepath.Join(dir, ours+"*")) // the pattern is valid
		for _, path := range paths {
			if pid := maker(path); pid == os.Getpid() || gone(pid) {
				removeCgroup(path)
			}
		}
	}
}

// clearFolders removes the directories of tests that have ended.
func clearFolders() {
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), ours+"*")) // the pattern is valid
	for _, path := range paths {
		if gone(maker(path)) {
			_ = os.RemoveAll(path) // the next test tries again
		}
	}
}

// maker returns the id of the process in the name of a cgroup, or 0 if the name contains none.
func maker(path string) int {
	word, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), ours), "-")
	pid, _ := strconv.Atoi(word) // 0 if it is not a number
	return pid
}

func gone(pid int) bool { return pid > 0 && unix.Kill(pid, 0) == unix.ESRCH }

// removeCgroup removes a cgroup and all cgroups below it. Cgroups in use stay.
func removeCgroup(path string) {
	var all []string
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, p)
		}
		return nil
	})
	for i := range all {
		_ = unix.Rmdir(all[len(all)-1-i])
	}
}
