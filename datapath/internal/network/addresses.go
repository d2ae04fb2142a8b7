// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// ifaProto is IFA_PROTO: the owner of an address. Kernels before 5.18 ignore it.
const ifaProto = 11

// addressUpdate makes the addresses of a device match the wanted ones, and restores the connected
// routes of our addresses. An address that another program set is kept, and satisfies the
// configuration.
type addressUpdate struct {
	s      *space
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
	now, err := u.s.addresses(u.link)
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
		u.s.noteConnected(p)
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
	err := u.s.addAddress(u.link.Attrs().Index, p)
	if errors.Is(err, unix.EEXIST) && p.Addr().Is6() {
		return fmt.Errorf("the device has it with another prefix length: remove that address, or set that length")
	}
	if err == nil && p.Addr().Is6() {
		u.s.awaitLocal(u.link.Attrs().Index, p)
	}
	return err
}

func (u *addressUpdate) drop(p netip.Prefix, there bool) error {
	return u.change("remove address "+p.String(), func() error {
		if there {
			if err := u.s.removeAddress(u.link.Attrs().Index, p); err != nil && !isAbsent(err) {
				return err
			}
		}
		*u.ours = slices.DeleteFunc(*u.ours, func(a string) bool { return a == p.String() })
		return u.note()
	})
}

// addresses returns the addresses of a device. The kernel filters by device, because any address
// change interrupts a dump of all addresses.
func (s *space) addresses(link netlink.Link) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		messages, err := dump.Retry(func() ([][]byte, error) {
			r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
			m := nl.NewIfAddrmsg(family)
			m.Index = uint32(link.Attrs().Index)
			r.AddData(m)
			return s.execute(r, unix.RTM_NEWADDR)
		})
		if isAbsent(err) {
			return nil, nil // the device does not exist either
		}
		if err != nil {
			return nil, fmt.Errorf("list addresses of %q: %w", link.Attrs().Name, err)
		}
		for _, m := range messages {
			if p, ok := addressOf(m, link.Attrs().Index); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// addressOf parses one address of a dump.
func addressOf(message []byte, index int) (p netip.Prefix, ok bool) {
	m := nl.DeserializeIfAddrmsg(message)
	attrs, err := nl.ParseRouteAttr(message[m.Len():])
	if err != nil || int(m.Index) != index {
		return p, false
	}
	var address, local netip.Addr
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(a.Value)
		}
	}
	if !local.IsValid() { // IPv6, except on links with a peer
		local = address
	}
	return netip.PrefixFrom(local, int(m.Prefixlen)), local.IsValid()
}

// addAddress adds an address that is marked as ours. It can be used at once: duplicate address
// detection is skipped.
func (s *space) addAddress(index int, p netip.Prefix) error {
	r := addressRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, index, p)
	if p.Addr().Is4() && p.Bits() < 31 {
		last := p.Addr().As4()
		host := ^uint32(0) >> p.Bits()
		binary.BigEndian.PutUint32(last[:], binary.BigEndian.Uint32(last[:])|host)
		r.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, last[:]))
	}
	r.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_NODAD|unix.IFA_F_PERMANENT)))
	r.AddData(nl.NewRtAttr(ifaProto, []byte{Protocol}))
	_, err := s.execute(r, 0)
	return err
}

func (s *space) removeAddress(index int, p netip.Prefix) error {
	_, err := s.execute(addressRequest(unix.RTM_DELADDR, unix.NLM_F_ACK, index, p), 0)
	if err == nil && p.Addr().Is6() {
		err = s.removeLocal(index, p)
	}
	return err
}

func addressRequest(what, flags, index int, p netip.Prefix) *nl.NetlinkRequest {
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	r := nl.NewNetlinkRequest(what, flags)
	m := nl.NewIfAddrmsg(family)
	m.Index, m.Prefixlen = uint32(index), uint8(p.Bits())
	r.AddData(m)
	for _, attr := range []int{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		r.AddData(nl.NewRtAttr(attr, p.Addr().AsSlice()))
	}
	return r
}
