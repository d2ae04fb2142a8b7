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

	"github.com/loxilight/loxilight/datapath"
)

// endSuffix is appended to the name of a tunnel's device to name its other end, on which packets to
// be encapsulated arrive.
const endSuffix = datapath.TunnelEndSuffix

// peerRest is how long the index of a deleted peer is not reused: packets in flight carry it.
const peerRest = time.Second

// overlay holds the tunnels and the peers behind them.
type overlay struct {
	d       *DataPlane
	changes atomic.Uint64 // of the paths to peers: routes, devices, addresses of the host

	mu      sync.Mutex
	tunnels map[datapath.TunnelName]*tunnel
	peers   map[datapath.PeerName]*peer
	next    uint32 // index of a peer to be tried next
	resting map[uint32]time.Time
	gate    kernelTunnelGate

	announced []announcement // last announced; nil: nothing yet

	namesMu sync.Mutex // after all others
	devices map[string]datapath.TunnelName
}

// tunnel is a tunnel that is in force.
type tunnel struct {
	spec                   datapath.Tunnel
	told                   bool // configured in this run; else from an earlier one
	whole                  bool // peers can be put behind it
	id                     uint32
	device, crossing, back int // ifindexes, as in struct peer
	keys                   map[kernelTunnelKey]bool
	changes                uint64
}

// peer is a peer that is in force. Without a tunnel it has no index, and only its prefixes have an
// owner.
type peer struct {
	spec     datapath.Peer
	told     bool
	index    uint32
	owner    uint32 // of the prefixes: the index, or another one with a flag
	entry    kernelPeer
	prefixes map[netip.Prefix]bool
	ids      map[kernelPeerKey]bool
	out      string // device of the underlay
	path     int    // path MTU that a router has reported; 0: none
	changes  uint64
}

// adoptOverlay takes over the tunnels and peers that an earlier run wrote.
func adoptOverlay(d *DataPlane) (*overlay, error) {
	o := &overlay{
		d: d, tunnels: map[datapath.TunnelName]*tunnel{}, peers: map[datapath.PeerName]*peer{},
		resting: map[uint32]time.Time{}, devices: map[string]datapath.TunnelName{},
	}
	var id uint32
	var name kernelPeerName
	byID := map[uint32]*tunnel{}
	it := d.tables.TunnelName.Iterate()
	for it.Next(&id, &name) {
		t := &tunnel{id: id, keys: map[kernelTunnelKey]bool{}}
		o.tunnels[datapath.TunnelName(name.text())], byID[id] = t, t
		o.devices[name.deviceText()] = datapath.TunnelName(name.text())
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("tunnels: %w", err)
	}
	var key kernelTunnelKey
	var value kernelTunnel
	for it := d.tables.Tunnel.Iterate(); it.Next(&key, &value); {
		if t := byID[value.Id]; t != nil {
			t.keys[key] = true
		} else if err := d.tables.Tunnel.Delete(key); err != nil {
			return nil, fmt.Errorf("tunnels: %w", err)
		}
	}
	if _, err := d.tables.TunnelGate.Find(uint32(0), &o.gate); err != nil {
		return nil, fmt.Errorf("tunnels: %w", err)
	}
	return o, o.adoptPeers()
}

