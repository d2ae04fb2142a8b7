// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// Mirrors implements [datapath.DataPlane].
func (d *DataPlane) Mirrors() datapath.Table[datapath.MirrorName, datapath.Mirror] { return d.mirrors }

// MirrorContent returns copies of all mirrors.
func (d *DataPlane) MirrorContent() map[datapath.MirrorName]datapath.Mirror {
	return d.mirrors.content()
}

// DamageMirror changes or removes a mirror in the data plane as an external change.
func (d *DataPlane) DamageMirror(name datapath.MirrorName, remove bool) error {
	return d.mirrors.damage(name, remove)
}

// Copied sets the counters of a mirror.
func (d *DataPlane) Copied(name datapath.MirrorName, packets, bytes, drops uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.copied[name] = datapath.MirrorState{Packets: packets, Bytes: bytes, Drops: drops}
}

// MirrorState implements [datapath.Telemetry]. Packets of services and rules are copied on all
// ports.
func (t *telemetry) MirrorState(name datapath.MirrorName) (datapath.MirrorState, bool) {
	m, ok := t.mirrors.get(name)
	if !ok {
		return datapath.MirrorState{}, false
	}
	t.mu.Lock()
	s := t.copied[name]
	t.mu.Unlock()
	ports := []datapath.PortName{m.Port}
	if m.Port == "" {
		ports = slices.Sorted(maps.Keys(t.ports.content()))
	}
	for _, p := range ports {
		if is, ok := t.PortState(p); ok {
			s.Ports = append(s.Ports, is.Device)
		}
	}
	return s, true
}

// admitMirror rejects a mirror whose port, service, rule or target does not exist, or for which
// there is no room.
func (d *DataPlane) admitMirror(old, m *datapath.Mirror) error {
	if m == nil {
		return nil
	}
	if old == nil && len(d.mirrors.rows) >= datapath.MirrorMax {
		return fmt.Errorf("mirrors: %w", datapath.ErrCapacity)
	}
	if err := d.findSource(m); err != nil {
		return err
	}
	if m.To.Peer != "" {
		if _, ok := d.peers.get(m.To.Peer); !ok {
			return fmt.Errorf("peer %s: %w", m.To.Peer, datapath.ErrAbsent)
		}
		return nil
	}
	if _, ok := d.device(datapath.Port{Device: m.To.Device, Switch: m.To.Switch}); !ok {
		return fmt.Errorf("device %s: %w", m.To.Device, datapath.ErrAbsent)
	}
	return nil
}

func (d *DataPlane) findSource(m *datapath.Mirror) error {
	switch {
	case m.Port != "":
		if _, ok := (*telemetry)(d).PortState(m.Port); !ok {
			return fmt.Errorf("port %s: %w", m.Port, datapath.ErrAbsent)
		}
	case m.Service != "":
		if _, ok := d.services.get(m.Service); !ok {
			return fmt.Errorf("service %s: %w", m.Service, datapath.ErrAbsent)
		}
	default:
		set, _ := d.firewall.get(datapath.NodeSet)
		if _, ok := set.Rules[m.Rule]; !ok {
			return fmt.Errorf("rule %s: %w", m.Rule, datapath.ErrAbsent)
		}
	}
	return nil
}
