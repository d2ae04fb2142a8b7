// SPDX-License-Identifier: Apache-2.0

package datapath

// MirrorMax is how many mirrors a data plane holds; MirrorMembersMax is how many members each list
// of a mirror's match may have.
const (
	MirrorMax        = 64
	MirrorMembersMax = 16
)

// MirrorName identifies a [Mirror].
type MirrorName string

// MirrorDirection is a set of directions of packets.
type MirrorDirection uint8

// The directions. For a port: as the node sees it. For a service or a rule: in is from the client
// of a connection, out is to it.
const (
	MirrorIn  MirrorDirection = 1 << iota // arriving on the port
	MirrorOut                             // leaving through the port
)

// Mirror sends copies of packets to a device or, through a tunnel, to a peer. Copies are frames as
// they are on the wire of the port on which they are taken. A copy is never copied.
type Mirror struct {
	// Exactly one of the following is set. Packets of services and rules are copied where they
	// arrive on a port, or where packets of the node itself leave through one: once each.
	Port    PortName    // an Interface or an Endpoint
	Service ServiceName // the packets of its connections
	Rule    RuleName    // the packets of the connections that this FirewallRule allows

	Direction MirrorDirection
	// Match selects among these packets. Only Source, Destination, Protocols, SourcePorts and Ports
	// may be set. Match applies to the packet as it is where it is copied, in its own direction.
	Match  Match
	Length int // copies are cut to so many bytes, at least 64, from the Ethernet header on; 0: whole
	To     MirrorTarget
}

// MirrorTarget receives copies. Either Device or Peer is set.
type MirrorTarget struct {
	Device string
	Switch bool     // Device is in the switch's network namespace rather than the host's
	Peer   PeerName // through the peer's tunnel, as Ethernet frames, with VNI
	VNI    uint32   // 24 bits, different from the VNI of each tunnel; GRE: the key
}

// MirrorState is the current state of a mirror.
type MirrorState struct {
	Ports   []string // the devices on which packets are copied, in ascending order
	Packets uint64   // copies that were sent
	Bytes   uint64   // their bytes, after cutting and without the tunnel's header
	Drops   uint64   // copies that could not be sent
}
