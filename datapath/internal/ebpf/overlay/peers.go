// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Peers returns the table of peers.
func (o *Overlay) Peers() datapath.Table[datapath.PeerName, datapath.Peer] { return peerTable{o} }

// peerTable is the table of peers.
type peerTable struct{ *Overlay }

// Update implements [datapath.Table].
func (o peerTable) Update(_ context.Context, name datapath.PeerName, value datapath.Peer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.peers[name]
	if p == nil {
		p = &peer{prefixes: map[netip.Prefix]bool{}, ids: map[kernel.PeerKey]bool{}}
		o.peers[name] = p
	}
	p.spec, p.configured = value, true
	return errors.Join(o.put(name, p), o.finish(), o.announce())
}

// put makes a peer take effect.
func (o *Overlay) put(name datapath.PeerName, p *peer) error {
	p.changes = o.changes.Load()
	if p.spec.Tunnel == "" {
		return o.putPrefixes(name, p)
	}
	if p.owner != 0 && p.index == 0 { // it had no tunnel
		if err := o.clear(p); err != nil {
			return err
		}
	}
	t := o.tunnels[p.spec.Tunnel]
	if t == nil || !t.whole {
		return fmt.Errorf("tunnel %q: %w", p.spec.Tunnel, datapath.ErrAbsent)
	}
	entry, out, err := o.build(t, p)
	if err != nil {
		return err
	}
	p.out = out.Attrs().Name
	if err := o.setEntry(name, p, entry); err != nil {
		return err
	}
	if err := o.setIDs(p, t); err != nil {
		return err
	}
	if err := o.setPrefixes(p); err != nil {
		return err
	}
	if o.options.Ports.Holder(false, out.Attrs().Index) == "" {
		return datapath.Absentf("no Interface for host device %s, the route to %s: run llcli interface add %s", p.out, p.entry.Remote.Addr(), p.out)
	}
	return nil
}

// build returns the ll_peer entry of a peer, and the host device through which the peer is reached.
func (o *Overlay) build(t *tunnel, p *peer) (entry kernel.Peer, out netlink.Link, err error) {
	var why []error
	for _, remote := range p.spec.Underlay {
		if t.spec.Local.IsValid() && t.spec.Local.Is4() != remote.Is4() {
			continue
		}
		var local netip.Addr
		if local, out, err = o.wayTo(remote); err != nil {
			why = append(why, fmt.Errorf("underlay %s: %w", remote, err))
			continue
		}
		if t.spec.Local.IsValid() {
			local = t.spec.Local
		}
		entry = kernel.Peer{
			Local: kernel.AddrOf(local), Remote: kernel.AddrOf(remote), TunnelId: t.id, Type: kernel.TunnelTypes[t.spec.Type],
			DeviceIfindex: uint32(t.device), LinkSwitchIfindex: uint32(t.crossing), LinkHostIfindex: uint32(t.back),
			OutIfindex: uint32(out.Attrs().Index), Seed: o.gate.Seed,
		}
		header := Header(&t.spec, local, remote)
		entry.HeaderLen = uint32(copy(entry.Header[:], header))
		return entry, out, nil
	}
	if len(why) == 0 {
		return entry, nil, datapath.Absentf("no underlay address has the address family of the tunnel's local address %s", t.spec.Local)
	}
	return entry, nil, errors.Join(why...)
}

// wayTo returns the source address and the device with which the host reaches an address.
func (o *Overlay) wayTo(remote netip.Addr) (local netip.Addr, out netlink.Link, err error) {
	host, err := o.options.Netns(false)
	if err != nil {
		return local, nil, err
	}
	routes, err := host.RouteGet(remote.AsSlice())
	if err != nil || len(routes) == 0 {
		return local, nil, datapath.Absentf("no route to %s: see ip route get %s", remote, remote)
	}
	r := routes[0]
	local, _ = netip.AddrFromSlice(r.Src)
	switch local = local.Unmap(); {
	case r.Type != unix.RTN_UNICAST && r.Type != 0:
		return local, nil, errors.New("must be an address of the other node, not of this node, multicast or unspecified")
	case !local.IsValid():
		return local, nil, datapath.Absentf("this node has no source address towards %s: see ip route get %s", remote, remote)
	}
	out, err = host.LinkByIndex(r.LinkIndex)
	return local, out, err
}

