// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// links is the table of devices that other programs create and on which some settings are ours.
type links struct {
	n *Network

	mu     sync.Mutex
	wanted map[datapath.LinkName]datapath.Link // the values of the last Update
}

func newLinks(n *Network) *links {
	return &links{n: n, wanted: map[datapath.LinkName]datapath.Link{}}
}

// names reports whether a row is about the device.
func (l *links) names(device string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.wanted {
		if w.Device == device {
			return true
		}
	}
	return false
}

// Update implements [datapath.Table].
func (l *links) Update(_ context.Context, name datapath.LinkName, value datapath.Link) error {
	l.mu.Lock()
	l.wanted[name] = value
	l.mu.Unlock()
	s, err := l.n.space(value.Switch)
	if err != nil {
		return err
	}
	defer l.n.done(s)
	record := l.n.journal.link(string(name))
	if record != nil && (record.Device != value.Device || record.Space != s.ID) {
		if err := l.remove(name, record); err != nil {
			return err
		}
		record = nil
	}
	return (&linkUpdate{n: l.n, s: s, name: name, value: value}).run(record)
}

// Delete implements [datapath.Table]: it removes our settings from the device.
func (l *links) Delete(_ context.Context, name datapath.LinkName) error {
	l.mu.Lock()
	delete(l.wanted, name)
	l.mu.Unlock()
	record := l.n.journal.link(string(name))
	if record == nil {
		return nil
	}
	return l.remove(name, record)
}

// remove removes everything that its record lists as ours, and then the record.
func (l *links) remove(name datapath.LinkName, record *linkRecord) error {
	s, err := l.n.present(record.Space)
	if err != nil {
		return err
	}
	if s != nil {
		defer l.n.done(s)
		u := &linkUpdate{n: l.n, s: s, name: name, value: datapath.Link{Device: record.Device}, removing: true}
		if err := u.run(record); err != nil && !errors.Is(err, datapath.ErrAbsent) {
			return err
		}
	}
	return l.n.journal.note(line{Kind: kindLink, Name: string(name)})
}

// Keys implements [datapath.Table].
func (l *links) Keys(context.Context) iter.Seq2[datapath.LinkName, error] {
	return keysOf[datapath.LinkName](namesOf(l.n.journal, l.n.journal.current.Links))
}

// Verify implements [datapath.Table].
func (l *links) Verify(_ context.Context, name datapath.LinkName) (bool, error) {
	l.mu.Lock()
	value, ok := l.wanted[name]
	l.mu.Unlock()
	record := l.n.journal.link(string(name))
	if !ok || record == nil {
		return false, nil
	}
	s, err := l.n.present(record.Space)
	if err != nil || s == nil {
		return false, err
	}
	defer l.n.done(s)
	u := &linkUpdate{n: l.n, s: s, name: name, value: value, dry: true}
	if err = u.run(record); errors.Is(err, datapath.ErrAbsent) {
		return false, nil
	}
	return !u.differs, err
}

// linkUpdate brings one device to the wanted state, or (dry) reports whether it has that state.
type linkUpdate struct {
	n      *Network
	s      *namespace.Handle
	name   datapath.LinkName
	value  datapath.Link
	link   netlink.Link
	record *linkRecord

	dry      bool // change nothing
	differs  bool // with dry: something would have been changed
	removing bool // remove our settings
}

// change calls f, or (dry) only records that something differs.
func (u *linkUpdate) change(what string, f func() error) error {
	if u.dry {
		u.differs = true
		return nil
	}
	if err := f(); err != nil {
		return fmt.Errorf("device %q: %s: %w", u.value.Device, what, err)
	}
	return nil
}

// note records in the journal what will become ours, before the change is made.
func (u *linkUpdate) note() error {
	if u.dry || u.removing {
		return nil
	}
	r := *u.record
	r.Addresses = slices.Clone(r.Addresses)
	return u.n.journal.note(line{Kind: kindLink, Name: string(u.name), Link: &r})
}

func (u *linkUpdate) run(old *linkRecord) (err error) {
	if u.link, err = u.s.Link(u.value.Device); err != nil {
		return err
	}
	if u.link == nil {
		return absent("device %q", u.value.Device)
	}
	index := u.link.Attrs().Index
	u.record = &linkRecord{Device: u.value.Device, Space: u.s.ID, Index: index}
	if old != nil && old.Index == index { // else our settings vanished with the device
		u.record.Addresses, u.record.MTU, u.record.Before = slices.Clone(old.Addresses), old.MTU, old.Before
	}
	if old == nil || old.Index != index {
		if err := u.change("take over", u.note); err != nil {
			return err
		}
	}
	if u.link.Attrs().Flags&net.FlagUp == 0 && !u.removing {
		if err := u.change("set up", func() error { return u.s.Netlink.LinkSetUp(u.link) }); err != nil {
			return err
		}
	}
	a := &addressUpdate{s: u.s, link: u.link, wanted: u.value.Addresses, ours: &u.record.Addresses, note: u.note, change: u.change}
	return errors.Join(u.mtu(), a.run())
}

// mtu sets the wanted MTU or, with removing, the previous one.
func (u *linkUpdate) mtu() error {
	now, wanted := u.link.Attrs().MTU, u.value.MTU
	ours := u.record.MTU != 0 && now == u.record.MTU
	if u.removing && ours {
		wanted = u.record.Before
	}
	if wanted == 0 || now == wanted {
		return nil
	}
	return u.change(fmt.Sprintf("set MTU %d", wanted), func() error {
		if !ours {
			u.record.Before = now
		}
		u.record.MTU = wanted
		if err := u.note(); err != nil {
			return err
		}
		return u.s.Netlink.LinkSetMTU(u.link, wanted)
	})
}
