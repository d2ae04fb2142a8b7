// SPDX-License-Identifier: Apache-2.0

// Package guard maintains the source guards of endpoints' devices, which drop packets with any
// other source, and ends the connections of addresses that endpoints have released. The caller
// determines which addresses a device has.
package guard

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Words is GUARDED_WORDS, the number of words with the bits of one namespace in ll_guarded. The
// headers define it with #define only.
const Words = 1024

// Table maintains the source guards of endpoints' devices: ll_guard and ll_guarded. A device is
// closed before programs are attached to it, then opened; its entries are removed after the
// programs are detached.
type Table struct {
	// End ends the connections of released addresses that another endpoint gets, before it returns.
	End func() error

	raiseEpoch func() error

	table *bpfmap.Map[kernel.GuardKey, kernel.Guard]
	bits  *bpfmap.Map[uint32, uint64]
	used  *bpfmap.Map[uint32, uint64]

	departed departed

	mu       sync.Mutex
	written  map[Device]map[netip.Addr]kernel.Guard // zero address: the device itself
	narrowed map[Device]bool                        // lost an address; the epoch must be raised
	owners   map[Device]string                      // names of endpoints, if known
}

// Device is a device that may have a guard.
type Device struct {
	Netns   uint8 // id of its namespace in the keys of maps
	Ifindex int
}

// Word returns the position of a device's bit in ll_guarded.
func (v Device) Word() (at uint32, bit uint64) {
	low := uint32(v.Ifindex & 0xffff)
	return uint32(v.Netns)*Words + low>>6, 1 << (low & 63)
}

// Key returns the key of an address of a device in ll_guard; the zero address: the device itself.
func (v Device) Key(a netip.Addr) kernel.GuardKey {
	k := kernel.GuardKey{Ifindex: uint32(v.Ifindex), Netns: uint32(v.Netns)}
	if a.IsValid() {
		k.Addr = kernel.AddrOf(a)
	}
	return k
}

// Adopt takes over the guards that an earlier run wrote. raiseEpoch makes the programs evaluate all
// connections again.
func Adopt(t *kernel.Tables, raiseEpoch func() error) *Table {
	g := &Table{
		raiseEpoch: raiseEpoch, table: &t.Guard, bits: &t.Guarded, used: &t.PortUsed,
		written: make(map[Device]map[netip.Addr]kernel.Guard), narrowed: make(map[Device]bool), owners: make(map[Device]string),
	}
	var key kernel.GuardKey
	var value kernel.Guard
	for it := g.table.Iterate(); it.Next(&key, &value); {
		a := key.Addr.Addr()
		if key.Addr == (kernel.Addr{}) {
			a = netip.Addr{}
		}
		g.entries(Device{uint8(key.Netns), int(key.Ifindex)})[a] = value
	}
	return g
}

// Judge returns the judge that ends the connections of addresses that endpoints have released.
func (g *Table) Judge() conn.Judge { return &g.departed }

// Pending returns the number of addresses that endpoints have released and whose connections no
// sweep has ended yet.
func (g *Table) Pending() int {
	g.departed.mu.Lock()
	defer g.departed.mu.Unlock()
	return len(g.departed.left)
}

func (g *Table) entries(v Device) map[netip.Addr]kernel.Guard {
	if g.written[v] == nil {
		g.written[v] = make(map[netip.Addr]kernel.Guard)
	}
	return g.written[v]
}

func (g *Table) put(v Device, a netip.Addr, value kernel.Guard) error {
	if old, ok := g.entries(v)[a]; ok && old == value {
		return nil
	}
	if err := g.table.Put(v.Key(a), value); errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("guards of endpoints: %w", datapath.ErrCapacity)
	} else if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	g.entries(v)[a] = value
	return nil
}

func (g *Table) drop(v Device, a netip.Addr) error {
	if err := g.table.Delete(v.Key(a)); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	delete(g.written[v], a)
	if a.IsValid() {
		g.departed.leave(v.Netns, a, g.owners[v])
	}
	return nil
}

