// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// peerRest is how long the index of a deleted peer is not reused, since packets in flight carry it.
const peerRest = time.Second

// Overlay holds the tunnels and the peers behind them. It is safe for concurrent use.
type Overlay struct {
	tables  *kernel.Tables
	options Options

	changes atomic.Uint64 // of the paths to peers: routes, devices, addresses of the host

	mu      sync.Mutex
	tunnels map[datapath.TunnelName]*tunnel
	peers   map[datapath.PeerName]*peer
	next    uint32 // next index to try for a new peer
	resting map[uint32]time.Time
	// Indexes to which no prefix or underlay address refers now, whose entries and next hops
	// must still be deleted.
	leaving map[uint32]bool
	// Prefixes or underlay addresses have changed, and older connections must still be evaluated
	// again.
	moved bool
	gate  kernel.TunnelGate

	announced []netip.Addr // last announced; nil: nothing yet

	// leafMu is locked after all others: nothing else is locked while it is held.
	leafMu  sync.Mutex
	devices map[string]datapath.TunnelName
	indexes map[uint32]bool // in use, including former ones of peers
}

// tunnel is a tunnel in force.
type tunnel struct {
	spec                   datapath.Tunnel
	configured             bool // configured in this run; else in an earlier one
	whole                  bool // complete: peers can use it
	id                     uint32
	device, crossing, back int // ifindexes, as in struct peer
	keys                   map[kernel.TunnelKey]bool
	changes                uint64
}

// peer is a peer in force. A peer without a tunnel has no index; only its prefixes have an owner.
type peer struct {
	spec       datapath.Peer
	configured bool
	index      uint32
	owner      uint32 // owner of the prefixes: index, or another index with a flag
	entry      kernel.Peer
	old        []uint32              // former indexes, to which prefixes or ids may still refer
	prefixes   map[netip.Prefix]bool // prefixes that may be in the kernel
	ids        map[kernel.PeerKey]bool
	out        string // device of the underlay
	path       int    // path MTU that a router has reported; 0: none
	changes    uint64
}

// HasDevice reports whether a device belongs to a tunnel. netns is the id of the device's netns in
// the keys of maps.
func (o *Overlay) HasDevice(netns uint8, device string) bool {
	o.leafMu.Lock()
	defer o.leafMu.Unlock()
	_, ok := o.devices[device]
	return ok && netns == o.options.SwitchNetns
}

// PathsChanged records that the paths to peers may have changed: routes, devices or addresses of
// the host.
func (o *Overlay) PathsChanged() { o.changes.Add(1) }

// ForgetNexthops takes the next hops off the peers at the addresses that to selects. The next packet to
// each of them learns a next hop again.
func (o *Overlay) ForgetNexthops(to func(netip.Addr) bool) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.peers {
		for _, index := range slices.Concat(p.old, []uint32{p.index}) {
			if index != 0 && to(p.entry.Remote.Addr()) {
				err = errors.Join(err, o.tables.PeerNexthop.Put(index, uint32(0)))
			}
		}
	}
	return err
}

// Nexthops returns the indexes of the next hops that lead to peers. Passes over the connections call
// it, which other parts start and wait for under locks of their own: it must not wait for those.
func (o *Overlay) Nexthops() map[uint32]bool {
	o.leafMu.Lock()
	defer o.leafMu.Unlock()
	ways := map[uint32]bool{}
	for index := range o.indexes {
		var way uint32
		if o.tables.PeerNexthop.Lookup(index, &way) == nil {
			ways[way] = true
		}
	}
	return ways
}

// useIndex records that an index of a peer is in use, or no longer.
func (o *Overlay) useIndex(index uint32, used bool) {
	o.leafMu.Lock()
	defer o.leafMu.Unlock()
	if delete(o.indexes, index); used {
		o.indexes[index] = true
	}
}

