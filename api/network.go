// SPDX-License-Identifier: Apache-2.0

package api

// BridgeSpec is a kernel bridge in the switch's network namespace.
type BridgeSpec struct {
	Device        string       `json:"device"`
	VLANFiltering bool         `json:"vlanFiltering,omitempty"`
	Addresses     []string     `json:"addresses,omitempty"` // addresses of the bridge device: address/length
	Ports         []BridgePort `json:"ports,omitempty"`
	Ageing        Duration     `json:"ageing,omitempty"` // ageing time for learnt MACs; default 5m
	MTU           int          `json:"mtu,omitempty"`    // bytes; default: the kernel chooses
	// Resolvers are the addresses of the DNS servers from whose responses to Endpoints of this network
	// the addresses of names in Policies are learnt; at most 64.
	Resolvers []string `json:"resolvers,omitempty"`
}

// BridgePort is a device that belongs to a Bridge. The VLANs need vlanFiltering; the list of ports
// may then include the bridge's own device, to set its VLANs.
type BridgePort struct {
	Device string `json:"device"`
	// PVID is the VLAN of untagged frames; 0: such frames are dropped. Default: 1 for a port
	// without VLANs, else 0.
	PVID     *int  `json:"pvid,omitempty"`
	VLANs    Words `json:"vlans,omitempty"`    // tagged in both directions: 100, "200-299"
	Untagged Words `json:"untagged,omitempty"` // egress untagged; default: the PVID
	Isolated bool  `json:"isolated,omitempty"` // exchanges no frames with other isolated ports
}

// RouteSpec is an entry of the kernel's main routing table.
type RouteSpec struct {
	Prefix string `json:"prefix"`
	Netns  string `json:"netns,omitempty"` // host (default), switch
	Type   string `json:"type,omitempty"`  // unicast (default), blackhole, unreachable, prohibit
	// Via and Device are the only next hop; NextHops contains several.
	Via      string    `json:"via,omitempty"`
	Device   string    `json:"device,omitempty"`
	Peer     string    `json:"peer,omitempty"` // name of the Peer that the route leads to
	NextHops []NextHop `json:"nexthops,omitempty"`
	Metric   uint32    `json:"metric,omitempty"` // lower first; 0: the kernel's default
	Source   string    `json:"source,omitempty"` // source address of the node's own packets; default: the kernel chooses
	MTU      int       `json:"mtu,omitempty"`    // bytes; default: the MTU of the device
}

// NextHop is one of the next hops of a Route.
type NextHop struct {
	Via    string `json:"via,omitempty"`    // address of the router; empty: on-link
	Device string `json:"device,omitempty"` // empty: the device that reaches Via
	Weight int    `json:"weight,omitempty"` // 1 (default) to 256
}

// The values of What in [NetworkListParams].
const (
	NetworkBridges   = "bridges"
	NetworkFDB       = "fdb"
	NetworkNeighbors = "neighbors"
	NetworkRoutes    = "routes"
)

// NetworkViews are the values of What, in no particular order.
var NetworkViews = []string{NetworkBridges, NetworkFDB, NetworkNeighbors, NetworkRoutes}

// NetworkListParams are the parameters of network.list. The order of entries is the kernel's; an
// entry that is added or removed in the meantime, or an adjacent one, may be missed or returned
// twice.
type NetworkListParams struct {
	What     string `json:"what"`            // bridges, fdb, neighbors, routes
	Netns    string `json:"netns,omitempty"` // host, switch; empty: both
	Limit    int    `json:"limit,omitempty"` // 0: as many as fit in the reply
	Continue string `json:"continue,omitempty"`
}

// NetworkListResult is the result of network.list.
type NetworkListResult struct {
	Items    []NetworkEntry `json:"items"`
	Continue string         `json:"continue,omitempty"`
}

// NetworkEntry is an entry of the kernel's own forwarding state, whichever program added it. What
// determines which fields are set.
type NetworkEntry struct {
	Netns  string `json:"netns"`            // host, switch
	Device string `json:"device,omitempty"` // the bridge; the port of a MAC; the link of a neighbour
	// Origin is the program that added it: loxilight, kernel, other, or the name of a routing
	// protocol.
	Origin string `json:"origin"`
	Object string `json:"object,omitempty"` // the object that it belongs to, as Kind/name

	Up            bool          `json:"up,omitempty"`            // bridges
	VLANFiltering bool          `json:"vlanFiltering,omitempty"` // bridges
	Addresses     []string      `json:"addresses,omitempty"`     // bridges
	Ports         []NetworkPort `json:"ports,omitempty"`         // bridges

	MAC     string `json:"mac,omitempty"`     // bridges, fdb, neighbors
	Bridge  string `json:"bridge,omitempty"`  // fdb: the device of which Device is a port
	VLAN    uint16 `json:"vlan,omitempty"`    // fdb
	State   string `json:"state,omitempty"`   // fdb: learned, static, local; neighbors: reachable, stale, permanent and so on
	Address string `json:"address,omitempty"` // neighbors

	Prefix   string    `json:"prefix,omitempty"`   // routes, as are the fields below
	Type     string    `json:"type,omitempty"`     // unicast, blackhole, unreachable, prohibit
	NextHops []NextHop `json:"nexthops,omitempty"` // next hops of a unicast route
	Metric   uint32    `json:"metric,omitempty"`
	Source   string    `json:"source,omitempty"`
	MTU      int       `json:"mtu,omitempty"` // bridges, routes
}

// NetworkPort is the current state of a bridge port.
type NetworkPort struct {
	Device   string   `json:"device"`
	Up       bool     `json:"up,omitempty"`
	PVID     uint16   `json:"pvid,omitempty"`
	VLANs    []string `json:"vlans,omitempty"`    // tagged: numbers and ranges
	Untagged []string `json:"untagged,omitempty"` // egress untagged
}
