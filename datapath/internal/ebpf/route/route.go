// SPDX-License-Identifier: Apache-2.0

// Package route reads how the kernel forwards packets in a namespace: its forwarding settings and
// routing rules, and the device and neighbour through which it sends packets to an address.
package route

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
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// From linux/netconf.h; the library does not define them.
const (
	netconfIfindex    = 1
	netconfForwarding = 2
	netconfAll        = -1 // index for all devices
)

// Namespace is a network namespace and its devices.
type Namespace struct {
	*hook.Netns
	Devices Devices
}

// Devices are the devices of a namespace, as last read from the kernel.
type Devices interface {
	// Forwarding returns what read returns, or has returned before if forwarding settings, routing rules
	// and names of devices have not changed since.
	Forwarding(read func() datapath.Forwarding) datapath.Forwarding
	// ByName returns the device with a name, or nil.
	ByName(name string) netlink.Link
	// ByIndex returns the device with an index, or nil.
	ByIndex(index int) netlink.Link
	// NameOf returns the name of the device with index, or the index as text.
	NameOf(index int) string
	// Prefixes returns the addresses of a device, with their networks.
	Prefixes(index int) []netip.Prefix
	// Cause returns the device that prevents link from carrying packets, and the state of that
	// device; link itself if it can carry packets.
	Cause(link netlink.Link) (name string, state datapath.LinkState)
	// DownTo returns a device that is down and that probably leads to addr, or "".
	DownTo(addr netip.Addr) string
	// NeighbourState reports whether the link-layer address of a neighbour is known, and whether
	// the kernel has given up resolving it.
	NeighbourState(index int, addr netip.Addr) (resolved, failed bool)
}

// Forwarding returns whether the kernel forwards packets. If the state cannot be read, forwarding
// is reported as on: a false warning would be worse than none.
func (z Namespace) Forwarding() datapath.Forwarding { return z.Devices.Forwarding(z.readForwarding) }

func (z Namespace) readForwarding() datapath.Forwarding {
	f := datapath.Forwarding{IPv4: true, IPv6: true}
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
func (z Namespace) hasRoutingRules(family int) bool {
	own := map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT} // by priority
	list, err := dump.Retry(func() ([]netlink.Rule, error) { return z.Netlink.RuleList(family) })
	return err == nil && slices.ContainsFunc(list, func(r netlink.Rule) bool {
		table, known := own[max(r.Priority, 0)] // the library returns -1 if the kernel reports none
		return !known || r.Table != table
	})
}

// notForwarding returns whether the namespace forwards packets of a family, and the sorted names of
// devices that do not forward although the namespace does.
func (z Namespace) notForwarding(family uint8) (all bool, off []string, err error) {
	socket, err := nl.GetNetlinkSocketAt(z.Handle, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return false, nil, fmt.Errorf("netlink: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	defer sockets[unix.NETLINK_ROUTE].Close()
	msgs, err := dump.Retry(func() ([][]byte, error) {
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
			off = append(off, z.Devices.NameOf(index))
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

// HopTo returns the device and the neighbour through which the kernel sends packets to a hop, and
// their state. ask makes the kernel probe the neighbour.
func (z Namespace) HopTo(to datapath.Hop, ask bool) (h datapath.HopState) {
	if !to.Addr.IsValid() && to.Device == "" {
		return h
	}
	link := z.Devices.ByName(to.Device)
	h.Neighbour = to.Addr
	if to.Device == "" {
		link, h.Neighbour, h.Err = z.firstHop(to.Addr, to.From)
		if down := z.Devices.DownTo(to.Addr); h.Err != nil && !errors.Is(h.Err, errRefused) && down != "" {
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
	h.Device, h.Link = z.Devices.Cause(link)
	if a.RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT|unix.IFF_LOOPBACK) != 0 || !h.Neighbour.IsValid() {
		h.Neighbour = netip.Addr{}
		return h
	}
	h.Resolved, h.Failed = z.Devices.NeighbourState(a.Index, h.Neighbour)
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
func (z Namespace) firstHop(addr netip.Addr, from datapath.Arrival) (link netlink.Link, next netip.Addr, err error) {
	routes, err := z.routesOf(addr, from)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return nil, next, fmt.Errorf("no route leads to %s: run ip route add, or llcli route add", addr)
	case addr.IsLoopback():
		return nil, next, fmt.Errorf("%s is a loopback address, to which the kernel delivers no packet from a device: set an address of one of the node's devices", addr)
	case err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_BROADCAST:
		return nil, next, fmt.Errorf("%s is the broadcast address of a network of device %q: set the address of one host", addr, z.Devices.NameOf(routes[0].LinkIndex))
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
	return z.Devices.ByIndex(routes[0].LinkIndex), next, nil
}

// routesOf returns the kernel's route for packets to an address.
func (z Namespace) routesOf(addr netip.Addr, from datapath.Arrival) ([]netlink.Route, error) {
	options := &netlink.RouteGetOptions{}
	if from.Device != "" {
		in := z.Devices.ByName(from.Device)
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
func (z Namespace) accepts(from datapath.Arrival) bool {
	if !from.Source.Is4() {
		return true
	}
	in := z.Devices.ByName(from.Device)
	if in == nil {
		return false
	}
	for _, p := range z.Devices.Prefixes(in.Attrs().Index) {
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
func (z Namespace) askNeighbour(index int, addr netip.Addr) (state int, err error) {
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
func (z Namespace) neighbourNow(index int, addr netip.Addr) (state int, err error) {
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
