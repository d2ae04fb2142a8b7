// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// Values of ll_peer_prefix, which the headers define with #define only.
const (
	peerIndexMask = 0xffff
)

// putPrefixes writes the prefixes of a peer without a tunnel, so that its packets may arrive on an
// uplink, unlike packets of peers with tunnels. Prefixes of this node's pods may not arrive from
// outside at all.
func (o *overlay) putPrefixes(name datapath.PeerName, p *peer) error {
	flag := uint32(prefixRouted)
	if p.spec.Here {
		flag = prefixHere
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
		if err := o.d.tables.PeerName.Put(index, k); err != nil {
			return tableError("peers", err)
		}
		p.owner = index | flag
	}
	return o.setPrefixes(p)
}

// hasPrefixes reports whether the kernel holds the prefixes of a peer without a tunnel.
func (o *overlay) hasPrefixes(p *peer) bool {
	for prefix := range p.prefixes {
		k := peerPrefixKeyOf(prefix)
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

// setPrefixes writes the prefixes behind a peer. A prefix of another peer moves in one write.
func (o *overlay) setPrefixes(p *peer) error {
	wanted := make(map[netip.Prefix]bool, len(p.spec.Prefixes))
	moved := false
	for _, prefix := range p.spec.Prefixes {
		wanted[prefix] = true
		k := peerPrefixKeyOf(prefix)
		if p.prefixes[prefix] && o.isOwn(&k, p.owner) {
			continue
		}
		moved = true
		if err := o.d.tables.PeerPrefix.Put(k, p.owner); err != nil {
			return tableError("peers", err)
		}
	}
	for prefix := range p.prefixes {
		if wanted[prefix] {
			continue
		}
		moved = true
		k := peerPrefixKeyOf(prefix)
		if err := deleteOwn(&o.d.tables.PeerPrefix, k, p.owner); err != nil {
			return err
		}
	}
	p.prefixes = wanted
	if !moved {
		return nil
	}
	// Packets admitted from one peer may now have to come from another.
	return errors.Join(o.setGate(), o.d.raiseEpoch(), o.forgetAllHops())
}

func (o *overlay) isOwn(k *kernelPeerPrefixKey, index uint32) bool {
	var now uint32
	there, err := o.d.tables.PeerPrefix.Find(*k, &now)
	return err == nil && there && now == index
}

// clear removes a peer from the tables.
func (o *overlay) clear(p *peer) error {
	if p.owner == 0 {
		return nil
	}
	for prefix := range p.prefixes {
		k := peerPrefixKeyOf(prefix)
		if err := deleteOwn(&o.d.tables.PeerPrefix, k, p.owner); err != nil {
			return err
		}
	}
	for id := range p.ids {
		if err := o.deleteID(p, id); err != nil {
			return err
		}
	}
	clear(p.prefixes)
	clear(p.ids)
	index := p.owner & peerIndexMask
	p.index, p.owner, p.entry = 0, 0, kernelPeer{}
	return errors.Join(o.setGate(), o.release(index))
}
