// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/loxilight/loxilight/internal/memory"
)

// Memory determines the automatic table sizes. It never depends on free memory, so that a restarted
// daemon gets the same sizes as in the previous run.
type Memory struct {
	Bytes uint64
	From  string // "machine", or the file that contains a lower limit
}

// machineMemory returns the memory of the machine, or less if the cgroup of the daemon has a
// lower limit.
func machineMemory() Memory {
	return Memory{memory.Machine(), "machine"}.limited(memory.Groups())
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

// limited returns m, or the lowest limit of the cgroups. The limit of the daemon's own cgroup is
// for the daemon alone; the limits of its parents are shared, like a machine's memory.
func (m Memory) limited(groups []memory.Group) Memory {
	for _, g := range groups {
		limit, ok := g.Limit()
		if g.Own {
			limit = asMachine(limit)
		}
		if ok && limit < m.Bytes {
			m = Memory{Bytes: limit, From: g.LimitFile()}
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

// sizeRange is size for a table that grows: the value may also be the smallest and the largest
// number of entries, as {min: 65536, max: 4194304}. A single number is both.
func sizeRange(name string, least, most func(*Config) *uint32) key {
	one := size(name, most)
	one.list = func(r *reader, c *Config, _ string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			if err := one.set(c, n.Value); err != nil || n.Kind != yaml.ScalarNode {
				r.failf(n.Line, "%s: %w", name, wantRange(n, err))
			} else if n.Value != autoSize {
				*least(c) = *most(c)
			}
			return
		}
		both := map[string]*uint32{"min": least(c), "max": most(c)}
		for i := 0; i < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			to, known := both[k.Value]
			number, err := parseSize(v.Value)
			if !known {
				err = errors.New("unknown key " + k.Value + ": want min and max")
			}
			if err != nil {
				r.failf(v.Line, "%s: %w", name, err)
				return
			}
			*to = number
			delete(both, k.Value)
		}
		if len(both) > 0 || *least(c) > *most(c) {
			r.failf(n.Line, "%s: want both min and max, and min not larger than max", name)
			return
		}
		c.AutoSizes = slices.DeleteFunc(c.AutoSizes, func(s string) bool { return s == name })
	}
	return one
}

func wantRange(n *yaml.Node, err error) error {
	if err == nil || n.Kind != yaml.ScalarNode {
		err = errors.New("not a valid size")
	}
	return fmt.Errorf("%w, or {min: 65536, max: 4194304}", err)
}
