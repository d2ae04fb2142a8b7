// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory is what the automatic sizes of the tables go by: never how much is free,
// so that a restart finds the sizes of the run before.
type Memory struct {
	Bytes uint64
	From  string // the machine, or the file of the limit that is lower
}

// Where the limits of the cgroup that the maps are accounted to are found. A
// cgroup of version 1 has no file here: its limits are not seen.
const (
	cgroupFile = "/proc/self/cgroup"
	cgroupRoot = "/sys/fs/cgroup"
)

// machineMemory returns the memory of the machine, or less where the cgroup of the
// daemon may have only less.
func machineMemory() Memory {
	m := Memory{From: "machine"}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil { // it cannot fail
		m.Bytes = uint64(info.Totalram) * uint64(info.Unit)
	}
	own, err := os.ReadFile(cgroupFile)
	if err != nil {
		return m // no cgroups: no limits
	}
	return m.limited(string(own), cgroupRoot)
}

// ownMemory is what the daemon itself takes at most, besides the tables, in bytes.
const ownMemory = 160 << 20

// tableShare is how much more memory a machine has than a limit for the daemon alone that fits
// the same tables: of a machine they take a tenth when full, of such a limit less than half,
// so that there is room for a copy while a start makes them larger.
const tableShare = 4

// asMachine returns the memory of a machine whose tables fit a limit for the daemon alone.
func asMachine(limit uint64) uint64 {
	if limit > 1<<60 {
		return limit
	}
	return tableShare * (limit - min(limit, ownMemory))
}

// limited returns m, or the lowest memory.max from the cgroup that own (the
// content of /proc/self/cgroup) names up to root. The limit of that cgroup itself is for the
// daemon alone; the others are shared, as a machine is.
func (m Memory) limited(own, root string) Memory {
	for line := range strings.Lines(own) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok || !filepath.IsAbs(path) {
			continue
		}
		for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
			file := filepath.Join(root, dir, "memory.max")
			text, err := os.ReadFile(file)
			if err == nil {
				max, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
				if dir == filepath.Clean(path) {
					max = asMachine(max)
				}
				if err == nil && max < m.Bytes {
					m = Memory{Bytes: max, From: file}
				}
			}
			if dir == "/" {
				return m
			}
		}
	}
	return m
}

const autoSize = "auto"

// size is a key of tables: a number of entries, or auto, which is what c has
// already.
func size(name string, at func(*Config) *uint32) key {
	k := text(name, at, parseSize)
	number := k.set
	k.set = func(c *Config, value string) error {
		if value == autoSize {
			return nil
		}
		c.AutoSizes = slices.DeleteFunc(c.AutoSizes, func(s string) bool { return s == name })
		return number(c, value)
	}
	return k
}
