// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// If the tables use at least these shares of the machine's memory, in percent, there is a warning
// or an error.
const (
	muchMemory    = 50
	tooMuchMemory = 80
)

func (x *examiner) checkMemory() {
	var tables uint64
	for _, l := range x.plane.Layouts {
		tables += l.Bytes
	}
	total := x.meminfo("MemTotal")
	if tables == 0 {
		return
	}
	const smaller = "make the largest ones smaller in the configuration (tables.connections, tables.backends), and restart the daemon"
	if share := tables * 100 / max(total, 1); total > 0 && share >= muchMemory {
		severity := "warning"
		if share >= tooMuchMemory {
			severity = "error"
		}
		x.find(severity, "memory.tables", "tables", words{
			what: fmt.Sprintf("take %d MiB, %d %% of the machine's %d MiB", tables>>20, share, total>>20),
			why:  "little memory is left for other programs: the kernel may kill processes",
			do:   smaller,
		}, nil)
	}
	if limit, err := strconv.ParseUint(x.unit.props["MemoryMax"], 10, 64); err == nil && x.unit.known && limit < tables+tables/10 {
		x.find("error", "memory.limit", x.unit.name, words{
			what: fmt.Sprintf("has MemoryMax=%d MiB, and the tables alone take %d MiB", limit>>20, tables>>20),
			why:  "maps are accounted to the daemon that creates them: at the next start it gets no memory for them, or is killed",
			do:   "raise MemoryMax= to the size of the tables and 256 MiB, or " + smaller,
		}, nil)
	}
}

// meminfo returns a value from /proc/meminfo in bytes, or 0 if it is unknown.
func (x *examiner) meminfo(name string) uint64 {
	text, _ := x.read("/proc/meminfo")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name+":" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
