// SPDX-License-Identifier: Apache-2.0

package ebpf

import "github.com/loxilight/loxilight/datapath"

// TunnelState implements [datapath.Telemetry].
func (t *telemetry) TunnelState(name datapath.TunnelName) (s datapath.TunnelState, ok bool) {
	o := t.d.overlay
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.tunnels[name]
	if x == nil || !x.configured {
		return s, false
	}
	var indexes []uint32
	for _, p := range o.peers {
		if p.configured && p.spec.Tunnel == name {
			indexes = append(indexes, p.index)
			s.Peers++
		}
	}
	s.Traffic = o.counters(indexes...)
	if z, err := t.d.namespace(o.switchNamespace()); err == nil {
		if link, err := z.Netlink.LinkByName(x.spec.Device); err == nil {
			s.MTU = link.Attrs().MTU
		}
	}
	return s, true
}

// PeerState implements [datapath.Telemetry].
func (t *telemetry) PeerState(name datapath.PeerName) (s datapath.PeerState, ok bool) {
	o := t.d.overlay
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.peers[name]
	if p == nil || !p.configured {
		return s, false
	}
	if p.index != 0 {
		s.Local, s.Underlay, s.Device, s.PathMTU = p.entry.Local.Addr(), p.entry.Remote.Addr(), p.out, p.path
		s.Traffic = o.counters(p.index)
	}
	return s, true
}
