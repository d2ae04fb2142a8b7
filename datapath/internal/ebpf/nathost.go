// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// natHost provides what package nat needs from the rest of the data plane: [nat.Host].
type natHost struct{ *DataPlane }

// DefaultPorts implements [nat.Host].
func (h natHost) DefaultPorts() ([]datapath.PortRange, error) { return h.snat.ForRules() }

// SetUplinkNames implements [nat.Host]. Uplinks that waited for these rules change their names.
func (h natHost) SetUplinkNames(names []string) {
	h.uplinkNames.Set(names)
	for _, z := range h.namespaces.InUse() {
		if z.Devices != nil {
			z.Devices.ChangeNames()
		}
	}
}

// SetTargetPorts implements [nat.Host].
func (h natHost) SetTargetPorts(ports *[1 << 16]bool) error { return h.targets.SetRules(ports) }

// SoonOnLoopback implements [nat.Host].
func (h natHost) SoonOnLoopback() { h.soonOnLoopback() }

// LocalAddrs implements [nat.Host].
func (h natHost) LocalAddrs() (addrs map[kernel.LocalKey]bool, namespaces map[uint8]bool) {
	addrs, namespaces = make(map[kernel.LocalKey]bool), make(map[uint8]bool)
	for _, z := range h.namespaces.InUse() {
		if z.Devices == nil {
			continue
		}
		maps.Copy(addrs, z.Devices.Local())
		namespaces[z.ID] = true
	}
	return addrs, namespaces
}

// Announce implements [nat.Host].
func (h natHost) Announce(rules map[datapath.NATName]datapath.NAT, ids map[datapath.NATName]uint16) error {
	return h.announcer.SetNAT(rules, ids)
}
