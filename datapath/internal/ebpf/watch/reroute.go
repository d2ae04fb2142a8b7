// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// rerouteRacing is the maximum time for which a packet may be under way that the kernel routed
	// before a change. It may teach its connection the next hop of that time.
	rerouteRacing = 10 * time.Millisecond
	// rerouteRest limits the time for changes: one part in so many of all time, after the first
	// rerouteCredit. The pause after a look at the connections is at most rerouteRestMax.
	rerouteRest    = 20
	rerouteCredit  = 250 * time.Millisecond
	rerouteRestMax = time.Second
	// routeBuffer is the size of the receive buffer for messages about routes, in bytes: a routing
	// daemon that starts sends 100,000 of them at once.
	routeBuffer = 16 << 20
	// reroutesMax is the number of prefixes up to which connections are selected by them.
	reroutesMax = 1 << 18
)

// reroutes are prefixes to which the kernel's routes have changed.
type reroutes struct {
	all      bool // any prefix may have changed
	prefixes map[netip.Prefix]struct{}
}

func (r *reroutes) add(p netip.Prefix) {
	if r.all || len(r.prefixes) >= reroutesMax {
		*r = reroutes{all: true}
		return
	}
	if r.prefixes == nil {
		r.prefixes = make(map[netip.Prefix]struct{})
	}
	r.prefixes[p.Masked()] = struct{}{}
}

// addAll adds the prefixes of another set.
func (r *reroutes) addAll(other *reroutes) {
	if other.all {
		*r = reroutes{all: true}
	}
	for p := range maps.Keys(other.prefixes) {
		r.add(p)
	}
}

func (r *reroutes) isEmpty() bool { return !r.all && len(r.prefixes) == 0 }

// addresses are ranges of addresses in ascending order; they do not overlap.
type addresses []struct{ first, last netip.Addr }

