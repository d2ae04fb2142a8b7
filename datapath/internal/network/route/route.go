// SPDX-License-Identifier: Apache-2.0

// Package route translates Routes to entries of the kernel's main table and back, and explains why
// the kernel rejects an entry. It reads the namespace of a route, and changes nothing.
package route

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// types are the kernel's numbers for the types of routes.
var types = map[datapath.RouteType]int{
	datapath.RouteUnicast: unix.RTN_UNICAST, datapath.RouteBlackhole: unix.RTN_BLACKHOLE,
	datapath.RouteUnreachable: unix.RTN_UNREACHABLE, datapath.RouteProhibit: unix.RTN_PROHIBIT,
}

// TypeOf returns the type of an entry.
func TypeOf(x *netlink.Route) datapath.RouteType {
	for t, number := range types {
		if number == x.Type {
			return t
		}
	}
	return 0
}

// Build returns the wanted entry, without the next hops whose device is missing or down, or that
// are addresses of the node (isOwn); missing describes the omitted ones. If no next hop remains,
// entry is nil.
func Build(ns *namespace.Handle, v *datapath.Route, isOwn func(*namespace.Handle, netip.Addr) bool) (entry *netlink.Route, missing, err error) {
	p := v.Prefix.Masked()
	entry = &netlink.Route{
		Table: unix.RT_TABLE_MAIN, Protocol: namespace.Protocol, Type: types[v.Type], Priority: int(v.Metric), MTU: int(v.MTU),
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	}
	// Else the kernel ignores the MTU when it forwards IPv6, and FIB look-ups do not return it for
	// IPv4.
	entry.MTULock = v.MTU != 0
	if v.Source.IsValid() {
		entry.Src = v.Source.AsSlice()
	}
	if v.Type != datapath.RouteUnicast {
		return entry, nil, nil
	}
	hops, missing, err := hopsOf(ns, v, isOwn)
	if err != nil {
		return nil, nil, err
	}
	switch len(hops) {
	case 0:
		return nil, missing, nil
	case 1:
		entry.Gw, entry.LinkIndex = hops[0].Gw, hops[0].LinkIndex
		if entry.Gw == nil && p.Addr().Is4() {
			entry.Scope = netlink.SCOPE_LINK
		}
	default:
		entry.MultiPath = hops
	}
	return entry, missing, nil
}

// hopsOf returns the next hops of a Route that can be used now, and why others cannot; see [Build].
func hopsOf(ns *namespace.Handle, v *datapath.Route, isOwn func(*namespace.Handle, netip.Addr) bool) (hops []*netlink.NexthopInfo, missing, err error) {
	var lacking, down []string
	var own error
	for _, h := range v.NextHops {
		if h.Via.IsValid() && isOwn(ns, h.Via) { // the kernel accepts the node's own IPv4 address
			own = datapath.Absentf("next hop %s is an address of the node itself: set the address of another host", h.Via)
			continue
		}
		hop := &netlink.NexthopInfo{Hops: max(int(h.Weight), 1) - 1}
		if h.Via.IsValid() {
			hop.Gw = h.Via.AsSlice()
		}
		if h.Device != "" {
			link, err := ns.Link(h.Device)
			switch {
			case err != nil:
				return nil, nil, err
			case link == nil:
				lacking = append(lacking, fmt.Sprintf("device %q", h.Device))
				continue
			case link.Attrs().Flags&net.FlagUp == 0:
				down = append(down, hopDown(h, isDown(ns, h.Device)))
				continue
			}
			hop.LinkIndex = link.Attrs().Index
		}
		hops = append(hops, hop)
	}
	switch {
	case len(lacking) > 0:
		down = append(down, fmt.Sprintf("%s: %v", strings.Join(lacking, ", "), datapath.ErrAbsent))
		missing = datapath.Absentf("%s", strings.Join(down, "; "))
	case len(down) > 0:
		missing = downError(strings.Join(down, "; "))
	}
	return hops, cmp.Or(own, missing), nil
}

// HopsOf returns the next hops of an entry.
func HopsOf(x *netlink.Route) []*netlink.NexthopInfo {
	if len(x.MultiPath) > 0 {
		return x.MultiPath
	}
	return []*netlink.NexthopInfo{{Gw: x.Gw, LinkIndex: x.LinkIndex}}
}

// Same reports whether the existing entry is equivalent to the wanted one, which Build made of v.
func Same(is, wanted *netlink.Route, v *datapath.Route) bool {
	if is.Type != wanted.Type || is.MTU != wanted.MTU || is.MTULock != wanted.MTULock || !is.Src.Equal(wanted.Src) {
		return false
	}
	if v.Type != datapath.RouteUnicast {
		return true // IPv6 reports the loopback as its device
	}
	now, ways := slices.Clone(HopsOf(is)), HopsOf(wanted)
	if len(now) != len(ways) {
		return false
	}
	for _, w := range ways {
		i := slices.IndexFunc(now, func(h *netlink.NexthopInfo) bool {
			return h.Gw.Equal(w.Gw) && h.Hops == w.Hops && (w.LinkIndex == 0 || h.LinkIndex == w.LinkIndex)
		})
		if i < 0 {
			return false
		}
		now = slices.Delete(now, i, i+1)
	}
	return true
}

// protocols are the protocol names that ip route uses.
var protocols = map[int]string{
	unix.RTPROT_UNSPEC: "unspec", unix.RTPROT_REDIRECT: "redirect", unix.RTPROT_KERNEL: "kernel", unix.RTPROT_BOOT: "boot",
	unix.RTPROT_STATIC: "static", unix.RTPROT_RA: "ra", unix.RTPROT_ZEBRA: "zebra", unix.RTPROT_BIRD: "bird",
	unix.RTPROT_DHCP: "dhcp", unix.RTPROT_BABEL: "babel", unix.RTPROT_BGP: "bgp", unix.RTPROT_ISIS: "isis",
	unix.RTPROT_OSPF: "ospf", unix.RTPROT_RIP: "rip", unix.RTPROT_EIGRP: "eigrp", 18: "keepalived", namespace.Protocol: "loxilight",
}

// ProtocolName returns the name of a protocol number as ip route shows it.
func ProtocolName(number int) string {
	if name := protocols[number]; name != "" {
		return name
	}
	return strconv.Itoa(number)
}
