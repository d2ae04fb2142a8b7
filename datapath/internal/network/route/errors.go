// SPDX-License-Identifier: Apache-2.0

package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// Conflict returns an error that names the owner of the entry that has our key.
func Conflict(ns *namespace.Handle, v *datapath.Route, key Key) error {
	family := netlink.FAMILY_V4
	if v.Prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	whose := "another program"
	list, err := dump.Retry(func() ([]netlink.Route, error) {
		return ns.Strict.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err == nil {
		for i := range list {
			if k, ok := KeyOfEntry(&list[i]); ok && k == key {
				whose = "protocol " + ProtocolName(int(list[i].Protocol))
			}
		}
	}
	return fmt.Errorf("a route with metric %d from %s already exists and is kept: remove it (ip route del %s metric %d), or choose another metric",
		key.Metric, whose, v.Prefix, key.Metric)
}

// Explain returns an error that says what the kernel's error number means for a route; err itself
// if nothing more is known.
func Explain(ns *namespace.Handle, err error, v *datapath.Route) error {
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		if down := downTo(ns, v); down != "" {
			return downError(fmt.Sprintf("%s is unreachable: %s", nextHops(v), isDown(ns, down)))
		}
		return datapath.Absentf("%s is not on a directly connected network: set the device that leads there up, or add an address of the network to it", nextHops(v))
	case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENODEV):
		if down := downTo(ns, v); down != "" {
			return downError(fmt.Sprintf("%s is unreachable: %s", nextHops(v), isDown(ns, down)))
		}
		return datapath.Absentf("a device of its next hops is down or does not exist (%v)", err)
	case errors.Is(err, unix.EINVAL) && v.Source.IsValid():
		return datapath.Absentf("source %s is not an address of this node (%v)", v.Source, err)
	}
	return err
}

// ErrDown matches, in [errors.Is], the error of a route whose device is down.
var ErrDown = errors.New("device is down")

// downError is the error of a route whose device is down.
type downError string

// Error implements the error interface.
func (e downError) Error() string { return string(e) }

// Is reports whether target is ErrDown or [datapath.ErrAbsent].
func (e downError) Is(target error) bool { return target == ErrDown || target == datapath.ErrAbsent }

// hopDown returns a message that a next hop is not reachable.
func hopDown(h datapath.NextHop, why string) string {
	if h.Via.IsValid() {
		return fmt.Sprintf("next hop %s is unreachable: %s", h.Via, why)
	}
	return fmt.Sprintf("next hop %s is unreachable: %s", h.Device, why)
}

// isDown returns a message that a device is down, with the command that sets it up.
func isDown(ns *namespace.Handle, device string) string {
	command := "ip link"
	if ns.Name != "" {
		command = "ip -n " + ns.Name + " link"
	}
	return fmt.Sprintf("device %q is down: run %s set %s up", device, command, device)
}

// downTo returns a device that is down and has an address in the network of a next hop; empty: none
// is known. The kernel removes the IPv6 addresses of a device that goes down, so for an IPv6 route,
// a device that is down and has any address is returned if it is the only one.
func downTo(ns *namespace.Handle, v *datapath.Route) string {
	links, err := ns.Links()
	if err != nil {
		return ""
	}
	var others []string
	for _, l := range links {
		if l.Attrs().Flags&(net.FlagUp|net.FlagLoopback) != 0 {
			continue
		}
		list, err := ns.Addresses(l)
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
