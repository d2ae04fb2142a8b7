// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/sockdiag"
)

// IsLocal implements [datapath.PodLinks].
func (l *Links) IsLocal(_ context.Context, a netip.Addr) (bool, error) {
	if a = a.Unmap(); a.Is4() && a.IsLoopback() {
		return true, nil
	}
	host, err := endAt(l.home, true)
	if err != nil {
		return false, err
	}
	defer host.close()
	list, err := dump.Retry(func() ([]netlink.Addr, error) { return host.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for _, x := range list {
		if has, ok := netip.AddrFromSlice(x.IP); ok && has.Unmap() == a {
			return true, nil
		}
	}
	return false, nil
}

const (
	diagLocals = 8  // INET_DIAG_LOCALS: the addresses of an SCTP endpoint
	diagV6Only = 11 // INET_DIAG_SKV6ONLY
)

// Listeners implements [datapath.PodLinks].
func (l *Links) Listeners(_ context.Context, p datapath.Protocol, port uint16) (all []netip.Addr, err error) {
	socket, err := nl.GetNetlinkSocketAt(l.home, netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: socket}}
	defer sockets[unix.NETLINK_INET_DIAG].Close()
	state := uint8(sockdiag.StateListen)
	if p == datapath.UDP {
		state = sockdiag.StateClose
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		msgs, err := sockdiag.List(sockdiag.Request{Family: family, Protocol: uint8(p), State: state, Port: port}, sockets)
		if sockdiag.IsUnsupported(err) {
			l.log.Debug("sockets cannot be listed", slog.Any("protocol", p), slog.Any("error", err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s sockets: %w", p, err)
		}
		for _, m := range msgs {
			all = append(all, listener(m, port)...)
		}
	}
	return all, nil
}

// listener returns the local addresses of a socket, as given by its struct inet_diag_msg.
func listener(m []byte, port uint16) (addrs []netip.Addr) {
	if sockdiag.LocalPort(m) != port {
		return nil
	}
	is6 := m[0] == unix.AF_INET6
	first := netip.AddrFrom16([16]byte(m[8:24]))
	if !is6 {
		first = netip.AddrFrom4([4]byte(m[8:12]))
	}
	both := is6 && first.IsUnspecified()
	attrs, err := nl.ParseRouteAttr(m[sockdiag.MessageLength:])
	if err != nil {
		attrs = nil // the address does not depend on them
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == diagV6Only && len(a.Value) > 0 && a.Value[0] != 0:
			both = false
		case a.Attr.Type == diagLocals:
			addrs = append(addrs, endpointAddrs(a.Value)...)
		}
	}
	if both {
		addrs = append(addrs, netip.IPv4Unspecified())
	}
	return append(addrs, first.Unmap())
}

// endpointAddrs parses an array of struct sockaddr_storage.
func endpointAddrs(b []byte) (addrs []netip.Addr) {
	const size = 128
	for ; len(b) >= size; b = b[size:] {
		switch nl.NativeEndian().Uint16(b) {
		case unix.AF_INET:
			addrs = append(addrs, netip.AddrFrom4([4]byte(b[4:8])))
		case unix.AF_INET6:
			addrs = append(addrs, netip.AddrFrom16([16]byte(b[8:24])).Unmap())
		}
	}
	return addrs
}
