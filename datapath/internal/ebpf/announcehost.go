// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/announce"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
)

// newAnnouncer takes over the announcements of an earlier run.
func newAnnouncer(d *DataPlane) (*announce.Announcer, error) {
	return announce.New(announce.Options{
		Table: &d.tables.Announced, SwitchNetns: d.namespaces.IDOf(true), Netns: d.announcingNetns, Log: d.log,
	})
}

// announcingNetns returns the namespaces in use for package announce.
func (d *DataPlane) announcingNetns() (open []announce.Netns) {
	for _, z := range d.namespaces.InUse() {
		open = append(open, announcingNetns{z})
	}
	return open
}

// announcingNetns implements [announce.Netns].
type announcingNetns struct{ z *namespace.Namespace }

// ID implements [announce.Netns].
func (n announcingNetns) ID() uint8 { return n.z.ID }

// Networks implements [announce.Netns].
func (n announcingNetns) Networks() []announce.Network { return n.z.Devices.Networks() }

// Addrs implements [announce.Netns].
func (n announcingNetns) Addrs() []netip.Addr { return n.z.Devices.Own() }

// Do implements [announce.Netns].
func (n announcingNetns) Do(f func() error) error { return n.z.Do(f) }

// Announces implements [datapath.Telemetry].
func (t *nodeTelemetry) Announces(addr netip.Addr) bool { return t.d.announcer.AnnouncesService(addr) }
