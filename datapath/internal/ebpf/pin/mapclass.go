// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// sizeClass derives the number of entries of a map from the configuration.
type sizeClass struct {
	key     string // key in the configuration, below tables
	table   func(t datapath.Tables) uint32
	entries func(t datapath.Tables) uint32
}

// sizeClasses are the classes that maps.h names with SIZED_BY.
var sizeClasses = map[string]sizeClass{
	"segmentBlocks": {"connections", func(t datapath.Tables) uint32 { return t.Connections }, func(t datapath.Tables) uint32 {
		return kernel.SegmentBlocks(t.ConnectionsMin, t.Connections)
	}},
	"services": byTable("services", func(t datapath.Tables) uint32 { return t.Services }),
	"chunks":   {"backends", backends, func(t datapath.Tables) uint32 { return max(chunksFor(t), 4096) }},
	"backends": {"backends", backends, func(t datapath.Tables) uint32 {
		return t.Backends + 1 // id 0 is not used
	}},
	"affinity": byTable("affinity", func(t datapath.Tables) uint32 { return t.Affinity }),
	"ranges": {"ranges", func(t datapath.Tables) uint32 { return t.Ranges }, func(t datapath.Tables) uint32 {
		return 2 * t.Ranges // old and new ranges exist together for a moment
	}},
	"rules": byTable("rules", func(t datapath.Tables) uint32 { return t.Rules }),
	"entities": {"entities", func(t datapath.Tables) uint32 { return t.Entities }, func(t datapath.Tables) uint32 {
		return 2 * t.Entities // old and new addresses exist together for a moment
	}},
	"nats":        byRules(func(t datapath.Tables) uint32 { return 2 * t.MaxNATs() }),     // old and new NATs exist together for a moment
	"natRules":    byRules(func(t datapath.Tables) uint32 { return max(t.Rules/4, 256) }), // both directions, old and new
	"natPrefixes": byRules(func(t datapath.Tables) uint32 { return max(t.Rules/8, 1024) }),
	// Addresses of names in policies: 100,000 with the memory for 800,000 connections or more.
	"learned":       byConnections(func(n uint32) uint32 { return min(100_000, max(4096, n/8)) }),
	"mappings":      byConnections(func(n uint32) uint32 { return max(1024, n/8-min(n/8, 2048)) }),
	"blocks":        byConnections(func(n uint32) uint32 { return max(n/64, 256) }),
	"remotes":       byConnections(func(n uint32) uint32 { return min(1<<14, max(1<<12, n/4)) }),
	"bridgePorts":   byConnections(func(n uint32) uint32 { return min(1<<16, max(1<<13, n/2)) }),
	"ports":         byConnections(func(n uint32) uint32 { return min(1<<14, max(1<<10, n/32)) }),
	"guards":        byConnections(func(n uint32) uint32 { return min(1<<16, max(1<<11, n/16)) }), // four for each Endpoint
	"peers":         byConnections(peersFor),
	"peerAddresses": byConnections(func(n uint32) uint32 { return 2 * peersFor(n) }),
	"peerPrefixes":  byConnections(func(n uint32) uint32 { return 8 * peersFor(n) }),
}

func backends(t datapath.Tables) uint32 { return t.Backends }

// chunksFor returns how many chunks all selection tables need at most: nearly half a chunk for each
// backend if no table has more than 256 backends. A table has at least one chunk, and there are at most
// as many tables as frontends. The rest of the half is for old tables, which exist together with new
// tables for a moment. A larger table takes up to 0.91 chunks for each backend.
func chunksFor(t datapath.Tables) uint32 {
	if t.Services <= t.Backends/16 {
		return t.Backends / 2
	}
	return min(t.Backends, t.Backends/2+t.Services/2+1)
}

func peersFor(connections uint32) uint32 { return min(1<<14, max(1<<10, connections/32)) }

func byTable(key string, table func(datapath.Tables) uint32) sizeClass {
	return sizeClass{key, table, table}
}

func byConnections(entries func(connections uint32) uint32) sizeClass {
	connections := func(t datapath.Tables) uint32 { return t.Connections }
	return sizeClass{"connections", connections, func(t datapath.Tables) uint32 { return entries(t.Connections) }}
}

func byRules(entries func(datapath.Tables) uint32) sizeClass {
	return sizeClass{"rules", func(t datapath.Tables) uint32 { return t.Rules }, entries}
}

// mapClass contains what the tags in maps.h specify for a map.
type mapClass struct {
	size            string // key of sizeClasses; "": fixed
	createdByDaemon bool   // programs create no entries
	notCopied       bool
	connections     bool // the connection table
	segmented       bool // an array in segments, which hold its entries
	copyOrder       int  // 0: first
}

// classOf returns the class of a map.
func classOf(spec *ebpf.MapSpec) mapClass {
	c := mapClass{copyOrder: 2}
	for _, tag := range spec.Tags {
		switch key, value, _ := strings.Cut(tag, ":"); key {
		case "size":
			c.size = value
		case "creator":
			c.createdByDaemon = value == "daemon"
		case "copy":
			c.notCopied, c.connections = value == "never", value == "connections"
			if i := slices.Index([]string{"first", "connections"}, value); i >= 0 {
				c.copyOrder = i
			}
		}
	}
	c.segmented = spec.Type == ebpf.ArrayOfMaps && c.size != "" && !c.connections
	return c
}

// sizeOf returns the configuration key that determines the size of a map, its value, and the number
// of entries; "" for maps of fixed size.
func sizeOf(spec *ebpf.MapSpec, t datapath.Tables) (key string, table, entries uint32) {
	c, ok := sizeClasses[classOf(spec).size]
	if !ok {
		return "", 0, entriesIn(spec)
	}
	return "tables." + c.key, c.table(t), c.entries(t)
}
