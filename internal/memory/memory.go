// SPDX-License-Identifier: Apache-2.0

// Package memory reads how much memory this process may use: the machine's, and the limits of its
// cgroups. Limits of cgroup version 1 are not read.
package memory

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Group is a cgroup that contains this process, directly or in a cgroup within.
type Group struct {
	Dir string
	Own bool // the process itself is in it
}

// Groups returns the cgroups of this process, innermost first, up to the root.
func Groups() []Group {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil // no cgroups: no limits
	}
	return GroupsIn(string(own), "/sys/fs/cgroup")
}

// GroupsIn is Groups for the content of /proc/self/cgroup and the mount point of the cgroups.
func GroupsIn(own, root string) (all []Group) {
	for line := range strings.Lines(own) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok || !filepath.IsAbs(path) {
			continue
		}
		for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
			all = append(all, Group{filepath.Join(root, dir), dir == filepath.Clean(path)})
			if dir == "/" {
				break
			}
		}
	}
	return all
}

// LimitFile is the file with the limit of a cgroup.
func (g Group) LimitFile() string { return filepath.Join(g.Dir, "memory.max") }

// Limit returns the limit of a cgroup in bytes, if it has one.
func (g Group) Limit() (bytes uint64, ok bool) { return g.number("memory.max") }

func (g Group) number(file string) (n uint64, ok bool) {
	text, err := os.ReadFile(filepath.Join(g.Dir, file))
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is not a number
	return n, err == nil
}

// free returns the bytes that the processes of a cgroup may still take, if it has a limit. The page
// cache that is not in use can be reclaimed.
func (g Group) free() (bytes uint64, ok bool) {
	limit, ok := g.Limit()
	if !ok {
		return 0, false
	}
	used, ok := g.number("memory.current")
	used -= min(used, field(filepath.Join(g.Dir, "memory.stat"), "inactive_file"))
	return limit - min(limit, used), ok
}

// Machine returns the memory of the machine in bytes.
func Machine() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil { // it cannot fail
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// Usage returns the memory in use and its size, in bytes: of the cgroup of this process that has the
// least free, or of the machine. The part of the page cache that can be reclaimed is not in use.
func Usage() (used, size uint64) { return usage("/proc/meminfo", Groups()) }

func usage(meminfo string, groups []Group) (used, size uint64) {
	size = field(meminfo, "MemTotal:") << 10
	least := field(meminfo, "MemAvailable:") << 10
	for _, g := range groups {
		free, ok := g.free()
		if limit, _ := g.Limit(); ok && (free < least || size == 0) {
			least, size = free, limit
		}
	}
	return size - min(size, least), size
}

// reserve is the part of the machine's memory, or of a limit, that Enough leaves free.
const reserve = 20 // a twentieth

// Enough returns an error that says what limits the memory, if this process cannot take that many
// bytes more and leave a twentieth free.
func Enough(bytes uint64) error { return enough(bytes, "/proc/meminfo", Groups()) }

func enough(bytes uint64, meminfo string, groups []Group) error {
	all, free := field(meminfo, "MemTotal:")<<10, field(meminfo, "MemAvailable:")<<10
	if all > 0 && free < bytes+all/reserve {
		return fmt.Errorf("it takes %d MiB more; %d of %d MiB of the machine are available", bytes>>20, free>>20, all>>20)
	}
	for _, g := range groups {
		free, ok := g.free()
		if limit, _ := g.Limit(); ok && free < bytes+limit/reserve {
			return fmt.Errorf("it takes %d MiB more; %d of %d MiB of %s are available", bytes>>20, free>>20, limit>>20, g.LimitFile())
		}
	}
	return nil
}

// field returns the number after a name at the beginning of a line; 0: no such line.
func field(file, name string) uint64 {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close() // nothing was written
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			n, _ := strconv.ParseUint(words[1], 10, 64)
			return n
		}
	}
	return 0
}
