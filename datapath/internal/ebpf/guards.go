// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Constants that the headers define with #define only.
const (
	guardedWords = 1024 // GUARDED_WORDS
)

// guards maintains the source guards of endpoints' devices: ll_guard and ll_guarded. A device is
// closed before programs are attached to it, then opened; its entries are removed after the
// programs are detached.
type guards struct {
	d    *DataPlane
	bits *bpfmap.Map[uint32, uint64]
	used *bpfmap.Map[uint32, uint64]

	departed departed

	mu       sync.Mutex
	written  map[guardedDevice]map[netip.Addr]kernel.Guard // zero address: the device itself
	narrowed map[guardedDevice]bool                        // lost an address; the epoch must be raised
}

type guardedDevice struct {
	namespace uint8
	index     int
}

// word returns the position of a device's bit in ll_guarded.
func (v guardedDevice) word() (at uint32, bit uint64) {
	low := uint32(v.index & 0xffff)
	return uint32(v.namespace)*guardedWords + low>>6, 1 << (low & 63)
}

func (v guardedDevice) key(a netip.Addr) kernel.GuardKey {
	k := kernel.GuardKey{Ifindex: uint32(v.index), Netns: uint32(v.namespace)}
	if a.IsValid() {
		k.Addr = kernel.AddrOf(a)
	}
	return k
}

// newGuards takes over the guards that an earlier run wrote.
func newGuards(d *DataPlane) *guards {
	g := &guards{
		d: d, bits: &d.tables.Guarded, used: &d.tables.PortUsed,
		written: make(map[guardedDevice]map[netip.Addr]kernel.Guard), narrowed: make(map[guardedDevice]bool),
	}
	var key kernel.GuardKey
	var value kernel.Guard
	for it := d.tables.Guard.Iterate(); it.Next(&key, &value); {
		a := key.Addr.Addr()
		if key.Addr == (kernel.Addr{}) {
			a = netip.Addr{}
		}
		g.entries(guardedDevice{uint8(key.Netns), int(key.Ifindex)})[a] = value
	}
	return g
}

func (g *guards) entries(v guardedDevice) map[netip.Addr]kernel.Guard {
	if g.written[v] == nil {
		g.written[v] = make(map[netip.Addr]kernel.Guard)
	}
	return g.written[v]
}

func (g *guards) put(v guardedDevice, a netip.Addr, value kernel.Guard) error {
	if old, ok := g.entries(v)[a]; ok && old == value {
		return nil
	}
	if err := g.d.tables.Guard.Put(v.key(a), value); errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("guards of endpoints: %w", datapath.ErrCapacity)
	} else if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	g.entries(v)[a] = value
	return nil
}

func (g *guards) drop(v guardedDevice, a netip.Addr) error {
	if err := g.d.tables.Guard.Delete(v.key(a)); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	delete(g.written[v], a)
	if a.IsValid() {
		g.departed.leave(v.namespace, a)
	}
	return nil
}

// setBit sets or clears the bit of a device in one of the two arrays, and returns its old value.
func setBit(m *bpfmap.Map[uint32, uint64], v guardedDevice, on bool) (was bool, err error) {
	at, bit := v.word()
	var word uint64
	if err := m.Lookup(at, &word); err != nil {
		return false, fmt.Errorf("guard: %w", err)
	}
	was = word&bit != 0
	if was == on {
		return was, nil
	}
	word ^= bit
	if err := m.Put(at, word); err != nil {
		return was, fmt.Errorf("guard: %w", err)
	}
	return was, nil
}

// close blocks all packets from a device to which programs are about to be attached, until open is
// called. Connections of an earlier device with the same ifindex are evaluated again.
func (g *guards) close(v guardedDevice) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.put(v, netip.Addr{}, kernel.Guard{}); err != nil {
		return err
	}
	if _, err := setBit(g.bits, v, true); err != nil {
		return err
	}
	used, err := setBit(g.used, v, true)
	if used && err == nil {
		err = g.d.epoch.Raise()
	}
	return err
}

// clear removes the guard that an earlier endpoint may have left for a device that belongs to no
// endpoint now.
func (g *guards) clear(v guardedDevice) error {
	if err := g.remove(v); err != nil {
		return err
	}
	_, err := setBit(g.used, v, true)
	return err
}

// open admits packets from a device if their source is mac and one of addrs. Connections of
// addresses that the device no longer has end. turned reports whether the device was closed, or had
// another MAC.
func (g *guards) open(v guardedDevice, mac [6]byte, addrs []netip.Addr) (turned bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	wanted := map[netip.Addr]bool{datapath.LinkLocal(mac): true}
	for _, a := range addrs {
		wanted[a] = true
	}
	for a := range wanted {
		if err := g.put(v, a, kernel.Guard{Mac: mac}); err != nil {
			return false, err
		}
		g.departed.back(v.namespace, a)
	}
	for a := range maps.Clone(g.written[v]) {
		if !a.IsValid() || wanted[a] {
			continue
		}
		g.narrowed[v] = true
		if err := g.drop(v, a); err != nil {
			return false, err
		}
	}
	whole := kernel.Guard{Mac: mac, Flags: kernel.GuardOpen}
	turned = g.entries(v)[netip.Addr{}] != whole
	if _, err := setBit(g.bits, v, true); err != nil {
		return false, err
	}
	if g.narrowed[v] {
		if err := g.d.epoch.Raise(); err != nil {
			return false, err
		}
		delete(g.narrowed, v)
	}
	return turned, g.put(v, netip.Addr{}, whole)
}

// remove deletes the entries of a device whose programs have been detached.
func (g *guards) remove(v guardedDevice) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.written[v] == nil {
		return nil
	}
	for a := range maps.Clone(g.written[v]) {
		if err := g.drop(v, a); err != nil {
			return err
		}
	}
	at, bit := v.word()
	shared := false
	for other := range g.written {
		a, b := other.word()
		shared = shared || other != v && a == at && b == bit
	}
	if !shared {
		if _, err := setBit(g.bits, v, false); err != nil {
			return err
		}
	}
	delete(g.written, v)
	delete(g.narrowed, v)
	return nil
}

// keep removes the guards of all devices that are not in live: some may have been deleted while no
// daemon ran.
func (g *guards) keep(live map[guardedDevice]bool) (err error) {
	for _, v := range g.devices() {
		if !live[v] {
			err = errors.Join(err, g.remove(v))
		}
	}
	return err
}

func (g *guards) devices() (all []guardedDevice) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for v := range g.written {
		all = append(all, v)
	}
	return all
}

// mac returns the source MAC that a device must use, and false if the device may use any MAC.
func (g *guards) mac(v guardedDevice) (mac [6]byte, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	guard, ok := g.written[v][netip.Addr{}]
	return guard.Mac, ok
}

// intact reports whether the kernel holds the entries of a device as written.
func (g *guards) intact(v guardedDevice) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.written[v][netip.Addr{}].Flags&kernel.GuardOpen == 0 {
		return false, nil
	}
	for a, want := range g.written[v] {
		var is kernel.Guard
		key := v.key(a)
		found, err := g.d.tables.Guard.Find(key, &is)
		if err != nil {
			return false, fmt.Errorf("guard: %w", err)
		}
		if !found || is != want {
			delete(g.written[v], a) // written again by the next update
			return false, nil
		}
	}
	at, bit := v.word()
	var word uint64
	if err := g.bits.Lookup(at, &word); err != nil {
		return false, fmt.Errorf("guard: %w", err)
	}
	return word&bit != 0, nil
}
