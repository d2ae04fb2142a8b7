// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
)

var routeTypes = map[datapath.RouteType]int{
	datapath.RouteUnicast: unix.RTN_UNICAST, datapath.RouteBlackhole: unix.RTN_BLACKHOLE,
	datapath.RouteUnreachable: unix.RTN_UNREACHABLE, datapath.RouteProhibit: unix.RTN_PROHIBIT,
}

// buildRoute returns the wanted entry, without the next hops whose device is missing or down, or
// that are addresses of the node (isOwn); missing describes the omitted ones. If no next hop
// remains, entry is nil.
func (s *space) buildRoute(v *datapath.Route, isOwn func(*space, netip.Addr) bool) (entry *netlink.Route, missing, err error) {
	p := v.Prefix.Masked()
	entry = &netlink.Route{
		Table: unix.RT_TABLE_MAIN, Protocol: Protocol, Type: routeTypes[v.Type], Priority: int(v.Metric), MTU: int(v.MTU),
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	}
	entry.MTULock = v.MTU != 0 && p.Addr().Is6() // else IPv6 ignores it when forwarding
	if v.Source.IsValid() {
		entry.Src = v.Source.AsSlice()
	}
	if v.Type != datapath.RouteUnicast {
		return entry, nil, nil
	}
	var hops []*netlink.NexthopInfo
	var lacking, down []string
	var own error
	for _, h := range v.NextHops {
		if h.Via.IsValid() && isOwn(s, h.Via) { // the kernel accepts the node's own IPv4 address
			own = datapath.Absentf("next hop %s is an address of the node itself: set the address of another host", h.Via)
			continue
		}
		hop := &netlink.NexthopInfo{Hops: max(int(h.Weight), 1) - 1}
		if h.Via.IsValid() {
			hop.Gw = h.Via.AsSlice()
		}
		if h.Device != "" {
			link, err := s.link(h.Device)
			switch {
			case err != nil:
				return nil, nil, err
			case link == nil:
				lacking = append(lacking, fmt.Sprintf("device %q", h.Device))
				continue
			case link.Attrs().Flags&net.FlagUp == 0:
				down = append(down, hopDown(h, s.isDown(h.Device)))
				continue
			}
			hop.LinkIndex = link.Attrs().Index
		}
		hops = append(hops, hop)
	}
	switch {
	case len(lacking) > 0:
		down = append(down, absent("%s", strings.Join(lacking, ", ")).Error())
		missing = datapath.Absentf("%s", strings.Join(down, "; "))
	case len(down) > 0:
		missing = downError(strings.Join(down, "; "))
	}
	missing = cmp.Or(own, missing)
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

// hopsOf returns the next hops of an entry.
func hopsOf(x *netlink.Route) []*netlink.NexthopInfo {
	if len(x.MultiPath) > 0 {
		return x.MultiPath
	}
	return []*netlink.NexthopInfo{{Gw: x.Gw, LinkIndex: x.LinkIndex}}
}

// sameRoute reports whether the existing entry is equivalent to the wanted one.
func sameRoute(is, wanted *netlink.Route, v *datapath.Route) bool {
	if is.Type != wanted.Type || is.MTU != wanted.MTU || is.MTULock != wanted.MTULock || !is.Src.Equal(wanted.Src) {
		return false
	}
	if v.Type != datapath.RouteUnicast {
		return true // IPv6 reports the loopback as its device
	}
	now, ways := slices.Clone(hopsOf(is)), hopsOf(wanted)
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

// keyOfEntry returns the key of an entry from a dump.
func keyOfEntry(x *netlink.Route) (routeKey, bool) {
	if x.Dst == nil {
		p := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if x.Family == unix.AF_INET6 {
			p = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return routeKey{p, uint32(x.Priority)}, x.Tos == 0
	}
	ip, ok := netip.AddrFromSlice(x.Dst.IP)
	bits, _ := x.Dst.Mask.Size()
	if x.Family == unix.AF_INET {
		ip = ip.Unmap()
	}
	k := routeKey{netip.PrefixFrom(ip, bits), uint32(x.Priority)}
	if k.Metric == 0 && ip.Is6() { // built by us, not read from the kernel
		k.Metric = defaultMetric6
	}
	return k, ok && x.Tos == 0
}

// keyOfMessage is like keyOfEntry, but for a raw message.
func keyOfMessage(x *nl.RtMsg, attrs []syscall.NetlinkRouteAttr) (k routeKey, ok bool) {
	ip := netip.IPv4Unspecified()
	if x.Family == unix.AF_INET6 {
		ip = netip.IPv6Unspecified()
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == unix.RTA_DST:
			if ip, ok = netip.AddrFromSlice(a.Value); !ok {
				return k, false
			}
		case a.Attr.Type == unix.RTA_PRIORITY && len(a.Value) == 4:
			k.Metric = binary.NativeEndian.Uint32(a.Value)
		}
	}
	k.Prefix = netip.PrefixFrom(ip, int(x.Dst_len))
	return k, k.Prefix.IsValid()
}

// conflict returns an error that names the owner of the entry that occupies our place.
func (s *space) conflict(v *datapath.Route, key routeKey) error {
	family := netlink.FAMILY_V4
	if v.Prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	whose := "another program"
	list, err := dump.Retry(func() ([]netlink.Route, error) {
		return s.strict.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err == nil {
		for i := range list {
			if k, ok := keyOfEntry(&list[i]); ok && k == key {
				whose = "protocol " + protocolName(int(list[i].Protocol))
			}
		}
	}
	return fmt.Errorf("a route with metric %d from %s already exists and is kept: remove it (ip route del %s metric %d), or choose another metric",
		key.Metric, whose, v.Prefix, key.Metric)
}

// routeError explains the kernel's error number for a route.
func (s *space) routeError(err error, v *datapath.Route) error {
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		if down := s.downTo(v); down != "" {
			return downError(fmt.Sprintf("%s is unreachable: %s", nextHops(v), s.isDown(down)))
		}
		return datapath.Absentf("%s is not on a directly connected network: set the device that leads there up, or add an address of the network to it", nextHops(v))
	case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENODEV):
		if down := s.downTo(v); down != "" {
			return downError(fmt.Sprintf("%s is unreachable: %s", nextHops(v), s.isDown(down)))
		}
		return datapath.Absentf("a device of its next hops is down or does not exist (%v)", err)
	case errors.Is(err, unix.EINVAL) && v.Source.IsValid():
		return datapath.Absentf("source %s is not an address of this node (%v)", v.Source, err)
	}
	return err
}

// errDown matches any [downError] in [errors.Is].
var errDown = errors.New("device is down")

// downError is the error of a route whose device is down.
type downError string

// Error implements the error interface.
func (e downError) Error() string { return string(e) }

// Is reports whether target is errDown or [datapath.ErrAbsent].
func (e downError) Is(target error) bool { return target == errDown || target == datapath.ErrAbsent }

// hopDown returns a message that a next hop is not reachable.
func hopDown(h datapath.NextHop, why string) string {
	if h.Via.IsValid() {
		return fmt.Sprintf("next hop %s is unreachable: %s", h.Via, why)
	}
	return fmt.Sprintf("next hop %s is unreachable: %s", h.Device, why)
}

// isDown returns a message that a device is down, with the command that sets it up.
func (s *space) isDown(device string) string {
	command := "ip link"
	if s.name != "" {
		command = "ip -n " + s.name + " link"
	}
	return fmt.Sprintf("device %q is down: run %s set %s up", device, command, device)
}

// downTo returns a device that is down and has an address in the network of a next hop, or an empty
// string if none is known. The kernel removes the IPv6 addresses of a device that goes down, so for
// an IPv6 route, a device that is down and has any address is returned if it is the only one.
func (s *space) downTo(v *datapath.Route) string {
	links, err := s.links()
	if err != nil {
		return ""
	}
	var others []string
	for _, l := range links {
		if l.Attrs().Flags&(net.FlagUp|net.FlagLoopback) != 0 {
			continue
		}
		list, err := s.addresses(l)
		if err != nil {
			return ""
		}
		for _, h := range v.NextHops {
			if slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(h.Via) }) {
				return l.Attrs().Name
			}
		}
		if len(list) > 0 {
			others = append(others, l.Attrs().Name)
		}
	}
	if v.Prefix.Addr().Is6() && len(others) == 1 {
		return others[0]
	}
	return ""
}

