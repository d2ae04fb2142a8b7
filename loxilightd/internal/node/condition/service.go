// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (w *world) ofService(o *state.Object, v *state.Service) condition {
	if w.found[0] != nil { // otherwise, the data plane is a fake without devices
		if is := w.noneAttached(); is.message != "" {
			return is
		}
	}
	list := []condition{w.notAnnounced(v)}
	if o.Owner != state.OwnerK8s { // the node may have devices that do not concern Kubernetes
		list = append(list, w.passedBy(arriveOn))
	}
	for family, is4 := range []bool{true, false} {
		if slices.ContainsFunc(v.Frontends, func(f datapath.Frontend) bool { return f.Addr.Addr().Is4() == is4 }) {
			b := w.backendsOf(o.Name, v, is4)
			list = append(list, b.condition(o, v, family), w.ofWays(o, v.Source, b.usable(), family))
		}
	}
	return joinConditions(list)
}

// notAnnounced returns a condition if the node does not answer for a frontend that it should
// announce.
func (w *world) notAnnounced(v *state.Service) condition {
	var offLink condition
	if !v.Announce {
		return offLink
	}
	telemetry := w.opts.Telemetry
	for _, f := range v.Frontends {
		a := f.Addr.Addr()
		if w.isLocal(a) {
			continue
		}
		if telemetry.Announces(a) {
			if off := w.offLink(a); off.message != "" && offLink.message == "" {
				offLink = off
			}
			continue
		}
		return condition{message: fmt.Sprintf(
			"%s is not announced, because no Interface of role uplink is Ready on a device with an address: run llcli interface add DEVICE", a)}
	}
	return offLink
}

// offLink returns a message if an announced address is in no network of the uplinks. The node
// replies to ARP and NDP requests for such an address on its uplinks, but other hosts send these
// requests only if they have an on-link route to the address, as some routers do.
func (w *world) offLink(a netip.Addr) condition {
	var networks []string
	for _, device := range slices.Sorted(maps.Keys(w.devices)) {
		for _, p := range w.addressesOfUplink(device) {
			if p.Contains(a) {
				return condition{}
			}
			if p.Addr().Is4() == a.Is4() && !p.Addr().IsLinkLocalUnicast() {
				networks = append(networks, fmt.Sprintf("%s on %s", p.Masked(), device))
			}
		}
	}
	if len(networks) == 0 {
		networks = []string{"none of this family"}
	}
	return condition{ready: true, quiet: true, message: fmt.Sprintf(
		"%s is in no network of the uplinks (%s), so only hosts with a route to it on that link send requests for it: "+
			"run ip route add %[1]s dev DEVICE on the router there, or choose an address in one of the networks", a, strings.Join(networks, ", "))}
}

// addressesOfUplink returns the addresses of a device that is attached as an uplink, and those of
// its bridge if it is a bridge port.
func (w *world) addressesOfUplink(device string) (all []netip.Prefix) {
	for _, a := range w.devices[device] {
		o, ok := w.opts.Store.Snapshot().Get(a.object)
		if !ok {
			continue
		}
		v, ok := o.Value.(*state.Interface)
		if !ok || v.Role != datapath.RoleUplink {
			continue
		}
		found := w.found[netnsOf(v.Switch && w.isSplit())]
		all = slices.Concat(all, found[device].Addresses)
		for _, d := range found {
			if d.Kind == "bridge" && slices.Contains(d.Ports, device) {
				all = slices.Concat(all, d.Addresses)
			}
		}
	}
	return all
}

// serving are the backends of one address family of a Service.
type serving struct {
	total, unhealthy, unknown int
	active                    []datapath.BackendAddr
	fallback                  []datapath.BackendAddr // get connections while no backend is active
}

func (w *world) backendsOf(service string, v *state.Service, is4 bool) (s serving) {
	for i := range v.Backends {
		b := &v.Backends[i]
		if b.Addr.Addr().Is4() != is4 {
			continue
		}
		s.total++
		isActive := b.State == datapath.BackendActive && b.Weight > 0
		if v.Health != nil && b.State != datapath.BackendDown {
			switch is := w.opts.BackendHealth(service, b.Addr).State; {
			case is == health.Unhealthy:
				if isActive {
					s.unhealthy++
				}
				continue
			case is == health.Unknown && isActive:
				s.unknown++
			}
		}
		switch {
		case isActive:
			s.active = append(s.active, b.Addr)
		case b.State != datapath.BackendDown:
			s.fallback = append(s.fallback, b.Addr)
		}
	}
	return s
}

// usable returns the backends that get new connections.
func (s *serving) usable() []datapath.BackendAddr {
	if len(s.active) > 0 {
		return s.active
	}
	return s.fallback
}

