// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/announce"
)

// newAnnouncer takes over the announcements of an earlier run.
func newAnnouncer(d *DataPlane) (*announce.Announcer, error) {
	return announce.New(announce.Options{
		Table: &d.tables.Announced, SwitchNetns: d.namespaceOf(true), Netns: d.announcingNetns, Log: d.log,
	})
}

// announcingNetns returns the namespaces in use for package announce.
func (d *DataPlane) announcingNetns() (open []announce.Netns) {
	for _, z := range d.openNamespaces() {
		open = append(open, announcingNetns{z})
	}
	return open
}

// announcingNetns implements [announce.Netns].
type announcingNetns struct{ z *namespace }

// ID implements [announce.Netns].
func (n announcingNetns) ID() uint8 { return n.z.ID }

// Networks implements [announce.Netns].
func (n announcingNetns) Networks() []announce.Network { return n.z.devices.networks() }

// Addrs implements [announce.Netns].
func (n announcingNetns) Addrs() []netip.Addr { return n.z.devices.own() }

// Do implements [announce.Netns].
func (n announcingNetns) Do(f func() error) error { return n.z.Do(f) }

// Announces implements [datapath.Telemetry].
func (t *nodeTelemetry) Announces(addr netip.Addr) bool { return t.d.announcer.AnnouncesService(addr) }

// own returns the node's addresses in the namespace.
func (v *devices) own() (all []netip.Addr) {
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

// networks returns the networks whose ARP and NDP requests our programs see.
func (v *devices) networks() (all []announce.Network) {
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
