// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// ctSlowpathShift is CT_SLOWPATH_SHIFT: the position of enum slowpath_reason in the flags of an
// entry.
const ctSlowpathShift = 12

// whySlow describes the values of enum slowpath_reason.
var whySlow = map[kernel.EgressSlowpathReason]string{
	kernel.EgressSlowpathReasonSLOWPATH_NETFILTER: "netfilter has rules",
	kernel.EgressSlowpathReasonSLOWPATH_MARK:      "packet has a mark (fwmark)",
	kernel.EgressSlowpathReasonSLOWPATH_TAG:       "VLAN tag belongs to a VLAN device",
	kernel.EgressSlowpathReasonSLOWPATH_ONE_WAY:   "no reply from that bridge port yet",
	kernel.EgressSlowpathReasonSLOWPATH_ONE_WAY_1: "no reply from that bridge port yet",
	kernel.EgressSlowpathReasonSLOWPATH_FULL:      "no room for another next hop",
}

// ways describes the paths of connections, based on a snapshot of the next hops.
type ways struct {
	d          *DataPlane
	nexthops   []kernel.Nexthop
	namespaces map[uint32]uint8 // by next hop: the namespace of its device
	peers      map[uint32]overlay.Name
}

// paths returns a function that describes the paths of entries, as of now.
func (d *DataPlane) paths() (func(*kernel.CtMeta) datapath.Way, error) {
	w, err := newWays(d)
	if err != nil {
		return nil, err
	}
	return w.of, nil
}

func newWays(d *DataPlane) (*ways, error) {
	w := &ways{d: d, nexthops: make([]kernel.Nexthop, kernel.NexthopCount), namespaces: make(map[uint32]uint8), peers: d.overlay.Names()}
	keys := make([]uint32, kernel.NexthopCount)
	var cursor bpfmap.Cursor
	for at := 0; at < kernel.NexthopCount; {
		n, more, err := d.tables.Nexthop.NextBatch(&cursor, keys[at:], w.nexthops[at:])
		if err != nil {
			return nil, fmt.Errorf("next hops: %w", err)
		}
		if at += n; !more || n == 0 {
			break
		}
	}
	var key kernel.NexthopKey
	var index uint32
	for it := d.tables.NexthopId.Iterate(); it.Next(&key, &index); {
		w.namespaces[index] = key.Netns
	}
	return w, nil
}

// of returns the path of packets that match an entry.
func (w *ways) of(m *kernel.CtMeta) datapath.Way {
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
	if m.Nexthop == 0 || int(m.Nexthop) >= len(w.nexthops) {
		return datapath.Way{Why: "no packet has been sent through a port yet"}
	}
	hop := &w.nexthops[m.Nexthop]
	if hop.Ifindex == 0 {
		return datapath.Way{Why: "its next hop may have changed"}
	}
	way := datapath.Way{Tracked: true, VLAN: hop.Vid}
	if z := w.d.namespaces[w.namespaces[uint32(m.Nexthop)]]; z != nil {
		way.Device = z.devices.nameOf(int(hop.Ifindex))
	}
	if hop.Peer != 0 {
		way.Peer, way.Tunnel = w.peers[uint32(hop.Peer)].Peer, w.peers[uint32(hop.Peer)].Tunnel
	}
	return way
}
