// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/announce"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Own returns the node's addresses in the namespace.
func (v *Devices) Own() (all []netip.Addr) {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.bridges.Local() {
		all = append(all, key.Addr.Addr())
	}
	return all
}

// Networks returns the networks whose ARP and NDP requests our programs see.
func (v *Devices) Networks() (all []announce.Network) {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := make(map[int]announce.Role)
	for index := range v.ports {
		asked[index] = v.roles[index]
		if bridge, ok := v.bridges.BridgeOf(index); ok && asked[bridge] != announce.RoleUplink {
			asked[bridge] = v.roles[index]
		}
	}
	local := make(map[netip.Addr]bool)
	for key := range v.bridges.Local() {
		local[key.Addr.Addr()] = true
	}
	known := make(map[int][]netip.Addr)
	for n := range v.neighbours {
		known[n.ifindex] = append(known[n.ifindex], n.addr)
	}
	for index, role := range asked {
		l := v.links[index]
		if l == nil || len(l.Attrs().HardwareAddr) != 6 {
			continue
		}
		for _, p := range v.addrs[index] {
			if p.Addr().IsLinkLocalUnicast() || p.Bits() == 0 {
				continue
			}
			all = append(all, announce.Network{
				Index: index, Name: l.Attrs().Name, MAC: [6]byte(l.Attrs().HardwareAddr), Prefix: p.Masked(), Neighbours: known[index], Local: local,
				Role: role, Bridge: l.Type() == "bridge",
			})
		}
	}
	return all
}

// tunnelEnds returns the devices on which packets to be encapsulated arrive. v.mu is held.
func (v *Devices) tunnelEnds() (ends []int) {
	for index, l := range v.links {
		device, ok := strings.CutSuffix(l.Attrs().Name, datapath.TunnelEndSuffix)
		if ok && v.options.IsTunnel(device) && l.Type() == "veth" {
			ends = append(ends, index)
		}
	}
	return ends
}

// Local returns the keys of the node's addresses in ll_local.
func (v *Devices) Local() map[kernel.LocalKey]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.bridges.Local())
}

// List returns the devices, keyed by name.
func (v *Devices) List() map[string]datapath.Device {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.listed
}
