// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// From linux/netconf.h; the library does not define them.
const (
	netconfIfindex    = 1
	netconfForwarding = 2
	netconfAll        = -1 // index for all devices
)

// Forwarding implements [datapath.Telemetry]. If the state cannot be read, forwarding is reported
// as on: a false warning would be worse than none.
func (t *nodeTelemetry) Forwarding(inSwitch bool) datapath.Forwarding {
	f := datapath.Forwarding{IPv4: true, IPv6: true}
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil || z.devices == nil {
		return f
	}
	all4, off4, err4 := z.notForwarding(unix.AF_INET)
	all6, off6, err6 := z.notForwarding(unix.AF_INET6)
	if err4 == nil {
		f.IPv4, f.Off4 = all4, off4
	}
	if err6 == nil {
		f.IPv6, f.Off6 = all6, off6
	}
	f.Rules4, f.Rules6 = z.hasRoutingRules(netlink.FAMILY_V4), z.hasRoutingRules(netlink.FAMILY_V6)
	return f
}

// hasRoutingRules reports whether there are routing rules besides the kernel's own.
func (z *namespace) hasRoutingRules(family int) bool {
	own := map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT} // by priority
	list, err := retry(func() ([]netlink.Rule, error) { return z.Netlink.RuleList(family) })
	return err == nil && slices.ContainsFunc(list, func(r netlink.Rule) bool {
		table, known := own[max(r.Priority, 0)] // the library returns -1 if the kernel reports none
		return !known || r.Table != table
	})
}

// notForwarding returns whether the namespace forwards packets of a family, and the sorted names of
// devices that do not forward although the namespace does.
func (z *namespace) notForwarding(family uint8) (all bool, off []string, err error) {
	socket, err := nl.GetNetlinkSocketAt(z.Handle, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return false, nil, fmt.Errorf("netlink: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	defer sockets[unix.NETLINK_ROUTE].Close()
	msgs, err := retry(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETNETCONF, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddRawData([]byte{family, 0, 0, 0})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNETCONF)
	})
	if err != nil {
		return false, nil, fmt.Errorf("list the parameters of devices: %w", err)
	}
	all = true
	for _, m := range msgs {
		index, on, err := netconf(m)
		switch {
		case err != nil:
			return false, nil, err
		case index == netconfAll:
			all = on
		case index > hook.LoopbackIndex && !on:
			off = append(off, z.devices.nameOf(index))
		}
	}
	if !all {
		off = nil
	}
	slices.Sort(off)
	return all, off, nil
}

// netconf parses one message of a listing.
func netconf(m []byte) (index int, forwards bool, err error) {
	const header = 4
	if len(m) < header {
		return 0, false, fmt.Errorf("parameters of a device: %d bytes", len(m))
	}
	attrs, err := nl.ParseRouteAttr(m[header:])
	if err != nil {
		return 0, false, err
	}
	forwards = true
	for _, a := range attrs {
		if len(a.Value) < 4 {
			continue
		}
		value := int32(nl.NativeEndian().Uint32(a.Value))
		switch a.Attr.Type {
		case netconfIfindex:
			index = int(value)
		case netconfForwarding:
			forwards = value != 0
		}
	}
	return index, forwards, nil
}

// HopTo implements [datapath.Telemetry].
func (t *nodeTelemetry) HopTo(to datapath.Hop, ask bool) (h datapath.HopState) {
	z, err := t.d.namespace(t.d.namespaceOf(to.Switch))
	if err != nil || z.devices == nil || !to.Addr.IsValid() && to.Device == "" {
		return h
	}
	link := z.devices.byName(to.Device)
	h.Neighbour = to.Addr
	if to.Device == "" {
		link, h.Neighbour, h.Err = z.firstHop(to.Addr, to.From)
		if down := z.devices.downTo(to.Addr); h.Err != nil && !errors.Is(h.Err, errRefused) && down != "" {
			return datapath.HopState{Device: down, Link: datapath.LinkDown, Err: fmt.Errorf("no route leads to %s, since device %q is down", to.Addr, down)}
		}
		if h.Err != nil {
			return h
		}
	}
	if link == nil {
		return datapath.HopState{}
	}
	a := link.Attrs()
	h.Device, h.Link = z.devices.cause(link)
	if a.RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT|unix.IFF_LOOPBACK) != 0 || !h.Neighbour.IsValid() {
		h.Neighbour = netip.Addr{}
		return h
	}
	h.Resolved, h.Failed = z.devices.neighbourState(neighbour{a.Index, h.Neighbour})
	if !ask || h.Link != datapath.LinkUp {
		return h
	}
	// The kernel sends no message when it begins to resolve a neighbour, so the state is read. A
	// later call returns whether the neighbour answered.
	if state, err := z.askNeighbour(a.Index, h.Neighbour); err == nil {
		h.Resolving = state&unix.NUD_INCOMPLETE != 0
		h.Resolved = h.Resolved && !h.Resolving
	}
	return h
}

// errRefused is wrapped by errors about routes or routing rules that drop packets.
var errRefused = errors.New("see ip rule, and ip route show table all type")

// refused returns an error that names the type of the route or rule that drops packets.
func refused(addr netip.Addr, kind string) error {
	return fmt.Errorf("a route or routing rule of type %s drops packets to %s: %w %[1]s", kind, addr, errRefused)
}

