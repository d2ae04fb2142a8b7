// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// ifaProto is IFA_PROTO: the owner of an address. Kernels before 5.18 ignore it.
const ifaProto = 11

// Addresses returns the addresses of a device. The kernel filters by device, because any address
// change interrupts a dump of all addresses.
func (h *Handle) Addresses(link netlink.Link) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		messages, err := dump.Retry(func() ([][]byte, error) {
			r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
			m := nl.NewIfAddrmsg(family)
			m.Index = uint32(link.Attrs().Index)
			r.AddData(m)
			return h.Execute(r, unix.RTM_NEWADDR)
		})
		if IsAbsent(err) {
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

// AddAddress adds an address that is marked as ours. It can be used at once: duplicate address
// detection is skipped.
func (h *Handle) AddAddress(index int, p netip.Prefix) error {
	r := addressRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, index, p)
	if p.Addr().Is4() && p.Bits() < 31 {
		last := p.Addr().As4()
		host := ^uint32(0) >> p.Bits()
		binary.BigEndian.PutUint32(last[:], binary.BigEndian.Uint32(last[:])|host)
		r.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, last[:]))
	}
	r.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_NODAD|unix.IFA_F_PERMANENT)))
	r.AddData(nl.NewRtAttr(ifaProto, []byte{Protocol}))
	_, err := h.Execute(r, 0)
	return err
}

// RemoveAddress removes an address, and the local routes to it that we restored.
func (h *Handle) RemoveAddress(index int, p netip.Prefix) error {
	_, err := h.Execute(addressRequest(unix.RTM_DELADDR, unix.NLM_F_ACK, index, p), 0)
	if err == nil && p.Addr().Is6() {
		err = h.removeLocal(index, p)
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
