// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network"
)

// noAddress prevents the kernel from generating a link-local address (IN6_ADDR_GEN_MODE_NONE).
const noAddress = 1

// Make implements [datapath.PodLinks].
func (l *Links) Make(ctx context.Context, p *datapath.PodLink) (err error) {
	sw, err := l.openSwitch()
	if err != nil {
		return err
	}
	defer sw.close()
	pod, err := openPod(p.Netns)
	if err != nil {
		return err
	}
	defer pod.close()
	if err := l.prepare(sw, pod, p); err != nil {
		return err
	}
	link, err := l.makePair(sw, pod, p)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(sw, link))
		}
	}()
	inner, err := pod.link(p.IfName)
	if err == nil && inner == nil {
		err = fmt.Errorf("device %q of the pod: %w", p.IfName, datapath.ErrAbsent)
	}
	if err != nil {
		return err
	}
	if err := furnish(pod, inner, p); err != nil {
		return fmt.Errorf("device %q of the pod: %w", p.IfName, err)
	}
	if err := shape(sw, link, p.Ingress); err != nil {
		return fmt.Errorf("device %q: bandwidth to the pod: %w", p.Device, err)
	}
	if err := shape(pod, inner, p.Egress); err != nil {
		return fmt.Errorf("device %q of the pod: bandwidth: %w", p.IfName, err)
	}
	return ctx.Err()
}

// prepare checks that the link can be created, and determines its MTU and routes.
func (l *Links) prepare(sw, pod *end, p *datapath.PodLink) error {
	if sw.ns.Equal(pod.ns) || l.home.Equal(pod.ns) {
		return fmt.Errorf("%s: %w of a pod: it is the netns of the node or of the switch", p.Netns, datapath.ErrNetns)
	}
	there, err := pod.link(p.IfName)
	if err != nil {
		return err
	}
	if there != nil {
		return fmt.Errorf("device %q of the pod: %w: run DEL for its owner first", p.IfName, datapath.ErrExists)
	}
	if p.MTU == 0 {
		bridge, err := sw.link(p.Bridge)
		if err != nil {
			return err
		}
		if bridge == nil {
			return fmt.Errorf("bridge %q: %w", p.Bridge, datapath.ErrAbsent)
		}
		p.MTU = bridge.Attrs().MTU
	}
	limitRoutes(p)
	if err := spareRoutes(pod, p); err != nil {
		return err
	}
	// If our link already exists, it has no owner: the process that created it was killed.
	if there, err = sw.link(p.Device); err != nil || there == nil {
		return err
	}
	if !l.isOurs(there) {
		return fmt.Errorf("device %q of the switch %w", p.Device, datapath.ErrNameTaken)
	}
	return remove(sw, there)
}

// limitRoutes sets the MTU of routes with a gateway to the MTU of the paths out of the node.
func limitRoutes(p *datapath.PodLink) {
	const least6 = 1280 // minimum MTU of IPv6
	if p.RouteMTU == 0 || p.RouteMTU >= p.MTU {
		return
	}
	for i := range p.Routes {
		if r := &p.Routes[i]; r.Via.IsValid() && r.MTU == 0 && (r.Prefix.Addr().Is4() || p.RouteMTU >= least6) {
			r.MTU = p.RouteMTU
		}
	}
}

// spareRoutes drops the routes that the pod does not need because it has others to the same prefix.
func spareRoutes(pod *end, p *datapath.PodLink) error {
	kept := make([]datapath.PodRoute, 0, len(p.Routes))
	for i := range p.Routes {
		r := &p.Routes[i]
		if r.Spare {
			device, err := pod.way(r)
			if err != nil {
				return err
			}
			if device != "" {
				continue
			}
		}
		kept = append(kept, *r)
	}
	p.Routes = kept
	return nil
}

// way returns the device of a route to the same prefix as r, or an empty string if no such route
// exists.
func (e *end) way(r *datapath.PodRoute) (device string, err error) {
	list, err := e.routes(r, 0)
	if err != nil {
		return "", err
	}
	for i := range list {
		if !leadsTo(&list[i], r.Prefix) {
			continue
		}
		if link, err := e.LinkByIndex(list[i].LinkIndex); err == nil {
			return link.Attrs().Name, nil
		}
		return "another device", nil
	}
	return "", nil
}

