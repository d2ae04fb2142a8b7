// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// addressUpdate makes the addresses of a device match the wanted ones, and restores the connected
// routes of our addresses. An address that another program set is kept, and satisfies the
// configuration.
type addressUpdate struct {
	s      *namespace.Handle
	link   netlink.Link
	wanted []netip.Prefix
	ours   *[]string // of the record
	note   func() error
	change func(what string, f func() error) error
}

// addresses makes the addresses of the bridge match the wanted ones.
func (u *bridgeUpdate) addresses() error {
	a := &addressUpdate{s: u.s, link: u.bridge, wanted: u.value.Addresses, ours: &u.record.Addresses, note: u.note, change: u.change}
	return a.run()
}

func (u *addressUpdate) run() error {
	now, err := u.s.Addresses(u.link)
	if err != nil {
		return err
	}
	var problems []error
	// Removals come first: a device has an IPv6 address only once, whatever its prefix length.
	for _, old := range slices.Clone(*u.ours) {
		p, err := netip.ParsePrefix(old)
		if err == nil && !slices.Contains(u.wanted, p) {
			problems = append(problems, u.drop(p, slices.Contains(now, p)))
		}
	}
	for _, p := range u.wanted {
		u.s.NoteConnected(p)
		if !slices.Contains(now, p) {
			problems = append(problems, u.change("add address "+p.String(), func() error { return u.add(p) }))
		} else if slices.Contains(*u.ours, p.String()) {
			problems = append(problems, u.connect(p))
		}
	}
	return errors.Join(problems...)
}

func (u *addressUpdate) add(p netip.Prefix) error {
	if !slices.Contains(*u.ours, p.String()) {
		*u.ours = append(*u.ours, p.String())
		if err := u.note(); err != nil {
			return err
		}
	}
	err := u.s.AddAddress(u.link.Attrs().Index, p)
	if errors.Is(err, unix.EEXIST) && p.Addr().Is6() {
		return fmt.Errorf("the device already has this address with a different prefix length: remove it, or configure that prefix length")
	}
	if err == nil && p.Addr().Is6() {
		u.s.AwaitLocalRoute(u.link.Attrs().Index, p)
	}
	return err
}

func (u *addressUpdate) drop(p netip.Prefix, there bool) error {
	return u.change("remove address "+p.String(), func() error {
		if there {
			if err := u.s.RemoveAddress(u.link.Attrs().Index, p); err != nil && !namespace.IsAbsent(err) {
				return err
			}
		}
		*u.ours = slices.DeleteFunc(*u.ours, func(a string) bool { return a == p.String() })
		return u.note()
	})
}

// connect restores the missing connected routes of one of our addresses that the device already
// has. The kernel creates them with the address, but not again if another program deletes them.
func (u *addressUpdate) connect(p netip.Prefix) error {
	a := u.link.Attrs()
	if a.Flags&net.FlagUp == 0 || p.Addr().Is6() && a.Flags&net.FlagRunning == 0 {
		return nil // the kernel creates them when the device is up
	}
	var problems []error
	for _, wanted := range namespace.ConnectedRoutes(a.Index, p) {
		there, err := u.s.HasRoute(wanted)
		if err != nil || there {
			problems = append(problems, err)
			continue
		}
		problems = append(problems, u.change("add connected route "+wanted.Dst.String(), func() error { return u.s.AddConnectedRoute(wanted) }))
	}
	return errors.Join(problems...)
}
