// SPDX-License-Identifier: Apache-2.0

package api

// BridgeSpec is a bridge of the kernel in the switch's network namespace.
type BridgeSpec struct {
	Device        string       `json:"device"`
	VLANFiltering bool         `json:"vlanFiltering,omitempty"`
	Addresses     []string     `json:"addresses,omitempty"` // of the bridge device: address/length
	Ports         []BridgePort `json:"ports,omitempty"`
	Ageing        Duration     `json:"ageing,omitempty"` // of learnt stations; default 5m
	MTU           int          `json:"mtu,omitempty"`    // bytes; default: the kernel chooses
}

// BridgePort is a device that belongs to a Bridge. The VLANs are for bridges with
// vlanFiltering, where the bridge's own device may be named for its VLANs.
type BridgePort struct {
	Device string `json:"device"`
	// PVID is the VLAN of frames that come without a tag; 0: such frames are refused.
	// Default: 1 for a port that names no VLANs, else 0.
	PVID     *int  `json:"pvid,omitempty"`
	VLANs    Words `json:"vlans,omitempty"`    // in and out with a tag: 100, "200-299"
	Untagged Words `json:"untagged,omitempty"` // leave without a tag; default: the PVID
	Isolated bool  `json:"isolated,omitempty"` // exchanges no frames with other isolated ports
}

// RouteSpec is an entry of the kernel's main routing table.
type RouteSpec struct {
	Prefix string `json:"prefix"`
	Netns  string `json:"netns,omitempty"` // host (default), switch
	Type   string `json:"type,omitempty"`  // unicast (default), blackhole, unreachable, prohibit
	// Via and Device are the only next hop; several stand in NextHops.
	Via      string    `json:"via,omitempty"`
	Device   string    `json:"device,omitempty"`
	Peer     string    `json:"peer,omitempty"` // name of the Peer that it leads to
	NextHops []NextHop `json:"nexthops,omitempty"`
	Metric   uint32    `json:"metric,omitempty"` // lower first; 0: the kernel's default
	Source   string    `json:"source,omitempty"` // address of the node's own packets; default: the kernel chooses
	MTU      int       `json:"mtu,omitempty"`    // bytes; default: that of the device
}

// NextHop is one of the ways of a Route.
type NextHop struct {
	Via    string `json:"via,omitempty"`    // address of the router; empty: on the link
	Device string `json:"device,omitempty"` // empty: where Via is
	Weight int    `json:"weight,omitempty"` // 1 (default) to 256
}
