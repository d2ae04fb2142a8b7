// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// deriveBridgePorts attaches the programs to all ports of Bridges, except ports to which an
// Interface or an Endpoint attaches them.
func (n *Node) deriveBridgePorts(s *state.Snapshot, v *derivation) {
	taken := map[string]bool{}
	for o := range s.After(state.KindInterface, "") {
		if i := o.Value.(*state.Interface); i.Switch || n.opts.Devices.Host == "" {
			taken[i.Device] = true
		}
	}
	for o := range s.After(state.KindEndpoint, "") {
		taken[o.Value.(*state.Endpoint).Device] = true
	}
	for _, port := range v.ports.wanted {
		taken[port.Device] = taken[port.Device] || port.Switch
	}
	for o := range s.After(state.KindBridge, "") {
		for name, port := range state.BridgePorts(o.Name, o.Value.(*state.Bridge), n.opts.Devices.Switch) {
			if !taken[port.Device] {
				v.ports.wanted[name] = port
			}
		}
	}
}
