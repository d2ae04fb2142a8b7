// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// places yields the hooks that a mirror needs.
func (m *mirror) places() iter.Seq[place] {
	return func(yield func(place) bool) {
		for device, d := range m.sources {
			if (d.In || d.Conn) && !yield(place{device, hook.MirrorIn}) || (d.Out || d.Sent) && !yield(place{device, hook.MirrorOut}) {
				return
			}
		}
		if m.crossing != (Key{}) && len(m.sources) > 0 && !yield(place{m.crossing, hook.MirrorIn}) {
			return
		}
		for device := range m.targets {
			if len(m.sources) > 0 && !yield(place{device, hook.MirrorSend}) {
				return
			}
		}
	}
}

// attach attaches the missing programs of a mirror in the selected places, and those that are not in
// order.
func (t *Table) attach(m *mirror, selected func(place) bool) error {
	defer t.publish()
	for at := range m.places() {
		if !selected(at) {
			continue
		}
		h := t.hooks[at]
		if h != nil && h.Attached() && hook.InOrder(h) {
			continue
		}
		if h != nil {
			if err := h.Detach(); err != nil {
				return fmt.Errorf("detach %s: %w", h.Name(), err)
			}
			delete(t.hooks, at)
		}
		h, err := t.host.Attach(at.side, at.device)
		if err != nil {
			return fmt.Errorf("attach %s to device %q: %w", hook.MirrorSides()[at.side].Name, t.host.Name(at.device), err)
		}
		t.hooks[at] = h
	}
	return nil
}

// apply makes packets take the hooks of mirrored ports, then writes which mirrors take copies on each
// port, then detaches programs that are no longer needed.
func (t *Table) apply() error {
	needed := map[place]bool{}
	wanted := map[Key]kernel.MirrorPort{}
	bypass := map[Key]Directions{}
	for _, m := range t.byName {
		for at := range m.places() {
			needed[at] = true
		}
		for at := range t.hooks { // the crossing of a mirror of an earlier run is unknown
			if !m.configured && m.entry.Peer != 0 && at.side == hook.MirrorIn {
				needed[at] = true
			}
		}
		for device, d := range m.sources {
			if !m.defined {
				continue
			}
			wanted[device] = with(wanted[device], m.slot, d)
			b := bypass[device]
			bypass[device] = Directions{In: b.In || d.In || d.Conn, Out: b.Out || d.Out}
		}
	}
	rerouted := t.reroute(bypass)
	if rerouted != nil { // no further packets are copied, since some may bypass the hooks
		for device, p := range wanted {
			if p = both(p, t.written[device]); p == (kernel.MirrorPort{}) {
				delete(wanted, device)
			} else {
				wanted[device] = p
			}
		}
	}
	if err := t.write(wanted); err != nil {
		return errors.Join(rerouted, err)
	}
	return errors.Join(rerouted, t.detach(needed), t.clearGarbage())
}

// reroute makes the packets in bypass, and no others, take the hooks of their devices.
func (t *Table) reroute(bypass map[Key]Directions) error {
	old := t.bypass.Load()
	if old == nil && len(bypass) == 0 || old != nil && maps.Equal(*old, bypass) {
		return nil
	}
	t.bypass.Store(&bypass)
	err := t.host.Rerouted()
	if err != nil {
		t.bypass.Store(old) // so that the next call tries again
	}
	return err
}

// both returns the mirrors that are in a and in b.
func both(a, b kernel.MirrorPort) kernel.MirrorPort {
	return kernel.MirrorPort{
		In: a.In & b.In, Out: a.Out & b.Out, Conn: a.Conn & b.Conn, Sent: a.Sent & b.Sent, Rule: a.Rule & b.Rule, Crossed: a.Crossed & b.Crossed,
	}
}

// Tidy detaches the programs that no mirror of an earlier run needs: that run was killed before it
// entered the mirror, or while it deleted it.
func (t *Table) Tidy() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.apply()
}

// with returns p with a mirror.
func with(p kernel.MirrorPort, slot uint32, d Directions) kernel.MirrorPort {
	for _, x := range []struct {
		set  bool
		mask *uint64
	}{{d.In, &p.In}, {d.Out, &p.Out}, {d.Conn, &p.Conn}, {d.Sent, &p.Sent}, {d.Rule, &p.Rule}, {d.Crossed, &p.Crossed}} {
		if x.set {
			*x.mask |= 1 << slot
		}
	}
	return p
}