// newIndex returns a free index, least recently used first.
func (o *Overlay) newIndex() (uint32, error) {
	used := map[uint32]bool{}
	for _, p := range o.peers {
		used[p.owner&peerIndexMask] = true
		for _, index := range p.old {
			used[index] = true
		}
	}
	for index, since := range o.resting {
		if time.Since(since) > peerRest {
			delete(o.resting, index)
		}
	}
	count := o.tables.Peer.MaxEntries()
	for range count {
		o.next = (o.next + 1) % count
		if _, rests := o.resting[o.next]; o.next != 0 && !used[o.next] && !rests && !o.leaving[o.next] {
			return o.next, nil
		}
	}
	return 0, fmt.Errorf("%d peers: %w", len(o.peers), datapath.ErrCapacity)
}

// release frees an unreferenced index.
func (o *Overlay) release(index uint32) error {
	if index == 0 {
		return nil
	}
	o.resting[index] = time.Now()
	err := errors.Join(
		o.tables.Peer.Put(index, kernel.Peer{}),
		o.tables.PeerNexthop.Put(index, uint32(0)),
		o.tables.PeerPmtu.Put(index, kernel.PeerPmtu{}),
		o.forgetHops(index),
	)
	if err != nil {
		return err
	}
	o.useIndex(index, false)
	return o.tables.PeerName.Delete(index) // last: the next run finds an index in use by its name
}

// finish completes changes that have been written: former indexes are released, and older
// connections evaluated again, since their packets may now have to come from another peer.
func (o *Overlay) finish() error {
	var errs error
	for index := range o.leaving {
		if err := o.release(index); err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		delete(o.leaving, index)
	}
	errs = errors.Join(errs, o.setGate())
	if !o.moved {
		return errs
	}
	err := errors.Join(o.options.RaiseEpoch(), o.forgetAllHops())
	o.moved = err != nil
	return errors.Join(errs, err)
}

// forgetHops invalidates the next hops to a peer.
func (o *Overlay) forgetHops(index uint32) error {
	dmac := [6]byte{0x02, 0, 0, 0, byte(index >> 8), byte(index)}
	netns := o.options.SwitchNetns
	return o.options.Invalidate(func(k kernel.NexthopKey) bool { return k.Netns == netns && k.Dmac == dmac && k.Smac == [6]byte{} })
}

// forgetAllHops invalidates the next hops of all tunnels, since a prefix has another owner now.
func (o *Overlay) forgetAllHops() error {
	netns := o.options.SwitchNetns
	return o.options.Invalidate(func(k kernel.NexthopKey) bool {
		return k.Netns == netns && k.Smac == [6]byte{} && bytes.Equal(k.Dmac[:4], []byte{0x02, 0, 0, 0})
	})
}

func nameOfPeer(name, device string) (k kernel.PeerName, err error) {
	if len(name) >= len(k.Name) {
		return k, fmt.Errorf("name longer than %d bytes: %w", len(k.Name)-1, datapath.ErrUnsupported)
	}
	copy(k.Name[:], name)
	k.Device = kernel.DeviceName(device)
	return k, nil
}

// counters returns the sum of the counters of peers.
func (o *Overlay) counters(indexes ...uint32) (c datapath.PeerCounters) {
	for _, index := range indexes {
		var each []kernel.PeerStats
		if index == 0 || o.tables.PeerStats.Lookup(index, &each) != nil {
			continue
		}
		for _, s := range each {
			c.SentPackets += s.SentPacketCount
			c.SentBytes += s.SentByteCount
			c.ReceivedPackets += s.ReceivedPacketCount
			c.ReceivedBytes += s.ReceivedByteCount
			c.Drops += s.DropCount
		}
	}
	return c
}

// Name identifies a peer and its tunnel.
type Name struct {
	Peer   datapath.PeerName
	Tunnel datapath.TunnelName // empty: the peer has no tunnel
}

// Names returns the names of peers by their index in the maps.
func (o *Overlay) Names() map[uint32]Name {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := make(map[uint32]Name, len(o.peers))
	for name, p := range o.peers {
		names[p.owner&peerIndexMask] = Name{name, p.spec.Tunnel}
	}
	return names
}

// newTunnelID returns a free id.
func (o *Overlay) newTunnelID() (uint32, error) {
	used := map[uint32]bool{}
	for _, t := range o.tunnels {
		used[t.id] = true
	}
	for id := uint32(1); id < math.MaxUint8; id++ {
		if !used[id] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("%d tunnels: %w", len(used), datapath.ErrCapacity)
}
