// SPDX-License-Identifier: Apache-2.0

package nexthop

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// ctSlowpathShift is CT_SLOWPATH_SHIFT: the position of enum slowpath_reason in the flags of an
// entry.
const ctSlowpathShift = 13

// whySlow describes the values of enum slowpath_reason.
var whySlow = map[kernel.EgressSlowpathReason]string{
	kernel.EgressSlowpathReasonSLOWPATH_NETFILTER: "netfilter has rules",
	kernel.EgressSlowpathReasonSLOWPATH_MARK:      "packet has a mark (fwmark)",
	kernel.EgressSlowpathReasonSLOWPATH_TAG:       "VLAN tag belongs to a VLAN device",
	kernel.EgressSlowpathReasonSLOWPATH_ONE_WAY:   "no reply from that bridge port yet",
	kernel.EgressSlowpathReasonSLOWPATH_ONE_WAY_1: "no reply from that bridge port yet",
	kernel.EgressSlowpathReasonSLOWPATH_FULL:      "no room for another next hop",
	kernel.EgressSlowpathReasonSLOWPATH_NAMES:     "names are learnt from it",
}

// paths describes the paths of connections, based on a snapshot of the next hops.
type paths struct {
	deviceName func(netns uint8, ifindex int) string
	nexthops   []kernel.Nexthop
	namespaces map[uint32]uint8 // by next hop: the namespace of its device
	peers      map[uint32]overlay.Name
}

// Paths returns a function that describes the paths of entries, as of now.
func (n *Table) Paths() (func(*kernel.CtMeta) datapath.Way, error) {
	p, err := n.newPaths()
	if err != nil {
		return nil, err
	}
	return p.of, nil
}

func (n *Table) newPaths() (*paths, error) {
	p := &paths{
		deviceName: n.options.DeviceName, nexthops: make([]kernel.Nexthop, kernel.NexthopCount), namespaces: make(map[uint32]uint8),
		peers: n.options.PeerNames(),
	}
	keys := make([]uint32, kernel.NexthopCount)
	var cursor bpfmap.Cursor
	for at := 0; at < kernel.NexthopCount; {
		count, more, err := n.table.NextBatch(&cursor, keys[at:], p.nexthops[at:])
		if err != nil {
			return nil, fmt.Errorf("next hops: %w", err)
		}
		if at += count; !more || count == 0 {
			break
		}
	}
	var key kernel.NexthopKey
	var index uint32
	for it := n.ids.Iterate(); it.Next(&key, &index); {
		p.namespaces[index] = key.Netns
	}
	return p, nil
}

// of returns the path of packets that match an entry.
func (p *paths) of(m *kernel.CtMeta) datapath.Way {
	if m.Flags&kernel.CtDenied != 0 {
		return datapath.Way{Why: "the rules no longer allow it, or have not checked its output device yet"}
	}
	if why, known := whySlow[kernel.EgressSlowpathReason(m.Flags>>ctSlowpathShift)]; known && m.Nexthop == 0 {
		return datapath.Way{Why: why}
	}
	switch kernel.CtState(m.State) {
	case kernel.CtStateCT_NEW, kernel.CtStateCT_ANSWERED:
		return datapath.Way{Why: "not established"}
	}
	if m.PacketCount == 0 {
		return datapath.Way{Why: "no packet seen yet"}
	}
	if m.Nexthop == 0 || int(m.Nexthop) >= len(p.nexthops) {
		return datapath.Way{Why: "no packet has been sent through a port yet"}
	}
	hop := &p.nexthops[m.Nexthop]
	if hop.Ifindex == 0 {
		return datapath.Way{Why: "its next hop may have changed"}
	}
	way := datapath.Way{Tracked: true, VLAN: hop.Vid, Device: p.deviceName(p.namespaces[uint32(m.Nexthop)], int(hop.Ifindex))}
	if hop.Peer != 0 {
		way.Peer, way.Tunnel = p.peers[uint32(hop.Peer)].Peer, p.peers[uint32(hop.Peer)].Tunnel
	}
	return way
}