// setEntry writes the entry of a peer, under a new index if packets could otherwise see a mixture
// of the old and the new entry.
func (o *Overlay) setEntry(name datapath.PeerName, p *peer, entry kernel.Peer) error {
	if p.index != 0 && p.entry == entry {
		return nil
	}
	old, same := p.index, p.entry
	same.OutIfindex = entry.OutIfindex
	index := old
	if old == 0 || same != entry {
		k, err := nameOfPeer(string(name), "")
		if err != nil {
			return err
		}
		if index, err = o.newIndex(); err != nil {
			return err
		}
		stats, err := o.statsOf(old)
		if err != nil {
			return err
		}
		o.leaving[index] = true // until the entry is complete
		o.useIndex(index, true)
		err = errors.Join(
			o.tables.PeerNexthop.Put(index, uint32(0)),
			o.tables.PeerPmtu.Put(index, kernel.PeerPmtu{}),
			o.tables.PeerStats.Put(index, stats),
			o.tables.PeerName.Put(index, k),
		)
		if err != nil {
			return kernel.TableError("peers", err)
		}
	}
	if err := o.tables.Peer.Put(index, entry); err != nil {
		return kernel.TableError("peers", err)
	}
	delete(o.leaving, index)
	p.index, p.owner, p.entry = index, index, entry
	if old == 0 || old == index {
		return nil
	}
	p.old = append(p.old, old)
	// Prefixes must not refer to the new index before it is complete.
	for prefix := range p.prefixes {
		if err := replaceOwn(&o.tables.PeerPrefix, kernel.PeerPrefixKeyOf(prefix), old, index); err != nil {
			return kernel.TableError("peers", err)
		}
	}
	for id := range p.ids {
		if err := replaceOwn(&o.tables.PeerId, id, old, index); err != nil {
			return kernel.TableError("peers", err)
		}
	}
	return nil
}

// leave schedules the release of unreferenced indexes.
func (o *Overlay) leave(indexes ...uint32) {
	for _, index := range indexes {
		if index != 0 {
			o.leaving[index] = true
		}
	}
}

// statsOf returns the counters of an index for the index that replaces it, so that the counters of
// a peer continue when it moves to another tunnel.
func (o *Overlay) statsOf(index uint32) ([]kernel.PeerStats, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	stats := make([]kernel.PeerStats, cpus)
	if index == 0 {
		return stats, nil
	}
	err = o.tables.PeerStats.Lookup(index, &stats)
	return stats, err
}

// setIDs writes the sources from which packets are attributed to the peer.
func (o *Overlay) setIDs(p *peer, t *tunnel) error {
	wanted := map[kernel.PeerKey]bool{}
	for _, a := range p.spec.Underlay {
		wanted[kernel.PeerKey{Underlay: kernel.AddrOf(a), TunnelId: t.id}] = true
		wanted[kernel.PeerKey{Underlay: kernel.AddrOf(a)}] = true // for other senders to that address
	}
	for id := range wanted {
		var now uint32
		there, err := o.tables.PeerId.Find(id, &now)
		if err != nil {
			return err
		}
		known := p.ids[id]
		p.ids[id] = true // also if this fails: it may be in the kernel
		if there && (now == p.index || known && id.TunnelId == 0 && o.isIndex(now)) {
			continue
		}
		// Connections to that address may be older than the tunnel.
		o.moved = o.moved || !slices.Contains(p.old, now)
		if err := o.tables.PeerId.Put(id, p.index); err != nil {
			return kernel.TableError("peers", err)
		}
	}
	for id := range p.ids {
		if !wanted[id] {
			if err := o.deleteID(p, id); err != nil {
				return err
			}
			delete(p.ids, id)
		}
	}
	return nil
}

// isIndex reports whether an index belongs to a peer.
func (o *Overlay) isIndex(index uint32) bool {
	for _, p := range o.peers {
		if p.index == index {
			return true
		}
	}
	return false
}

// deleteID deletes the id of a peer, whether or not p.ids still contains it. If another peer has
// the same address in another tunnel, the address remains a tunnel end.
func (o *Overlay) deleteID(p *peer, id kernel.PeerKey) error {
	if id.TunnelId == 0 {
		for _, other := range o.peers {
			if other != p && other.ids[id] {
				return o.tables.PeerId.Put(id, other.index)
			}
		}
	}
	for _, index := range append(slices.Clone(p.old), p.index) {
		if err := deleteOwn(&o.tables.PeerId, id, index); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements [datapath.Table].
func (o peerTable) Delete(_ context.Context, name datapath.PeerName) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.peers[name]
	if p == nil {
		return nil
	}
	if err := errors.Join(o.clear(p), o.finish()); err != nil {
		return err
	}
	delete(o.peers, name)
	return o.announce()
}

// Keys implements [datapath.Table].
func (o peerTable) Keys(context.Context) iter.Seq2[datapath.PeerName, error] {
	o.mu.Lock()
	defer o.mu.Unlock()
	return eachName(slices.Sorted(maps.Keys(o.peers)))
}

// Verify implements [datapath.Table].
func (o peerTable) Verify(_ context.Context, name datapath.PeerName) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.peers[name]
	if p == nil || !p.configured {
		return false, nil
	}
	if p.index == 0 {
		return p.spec.Tunnel == "" && o.hasPrefixes(p), nil
	}
	if changes := o.changes.Load(); p.changes != changes {
		t := o.tunnels[p.spec.Tunnel]
		if t == nil {
			return false, nil
		}
		// If no path exists now, Update reports why.
		if entry, _, err := o.build(t, p); err != nil || entry != p.entry {
			return false, fmt.Errorf("the host's routes or addresses have changed: %w", datapath.ErrOutdated)
		}
		p.changes = changes
	}
	var now kernel.Peer
	if err := o.tables.Peer.Lookup(p.index, &now); err != nil {
		return false, err
	}
	return now == p.entry && o.hasPrefixes(p) && o.hasIDs(p), nil
}
