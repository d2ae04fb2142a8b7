// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// Check implements [datapath.PodLinks].
func (l *Links) Check(_ context.Context, p *datapath.PodLink) error {
	sw, err := l.openSwitch()
	if err != nil {
		return err
	}
	defer sw.close()
	outer, err := sw.link(p.Device)
	switch {
	case err != nil:
		return err
	case outer == nil:
		return fmt.Errorf("device %q of the switch: %w", p.Device, datapath.ErrAbsent)
	case !l.isOurs(outer):
		return fmt.Errorf("device %q of the switch is not ours", p.Device)
	case outer.Attrs().Flags&net.FlagUp == 0:
		return fmt.Errorf("device %q of the switch is down", p.Device)
	case p.MTU != 0 && outer.Attrs().MTU != p.MTU:
		return fmt.Errorf("device %q of the switch has MTU %d, not %d", p.Device, outer.Attrs().MTU, p.MTU)
	}
	pod, err := openPod(p.Netns)
	if err != nil {
		return err
	}
	defer pod.close()
	inner, err := pod.link(p.IfName)
	if err != nil {
		return err
	}
	if err := checkDevice(inner, outer, p); err != nil {
		return fmt.Errorf("device %q of the pod: %w", p.IfName, err)
	}
	if err := checkAddresses(pod, inner, p.Addresses); err != nil {
		return fmt.Errorf("device %q of the pod: %w", p.IfName, err)
	}
	return checkRoutes(pod, inner, p.Routes)
}

func checkDevice(inner, outer netlink.Link, p *datapath.PodLink) error {
	switch {
	case inner == nil:
		return datapath.ErrAbsent
	case inner.Type() != "veth" || inner.Attrs().ParentIndex != outer.Attrs().Index || outer.Attrs().ParentIndex != inner.Attrs().Index:
		return fmt.Errorf("is not the other end of %q", p.Device)
	case !bytes.Equal(inner.Attrs().HardwareAddr, p.MAC):
		return fmt.Errorf("has hardware address %s, not %s", inner.Attrs().HardwareAddr, p.MAC)
	case inner.Attrs().Flags&net.FlagUp == 0:
		return fmt.Errorf("is down")
	}
	return nil
}

func checkAddresses(pod *end, inner netlink.Link, wanted []netip.Prefix) error {
	list, err := dump.Retry(func() ([]netlink.Addr, error) { return pod.AddrList(inner, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, w := range wanted {
		has := func(a netlink.Addr) bool { return a.IPNet != nil && prefixOf(a.IPNet) == w }
		if !slices.ContainsFunc(list, has) {
			return fmt.Errorf("address %s: %w", w, datapath.ErrAbsent)
		}
	}
	return nil
}

func checkRoutes(pod *end, inner netlink.Link, wanted []datapath.PodRoute) error {
	for i := range wanted {
		w := &wanted[i]
		list, err := pod.routes(w, inner.Attrs().Index)
		if err != nil {
			return err
		}
		is := func(r netlink.Route) bool {
			via, _ := netip.AddrFromSlice(r.Gw)
			return leadsTo(&r, w.Prefix) && via.Unmap() == w.Via
		}
		if !slices.ContainsFunc(list, is) {
			return fmt.Errorf("route %s of the pod: %w", w.Prefix, datapath.ErrAbsent)
		}
	}
	return nil
}

// routes returns the routes in the table and family of r on the device with this index, or on all
// devices if index is 0.
func (e *end) routes(r *datapath.PodRoute, index int) ([]netlink.Route, error) {
	family, mask := netlink.FAMILY_V4, netlink.RT_FILTER_TABLE
	if r.Prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	filter := &netlink.Route{LinkIndex: index, Table: r.Table}
	if r.Table == 0 {
		filter.Table = unix.RT_TABLE_MAIN
	}
	if index != 0 {
		mask |= netlink.RT_FILTER_OIF
	}
	list, err := dump.Retry(func() ([]netlink.Route, error) { return e.RouteListFiltered(family, filter, mask) })
	if err != nil {
		return nil, fmt.Errorf("routes of the pod: %w", err)
	}
	return list, nil
}

// leadsTo reports whether the destination of a route is exactly this prefix.
func leadsTo(r *netlink.Route, prefix netip.Prefix) bool {
	return prefixOf(r.Dst) == prefix.Masked() || r.Dst == nil && prefix.Bits() == 0
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if size == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits)
}
