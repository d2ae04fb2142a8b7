// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// bridges is the table of bridges.
type bridges struct {
	n *Network

	mu     sync.Mutex
	wanted map[datapath.BridgeName]datapath.Bridge // the values of the last Update
}

// count returns how many bridges are wanted.
func (b *bridges) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.wanted)
}

// names reports whether device is a desired bridge or a port of one.
func (b *bridges) names(device string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wanted {
		if w.Device == device || slices.ContainsFunc(w.Ports, func(p datapath.BridgePort) bool { return p.Device == device }) {
			return true
		}
	}
	return false
}

// Update implements [datapath.Table]. It creates what does not exist and changes what differs; it
// never removes something in order to add it again.
func (b *bridges) Update(_ context.Context, name datapath.BridgeName, value datapath.Bridge) error {
	b.mu.Lock()
	b.wanted[name] = value
	b.mu.Unlock()
	s, err := b.n.space(true)
	if err != nil {
		return err
	}
	defer b.n.done(s)
	if err := b.takeRecord(name, s, value.Device); err != nil {
		return err
	}
	record := b.n.journal.bridge(string(name))
	if record != nil && (record.Device != value.Device || record.Space != s.ID) {
		// The bridge had a different device, or its namespace was deleted with everything in it.
		if err := b.remove(name, record); err != nil {
			return err
		}
		record = nil
	}
	if record == nil {
		record = &bridgeRecord{Device: value.Device, Space: s.ID}
	}
	u := &bridgeUpdate{n: b.n, s: s, name: name, value: value, record: record.clone()}
	return u.run()
}

// takeRecord makes name the holder of the device if another bridge held it until now, so that a
// device that moves between objects is never unowned.
func (b *bridges) takeRecord(name datapath.BridgeName, s *namespace.Handle, device string) error {
	j := b.n.journal
	j.mu.Lock()
	var holder string
	for other, r := range j.current.Bridges {
		if other != string(name) && r.Device == device && r.Space == s.ID {
			holder = other
		}
	}
	record := j.current.Bridges[holder]
	j.mu.Unlock()
	if holder == "" {
		return nil
	}
	if old := j.bridge(string(name)); old != nil {
		if err := b.remove(name, old); err != nil {
			return err
		}
	}
	return errors.Join(j.note(line{Kind: kindBridge, Name: string(name), Bridge: record}), j.note(line{Kind: kindBridge, Name: holder}))
}

func (r *bridgeRecord) clone() *bridgeRecord {
	c := *r
	c.Addresses = slices.Clone(r.Addresses)
	c.Ports = make(map[string]*portRecord, len(r.Ports))
	for device, p := range r.Ports {
		q := *p
		q.VLANs = slices.Clone(p.VLANs)
		c.Ports[device] = &q
	}
	return &c
}

// port returns the record of our settings for a port; the caller may change it.
func (r *bridgeRecord) port(device string) *portRecord {
	p := r.Ports[device]
	if p == nil {
		p = &portRecord{}
		r.Ports[device] = p
	}
	return p
}

// Delete implements [datapath.Table]: it deletes a bridge that we made, and removes our settings
// from any other.
func (b *bridges) Delete(_ context.Context, name datapath.BridgeName) error {
	b.mu.Lock()
	delete(b.wanted, name)
	b.mu.Unlock()
	record := b.n.journal.bridge(string(name))
	if record == nil {
		return nil
	}
	return b.remove(name, record)
}

// remove removes everything that its record lists as ours, and then the record.
func (b *bridges) remove(name datapath.BridgeName, record *bridgeRecord) error {
	s, err := b.n.present(record.Space)
	if err != nil {
		return err
	}
	if s != nil {
		defer b.n.done(s)
		link, err := s.Link(record.Device)
		if err != nil {
			return err
		}
		if link != nil && link.Type() == "bridge" {
			if err := b.n.removeBridge(s, link, record); err != nil {
				return fmt.Errorf("bridge %q: %w", record.Device, err)
			}
		}
	}
	return b.n.journal.note(line{Kind: kindBridge, Name: string(name)})
}

func (n *Network) removeBridge(s *namespace.Handle, link netlink.Link, record *bridgeRecord) error {
	if record.isMade(n, link) {
		if err := s.Netlink.LinkDel(link); err != nil && !namespace.IsAbsent(err) {
			return err
		}
		return nil
	}
	u := &bridgeUpdate{n: n, s: s, bridge: link, record: record.clone(), removing: true,
		value: datapath.Bridge{Device: record.Device, VLANFiltering: true}}
	return errors.Join(u.ports(), u.addresses())
}

// isMade reports whether the current device is the device that we made.
func (r *bridgeRecord) isMade(n *Network, link netlink.Link) bool {
	return isOurs(n.cfg, link) || r.Made && r.Index == link.Attrs().Index
}

// Keys implements [datapath.Table].
func (b *bridges) Keys(context.Context) iter.Seq2[datapath.BridgeName, error] {
	return keysOf[datapath.BridgeName](namesOf(b.n.journal, b.n.journal.current.Bridges))
}

// Verify implements [datapath.Table].
func (b *bridges) Verify(_ context.Context, name datapath.BridgeName) (bool, error) {
	b.mu.Lock()
	value, ok := b.wanted[name]
	b.mu.Unlock()
	record := b.n.journal.bridge(string(name))
	if !ok || record == nil {
		return false, nil
	}
	s, err := b.n.present(record.Space)
	if err != nil || s == nil {
		return false, err
	}
	defer b.n.done(s)
	u := &bridgeUpdate{n: b.n, s: s, name: name, value: value, record: record.clone(), dry: true}
	err = u.run()
	if errors.Is(err, datapath.ErrAbsent) {
		return false, nil
	}
	return !u.differs, err
}
