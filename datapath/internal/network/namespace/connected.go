// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// prefixMetric6 is the metric of the routes that the kernel creates for IPv6 addresses.
const prefixMetric6 = 256

// multicast6 is the destination of the route through which a device receives multicast packets.
var multicast6 = netip.MustParsePrefix("ff00::/8")

// ConnectedRoutes returns the routes that the kernel creates for an address and that we restore:
// the connected route to its network, the local route that delivers packets to the address, and for
// IPv6 the multicast route of the device, without which it receives no neighbour solicitation.
func ConnectedRoutes(index int, p netip.Prefix) []*netlink.Route {
	whole := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	network := &netlink.Route{
		LinkIndex: index, Dst: ipNet(p.Masked()), Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_KERNEL,
	}
	local := &netlink.Route{
		LinkIndex: index, Dst: ipNet(whole), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: unix.RTPROT_KERNEL,
	}
	routes := []*netlink.Route{local}
	if p.Addr().Is4() {
		network.Scope, network.Src = netlink.SCOPE_LINK, p.Addr().AsSlice()
		local.Scope, local.Src = netlink.SCOPE_HOST, p.Addr().AsSlice()
	} else {
		network.Priority = prefixMetric6
		routes = append(routes, &netlink.Route{
			LinkIndex: index, Dst: ipNet(multicast6), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_MULTICAST,
			Protocol: unix.RTPROT_KERNEL, Priority: prefixMetric6,
		})
	}
	if p.Bits() < p.Addr().BitLen() {
		routes = append(routes, network)
	}
	return routes
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// HasRoute reports whether a device has a route to the same destination without a gateway, with any
// protocol and metric.
func (h *Handle) HasRoute(wanted *netlink.Route) (bool, error) {
	list, err := h.routesTo(wanted)
	for i := range list {
		r := &list[i]
		if r.LinkIndex == wanted.LinkIndex && r.Gw == nil && r.Via == nil && r.Type == wanted.Type {
			return true, nil
		}
	}
	return false, err
}

// routesTo returns the routes of a table to the same destination.
func (h *Handle) routesTo(wanted *netlink.Route) ([]netlink.Route, error) {
	family := netlink.FAMILY_V4
	if wanted.Dst.IP.To4() == nil {
		family = netlink.FAMILY_V6
	}
	list, err := dump.Retry(func() ([]netlink.Route, error) {
		return h.Strict.RouteListFiltered(family, &netlink.Route{Table: wanted.Table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	to := wanted.Dst.String()
	return slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Dst == nil || r.Dst.String() != to }), nil
}

// AddConnectedRoute adds a connected route as the kernel does: after an existing one through a
// different device.
func (h *Handle) AddConnectedRoute(wanted *netlink.Route) error {
	err := h.Netlink.RouteAdd(wanted)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	list, e := h.routesTo(wanted)
	for i := range list {
		if list[i].Protocol != unix.RTPROT_KERNEL {
			return fmt.Errorf("another program's route to %s exists: delete it (ip route del %s)", wanted.Dst, wanted.Dst)
		}
	}
	if e != nil {
		return e
	}
	return h.Netlink.RouteAppend(wanted)
}

// ConcernsConnected reports whether a message announces the deletion or replacement of a route that
// one of our addresses needs.
func (h *Handle) ConcernsConnected(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	x := nl.DeserializeRtMsg(m.Data)
	if m.Header.Type == unix.RTM_NEWROUTE && m.Header.Flags&unix.NLM_F_REPLACE == 0 || x.Flags&unix.RTM_F_CLONED != 0 {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[x.Len():])
	if err != nil {
		return false
	}
	to, ok := Destination(x, attrs)
	if !ok {
		return false
	}
	_, ours := h.connected.Load(to)
	return ours
}

// Destination returns the destination of a route from a raw message; false: it is malformed.
func Destination(x *nl.RtMsg, attrs []syscall.NetlinkRouteAttr) (netip.Prefix, bool) {
	ip := netip.IPv4Unspecified()
	if x.Family == unix.AF_INET6 {
		ip = netip.IPv6Unspecified()
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_DST {
			var ok bool
			if ip, ok = netip.AddrFromSlice(a.Value); !ok {
				return netip.Prefix{}, false
			}
		}
	}
	p := netip.PrefixFrom(ip, int(x.Dst_len))
	return p, p.IsValid()
}

// NoteConnected records, for use by ConcernsConnected, the routes that the kernel creates for
// address p.
func (h *Handle) NoteConnected(p netip.Prefix) {
	h.connected.Store(p.Masked(), true)
	h.connected.Store(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), true)
	if p.Addr().Is6() {
		h.connected.Store(multicast6, true)
	}
}

// localPatience limits how long AwaitLocalRoute waits; it usually takes less than a millisecond.
const localPatience = 200 * time.Millisecond

// AwaitLocalRoute waits until the kernel has created the local route of a new IPv6 address, which
// it does in a work queue. Otherwise the next check would consider the route deleted.
func (h *Handle) AwaitLocalRoute(index int, p netip.Prefix) {
	local := ConnectedRoutes(index, p)[0]
	for end := time.Now().Add(localPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if there, err := h.HasRoute(local); there || err != nil {
			return
		}
	}
}

// removeLocal removes the local routes to an IPv6 address that a device no longer has. The kernel
// removes the routes that it created, but not those that we restored.
func (h *Handle) removeLocal(index int, p netip.Prefix) error {
	local := ConnectedRoutes(index, p)[0]
	list, err := h.routesTo(local)
	for i := range list {
		if list[i].LinkIndex == index && list[i].Type == unix.RTN_LOCAL {
			if e := h.Netlink.RouteDel(&list[i]); e != nil && !IsAbsent(e) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}
