// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// TunnelEndSuffix is the suffix in the name of the other end of a tunnel's device.
const TunnelEndSuffix = "-e"

// TunnelName identifies a [Tunnel].
type TunnelName string

// TunnelType is the encapsulation of packets.
type TunnelType uint8

// The types of tunnels.
const (
	TunnelVXLAN  TunnelType = iota // RFC 7348
	TunnelGeneve                   // RFC 8926, without options
	TunnelGRE                      // RFC 2784, with a key (RFC 2890) if a VNI is set
)

// TunnelTypes are the names of the types.
var TunnelTypes = [...]string{TunnelVXLAN: "vxlan", TunnelGeneve: "geneve", TunnelGRE: "gre"}

// String returns the name of t.
func (t TunnelType) String() string {
	if int(t) < len(TunnelTypes) {
		return TunnelTypes[t]
	}
	return fmt.Sprintf("TunnelType(%d)", uint8(t))
}

// DefaultPort returns the UDP port of a type, or 0 if the type uses no port.
func (t TunnelType) DefaultPort() uint16 {
	return [...]uint16{TunnelVXLAN: 4789, TunnelGeneve: 6081, TunnelGRE: 0}[t]
}

// Tunnel leads to the peers that refer to it, through the host's network namespace. Its device is
// in the switch's namespace: packets routed to it are encapsulated for the peer with the longest
// matching prefix.
type Tunnel struct {
	Device string
	Type   TunnelType
	VNI    uint32     // GRE: 0: packets have no key
	Local  netip.Addr // underlay source; invalid: the source of the route to each peer
	Port   uint16     // UDP, at both ends
	MTU    int        // of the device, bytes; 0: determined by the underlay
}

// Overhead returns how many bytes of the underlay's MTU the encapsulation takes.
func (t *Tunnel) Overhead(overIPv6 bool) int {
	outer := 20
	if overIPv6 {
		outer = 40
	}
	switch {
	case t.Type != TunnelGRE:
		return outer + 8 + 8 + 14
	case t.VNI != 0:
		return outer + 8
	default:
		return outer + 4
	}
}

// PeerName identifies a [Peer].
type PeerName string

// Peer is another node.
type Peer struct {
	Underlay []netip.Addr   // its underlay addresses; packets are sent to the first reachable one
	Prefixes []netip.Prefix // behind it
	Tunnel   TunnelName     // empty: the underlay routes them
	Here     bool           // this node itself: Prefixes belong to its pods, other fields are empty
	MTU      int            // to the peer, bytes, if less than the tunnel's; 0: the tunnel's
}

// MayHave returns an error if a prefix cannot be behind the peer; the caller prepends the subject
// to the error.
func (p *Peer) MayHave(prefix netip.Prefix) error {
	a := prefix.Addr()
	switch {
	case a.IsMulticast() || a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast():
		return errors.New("cannot be behind a Peer")
	case slices.ContainsFunc(p.Underlay, prefix.Contains):
		return errors.New("contains the Peer's own underlay address")
	case p.Tunnel == "" && !slices.ContainsFunc(p.Underlay, func(u netip.Addr) bool { return u.Is4() == a.Is4() }):
		return errors.New("is of a different family than the underlay addresses: set a tunnel, or add an underlay address of its family")
	}
	return nil
}

// TunnelState is the current state of a tunnel.
type TunnelState struct {
	MTU     int // of the device; 0: the device does not exist
	Peers   int // to which it leads
	Traffic PeerCounters
}

// PeerState is the current state of a peer.
type PeerState struct {
	Local, Underlay netip.Addr // in use; invalid: none
	Device          string     // the underlay device through which the peer is reached
	PathMTU         int        // of the underlay, bytes, if less than the device's; otherwise 0
	Traffic         PeerCounters
}

// PeerCounters count inner packets.
type PeerCounters struct {
	SentPackets, SentBytes         uint64
	ReceivedPackets, ReceivedBytes uint64
	Drops                          uint64
}
