// SPDX-License-Identifier: Apache-2.0

package api

import "strings"

// CapacityParams are the parameters of capacity.
type CapacityParams struct {
	// Owners is how many of the largest owners of each table are listed, by kind of owner; at most
	// 100. 0: none, and no connection is read.
	Owners int `json:"owners,omitempty"`
}

// CapacityResult is the result of capacity.
type CapacityResult struct {
	Tables []TableCapacity `json:"tables"` // by name
}

// TableCapacity is how full a table, a pool or a resource is, and how soon it will be full.
type TableCapacity struct {
	Name string `json:"name"`
	Unit string `json:"unit"` // entries, bytes
	Usage
	// Growth5m and Growth1h are by how much it has grown in the last five minutes and in the last
	// hour; absent: unknown, because the daemon has not run for that long, or the size has changed.
	Growth5m *int64 `json:"growth5m,omitempty"`
	Growth1h *int64 `json:"growth1h,omitempty"`
	// FullIn is when it will be full if it continues to grow as in the last five minutes; absent: it
	// is full, does not grow, or cannot be forecast, since only changes of objects fill it.
	FullIn *Duration `json:"fullIn,omitempty"`
	// Setting names the key or field that changes the size; empty: the size is fixed.
	Setting string       `json:"setting,omitempty"`
	Owners  []TableOwner `json:"owners,omitempty"` // by kind of owner, the largest first
}

// The kinds of owners of tables' entries.
const (
	OwnerSource = "source" // an IPv4 address, or the first 64 bits of an IPv6 address
	OwnerRemote = "remote" // a translated source address, with the remote address that it connects to
	OwnerObject = "object" // KIND/NAME
	OwnerDevice = "device" // a device of the host; one of the switch's ends with " in the switch"
)

// TableOwner uses entries of a table.
type TableOwner struct {
	By   string `json:"by"` // source, remote, object, device
	Name string `json:"name"`
	Used uint64 `json:"used"`
	// AtLeast means that Used may be too low: there were too many owners to count each.
	AtLeast bool `json:"atLeast,omitempty"`
}

// SettingOf returns what changes the size of a table: a key of the daemon's configuration, or a field
// of an object; empty: its size is fixed.
func SettingOf(table string) string {
	switch name, _, _ := strings.Cut(table, " "); name {
	case "connections", "natMappings", "natBlocks", "nameAddresses":
		return "tables.connections"
	case "services", "backends", "affinity", "ranges", "rules", "prefixes", "entities":
		return "tables." + name
	case "addresses":
		return "PodNetwork spec.subnets"
	case "disk":
		return "stateDir"
	}
	return ""
}