// firstHop returns the device and the neighbour through which the kernel forwards packets to an
// address. If link and err are nil, they are unknown.
func (z *namespace) firstHop(addr netip.Addr, from datapath.Arrival) (link netlink.Link, next netip.Addr, err error) {
	routes, err := z.routesOf(addr, from)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return nil, next, fmt.Errorf("no route leads to %s: run ip route add, or llcli route add", addr)
	case addr.IsLoopback():
		return nil, next, fmt.Errorf("%s is a loopback address, to which the kernel delivers no packet from a device: set an address of one of the node's devices", addr)
	case err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_BROADCAST:
		return nil, next, fmt.Errorf("%s is the broadcast address of a network of device %q: set the address of one host", addr, z.devices.nameOf(routes[0].LinkIndex))
	case errors.Is(err, unix.EACCES):
		return nil, next, refused(addr, "prohibit")
	case errors.Is(err, unix.EINVAL) && z.accepts(from):
		return nil, next, refused(addr, "blackhole")
	case err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST:
		return nil, next, nil
	}
	next = addr
	if gateway, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		next = gateway.Unmap()
	}
	return z.devices.byIndex(routes[0].LinkIndex), next, nil
}

// routesOf returns the kernel's route for packets to an address.
func (z *namespace) routesOf(addr netip.Addr, from datapath.Arrival) ([]netlink.Route, error) {
	options := &netlink.RouteGetOptions{}
	if from.Device != "" {
		in := z.devices.byName(from.Device)
		if in == nil {
			return nil, nil
		}
		options.IifIndex = in.Attrs().Index
	}
	if from.Source.IsValid() {
		options.SrcAddr = from.Source.AsSlice()
	}
	return z.Netlink.RouteGetWithOptions(addr.AsSlice(), options)
}

// accepts reports whether the kernel accepts the packets' source address. It refuses a source with
// the same error that a blackhole route causes.
func (z *namespace) accepts(from datapath.Arrival) bool {
	if !from.Source.Is4() {
		return true
	}
	in := z.devices.byName(from.Device)
	if in == nil {
		return false
	}
	for _, p := range z.devices.prefixes(in.Attrs().Index) {
		if p.Addr().Is4() {
			_, err := z.routesOf(p.Addr(), from)
			return err == nil
		}
	}
	return false
}

// askNeighbour makes the kernel probe a neighbour, even if it knows the link-layer address:
// otherwise the kernel may take up to a minute to detect that a neighbour no longer answers. Static
// entries are left alone. It returns the resulting state of the entry.
func (z *namespace) askNeighbour(index int, addr netip.Addr) (state int, err error) {
	state, err = z.neighbourNow(index, addr)
	request := &netlink.Neigh{LinkIndex: index, IP: addr.AsSlice(), Flags: netlink.NTF_USE, State: netlink.NUD_NONE}
	switch {
	case err == nil && state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0:
		return state, nil // from Linux 5.16 on NTF_USE makes a static entry a dynamic one
	case err == nil && state&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY) != 0:
		request.Flags, request.State = 0, netlink.NUD_PROBE
		return state, z.Netlink.NeighSet(request)
	}
	if err := z.Netlink.NeighSet(request); err != nil {
		return 0, err
	}
	return z.neighbourNow(index, addr)
}

// neighbourNow returns the current state of a neighbour's entry.
func (z *namespace) neighbourNow(index int, addr netip.Addr) (state int, err error) {
	socket, err := nl.GetNetlinkSocketAt(z.Handle, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	defer sockets[unix.NETLINK_ROUTE].Close()
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = sockets
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	req.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(index)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil || len(msgs) != 1 {
		return 0, errors.Join(err, errors.New("no neighbour"))
	}
	n, err := netlink.NeighDeserialize(msgs[0])
	if err != nil {
		return 0, err
	}
	return n.State, nil
}

// cause returns the device that prevents link from carrying packets, and the state of that device:
// a VLAN has no carrier while the device below it is down. If link can carry packets, cause returns
// link itself.
func (v *devices) cause(link netlink.Link) (name string, state datapath.LinkState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	const mostBelow = 8 // VLANs on VLANs
	for range mostBelow {
		a := link.Attrs()
		below := v.links[a.ParentIndex]
		if device.LinkState(a) != datapath.LinkNoCarrier || a.NetNsID >= 0 || below == nil || device.LinkState(below.Attrs()) == datapath.LinkUp {
			break
		}
		link = below
	}
	return link.Attrs().Name, device.LinkState(link.Attrs())
}

// downTo returns a device that is down and whose network contains addr. If there is none, it
// returns the only device that is down and has an address of the family, or "".
func (v *devices) downTo(addr netip.Addr) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var candidates []string
	for index, l := range v.links {
		if device.LinkState(l.Attrs()) != datapath.LinkDown || index == hook.LoopbackIndex {
			continue
		}
		if slices.ContainsFunc(v.addrs[index], func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return l.Attrs().Name
		}
		// The kernel removes IPv6 addresses when a link goes down, so any device with our programs
		// is a candidate.
		if v.ports[index] || slices.ContainsFunc(v.addrs[index], func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() }) {
			candidates = append(candidates, l.Attrs().Name)
		}
	}
	if len(candidates) == 1 {
		return candidates[0]
	}
	return ""
}

// byIndex returns the device with an index, or nil.
func (v *devices) byIndex(index int) netlink.Link {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.links[index]
}

// neighbourState reports whether the link-layer address of a neighbour is known, and whether the
// kernel has given up resolving it.
func (v *devices) neighbourState(n neighbour) (resolved, failed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, resolved = v.neighbours[n]
	return resolved, v.failed[n]
}

// noteFailed records whether the kernel has given up resolving a neighbour. v.mu is held.
func (v *devices) noteFailed(n neighbour, u *netlink.NeighUpdate) {
	if u.Type != unix.RTM_DELNEIGH && u.State&unix.NUD_FAILED != 0 {
		v.failed[n] = true
	} else if u.State&unix.NUD_INCOMPLETE == 0 || u.Type == unix.RTM_DELNEIGH {
		delete(v.failed, n)
	}
}