// addresses returns the addresses in the prefixes; not for a set with all.
func (r *reroutes) addresses() (list addresses) {
	// A prefix comes after those that contain it.
	for _, p := range slices.SortedFunc(maps.Keys(r.prefixes), netip.Prefix.Compare) {
		if n := len(list); n == 0 || list[n-1].last.Less(p.Addr()) {
			list = append(list, struct{ first, last netip.Addr }{p.Addr(), lastOf(p)})
		}
	}
	return list
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

func (l addresses) contain(a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(l, a, func(r struct{ first, last netip.Addr }, a netip.Addr) int {
		return r.first.Compare(a)
	})
	return found || i > 0 && !l[i-1].last.Less(a)
}

// reroute records that the routes to the addresses of a prefix may have changed; the zero value: of any.
func (v *Devices) reroute(p netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p.IsValid() {
		v.rerouted.add(p)
	} else {
		v.rerouted = reroutes{all: true}
	}
	select {
	case v.reroutedAny <- struct{}{}:
	default:
	}
}

// followRoutes records changes of routes. If messages were lost, any route may have changed.
func (v *Devices) followRoutes() error {
	s, err := nl.SubscribeAt(v.namespace.Handle, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	if err := s.SetReceiveBufferSize(routeBuffer, true); err != nil {
		s.Close()
		return fmt.Errorf("watch routes: %w", err)
	}
	v.listen(s, "routes", func() { v.reroute(netip.Prefix{}) }, func(messages []syscall.NetlinkMessage) {
		for i := range messages {
			if p, ok := rerouteOf(&messages[i]); ok {
				v.reroute(p)
			}
		}
	})
	v.whileSubscribed(v.followReroutes)
	return nil
}

// rerouteOf returns the prefix of the route that a message is about; not valid if any route may have
// changed. ok is false for copies of routes, and for new nexthop objects, which no route uses yet. With a
// nexthop object, Linux deletes the routes of IPv4 that use it, and sends no messages about them.
func rerouteOf(m *syscall.NetlinkMessage) (p netip.Prefix, ok bool) {
	if m.Header.Type == unix.RTM_DELNEXTHOP || m.Header.Type == unix.RTM_NEWNEXTHOP {
		return p, m.Header.Type == unix.RTM_DELNEXTHOP || m.Header.Flags&unix.NLM_F_REPLACE != 0
	}
	if m.Header.Type != unix.RTM_NEWROUTE && m.Header.Type != unix.RTM_DELROUTE || len(m.Data) < unix.SizeofRtMsg {
		return p, false
	}
	r := nl.DeserializeRtMsg(m.Data)
	if r.Flags&unix.RTM_F_CLONED != 0 {
		return p, false
	}
	attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return p, true
	}
	to := netip.IPv4Unspecified()
	if r.Family == unix.AF_INET6 {
		to = netip.IPv6Unspecified()
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.RTA_DST {
			to, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return netip.PrefixFrom(to, int(r.Dst_len)), true
}

// addressChanged records that packets to a new address must not be forwarded any more; perhaps only the
// lifetime of the address was renewed. With an address, Linux deletes the routes that prefer it as their
// source, and sends no messages about those of IPv4.
func (v *Devices) addressChanged(u netlink.AddrUpdate) {
	if !u.NewAddr {
		v.reroute(netip.Prefix{})
		return
	}
	if addr, ok := netip.AddrFromSlice(u.LinkAddress.IP); ok {
		addr = addr.Unmap()
		v.reroute(netip.PrefixFrom(addr, addr.BitLen()))
	}
}

// linkChanged records that a known device went up or down: then Linux uses other paths of routes with
// several, and sends no messages about those of IPv4.
func (v *Devices) linkChanged(u netlink.LinkUpdate) {
	const working = unix.IFF_UP | unix.IFF_RUNNING
	v.mu.Lock()
	known := v.links[int(u.Index)]
	v.mu.Unlock()
	if known != nil && (known.Attrs().RawFlags^u.Flags)&working != 0 {
		v.reroute(netip.Prefix{})
	}
}

// forwardingOf reports whether a message about the settings of devices concerns forwarding through a
// device in use. No connection uses a device that is not known yet.
func (v *Devices) forwardingOf(m *syscall.NetlinkMessage) bool {
	if m.Header.Type != unix.RTM_NEWNETCONF && m.Header.Type != unix.RTM_DELNETCONF {
		return true
	}
	const (
		header       = 4 // struct netconfmsg, aligned
		netconfIndex = 1 // NETCONFA_IFINDEX
	)
	if len(m.Data) < header {
		return true
	}
	attributes, err := nl.ParseRouteAttr(m.Data[header:])
	if err != nil {
		return true
	}
	for _, a := range attributes {
		if a.Attr.Type != netconfIndex || len(a.Value) < 4 {
			continue
		}
		index := int32(nl.NativeEndian().Uint32(a.Value))
		v.mu.Lock()
		_, known := v.links[int(index)]
		v.mu.Unlock()
		return known || index <= 0 // NETCONFA_IFINDEX_ALL or NETCONFA_IFINDEX_DEFAULT
	}
	return true
}

// followReroutes takes next hops off connections whose routes may have changed, at once and once more
// after rerouteRacing, until done is closed. Changes that come during a look at the connections, or while
// the credit is used up, are handled together.
func (v *Devices) followReroutes(done <-chan struct{}) {
	var again, later reroutes // handled once: due at the time dueAt, and after that
	var dueAt time.Time
	credit, last := rerouteCredit, time.Now()
	for {
		var due <-chan time.Time
		if !again.isEmpty() {
			due = time.After(time.Until(dueAt))
		}
		select {
		case <-done:
			return
		case <-v.reroutedAny:
		case <-due:
		}
		v.mu.Lock()
		now := v.rerouted
		v.rerouted = reroutes{}
		v.mu.Unlock()
		var both reroutes
		both.addAll(&now)
		begin := time.Now()
		if !again.isEmpty() && !begin.Before(dueAt) {
			both.addAll(&again)
			again, later = later, reroutes{}
			dueAt = begin.Add(rerouteRacing)
		}
		if both.isEmpty() {
			continue
		}
		v.forget(&both)
		if !now.isEmpty() {
			v.underlayChanged()
			v.options.Signal()
			if again.isEmpty() {
				dueAt = time.Now().Add(rerouteRacing)
				again.addAll(&now)
			} else {
				later.addAll(&now)
			}
		}
		end := time.Now()
		credit = min(rerouteCredit, credit+end.Sub(last)/rerouteRest) - end.Sub(begin)
		last = end
		if credit >= 0 {
			continue
		}
		select {
		case <-done:
			return
		case <-time.After(min(-credit*rerouteRest, rerouteRestMax)):
		}
	}
}

func (v *Devices) forget(r *reroutes) {
	concerned := func(netip.Addr) bool { return true }
	if !r.all {
		concerned = r.addresses().contain
	}
	v.report(v.options.Forget(concerned))
}
