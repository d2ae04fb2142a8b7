// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

func (d *DataPlane) overlayOptions() overlay.Options {
	return overlay.Options{
		Tables: d.tables, Ports: d.ports,
		Netns: d.overlayNetns, SwitchNetns: d.namespaces.IDOf(true), HostDevice: d.config.HostDevice, SwitchDevice: d.config.SwitchDevice,
		Announce: d.announcer.SetPeers, RaiseEpoch: d.epoch.Raise, Invalidate: d.nexthops.Invalidate, Signal: d.signal,
	}
}

func (d *DataPlane) overlayNetns(inSwitch bool) (overlay.Netns, error) {
	z, err := d.namespaces.Open(d.namespaces.IDOf(inSwitch))
	if err != nil {
		return nil, err
	}
	return z.Netlink, nil
}

// TunnelState implements [datapath.Telemetry].
func (t *nodeTelemetry) TunnelState(name datapath.TunnelName) (datapath.TunnelState, bool) {
	return t.d.overlay.TunnelState(name)
}

// PeerState implements [datapath.Telemetry].
func (t *nodeTelemetry) PeerState(name datapath.PeerName) (datapath.PeerState, bool) {
	return t.d.overlay.PeerState(name)
}
