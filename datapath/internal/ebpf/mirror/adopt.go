// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"bytes"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Adopt takes over the mirrors of an earlier run from the tables, and changes nothing.
// [Table.AdoptHooks] takes over their programs.
func Adopt(tables *kernel.Tables, host Host) (*Table, error) {
	t := &Table{
		tables: tables, host: host,
		byName: map[datapath.MirrorName]*mirror{}, hooks: map[place]hook.Attachment{}, written: map[Key]kernel.MirrorPort{},
	}
	var device Key
	var port kernel.MirrorPort
	ports := t.tables.MirrorPort.Iterate()
	for ports.Next(&device, &port) {
		t.written[device] = port
	}
	var slot uint32
	var text kernel.MirrorName
	names := t.tables.MirrorName.Iterate()
	for names.Next(&slot, &text) {
		if err := t.adopt(slot, &text); err != nil {
			return nil, err
		}
	}
	for _, err := range []error{ports.Err(), names.Err()} {
		if err != nil {
			return nil, fmt.Errorf("take over the mirrors of an earlier run: %w", err)
		}
	}
	bypass := map[Key]Directions{}
	for device, p := range t.written {
		bypass[device] = Directions{In: p.In|p.Conn != 0, Out: p.Out != 0}
	}
	t.bypass.Store(&bypass)
	return t, nil
}

// adopt takes over a mirror. Two slots have its name if the earlier run was killed while it replaced
// the mirror: the one to which ports refer is kept.
func (t *Table) adopt(slot uint32, text *kernel.MirrorName) error {
	if slot >= datapath.MirrorMax {
		return nil
	}
	m := &mirror{slot: slot, sources: map[Key]Directions{}, targets: map[Key]bool{}}
	var err error
	if m.defined, err = t.tables.Mirror.Find(slot, &m.entry); err != nil {
		return fmt.Errorf("take over the mirrors of an earlier run: %w", err)
	}
	for device, p := range t.written {
		if d := directionsOf(p, slot); d != (Directions{}) {
			m.sources[device] = d
		}
	}
	for netns, index := range m.entry.Target {
		if index != 0 {
			m.targets[Key{Ifindex: index, Netns: uint32(netns)}] = true
		}
	}
	name := textOf(text)
	other := t.byName[name]
	if other != nil && len(other.sources) > 0 {
		m, slot = other, m.slot
	} else if other != nil {
		slot = other.slot
	}
	t.byName[name] = m
	if other != nil {
		t.garbage = append(t.garbage, slot)
	}
	return nil
}

// AdoptHooks takes over a program that an earlier run attached.
func (t *Table) AdoptHooks(side int, device Key, h hook.Attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hooks[place{device, side}] = h
	t.publish()
}

// nameOf encodes a name.
func nameOf(name datapath.MirrorName) (k kernel.MirrorName, err error) {
	if len(name) >= len(k.Name) {
		return k, fmt.Errorf("name longer than %d bytes: %w", len(k.Name)-1, datapath.ErrUnsupported)
	}
	copy(k.Name[:], name)
	return k, nil
}

func textOf(k *kernel.MirrorName) datapath.MirrorName {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return datapath.MirrorName(name)
}

// counters are the counters of a mirror.
type counters struct{ packets, bytes, drops uint64 }

func (c counters) plus(o counters) counters {
	return counters{c.packets + o.packets, c.bytes + o.bytes, c.drops + o.drops}
}

// counted returns the counters of a slot.
func (t *Table) counted(slot uint32) (sum counters) {
	each := make([]kernel.MirrorStats, ebpf.MustPossibleCPU())
	if t.tables.MirrorStats.Lookup(slot, &each) != nil {
		return sum
	}
	for _, s := range each {
		sum = sum.plus(counters{s.PacketCount, s.ByteCount, s.DropCount})
	}
	return sum
}
