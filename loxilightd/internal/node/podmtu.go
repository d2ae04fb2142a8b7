// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// podMTU is how long packets of pods may be, in bytes; 0: not known. All devices that a
// bridge connects have to have the same MTU, since what is too long for one of them is
// dropped without a word. Those of pods cannot be changed under them: as long as there is
// a pod the devices keep theirs, and what leaves the node is told by routes.
type podMTU struct {
	device int // of the bridge, both ends of the link to the host, and pods
	way    int // of what leaves the node
}

// route is the MTU of a route out of the node, by a device with that of the pods; 0: the
// device's.
func (m podMTU) route(prefix netip.Prefix) uint32 {
	const least6 = 1280 // of IPv6
	if m.way == 0 || m.way >= m.device || prefix.Addr().Is6() && m.way < least6 {
		return 0
	}
	return uint32(m.way)
}

// keptMTU is the MTU that the devices of pods were last wanted to have; 0: none yet.
type keptMTU struct {
	mu     sync.Mutex
	device int
}

func (n *Node) podMTU(s *state.Snapshot) podMTU {
	way := n.wayMTU(s)
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	if n.kept.device != 0 && n.kept.device == way {
		return podMTU{way, way}
	}
	switch there, known := n.podsThere(s); {
	case there && n.kept.device == 0: // as whoever was here before left it
		n.kept.device = n.leastThere(s)
	case !there && known && way != 0:
		n.kept.device = way
	}
	return podMTU{n.kept.device, way}
}

// ownerCNI owns the Endpoints of pods whose devices have the same MTU at both ends. Who
// makes devices by hand gives them theirs, and another one when that of the network changes.
const ownerCNI = "cni" // as in the API

// podsThere says whether there is a pod's device; known: each of them was looked for.
func (n *Node) podsThere(s *state.Snapshot) (there, known bool) {
	known = true
	for o := range s.After(state.KindEndpoint, "") {
		if o.Owner != ownerCNI {
			continue
		}
		name := datapath.EndpointName(o.Name)
		if is, ok := n.opts.Plane.Telemetry().PortState(name.Port()); ok && is.Index != 0 {
			return true, true
		}
		row, ok := n.endpoints.Status(name)
		known = known && ok && (row.State != reconcile.Pending || row.Failures > 0)
	}
	return false, known
}

// leastThere is the least MTU of pods' devices and the link to the host.
func (n *Node) leastThere(s *state.Snapshot) (mtu int) {
	least := func(name datapath.PortName) {
		if is, ok := n.opts.Plane.Telemetry().PortState(name); ok && is.Index != 0 && is.MTU != 0 && (mtu == 0 || is.MTU < mtu) {
			mtu = is.MTU
		}
	}
	least(state.PodPortSwitch)
	for o := range s.After(state.KindEndpoint, "") {
		if o.Owner == ownerCNI {
			least(datapath.EndpointName(o.Name).Port())
		}
	}
	return mtu
}

// wayMTU returns how long a packet may be that leaves the node: as told, or so that every
// uplink and every tunnel carries it. 0: there is none, or one is not there yet.
func (n *Node) wayMTU(s *state.Snapshot) (mtu int) {
	for o := range s.After(state.KindPodNetwork, "") {
		if told := o.Value.(*state.PodNetwork).MTU; told != 0 {
			return told
		}
	}
	telemetry := n.opts.Plane.Telemetry()
	least := func(is int) {
		if is != 0 && (mtu == 0 || is < mtu) {
			mtu = is
		}
	}
	for o := range s.After(state.KindInterface, "") {
		i := o.Value.(*state.Interface)
		if i.Role != datapath.RoleUplink || i.Device == n.opts.Devices.Host || i.Device == n.opts.Devices.Switch {
			continue
		}
		if is, ok := telemetry.PortState(datapath.PortName(o.Name)); ok && is.Index != 0 {
			least(is.MTU)
		}
	}
	for o := range s.After(state.KindTunnel, "") {
		is, ok := telemetry.TunnelState(datapath.TunnelName(o.Name))
		if !ok || is.MTU == 0 {
			return 0 // it will tell, and until then what is stays
		}
		least(is.MTU)
	}
	return mtu
}

// podMTUTurned says whether the rows of the pod networks are made for another MTU.
func (n *Node) podMTUTurned() bool {
	s := n.opts.Store.Snapshot()
	return len(s.PodNetworks()) > 0 && n.podMTU(s) != n.derived.podMTU
}

// PodMTUs returns the MTU of pods' devices, and that of their routes out of the node, in
// bytes; 0: not known.
func (n *Node) PodMTUs() (device, way int) {
	m := n.podMTU(n.opts.Store.Snapshot())
	return m.device, m.way
}

// PodMTU returns how long a packet of a pod may be wherever it goes, in bytes; 0: not known.
func (n *Node) PodMTU() int {
	device, way := n.PodMTUs()
	if way == 0 || device != 0 && device < way {
		return device
	}
	return way
}