// directionsOf returns the directions of a mirror in p.
func directionsOf(p kernel.MirrorPort, slot uint32) Directions {
	has := func(mask uint64) bool { return mask>>slot&1 != 0 }
	return Directions{In: has(p.In), Out: has(p.Out), Conn: has(p.Conn), Sent: has(p.Sent), Rule: has(p.Rule), Crossed: has(p.Crossed)}
}

// write makes the table of ports equal to wanted.
func (t *Table) write(wanted map[Key]kernel.MirrorPort) error {
	for device, p := range wanted {
		var now kernel.MirrorPort
		if ok, err := t.tables.MirrorPort.Find(device, &now); err == nil && ok && now == p {
			t.written[device] = p
			continue
		}
		if err := kernel.TableError("connections", t.tables.MirrorPort.Put(device, p)); err != nil {
			return fmt.Errorf("port %d: %w", device.Ifindex, err)
		}
		t.written[device] = p
	}
	for device := range t.written {
		if _, ok := wanted[device]; ok {
			continue
		}
		if err := t.tables.MirrorPort.Delete(device); err != nil {
			return fmt.Errorf("port %d: %w", device.Ifindex, err)
		}
		delete(t.written, device)
	}
	return nil
}

// detach detaches the programs that are not needed.
func (t *Table) detach(needed map[place]bool) (err error) {
	defer t.publish()
	for at, h := range t.hooks {
		if needed[at] {
			continue
		}
		if e := h.Detach(); e != nil {
			err = errors.Join(err, fmt.Errorf("detach %s: %w", h.Name(), e))
			continue
		}
		delete(t.hooks, at)
		if !t.hasHooks(at.device) {
			err = errors.Join(err, t.host.Detached(at.device))
		}
	}
	return err
}

func (t *Table) hasHooks(device Key) bool {
	for at := range t.hooks {
		if at.device == device {
			return true
		}
	}
	return false
}

// publish makes the devices in t.hooks available to IsAttached.
func (t *Table) publish() {
	devices := map[Key]bool{}
	for at := range t.hooks {
		devices[at.device] = true
	}
	t.attached.Store(&devices)
}

// IsAttached reports whether programs of mirrors are or were attached to a device. It does not block.
func (t *Table) IsAttached(netns uint8, index int) bool {
	if t == nil {
		return false // not adopted yet
	}
	devices := t.attached.Load()
	return devices != nil && (*devices)[Key{Ifindex: uint32(index), Netns: uint32(netns)}]
}

// AreAttached reports whether programs of mirrors are or were attached.
func (t *Table) AreAttached() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.hooks) > 0
}

// Severed reports whether another program detached a program of a mirror.
func (t *Table) Severed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.hooks {
		if hook.IsSevered(h) {
			return true
		}
	}
	return false
}

// Repin restores missing pins, and returns their number. prepare creates the folder of the layout.
func (t *Table) Repin(prepare func() error) (restored int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, h := range t.hooks {
		if hook.IsPinned(h) {
			continue
		}
		if err := errors.Join(prepare(), t.host.Prepare(at.device)); err != nil {
			return restored, err
		}
		done, e := h.Repin()
		if done {
			restored++
		}
		err = errors.Join(err, e)
	}
	return restored, err
}

// Each calls f for each attached program until f returns an error.
func (t *Table) Each(f func(device Key, h hook.Attachment) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, h := range t.hooks {
		if err := f(at.device, h); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the handles of the programs, which stay attached.
func (t *Table) Close() {
	if t == nil {
		return // not adopted yet
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.hooks {
		h.Close()
	}
}

// Abandon forgets the programs in a netns that was deleted with its devices.
func (t *Table) Abandon(netns uint8) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	for at, h := range t.hooks {
		if at.device.Netns == uint32(netns) {
			h.Close()
			delete(t.hooks, at)
			t.publish()
			err = errors.Join(err, t.host.Detached(at.device))
		}
	}
	for _, m := range t.byName {
		maps.DeleteFunc(m.sources, func(device Key, _ Directions) bool { return device.Netns == uint32(netns) })
		maps.DeleteFunc(m.targets, func(device Key, _ bool) bool { return device.Netns == uint32(netns) })
	}
	return err
}