// nextHops returns a message fragment with the gateways of a route.
func nextHops(v *datapath.Route) string {
	var hops []string
	for _, h := range v.NextHops {
		if h.Via.IsValid() {
			hops = append(hops, h.Via.String())
		}
	}
	return "next hop " + strings.Join(hops, " or ")
}

// protocols are the protocol names that ip route uses.
var protocols = map[int]string{
	unix.RTPROT_UNSPEC: "unspec", unix.RTPROT_REDIRECT: "redirect", unix.RTPROT_KERNEL: "kernel", unix.RTPROT_BOOT: "boot",
	unix.RTPROT_STATIC: "static", unix.RTPROT_RA: "ra", unix.RTPROT_ZEBRA: "zebra", unix.RTPROT_BIRD: "bird",
	unix.RTPROT_DHCP: "dhcp", unix.RTPROT_BABEL: "babel", unix.RTPROT_BGP: "bgp", unix.RTPROT_ISIS: "isis",
	unix.RTPROT_OSPF: "ospf", unix.RTPROT_RIP: "rip", unix.RTPROT_EIGRP: "eigrp", 18: "keepalived", Protocol: "loxilight",
}

func protocolName(number int) string {
	if name := protocols[number]; name != "" {
		return name
	}
	return strconv.Itoa(number)
}

// count adds the number by to the count of key.
func count[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}
