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

// ifaProto is IFA_PROTO: who set an address. Kernels before 5.18 ignore it.
const ifaProto = 11

// addresses brings the addresses of the bridge to what is wanted. One that a stranger
// set is left alone, and does as well.
func (u *bridgeUpdate) addresses() error {
	now, err := u.s.addresses(u.bridge)
	if err != nil {
		return err
	}
	var problems []error
	// Those that go first: IPv6 has an address once, whatever its length.
	for _, old := range slices.Clone(u.record.Addresses) {
		p, err := netip.ParsePrefix(old)
		if err == nil && !slices.Contains(u.value.Addresses, p) {
			problems = append(problems, u.dropAddress(p, slices.Contains(now, p)))
		}
	}
	for _, p := range u.value.Addresses {
		if slices.Contains(now, p) {
			continue
		}
		problems = append(problems, u.change("add address "+p.String(), func() error {
			if !slices.Contains(u.record.Addresses, p.String()) {
				u.record.Addresses = append(u.record.Addresses, p.String())
				if err := u.note(); err != nil {
					return err
				}
			}
			err := u.s.addAddress(u.bridge.Attrs().Index, p)
			if errors.Is(err, unix.EEXIST) && p.Addr().Is6() {
				return fmt.Errorf("the device has it with another length: remove that one, or say that length")
			}
			return err
		}))
	}
	return errors.Join(problems...)
}

func (u *bridgeUpdate) dropAddress(p netip.Prefix, there bool) error {
	return u.change("remove address "+p.String(), func() error {
		if there {
			if err := u.s.removeAddress(u.bridge.Attrs().Index, p); err != nil && !isGone(err) {
				return err
			}
		}
		u.record.Addresses = slices.DeleteFunc(u.record.Addresses, func(a string) bool { return a == p.String() })
		return u.note()
	})
}

// addresses returns those of a device.
func (s *space) addresses(link netlink.Link) ([]netip.Prefix, error) {
	list, err := dump.Retry(func() ([]netlink.Addr, error) { return s.nl.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %q: %w", link.Attrs().Name, err)
	}
	var all []netip.Prefix
	for _, a := range list {
		if a.IPNet == nil {
			continue
		}
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			all = append(all, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return all, nil
}

// addAddress adds an address that says that it is ours. It can be used at once: what
// is told is not asked about on the link.
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
	return s.execute(r)
}

func (s *space) removeAddress(index int, p netip.Prefix) error {
	return s.execute(addressRequest(unix.RTM_DELADDR, unix.NLM_F_ACK, index, p))
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
