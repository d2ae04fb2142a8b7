// SPDX-License-Identifier: Apache-2.0

// Package mirror maintains the table of mirrors: their definitions, the ports on which copies are
// taken, and the programs on ports and targets. It neither forwards packets nor monitors devices.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Key identifies a device by its ifindex and the id of its netns.
type Key = kernel.DeviceKey

// Device is a device of the node.
type Device struct {
	Key
	Name     string
	IsLink   bool // an end of the link between host and switch
	IsTunnel bool // an end of the link of a Tunnel
}

// Host is the rest of the data plane.
type Host interface {
	// Port returns the device of a port. The error wraps [datapath.ErrAbsent] if the port has none,
	// or [datapath.ErrUnsupported] if its packets cannot be copied.
	Port(name datapath.PortName) (Device, error)
	// Ports returns the devices of all ports.
	Ports() []Device
	// Name returns the name of a device. Wire returns the other end of a veth if it is a port; else
	// the zero Key.
	Name(device Key) string
	Wire(device Key) Key
	// Target returns a device to which copies can be sent; errors are as for Port.
	Target(name string, inSwitch bool) (Device, error)
	// Peer returns the index and the entry of a peer, and the device, by netns, on whose egress hook
	// copies to it are encapsulated; the zero Key if there is none. Errors are as for Port.
	Peer(name datapath.PeerName) (index uint32, entry kernel.Peer, by [2]Key, err error)
	// Service and Rule return ids; false: it does not exist.
	Service(name datapath.ServiceName) (id uint32, ok bool)
	Rule(name datapath.RuleName) (id uint32, ok bool)

	// Prepare creates the folder for the pins of a device.
	Prepare(device Key) error
	// Attach attaches a program, by its index in [hook.MirrorSides].
	Attach(side int, device Key) (hook.Attachment, error)
	// Detached is called after the last program of mirrors on a device has been detached.
	Detached(device Key) error
	// Rerouted is called when [Table.Bypass] returns different results: packets must take the hooks
	// of mirrored ports before it returns.
	Rerouted() error
}

// Directions are the packets of a port that are copied.
type Directions struct {
	In   bool // arriving packets
	Out  bool // leaving packets
	Conn bool // arriving packets of connections
	Sent bool // leaving packets of connections that the node itself sends
	Rule bool // with Conn or Sent: of connections that a rule allows
	// Crossed: with Conn: not what crosses the link from the other netns, where it is copied already.
	Crossed bool
}

// mirror is a mirror in the tables.
type mirror struct {
	slot       uint32
	spec       datapath.Mirror
	configured bool // in this run; else by an earlier one
	defined    bool // its definition is in the kernel, so that ports may refer to it
	entry      kernel.Mirror
	sources    map[Key]Directions
	targets    map[Key]bool
	crossing   Key // copies enter the host's netns there, on their way to a peer
}

// Table is the table of mirrors. It is safe for concurrent use.
type Table struct {
	tables *kernel.Tables
	host   Host

	mu      sync.Mutex
	byName  map[datapath.MirrorName]*mirror
	garbage []uint32 // slots of mirrors that an earlier run was about to replace
	hooks   map[place]hook.Attachment
	written map[Key]kernel.MirrorPort

	// Never changed after they are stored.
	bypass   atomic.Pointer[map[Key]Directions]
	attached atomic.Pointer[map[Key]bool] // devices in hooks
}

// place is a hook of a device.
type place struct {
	device Key
	side   int // index in [hook.MirrorSides]
}

var _ datapath.Table[datapath.MirrorName, datapath.Mirror] = (*Table)(nil)

// Bypass returns the packets of a device that must take the hooks of the device.
func (t *Table) Bypass(netns uint8, index int) Directions {
	if t == nil {
		return Directions{} // not adopted yet
	}
	if m := t.bypass.Load(); m != nil {
		return (*m)[Key{Ifindex: uint32(index), Netns: uint32(netns)}]
	}
	return Directions{}
}

// Update implements [datapath.Table]. A mirror that cannot take effect copies no packets.
func (t *Table) Update(_ context.Context, name datapath.MirrorName, value datapath.Mirror) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	next, err := t.build(name, &value)
	if err != nil {
		if m == nil {
			return err
		}
		m.spec, m.configured, m.sources = value, false, nil
		return errors.Join(err, t.apply())
	}
	if m == nil {
		return t.add(name, next, counters{})
	}
	return t.replace(name, m, next)
}

// add enters a mirror under a new slot, with the counters of its former one.
func (t *Table) add(name datapath.MirrorName, m *mirror, before counters) error {
	if _, err := nameOf(name); err != nil {
		return err
	}
	slot, err := t.freeSlot()
	if err != nil {
		return err
	}
	m.slot = slot
	stats := make([]kernel.MirrorStats, ebpf.MustPossibleCPU())
	stats[0] = kernel.MirrorStats{PacketCount: before.packets, ByteCount: before.bytes, DropCount: before.drops}
	if err := t.tables.MirrorStats.Put(m.slot, stats); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	t.byName[name] = m
	return t.effect(name, m)
}