// makePair creates both ends directly in their namespaces: neither ever appears elsewhere, or with
// a different MAC address.
func (l *Links) makePair(sw, pod *end, p *datapath.PodLink) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = p.Device, p.MTU, network.MACOf(l.cfg, p.Device)
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: p.IfName, PeerNamespace: netlink.NsFd(pod.ns),
		PeerHardwareAddr: p.MAC, PeerMTU: uint32(p.MTU),
	}
	err := sw.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) { // another program created it first, in the switch or in the pod
		if there, _ := sw.link(p.Device); there != nil && !l.isOurs(there) {
			err = datapath.ErrNameTaken
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create device %q and %q in the pod: %w", p.Device, p.IfName, err)
	}
	link, err := sw.link(p.Device)
	if err == nil && link == nil {
		err = fmt.Errorf("device %q: %w", p.Device, datapath.ErrAbsent)
	}
	if err != nil {
		return nil, err
	}
	err = sw.LinkSetAlias(link, l.alias(p.Label))
	if err == nil {
		err = ignoreNoIPv6(sw.LinkSetIP6AddrGenMode(link, noAddress)) // a port has no address
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("device %q: %w", p.Device, err), remove(sw, link))
	}
	return link, nil
}

func ignoreNoIPv6(err error) error {
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// furnish configures addresses and routes on the pod's end, and sets it up. It has no carrier yet,
// because the other end is down.
func furnish(pod *end, inner netlink.Link, p *datapath.PodLink) error {
	index := inner.Attrs().Index
	has6 := false
	for _, a := range p.Addresses {
		has6 = has6 || a.Addr().Is6()
	}
	if has6 { // we add our own, to skip duplicate address detection
		if err := ignoreNoIPv6(pod.LinkSetIP6AddrGenMode(inner, noAddress)); err != nil {
			return err
		}
	}
	for _, a := range withLinkLocal(p, has6) {
		addr := &netlink.Addr{IPNet: ipNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := pod.AddrAdd(inner, addr); err != nil {
			if a.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
				err = fmt.Errorf("%w: is IPv6 switched off in the pod (net.ipv6.conf.all.disable_ipv6)?", err)
			}
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	if err := pod.LinkSetUp(inner); err != nil {
		return err
	}
	for i := range p.Routes {
		r := &p.Routes[i]
		err := pod.RouteAdd(routeOf(r, index))
		if errors.Is(err, unix.EEXIST) {
			if device, _ := pod.way(r); device != "" {
				err = fmt.Errorf("the pod already has this route, through %s: omit it, or give this route a priority", device)
			}
		}
		if err != nil {
			return fmt.Errorf("route %s: %w", r.Prefix, err)
		}
	}
	return nil
}

func withLinkLocal(p *datapath.PodLink, has6 bool) []netip.Prefix {
	if !has6 {
		return p.Addresses
	}
	return append(append([]netip.Prefix{}, p.Addresses...), netip.PrefixFrom(linkLocal(p.MAC), 64))
}

// linkLocal returns the link-local address of a hardware address (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80,
		8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func routeOf(r *datapath.PodRoute, index int) *netlink.Route {
	route := &netlink.Route{LinkIndex: index, Dst: ipNet(r.Prefix.Masked()), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table}
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
	} else if r.Prefix.Addr().Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	if r.Scope != nil {
		route.Scope = netlink.Scope(*r.Scope)
	}
	return route
}

// Open implements [datapath.PodLinks].
func (l *Links) Open(ctx context.Context, p *datapath.PodLink) error {
	sw, err := l.openSwitch()
	if err != nil {
		return err
	}
	defer sw.close()
	link, err := sw.link(p.Device)
	if err == nil && link == nil {
		err = fmt.Errorf("device %q: %w", p.Device, datapath.ErrAbsent)
	}
	if err != nil {
		return err
	}
	pod, err := openPod(p.Netns)
	if err != nil {
		return err
	}
	defer pod.close()
	if err := sw.LinkSetUp(link); err != nil {
		return fmt.Errorf("device %q: %w", p.Device, err)
	}
	if err := awaitUp(ctx, sw, p.Device); err != nil {
		return err
	}
	if err := awaitUp(ctx, pod, p.IfName); err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	if err := l.announce(pod, p); err != nil { // the neighbours detect this themselves, later
		l.log.Warn("the neighbours of a pod could not be notified", slog.String("device", p.Device), slog.Any("error", err))
	}
	return nil
}

// upTimeout limits how long the kernel may take to start sending on a link that is up.
const upTimeout = 3 * time.Second

// awaitUp waits until a device can send: the kernel enables sending with a delay, and drops packets
// that are sent before.
func awaitUp(ctx context.Context, e *end, device string) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	for {
		link, err := e.link(device)
		if err != nil {
			return err
		}
		if link == nil {
			return fmt.Errorf("device %q: %w", device, datapath.ErrAbsent)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-time.After(200 * time.Microsecond):
		case <-ctx.Done():
			return fmt.Errorf("device %q: %s rather than up: %w", device, link.Attrs().OperState, ctx.Err())
		}
	}
}
