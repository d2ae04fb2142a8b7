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
)

// From linux/netconf.h; the library does not define them.
const (
	netconfIfindex    = 1
	netconfForwarding = 2
	netconfAll        = -1 // index for all devices
)

// linkState returns whether a device can carry packets.
func linkState(a *netlink.LinkAttrs) datapath.LinkState {
	switch {
	case a.RawFlags&unix.IFF_UP == 0:
		return datapath.LinkDown
	case a.RawFlags&unix.IFF_LOWER_UP == 0:
		return datapath.LinkNoCarrier
	}
	return datapath.LinkUp
}

// Forwarding implements [datapath.Telemetry]. If the kernel does not answer, forwarding counts as
// on: a false warning would be worse than none.
func (t *telemetry) Forwarding(inSwitch bool) datapath.Forwarding {
	f := datapath.Forwarding{IPv4: true, IPv6: true}
	z, err := t.d.zone(t.d.zoneOf(inSwitch))
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
	return f
}

// notForwarding returns whether the namespace forwards packets of a family, and the sorted names of
// devices that do not forward although the namespace does.
func (z *zone) notForwarding(family uint8) (all bool, off []string, err error) {
	socket, err := nl.GetNetlinkSocketAt(z.ns, netns.None(), unix.NETLINK_ROUTE)
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
		case index > loopbackIndex && !on:
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
func (t *telemetry) HopTo(addr netip.Addr, inSwitch, ask bool) (h datapath.HopState) {
	z, err := t.d.zone(t.d.zoneOf(inSwitch))
	if err != nil || z.devices == nil || !addr.IsValid() {
		return h
	}
	routes, err := z.nl.RouteGet(addr.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		h.Err = fmt.Errorf("no route leads to %s: run ip route add, or llcli route add", addr)
		return h
	case err != nil || len(routes) == 0:
		return h
	}
	r := routes[0]
	link := z.devices.byIndex(r.LinkIndex)
	if link == nil || r.Type != unix.RTN_UNICAST {
		return h
	}
	a := link.Attrs()
	h.Device, h.Link, h.Neighbour = a.Name, linkState(a), addr
	if gateway, ok := netip.AddrFromSlice(r.Gw); ok {
		h.Neighbour = gateway.Unmap()
	}
	if a.RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT|unix.IFF_LOOPBACK) != 0 {
		h.Neighbour = netip.Addr{}
		return h
	}
	h.Resolved, h.Failed = z.devices.neighbourState(neighbour{a.Index, h.Neighbour})
	if ask {
		// A later call returns the result.
		_ = z.nl.NeighSet(&netlink.Neigh{LinkIndex: a.Index, IP: h.Neighbour.AsSlice(), Flags: netlink.NTF_USE, State: netlink.NUD_NONE})
	}
	return h
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