// replace changes a mirror. If packets could otherwise see a mixture of the old and the new mirror,
// the new one gets another slot.
func (t *Table) replace(name datapath.MirrorName, m, next *mirror) error {
	next.slot = m.slot
	if m.entry == next.entry || maps.Equal(m.sources, next.sources) || len(m.sources) == 0 {
		t.byName[name] = next
		return t.effect(name, next)
	}
	err := t.add(name, next, t.counted(m.slot))
	if errors.Is(err, datapath.ErrCapacity) { // no other slot is free: no copies in the meantime
		m.configured, m.sources = false, nil
		if err := t.apply(); err != nil {
			return err
		}
		t.byName[name] = next
		return t.effect(name, next)
	}
	if t.byName[name] == next {
		t.garbage = append(t.garbage, m.slot)
	}
	if err != nil {
		return err
	}
	return t.clearGarbage()
}

// clearGarbage frees the unreferenced slots.
func (t *Table) clearGarbage() error {
	for len(t.garbage) > 0 {
		if err := t.clear(t.garbage[0]); err != nil {
			return err
		}
		t.garbage = t.garbage[1:]
	}
	return nil
}

// effect makes a mirror that has a slot take effect. After an error, it copies no packets.
func (t *Table) effect(name datapath.MirrorName, m *mirror) error {
	configured := m.configured
	m.configured = false // until it has taken effect
	if err := t.define(name, m); err != nil {
		return errors.Join(err, t.apply())
	}
	m.defined = true
	if err := t.apply(); err != nil {
		return err
	}
	m.configured = configured
	return nil
}

// define attaches the programs of a mirror, and writes its definition.
func (t *Table) define(name datapath.MirrorName, m *mirror) error {
	if err := t.attach(m, func(place) bool { return true }); err != nil {
		return err
	}
	text, err := nameOf(name)
	if err != nil {
		return err
	}
	// The name first: the next run finds the definition by it.
	if err := t.tables.MirrorName.Put(m.slot, text); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if err := t.tables.Mirror.Put(m.slot, m.entry); err != nil {
		return fmt.Errorf("definition: %w", err)
	}
	return nil
}

// Delete implements [datapath.Table].
func (t *Table) Delete(_ context.Context, name datapath.MirrorName) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil {
		return nil
	}
	m.configured, m.sources, m.targets, m.entry.Peer = false, nil, nil, 0
	if err := t.apply(); err != nil {
		return err
	}
	if err := t.clear(m.slot); err != nil {
		return err
	}
	delete(t.byName, name)
	return nil
}

// clear deletes the definition and the name in a slot to which no port refers.
func (t *Table) clear(slot uint32) error {
	if err := t.tables.Mirror.Delete(slot); err != nil {
		return fmt.Errorf("definition: %w", err)
	}
	if err := t.tables.MirrorName.Delete(slot); err != nil { // last: the slot is found by its name
		return fmt.Errorf("name: %w", err)
	}
	return nil
}

// Keys implements [datapath.Table].
func (t *Table) Keys(context.Context) iter.Seq2[datapath.MirrorName, error] {
	t.mu.Lock()
	names := slices.Sorted(maps.Keys(t.byName))
	t.mu.Unlock()
	return func(yield func(datapath.MirrorName, error) bool) {
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (t *Table) Verify(_ context.Context, name datapath.MirrorName) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil || !m.configured {
		return false, nil
	}
	next, err := t.build(name, &m.spec)
	if err != nil || next.entry != m.entry || !maps.Equal(next.sources, m.sources) || !maps.Equal(next.targets, m.targets) || next.crossing != m.crossing {
		return false, fmt.Errorf("its ports, target, service or rule have changed: %w", datapath.ErrOutdated)
	}
	var now kernel.Mirror
	if ok, err := t.tables.Mirror.Find(m.slot, &now); err != nil || !ok || now != m.entry {
		return false, err
	}
	for device, d := range m.sources {
		var port kernel.MirrorPort
		if ok, err := t.tables.MirrorPort.Find(device, &port); err != nil || !ok || directionsOf(port, m.slot) != d {
			return false, err
		}
	}
	for at := range m.places() {
		if h := t.hooks[at]; h == nil || !h.Attached() || !hook.InOrder(h) {
			return false, nil
		}
	}
	return true, nil
}

// Follow adapts the mirrors of services and rules to the current ports, and restores the order of the
// programs on a device.
func (t *Table) Follow(on Key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	for name, m := range t.byName {
		if !m.configured {
			continue
		}
		err = errors.Join(err, t.attach(m, func(at place) bool { return at.device == on }))
		if m.spec.Port != "" {
			continue
		}
		next, e := t.build(name, &m.spec)
		if e == nil && !maps.Equal(next.sources, m.sources) {
			err = errors.Join(err, t.replace(name, m, next))
		}
	}
	return err
}

// freeSlot returns a slot that no mirror has.
func (t *Table) freeSlot() (uint32, error) {
	var used uint64
	for _, m := range t.byName {
		used |= 1 << m.slot
	}
	for _, slot := range t.garbage {
		used |= 1 << slot
	}
	for _, p := range t.written { // of a mirror that is being replaced
		used |= p.In | p.Out | p.Conn | p.Sent
	}
	if slot := bits.TrailingZeros64(^used); slot < datapath.MirrorMax {
		return uint32(slot), nil
	}
	return 0, fmt.Errorf("%d mirrors exist, which is the maximum: %w", datapath.MirrorMax, datapath.ErrCapacity)
}