func (o *overlay) adoptPeers() error {
	var index uint32
	var name kernelPeerName
	byIndex := map[uint32]*peer{}
	it := o.d.tables.PeerName.Iterate()
	for it.Next(&index, &name) {
		p := &peer{index: index, prefixes: map[netip.Prefix]bool{}, ids: map[kernelPeerKey]bool{}}
		if _, err := o.d.tables.Peer.Find(index, &p.entry); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
		if p.owner = index; p.entry.TunnelId == 0 {
			p.index = 0 // its prefixes have its flags
		}
		if old := o.peers[datapath.PeerName(name.text())]; old != nil {
			// It was being moved from one index to another; references to the other index are
			// deleted.
			if err := o.release(old.owner & peerIndexMask); err != nil {
				return err
			}
			delete(byIndex, old.owner&peerIndexMask)
		}
		o.peers[datapath.PeerName(name.text())], byIndex[index] = p, p
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	var id kernelPeerKey
	for it := o.d.tables.PeerId.Iterate(); it.Next(&id, &index); {
		if p := byIndex[index]; p != nil {
			p.ids[id] = true
		} else if err := o.d.tables.PeerId.Delete(id); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	var prefix kernelPeerPrefixKey
	var stray []kernelPeerPrefixKey
	for it := o.d.tables.PeerPrefix.Iterate(); it.Next(&prefix, &index); {
		if p := byIndex[index&peerIndexMask]; p != nil {
			p.prefixes[prefix.prefix()], p.owner = true, index
		} else {
			stray = append(stray, prefix)
		}
	}
	for _, prefix := range stray {
		if err := o.d.tables.PeerPrefix.Delete(prefix); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	return nil
}

// switchNamespace returns the namespace with the devices of tunnels.
func (o *overlay) switchNamespace() uint8 {
	if name := o.d.config.SwitchNamespace; name == "" || name == "host" {
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
		if p.index != 0 && o.d.tables.PeerNexthop.Lookup(p.index, &way) == nil {
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
	}
	for index, since := range o.resting {
		if time.Since(since) > peerRest {
			delete(o.resting, index)
		}
	}
	count := o.d.tables.Peer.MaxEntries()
	for range count {
		o.next = (o.next + 1) % count
		if _, rests := o.resting[o.next]; o.next != 0 && !used[o.next] && !rests {
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
	err := errors.Join(
		o.d.tables.Peer.Put(index, kernelPeer{}),
		o.d.tables.PeerNexthop.Put(index, uint32(0)),
		o.d.tables.PeerPmtu.Put(index, kernelPeerPmtu{}),
		o.d.tables.PeerName.Delete(index),
	)
	o.resting[index] = time.Now()
	return errors.Join(err, o.forgetHops(index))
}

// forgetHops invalidates the next hops to a peer.
func (o *overlay) forgetHops(index uint32) error {
	dmac := [6]byte{0x02, 0, 0, 0, byte(index >> 8), byte(index)}
	namespace := o.switchNamespace()
	return o.d.nexthops.invalidate(func(k kernelNexthopKey) bool { return k.Netns == namespace && k.Dmac == dmac && k.Smac == [6]byte{} })
}

// forgetAllHops invalidates the next hops of all tunnels: a prefix has another owner now.
func (o *overlay) forgetAllHops() error {
	namespace := o.switchNamespace()
	return o.d.nexthops.invalidate(func(k kernelNexthopKey) bool {
		return k.Netns == namespace && k.Smac == [6]byte{} && bytes.Equal(k.Dmac[:4], []byte{0x02, 0, 0, 0})
	})
}

func (k *kernelPeerName) text() string {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return string(name)
}

func (k *kernelPeerName) deviceText() string {
	name, _, _ := bytes.Cut(k.Device[:], []byte{0})
	return string(name)
}

func nameOfPeer(name, device string) (k kernelPeerName, err error) {
	if len(name) >= len(k.Name) {
		return k, fmt.Errorf("name longer than %d bytes: %w", len(k.Name)-1, datapath.ErrUnsupported)
	}
	copy(k.Name[:], name)
	k.Device = deviceName(device)
	return k, nil
}

func peerPrefixKeyOf(p netip.Prefix) kernelPeerPrefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return kernelPeerPrefixKey{PrefixLen: uint32(bits), Addr: addrOf(p.Masked().Addr())}
}

func (k kernelPeerPrefixKey) prefix() netip.Prefix {
	a, bits := k.Addr.addr(), int(k.PrefixLen)
	if a.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

// counters returns the sum of the counters of peers.
func (o *overlay) counters(indexes ...uint32) (c datapath.PeerCounters) {
	for _, index := range indexes {
		var each []kernelPeerStats
		if index == 0 || o.d.tables.PeerStats.Lookup(index, &each) != nil {
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