// setBit sets or clears the bit of a device in one of the two arrays, and returns its old value.
func setBit(m *bpfmap.Map[uint32, uint64], v Device, on bool) (was bool, err error) {
	at, bit := v.Word()
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

// Close blocks all packets from a device to which programs are about to be attached, until Open is
// called. Connections of an earlier device with the same ifindex are evaluated again.
func (g *Table) Close(v Device) error {
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
		err = g.raiseEpoch()
	}
	return err
}

// Clear removes the guard that an earlier endpoint may have left for a device that belongs to no
// endpoint now.
func (g *Table) Clear(v Device) error {
	if err := g.Remove(v); err != nil {
		return err
	}
	_, err := setBit(g.used, v, true)
	return err
}

// Take announces that an endpoint is about to get addresses: connections of another endpoint that had
// one of them have ended when it returns.
func (g *Table) Take(v Device, endpoint string, addrs []netip.Addr) error {
	taken := false
	for _, a := range addrs {
		taken = g.departed.take(v.Netns, a, endpoint) || taken
	}
	if !taken {
		return nil
	}
	if err := g.End(); err != nil {
		return fmt.Errorf("end the connections of released addresses: %w", err)
	}
	return nil
}

// Release causes connections of addresses to end that participants elsewhere no longer have.
func (g *Table) Release(addrs []netip.Addr) {
	for _, a := range addrs {
		g.departed.put(departedAt(0, a), departure{tick: kernel.NowTick(), taken: true})
	}
}

// Open admits packets from a device of an endpoint if their source is mac and one of addrs. Connections
// of addresses that the device no longer has end. turned reports whether the device was closed, or had
// another MAC.
func (g *Table) Open(v Device, endpoint string, mac [6]byte, addrs []netip.Addr) (turned bool, err error) {
	if err := g.Take(v, endpoint, append([]netip.Addr{datapath.LinkLocal(mac)}, addrs...)); err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.owners[v] = endpoint
	wanted := map[netip.Addr]bool{datapath.LinkLocal(mac): true}
	for _, a := range addrs {
		wanted[a] = true
	}
	for a := range wanted {
		if err := g.put(v, a, kernel.Guard{Mac: mac}); err != nil {
			return false, err
		}
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
		if err := g.raiseEpoch(); err != nil {
			return false, err
		}
		delete(g.narrowed, v)
	}
	return turned, g.put(v, netip.Addr{}, whole)
}

// Remove deletes the entries of a device whose programs have been detached.
func (g *Table) Remove(v Device) error {
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
	at, bit := v.Word()
	shared := false
	for other := range g.written {
		a, b := other.Word()
		shared = shared || other != v && a == at && b == bit
	}
	if !shared {
		if _, err := setBit(g.bits, v, false); err != nil {
			return err
		}
	}
	delete(g.written, v)
	delete(g.narrowed, v)
	delete(g.owners, v)
	return nil
}

// Keep removes the guards of all devices that are not in live: some may have been deleted while no
// daemon ran.
func (g *Table) Keep(live map[Device]bool) (err error) {
	for _, v := range g.Devices() {
		if !live[v] {
			err = errors.Join(err, g.Remove(v))
		}
	}
	return err
}

// Devices returns the devices with guards.
func (g *Table) Devices() (all []Device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for v := range g.written {
		all = append(all, v)
	}
	return all
}

// MAC returns the source MAC that a device must use; false: any.
func (g *Table) MAC(v Device) (mac [6]byte, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	guard, ok := g.written[v][netip.Addr{}]
	return guard.Mac, ok
}

// Intact reports whether the kernel holds the entries of a device as written.
func (g *Table) Intact(v Device) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.written[v][netip.Addr{}].Flags&kernel.GuardOpen == 0 {
		return false, nil
	}
	for a, want := range g.written[v] {
		var is kernel.Guard
		key := v.Key(a)
		found, err := g.table.Find(key, &is)
		if err != nil {
			return false, fmt.Errorf("guard: %w", err)
		}
		if !found || is != want {
			delete(g.written[v], a) // written again by the next update
			return false, nil
		}
	}
	at, bit := v.Word()
	var word uint64
	if err := g.bits.Lookup(at, &word); err != nil {
		return false, fmt.Errorf("guard: %w", err)
	}
	return word&bit != 0, nil
}
