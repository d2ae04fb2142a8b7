// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// endSuffix is appended to the name of a tunnel's device to form the name of its other end, on
// which packets to be encapsulated arrive.
const endSuffix = datapath.TunnelEndSuffix

// peerRest is how long the index of a deleted peer is not reused, since packets in flight carry it.
const peerRest = time.Second

// overlay holds the tunnels and the peers behind them.
type overlay struct {
	tables     *kernel.Tables
	config     datapath.Config
	announcer  announcing
	ports      *ports                                         // set before the first update
	host       hostPaths                                      // of the host netns
	raiseEpoch func() error                                   // re-evaluates connections
	invalidate func(match func(kernel.NexthopKey) bool) error // retires next hops
	signal     func()                                         // the state of a peer has changed
	namespace  func(id uint8) (*namespace, error)

	changes atomic.Uint64 // of the paths to peers: routes, devices, addresses of the host

	mu      sync.Mutex
	tunnels map[datapath.TunnelName]*tunnel
	peers   map[datapath.PeerName]*peer
	next    uint32 // next index to try for a new peer
	resting map[uint32]time.Time
	// Indexes to which no prefix or underlay address refers any more, whose entries and next hops
	// must still be deleted.
	leaving map[uint32]bool
	// Prefixes or underlay addresses have changed, and older connections must still be evaluated
	// again.
	moved bool
	gate  kernel.TunnelGate

	announced []netip.Addr // last announced; nil: nothing yet

	namesMu sync.Mutex // locked after all others
	devices map[string]datapath.TunnelName
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

// hostPaths are the paths of the host to other nodes.
type hostPaths interface {
	// wayTo returns the source address and the device with which an address is reached.
	wayTo(remote netip.Addr) (local netip.Addr, out netlink.Link, err error)
	// isPort reports whether our programs are attached to a device.
	isPort(ifindex int) bool
}

// hostOf implements [hostPaths] in the kernel.
type hostOf struct{ d *DataPlane }

func (h hostOf) wayTo(remote netip.Addr) (local netip.Addr, out netlink.Link, err error) {
	z, err := h.d.namespace(netnsHost)
	if err != nil {
		return local, nil, err
	}
	return z.wayTo(remote)
}

func (h hostOf) isPort(ifindex int) bool {
	h.d.ports.mu.RLock()
	defer h.d.ports.mu.RUnlock()
	return h.d.ports.holder(netnsHost, ifindex) != ""
}

// newOverlay returns the tunnels and peers of d, before it takes over what an earlier run wrote.
func newOverlay(d *DataPlane) *overlay {
	return &overlay{
		tables: d.tables, config: d.config, announcer: d.announcer, ports: d.ports, host: hostOf{d},
		raiseEpoch: d.epoch.Raise, invalidate: d.nexthops.invalidate, signal: d.signal, namespace: d.namespace,
	}
}

// adopt takes over the tunnels and peers that an earlier run wrote.
func (o *overlay) adopt() error {
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

func (o *overlay) adoptPeers() error {
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

// switchNamespace returns the namespace with the devices of tunnels.
func (o *overlay) switchNamespace() uint8 {
	if name := o.config.SwitchNamespace; name == "" || name == "host" {
		return netnsHost
	}
	return netnsSwitch
}

// has reports whether a device belongs to a tunnel.
func (o *overlay) has(namespace uint8, device string) bool {
	o.namesMu.Lock()
	defer o.namesMu.Unlock()
	_, ok := o.devices[device]
	return ok && namespace == o.switchNamespace()
}

// tunnelEnds returns the devices on which packets to be encapsulated arrive. v.mu is held.
func (v *devices) tunnelEnds() (ends []int) {
	for index, l := range v.links {
		device, ok := strings.CutSuffix(l.Attrs().Name, endSuffix)
		if ok && v.d.overlay.has(v.namespace.id, device) && l.Type() == "veth" {
			ends = append(ends, index)
		}
	}
	return ends
}

// refersTo extends used by the next hops that lead to peers.
func (o *overlay) refersTo(used func(uint32) bool) func(uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	ways := map[uint32]bool{}
	for _, p := range o.peers {
		var way uint32
		if p.index != 0 && o.tables.PeerNexthop.Lookup(p.index, &way) == nil {
			ways[way] = true
		}
	}
	return func(index uint32) bool { return ways[index] || used(index) }
}

// newIndex returns a free index, least recently used first.
func (o *overlay) newIndex() (uint32, error) {
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

// release frees an index that nothing refers to any more.
func (o *overlay) release(index uint32) error {
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
	return o.tables.PeerName.Delete(index) // last: the next run finds an index in use by its name
}

// finish completes changes that have been written: former indexes are released, and older
// connections evaluated again, since their packets may now have to come from another peer.
func (o *overlay) finish() error {
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
	err := errors.Join(o.raiseEpoch(), o.forgetAllHops())
	o.moved = err != nil
	return errors.Join(errs, err)
}

// forgetHops invalidates the next hops to a peer.
func (o *overlay) forgetHops(index uint32) error {
	dmac := [6]byte{0x02, 0, 0, 0, byte(index >> 8), byte(index)}
	namespace := o.switchNamespace()
	return o.invalidate(func(k kernel.NexthopKey) bool { return k.Netns == namespace && k.Dmac == dmac && k.Smac == [6]byte{} })
}

// forgetAllHops invalidates the next hops of all tunnels, since a prefix has another owner now.
func (o *overlay) forgetAllHops() error {
	namespace := o.switchNamespace()
	return o.invalidate(func(k kernel.NexthopKey) bool {
		return k.Netns == namespace && k.Smac == [6]byte{} && bytes.Equal(k.Dmac[:4], []byte{0x02, 0, 0, 0})
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
func (o *overlay) counters(indexes ...uint32) (c datapath.PeerCounters) {
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

// names returns the names of peers by index.
func (o *overlay) names() map[uint32]peerName {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := make(map[uint32]peerName, len(o.peers))
	for name, p := range o.peers {
		names[p.owner&peerIndexMask] = peerName{name, p.spec.Tunnel}
	}
	return names
}

// newTunnelID returns a free id.
func (o *overlay) newTunnelID() (uint32, error) {
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
