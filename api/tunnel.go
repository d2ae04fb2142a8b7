// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// TunnelSpec is a tunnel to the Peers that name it. Packets routed to its device, which is in the
// switch's network namespace, are encapsulated and sent through the host's network namespace.
type TunnelSpec struct {
	Device string `json:"device"`          // created by the daemon; at most 13 characters
	Type   string `json:"type,omitempty"`  // one of TunnelTypes; stt is not supported
	VNI    uint32 `json:"vni,omitempty"`   // 24 bits; for gre the key, where 0 means no key
	Local  string `json:"local,omitempty"` // source of outer packets; default: selected by the route to each Peer
	Port   int    `json:"port,omitempty"`  // UDP; default 4789 for vxlan, 6081 for geneve
	MTU    int    `json:"mtu,omitempty"`   // MTU of the device, in bytes; 0: follows the underlay
}

// TunnelStatus is the status of a Tunnel. The counters are the sums of its Peers' counters.
type TunnelStatus struct {
	Status
	MTU      int           `json:"mtu,omitempty"` // MTU of the device, in bytes
	Peers    int           `json:"peers"`
	Counters *PeerCounters `json:"counters,omitempty"`
}

// PeerSpec is another node.
type PeerSpec struct {
	Underlay Words  `json:"underlay"`           // its underlay addresses: packets are sent to the first one with a route
	Prefixes Words  `json:"prefixes,omitempty"` // reached through it
	Tunnel   string `json:"tunnel,omitempty"`   // name of a Tunnel; empty: the underlay routes packets to Prefixes
}

// PeerStatus is the status of a Peer. The fields below are set for a Peer with a Tunnel.
type PeerStatus struct {
	Status
	Local    string        `json:"local,omitempty"`    // underlay addresses in use
	Underlay string        `json:"underlay,omitempty"` // the Peer's
	Device   string        `json:"device,omitempty"`   // the host's device through which the Peer is reached
	PathMTU  int           `json:"pathMTU,omitempty"`  // MTU of the underlay path, in bytes, as reported by a router
	Counters *PeerCounters `json:"counters,omitempty"`
	// LastHeard is when a packet from the peer was last counted; nil: not since the daemon
	// started.
	LastHeard *time.Time `json:"lastHeard,omitempty"`
}

// PeerCounters count inner packets since the Peer took effect: before encapsulation if they are sent,
// after decapsulation if they are received. Bytes include one Ethernet header for each packet.
type PeerCounters struct {
	SentPackets     uint64 `json:"sentPackets"`
	SentBytes       uint64 `json:"sentBytes"`
	ReceivedPackets uint64 `json:"receivedPackets"`
	ReceivedBytes   uint64 `json:"receivedBytes"`
	Drops           uint64 `json:"drops"`
}
