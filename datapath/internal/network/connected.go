// SPDX-License-Identifier: Apache-2.0

package network

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

// connectedRoutes returns the routes that the kernel creates for an address and that we restore:
// the connected route to its network, the local route that delivers packets to the address, and for
// IPv6 the multicast route of the device, without which it receives no neighbour solicitation.
func connectedRoutes(index int, p netip.Prefix) []*netlink.Route {
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

// connect restores the missing connected routes of one of our addresses that the device already
// has. The kernel creates them with the address, but not again if another program deletes them.
func (u *addressUpdate) connect(p netip.Prefix) error {
	a := u.link.Attrs()
	if a.Flags&net.FlagUp == 0 || p.Addr().Is6() && a.Flags&net.FlagRunning == 0 {
		return nil // the kernel creates them when the device is up
	}
	var problems []error
	for _, wanted := range connectedRoutes(a.Index, p) {
		there, err := u.s.has(wanted)
		if err != nil || there {
			problems = append(problems, err)
			continue
		}
		problems = append(problems, u.change("add connected route "+wanted.Dst.String(), func() error { return u.s.addConnected(wanted) }))
	}
	return errors.Join(problems...)
}

// has reports whether a device has a route to the same destination without a gateway, with any
// protocol and metric.
func (s *space) has(wanted *netlink.Route) (bool, error) {
	list, err := s.routesTo(wanted)
	for i := range list {
		r := &list[i]
		if r.LinkIndex == wanted.LinkIndex && r.Gw == nil && r.Via == nil && r.Type == wanted.Type {
			return true, nil
		}
	}
	return false, err
}

// routesTo returns the routes of a table to the same destination.
func (s *space) routesTo(wanted *netlink.Route) ([]netlink.Route, error) {
	family := netlink.FAMILY_V4
	if wanted.Dst.IP.To4() == nil {
		family = netlink.FAMILY_V6
	}
	list, err := dump.Retry(func() ([]netlink.Route, error) {
		return s.strict.RouteListFiltered(family, &netlink.Route{Table: wanted.Table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	to := wanted.Dst.String()
	return slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Dst == nil || r.Dst.String() != to }), nil
}

// addConnected adds a connected route as the kernel does: after an existing one through a different
// device.
func (s *space) addConnected(wanted *netlink.Route) error {
	err := s.nl.RouteAdd(wanted)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	list, e := s.routesTo(wanted)
	for i := range list {
		if list[i].Protocol != unix.RTPROT_KERNEL {
			return fmt.Errorf("a route of another program to %s is in the way: delete it (ip route del %s)", wanted.Dst, wanted.Dst)
		}
	}
	if e != nil {
		return e
	}
	return s.nl.RouteAppend(wanted)
}

// connects reports whether a message announces the deletion or replacement of a route that one of
// our addresses needs.
func (s *space) connects(m syscall.NetlinkMessage) bool {
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
	key, ok := keyOfMessage(x, attrs)
	if !ok {
		return false
	}
	_, ours := s.connected.Load(key.Prefix)
	return ours
}

// noteConnected records, for use by connects, the routes that the kernel creates for address p.
func (s *space) noteConnected(p netip.Prefix) {
	s.connected.Store(p.Masked(), true)
	s.connected.Store(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), true)
	if p.Addr().Is6() {
		s.connected.Store(multicast6, true)
	}
}

// localPatience limits how long awaitLocal waits; it usually takes less than a millisecond.
const localPatience = 200 * time.Millisecond

// awaitLocal waits until the kernel has created the local route of a new IPv6 address, which it
// does in a work queue. Otherwise the next check would consider the route deleted.
func (s *space) awaitLocal(index int, p netip.Prefix) {
	local := connectedRoutes(index, p)[0]
	for end := time.Now().Add(localPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if there, err := s.has(local); there || err != nil {
			return
		}
	}
}

// removeLocal removes the local routes to an IPv6 address that a device no longer has. The kernel
// removes the routes that it created, but not those that we restored.
func (s *space) removeLocal(index int, p netip.Prefix) error {
	local := connectedRoutes(index, p)[0]
	list, err := s.routesTo(local)
	for i := range list {
		if list[i].LinkIndex == index && list[i].Type == unix.RTN_LOCAL {
			if e := s.nl.RouteDel(&list[i]); e != nil && !isAbsent(e) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}
