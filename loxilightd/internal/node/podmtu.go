// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// podMTU is the MTU of pods, in bytes, or 0 if it is unknown. All devices that a bridge connects
// must have the same MTU, because a bridge silently drops packets that are too long for a port. The
// MTU of a running pod's devices must not change: while a pod exists, the devices keep their MTU,
// and the MTU for packets that leave the node is set on routes.
type podMTU struct {
	device int // MTU of the bridge, of both ends of the link to the host, and of the pods' devices
	egress int // MTU of packets that leave the node
}

// route returns the MTU for a route out of the node through a device that has the pods' MTU, or 0
// if the device's MTU applies.
func (m podMTU) route(prefix netip.Prefix) uint32 {
	const least6 = 1280 // minimum MTU of IPv6
	if m.egress == 0 || m.egress >= m.device || prefix.Addr().Is6() && m.egress < least6 {
		return 0
	}
	return uint32(m.egress)
}

// keptMTU is the last desired MTU of pods' devices, or 0 if there was none yet.
type keptMTU struct {
	mu     sync.Mutex
	device int
}

func (n *Node) podMTU(s *state.Snapshot) podMTU {
	egress := n.egressMTU(s)
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	if n.kept.device != 0 && n.kept.device == egress {
		return podMTU{egress, egress}
	}
	switch exist, known := n.podsExist(s); {
	case exist && n.kept.device == 0: // keep the MTU that an earlier run left
		n.kept.device = n.leastPodMTU(s)
	case !exist && known && egress != 0:
		n.kept.device = egress
	}
	return podMTU{n.kept.device, egress}
}

// podsExist reports whether any pod's device exists. known is true if all of them were checked.
// Only devices of owner "cni" are considered: they have the same MTU at both ends. The MTU of other
// devices is set by the program that creates them, and must be changed along with the network's.
func (n *Node) podsExist(s *state.Snapshot) (exist, known bool) {
	known = true
	for o := range s.After(state.KindEndpoint, "") {
		if o.Owner != state.OwnerCNI {
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

// leastPodMTU returns the smallest MTU of pods' devices and the link to the host.
func (n *Node) leastPodMTU(s *state.Snapshot) (mtu int) {
	least := func(name datapath.PortName) {
		if is, ok := n.opts.Plane.Telemetry().PortState(name); ok && is.Index != 0 && is.MTU != 0 && (mtu == 0 || is.MTU < mtu) {
			mtu = is.MTU
		}
	}
	least(state.PodPortSwitch)
	for o := range s.After(state.KindEndpoint, "") {
		if o.Owner == state.OwnerCNI {
			least(datapath.EndpointName(o.Name).Port())
		}
	}
	return mtu
}

// egressMTU returns the MTU of packets that leave the node: as configured, or the largest MTU that
// every uplink and every tunnel can carry. It returns 0 if there are no such devices, or if one of
// them does not exist yet.
func (n *Node) egressMTU(s *state.Snapshot) (mtu int) {
	for o := range s.After(state.KindPodNetwork, "") {
		if configured := o.Value.(*state.PodNetwork).MTU; configured != 0 {
			return configured
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
			return 0 // the device will report its MTU; keep the current MTU until then
		}
		least(is.MTU)
	}
	return mtu
}

// podMTUChanged reports whether the rows of the pod networks need a different MTU.
func (n *Node) podMTUChanged() bool {
	s := n.opts.Store.Snapshot()
	return len(s.PodNetworks()) > 0 && n.podMTU(s) != n.derivedMTU
}

// PodMTUs returns the MTU of pods' devices and the MTU of their routes out of the node, in bytes,
// or 0 for an unknown MTU.
func (n *Node) PodMTUs() (device, egress int) {
	m := n.podMTU(n.opts.Store.Snapshot())
	return m.device, m.egress
}

// PodMTU returns the size of the largest packet that a pod may send to any destination, in bytes,
// or 0 if it is unknown.
func (n *Node) PodMTU() int {
	device, egress := n.PodMTUs()
	if egress == 0 || device != 0 && device < egress {
		return device
	}
	return egress
}
