// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Adopt takes over the tunnels and peers that an earlier run wrote.
func Adopt(o Options) (*Overlay, error) {
	v := &Overlay{tables: o.Tables, options: o}
	if err := v.adopt(); err != nil {
		return nil, err
	}
	return v, nil
}

func (o *Overlay) adopt() error {
	o.tunnels, o.peers = map[datapath.TunnelName]*tunnel{}, map[datapath.PeerName]*peer{}
	o.resting, o.leaving, o.devices = map[uint32]time.Time{}, map[uint32]bool{}, map[string]datapath.TunnelName{}
	var id uint32
	var name kernel.PeerName
	byID := map[uint32]*tunnel{}
	it := o.tables.TunnelName.Iterate()
	for it.Next(&id, &name) {
		t := &tunnel{id: id, keys: map[kernel.TunnelKey]bool{}}
		o.tunnels[datapath.TunnelName(name.Text())], byID[id] = t, t
		o.devices[name.DeviceText()] = datapath.TunnelName(name.Text())
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("tunnels: %w", err)
	}
	var key kernel.TunnelKey
	var value kernel.Tunnel
	for it := o.tables.Tunnel.Iterate(); it.Next(&key, &value); {
		if t := byID[value.Id]; t != nil {
			t.keys[key] = true
		} else if err := o.tables.Tunnel.Delete(key); err != nil {
			return fmt.Errorf("tunnels: %w", err)
		}
	}
	if _, err := o.tables.TunnelGate.Find(uint32(0), &o.gate); err != nil {
		return fmt.Errorf("tunnels: %w", err)
	}
	return o.adoptPeers()
}

func (o *Overlay) adoptPeers() error {
	var index uint32
	var name kernel.PeerName
	byIndex := map[uint32]*peer{}
	it := o.tables.PeerName.Iterate()
	for it.Next(&index, &name) {
		p := &peer{index: index, prefixes: map[netip.Prefix]bool{}, ids: map[kernel.PeerKey]bool{}}
		if _, err := o.tables.Peer.Find(index, &p.entry); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
		if p.owner = index; p.entry.TunnelId == 0 {
			p.index = 0 // its prefixes have its flags
		}
		// The peer was being moved from one index to another: the next update makes all its entries
		// refer to the new index.
		if twin := o.peers[datapath.PeerName(name.Text())]; twin != nil {
			if p.entry.TunnelId == 0 {
				p, twin = twin, p
			}
			for _, other := range append(twin.old, twin.owner) {
				p.old, byIndex[other] = append(p.old, other), p
			}
			twin.old = nil
		}
		o.peers[datapath.PeerName(name.Text())], byIndex[p.owner&peerIndexMask] = p, p
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	var id kernel.PeerKey
	for it := o.tables.PeerId.Iterate(); it.Next(&id, &index); {
		if p := byIndex[index]; p != nil {
			p.ids[id] = true
		} else if err := o.tables.PeerId.Delete(id); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	var prefix kernel.PeerPrefixKey
	var stray []kernel.PeerPrefixKey
	for it := o.tables.PeerPrefix.Iterate(); it.Next(&prefix, &index); {
		if p := byIndex[index&peerIndexMask]; p != nil {
			if p.prefixes[prefix.Prefix()] = true; index&peerIndexMask == p.owner&peerIndexMask {
				p.owner = index // with flags
			}
		} else {
			stray = append(stray, prefix)
		}
	}
	for _, prefix := range stray {
		if err := o.tables.PeerPrefix.Delete(prefix); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	return nil
}
