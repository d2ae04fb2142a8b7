// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Values of ll_peer_prefix, which the headers define with #define only.
const (
	peerIndexMask = 0xffff
)

// putPrefixes writes the prefixes of a peer without a tunnel, so that its packets may arrive on an
// uplink, unlike packets of peers with tunnels. Packets from this node's pod prefixes must not
// arrive from outside at all.
func (o *Overlay) putPrefixes(name datapath.PeerName, p *peer) error {
	flag := uint32(kernel.PrefixRouted)
	if p.spec.Here {
		flag = kernel.PrefixHere
	}
	if p.index != 0 || p.owner != 0 && p.owner&^peerIndexMask != flag {
		if err := o.clear(p); err != nil {
			return err
		}
	}
	if p.owner == 0 {
		k, err := nameOfPeer(string(name), "")
		if err != nil {
			return err
		}
		index, err := o.newIndex()
		if err != nil {
			return err
		}
		if err := o.tables.PeerName.Put(index, k); err != nil {
			o.leave(index)
			return kernel.TableError("peers", err)
		}
		p.owner = index | flag
	}
	return o.setPrefixes(p)
}

// hasIDs reports whether the kernel holds the sources from which packets are attributed to the
// peer.
func (o *Overlay) hasIDs(p *peer) bool {
	for id := range p.ids {
		var now uint32
		there, err := o.tables.PeerId.Find(id, &now)
		if err != nil || !there || now != p.index && id.TunnelId != 0 { // else another peer's at that address
			return false
		}
	}
	return true
}

// hasPrefixes reports whether the kernel holds the prefixes of a peer.
func (o *Overlay) hasPrefixes(p *peer) bool {
	for prefix := range p.prefixes {
		k := kernel.PeerPrefixKeyOf(prefix)
		if !o.isOwn(&k, p.owner) {
			return false
		}
	}
	return p.owner != 0
}

// deleteOwn deletes an entry unless another peer has taken it.
func deleteOwn[K any](table *bpfmap.Map[K, uint32], key K, index uint32) error {
	var now uint32
	there, err := table.Find(key, &now)
	if err == nil && there && now == index {
		err = table.Delete(key)
	}
	return err
}

// replaceOwn changes an entry that refers to index from so that it refers to index to. It does
// nothing if another peer has taken the entry, or if the entry does not exist.
func replaceOwn[K any](table *bpfmap.Map[K, uint32], key K, from, to uint32) error {
	var now uint32
	if there, err := table.Find(key, &now); err != nil || !there || now != from {
		return err
	}
	return table.Put(key, to)
}

// setPrefixes writes the prefixes behind a peer. A prefix moves from another peer in a single
// write.
func (o *Overlay) setPrefixes(p *peer) error {
	wanted := make(map[netip.Prefix]bool, len(p.spec.Prefixes))
	for _, prefix := range p.spec.Prefixes {
		wanted[prefix] = true
		k := kernel.PeerPrefixKeyOf(prefix)
		if p.prefixes[prefix] && o.isOwn(&k, p.owner) {
			continue
		}
		o.moved, p.prefixes[prefix] = true, true // also if this fails: it may be in the kernel
		if err := o.tables.PeerPrefix.Put(k, p.owner); err != nil {
			return kernel.TableError("peers", err)
		}
	}
	for prefix := range p.prefixes {
		if wanted[prefix] {
			continue
		}
		o.moved = true
		if err := o.deletePrefix(p, prefix); err != nil {
			return err
		}
	}
	o.leave(p.old...) // unreferenced now
	p.old = nil
	return nil
}

// deletePrefix deletes a prefix of a peer unless another peer has taken it.
func (o *Overlay) deletePrefix(p *peer, prefix netip.Prefix) error {
	k := kernel.PeerPrefixKeyOf(prefix)
	var now uint32
	there, err := o.tables.PeerPrefix.Find(k, &now)
	isOwn := func(index uint32) bool { return now&peerIndexMask == index&peerIndexMask }
	if err == nil && there && (isOwn(p.owner) || slices.ContainsFunc(p.old, isOwn)) {
		err = o.tables.PeerPrefix.Delete(k)
	}
	if err == nil {
		delete(p.prefixes, prefix)
	}
	return err
}

func (o *Overlay) isOwn(k *kernel.PeerPrefixKey, index uint32) bool {
	var now uint32
	there, err := o.tables.PeerPrefix.Find(*k, &now)
	return err == nil && there && now == index
}

// clear removes a peer from the tables.
func (o *Overlay) clear(p *peer) error {
	if p.owner == 0 {
		return nil
	}
	for prefix := range p.prefixes {
		if err := o.deletePrefix(p, prefix); err != nil {
			return err
		}
	}
	for id := range p.ids {
		if err := o.deleteID(p, id); err != nil {
			return err
		}
		delete(p.ids, id)
	}
	o.leave(append(p.old, p.owner&peerIndexMask)...)
	p.index, p.owner, p.entry, p.old = 0, 0, kernel.Peer{}, nil
	return nil
}
