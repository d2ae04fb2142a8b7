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

// Memory determines the automatic table sizes. It never depends on free memory, so that a restarted
// daemon gets the same sizes as in the previous run.
type Memory struct {
	Bytes uint64
	From  string // "machine", or the file that contains a lower limit
}

// Files with the limits of the cgroup to which the maps are charged. Limits of cgroup version 1 are
// not read.
const (
	cgroupFile = "/proc/self/cgroup"
	cgroupRoot = "/sys/fs/cgroup"
)

// machineMemory returns the memory of the machine, or less if the cgroup of the daemon has a
// lower limit.
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

// ownMemory is the maximum memory that the daemon uses without the tables, in bytes.
const ownMemory = 160 << 20

// tableShare is how much larger a machine's memory must be than a memory limit for the daemon alone
// to give the same table sizes: full tables take a tenth of a machine's memory, but less than half
// of such a limit, so that a copy also fits while the tables are being enlarged at startup.
const tableShare = 4

// asMachine returns the memory of a machine on which tables have the same sizes as under limit,
// which applies to the daemon alone.
func asMachine(limit uint64) uint64 {
	if limit > 1<<60 {
		return limit
	}
	return tableShare * (limit - min(limit, ownMemory))
}

// limited returns m, or the lowest memory.max from the cgroup in own (the content of
// /proc/self/cgroup) up to root. The limit of the daemon's own cgroup is for the daemon alone; the
// limits of its parents are shared, like a machine's memory.
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
				max, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is not a number
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

// size returns a key below tables: the value is a number of entries, or auto, which keeps the value
// in the Config.
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