func (s *serving) condition(o *state.Object, v *state.Service, family int) condition {
	what, quiet := [2]string{"IPv4", "IPv6"}[family], o.Owner == state.OwnerK8s
	active, fallback := len(s.active), len(s.fallback)
	switch {
	case active > 0 && active == s.unknown:
		return condition{message: fmt.Sprintf("no %s backend has been checked yet", what), quiet: true, untried: true}
	case active > 0:
	case s.unhealthy > 0 && fallback == 0:
		return condition{message: fmt.Sprintf("no %s backend accepts connections (%d unhealthy): see llcli describe service %s", what, s.unhealthy, o.Name), quiet: quiet}
	case fallback > 0:
		get := "backends get"
		if fallback == 1 {
			get = "backend gets"
		}
		return condition{ready: true, quiet: quiet, message: fmt.Sprintf(
			"no %s backend is active; %d draining or weight-0 %s the new connections: see llcli describe service %s", what, fallback, get, o.Name)}
	case s.total == 1:
		return condition{message: fmt.Sprintf("no %s backend accepts connections: the only one is down", what), ready: true, quiet: quiet}
	case s.total > 0:
		return condition{message: fmt.Sprintf("no %s backend accepts connections: all %d are down", what, s.total), ready: true, quiet: quiet}
	case len(v.Backends) > 0:
		// For a dual-stack Service in Kubernetes, it is normal that its endpoints have only one
		// family.
		return condition{ready: true, quiet: quiet, message: fmt.Sprintf(
			"no %s backend is configured, so connections to frontend %s are not accepted: add an %[1]s backend (llcli service backend add %[3]s ADDRESS:PORT), or remove the frontend",
			what, v.Frontends[slices.IndexFunc(v.Frontends, func(f datapath.Frontend) bool { return familyOf(f.Addr.Addr()) == family })], o.Name)}
	default:
		return condition{message: fmt.Sprintf("no %s backend is configured, so connections are not accepted", what), ready: true, quiet: quiet}
	}
	return condition{}
}

// ofWays returns a condition if connections do not reach backends: the host does not forward, or no
// backend is reachable. The condition is met, with a message, if only some backends are
// unreachable; if the programs do not see a backend's replies, because the node's own connections
// to that backend then fail; or if the kernel does not forward packets that arrive on some devices.
func (w *world) ofWays(o *state.Object, source datapath.SourceMode, list []datapath.BackendAddr, family int) condition {
	var families [2]bool
	families[family] = true
	off, unreached := w.notForwarded(families, nil), 0
	dropped := 0
	if off.message == "" && family == 0 {
		off = w.arrivalsOff(func(device string) bool { return w.isCovered(device, 0) })
	}
	arrivals := w.arrivals(family, func(device string) bool { return w.isCovered(device, 0) })
	var lost, partly, routed, aside, nameless condition
	for _, b := range list {
		is, some := w.lost(target{addr: b.Addr()}, o.Revision, arrivals)
		if is.message != "" {
			unreached++
			if lost.message == "" || lost.untried && !is.untried {
				lost = is
				lost.quiet = is.quiet || o.Owner == state.OwnerK8s
				lost.message = fmt.Sprintf("backend %s is unreachable: %s", b, is.message)
			}
			continue
		}
		if some != "" && routed.message == "" {
			routed = condition{ready: true, quiet: true, message: fmt.Sprintf("backend %s: %s", b, some)}
		}
		way := w.ways.to(b.Addr(), false)
		switch {
		case way.Device == "": // an address of the node, or unknown
			continue
		case !off.isMet():
			return off
		}
		partly = off // forwarding is off for some devices only
		if aside.message == "" && !w.isCovered(way.Device, 0) {
			aside = condition{ready: true, quiet: true, message: fmt.Sprintf(
				"connections of the node itself to backend %s get no reply, because no Interface attaches to device %q: %s",
				b, way.Device, w.addCommand(way.Device, 0))}
		}
		if is := w.noSourceTo(b, source, way.Device, family); is.message != "" {
			dropped++
			nameless = is
		}
	}
	if source == datapath.SourceSNAT {
		nameless.ready = unreached+dropped < len(list)
	}
	lost.ready = unreached < len(list)
	if unreached > 1 {
		lost.message = fmt.Sprintf("%d of %d backends are unreachable; %s", unreached, len(list), lost.message)
	}
	return joinConditions([]condition{lost, partly, routed, aside, nameless})
}

// noSourceTo returns a condition if connections to a backend are dropped, because their source
// should be translated, but the device towards the backend has no address of the backend's family.
func (w *world) noSourceTo(b datapath.BackendAddr, source datapath.SourceMode, device string, family int) condition {
	d, known := w.found[0][device]
	if !known || source == datapath.SourceKeep || d.Sources[family].IsValid() || !w.isCovered(device, 0) {
		return condition{}
	}
	which, quiet := "connections", false
	if source == datapath.SourceAuto {
		which, quiet = "connections of the node itself", true
		if w.isTunnel(device) {
			which += ", and of clients behind an uplink,"
		}
	}
	return condition{ready: true, quiet: quiet, message: fmt.Sprintf(
		"%s to backend %s are dropped, because device %q has no %s address to which their source could be translated: run ip address add ADDRESS dev %[3]s",
		which, b, device, [2]string{"IPv4", "IPv6"}[family])}
}
