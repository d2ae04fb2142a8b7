// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TunnelState returns the state of a tunnel, and false if this run has not configured the tunnel.
func (o *Overlay) TunnelState(name datapath.TunnelName) (s datapath.TunnelState, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tunnels[name]
	if t == nil || !t.configured {
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
	if netns, err := o.options.Netns(true); err == nil {
		if link, err := netns.LinkByName(t.spec.Device); err == nil {
			s.MTU = link.Attrs().MTU
		}
	}
	return s, true
}

// PeerEntry returns the index and the entry of a peer in the tables. The error wraps
// [datapath.ErrAbsent] if the peer does not exist or has no tunnel.
func (o *Overlay) PeerEntry(name datapath.PeerName) (uint32, kernel.Peer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.peers[name]
	switch {
	case p == nil:
		return 0, kernel.Peer{}, datapath.Absentf("peer %q does not exist", name)
	case p.index == 0:
		return 0, kernel.Peer{}, datapath.Absentf("peer %q has no Tunnel, or no path to its underlay address exists", name)
	}
	return p.index, p.entry, nil
}

// PeerState returns the state of a peer, and false if this run has not configured the peer.
func (o *Overlay) PeerState(name datapath.PeerName) (s datapath.PeerState, ok bool) {
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
