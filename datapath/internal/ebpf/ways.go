// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
)

// ctWhyShift is CT_WHY_SHIFT: the position of enum slow_why in the flags of an entry.
const ctWhyShift = 12

// ctDenied is CT_F_DENIED.
const ctDenied = 0x80

// whySlow are the words for enum slow_why.
var whySlow = map[egressSlowWhy]string{
	egressSlowWhyWHY_NETFILTER: "netfilter has rules",
	egressSlowWhyWHY_MARK:      "it carries a mark",
	egressSlowWhyWHY_TAG:       "VLAN tag of a device of the kernel",
	egressSlowWhyWHY_ONE_WAY:   "its station was not heard on that port",
	egressSlowWhyWHY_ONE_WAY_1: "its station was not heard on that port",
	egressSlowWhyWHY_FULL:      "no room for another next hop",
}

// ways describes the paths of connections, with the next hops as of one moment.
type ways struct {
	d        *DataPlane
	nexthops []kernelNexthop
	zones    map[uint32]uint8 // by next hop: the zone of its device
	peers    map[uint32]peerName
}

// peerName is the name of a peer and of its tunnel.
type peerName struct {
	name   datapath.PeerName
	tunnel datapath.TunnelName
}

func newWays(d *DataPlane) (*ways, error) {
	w := &ways{d: d, nexthops: make([]kernelNexthop, nexthopCount), zones: make(map[uint32]uint8), peers: d.overlay.names()}
	keys := make([]uint32, nexthopCount)
	var cursor ebpf.MapBatchCursor
	for at := 0; at < nexthopCount; {
		n, err := d.maps[kernelMapLlNexthop].BatchLookup(&cursor, keys, w.nexthops[at:], nil)
		at += n
		if errors.Is(err, ebpf.ErrKeyNotExist) || n == 0 && err == nil {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("next hops: %w", err)
		}
	}
	var key kernelNexthopKey
	var index uint32
	for it := d.maps[kernelMapLlNexthopId].Iterate(); it.Next(&key, &index); {
		w.zones[index] = key.Zone
	}
	return w, nil
}

// of returns the path of the packets that arrive with an entry's tuple.
func (w *ways) of(m *kernelCtMeta) datapath.Way {
	if m.Flags&ctDenied != 0 {
		return datapath.Way{Why: "rules do not allow it any more"}
	}
	if why, known := whySlow[egressSlowWhy(m.Flags>>ctWhyShift)]; known && m.Nexthop == 0 {
		return datapath.Way{Why: why}
	}
	switch kernelCtState(m.State) {
	case kernelCtStateCT_NEW, kernelCtStateCT_ANSWERED:
		return datapath.Way{Why: "not established"}
	}
	if m.PacketCount == 0 {
		return datapath.Way{Why: "nothing was sent yet"}
	}
	if m.Nexthop == 0 || int(m.Nexthop) >= len(w.nexthops) {
		return datapath.Way{Why: "no packet has left by a port yet"}
	}
	hop := &w.nexthops[m.Nexthop]
	if hop.Ifindex == 0 {
		return datapath.Way{Why: "its next hop may have changed"}
	}
	way := datapath.Way{Tracked: true, VLAN: hop.Vid}
	if z := w.d.zones[w.zones[uint32(m.Nexthop)]]; z != nil {
		way.Device = z.devices.nameOf(int(hop.Ifindex))
	}
	if hop.Peer != 0 {
		way.Peer, way.Tunnel = w.peers[uint32(hop.Peer)].name, w.peers[uint32(hop.Peer)].tunnel
	}
	return way
}
