// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
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
	o.indexes = map[uint32]bool{}
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
	err := adoptEntries(&o.tables.Tunnel, func(key kernel.TunnelKey, value kernel.Tunnel) bool {
		t := byID[value.Id]
		if t != nil {
			t.keys[key] = true
		}
		return t != nil
	})
	if err != nil {
		return fmt.Errorf("tunnels: %w", err)
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
		o.useIndex(index, true)
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
	err := adoptEntries(&o.tables.PeerId, func(id kernel.PeerKey, index uint32) bool {
		p := byIndex[index]
		if p != nil {
			p.ids[id] = true
		}
		return p != nil
	})
	err = errors.Join(err, adoptEntries(&o.tables.PeerPrefix, func(prefix kernel.PeerPrefixKey, index uint32) bool {
		p := byIndex[index&peerIndexMask]
		if p == nil {
			return false
		}
		if p.prefixes[prefix.Prefix()] = true; index&peerIndexMask == p.owner&peerIndexMask {
			p.owner = index // with flags
		}
		return true
	}))
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	return nil
}

// adoptEntries reads a whole table, and then deletes the entries that owned does not claim.
func adoptEntries[K comparable, V any](table *bpfmap.Map[K, V], owned func(K, V) bool) error {
	var key K
	var value V
	var stray []K
	it := table.Iterate()
	for it.Next(&key, &value) {
		if !owned(key, value) {
			stray = append(stray, key)
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for _, key := range stray {
		if err := table.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
