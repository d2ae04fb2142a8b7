// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// paths describes what the Services of one address family need from the node's network.
type paths struct {
	beyond    map[string]bool   // Services with backends behind a device
	lost      map[string]string // for each Service, its backends without a route, and why
	uncovered map[string]bool   // devices that lead to backends and have no Interface
	// strict contains devices towards backends on which rp_filter may drop replies, each with one
	// of the affected Services.
	strict  map[string]string
	sources map[string]bool // Services whose backends may see one of the node's addresses as source
	count   int             // number of backends
}

func (x *examiner) checkNetwork() {
	if !x.desired.known || x.plane.Layout == 0 {
		return
	}
	for _, family := range []int{4, 6} {
		w := x.paths(family)
		x.checkForwarding(family, w)
		x.checkGateway(family)
		x.checkPortSysctls(family, w)
		x.checkPaths(family, w)
		if family == 4 {
			x.checkInner(w)
			x.checkReversePath(w)
			x.checkSourcePorts(w)
		}
	}
	x.checkServing()
	x.checkUnseen()
}

func isFamily(a netip.Addr, family int) bool { return a.Is4() == (family == 4) }

func (x *examiner) paths(family int) *paths {
	w := &paths{
		beyond: map[string]bool{}, lost: map[string]string{}, uncovered: map[string]bool{},
		strict: map[string]string{}, sources: map[string]bool{},
	}
	ports := make(map[string]bool)
	for _, p := range x.interfaces() {
		ports[p.Device] = true
	}
	x.services(func(name string, s *state.Service) {
		for _, b := range s.Backends {
			r, known := x.plane.Routes[b.Addr.Addr()]
			if !isFamily(b.Addr.Addr(), family) || !known {
				continue
			}
			w.count++
			switch {
			case r.Local:
			case r.Device == "":
				w.lost[name] += fmt.Sprintf(", %s (%s)", b.Addr.Addr(), r.Error)
			default:
				w.beyond[name] = true
				w.uncovered[r.Device] = w.uncovered[r.Device] || !ports[r.Device]
				if s.Source != datapath.SourceSNAT && ports[r.Device] && x.answersLeaveElsewhere(s, r.Device, family) {
					w.strict[r.Device] = name
				}
			}
			if s.Source != datapath.SourceKeep {
				w.sources[name] = true
			}
		}
	})
	return w
}

// answersLeaveElsewhere reports whether the route to a frontend uses a device other than the given
// one. If so, replies from backends behind that device arrive with a source address that is not
// routed through it.
func (x *examiner) answersLeaveElsewhere(s *state.Service, device string, family int) bool {
	return slices.ContainsFunc(s.Frontends, func(f datapath.Frontend) bool {
		r, known := x.plane.Routes[f.Addr.Addr()]
		return known && isFamily(f.Addr.Addr(), family) && !r.Local && r.Device != device
	})
}

func (x *examiner) checkForwarding(family int, w *paths) {
	if len(w.beyond) > 0 && !x.hostForwards(family) {
		x.findForwarding(family, "sysctl.forwarding", "backends of "+servicesOf(w.beyond)+" are on other hosts",
			"the kernel routes no packet from one device to another: the first packets of connections do not reach these backends")
	}
}

// forwardingKey is the parameter that makes the host forward packets, by address family.
var forwardingKey = map[int]string{4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}

func (x *examiner) hostForwards(family int) bool { return x.sysctl(forwardingKey[family]) != "0" }

// findForwarding reports that the host does not forward packets of a family, although reason.
func (x *examiner) findForwarding(family int, id, reason, why string) {
	name := forwardingKey[family]
	x.find("error", id, name, words{what: "is 0, and " + reason, why: why, do: "sysctl -w " + name + "=1, and permanently in /etc/sysctl.d/"}, nil)
}

// servicesOf lists up to three Services.
func servicesOf(names map[string]bool) string {
	sorted := slices.Sorted(maps.Keys(names))
	if len(sorted) > 3 {
		return fmt.Sprintf("%s and %d more Services", strings.Join(sorted[:3], ", "), len(sorted)-3)
	}
	return "Service " + strings.Join(sorted, ", ")
}

// sysctl returns a kernel parameter by its dotted name, in which slashes replace the dots in device
// names. It returns an empty string if the parameter does not exist.
func (x *examiner) sysctl(name string) string {
	path := strings.NewReplacer(".", "/", "/", ".").Replace(name)
	value, _ := x.read("/proc/sys/" + path)
	return value
}

// checkPortSysctls checks the parameters of each port.
func (x *examiner) checkPortSysctls(family int, w *paths) {
	var ignored []string // devices that ignore router advertisements
	for _, d := range x.plane.Devices {
		if !d.Exists || d.Switch || len(w.beyond) == 0 {
			continue
		}
		conf := fmt.Sprintf("net.ipv%d.conf.%s.", family, strings.ReplaceAll(d.Name, ".", "/"))
		if x.sysctl(conf+"forwarding") == "0" && x.hostForwards(family) {
			x.find("warning", "sysctl.device_forwarding", conf+"forwarding", words{
				what: "is 0, while all others forward",
				why:  "the kernel does not route packets that arrive on " + d.Name + ": first packets of connections are lost there",
				do:   "sysctl -w " + conf + "forwarding=1",
			}, nil)
		}
		if family != 6 {
			continue
		}
		if x.sysctl(conf+"disable_ipv6") == "1" {
			x.find("warning", "sysctl.disable_ipv6", conf+"disable_ipv6", words{
				what: "is 1, and there are IPv6 Services with backends on other hosts",
				why:  "the kernel neither routes IPv6 through " + d.Name + " nor resolves neighbours there",
				do:   "sysctl -w " + conf + "disable_ipv6=0, unless this device must not carry IPv6",
			}, nil)
		}
		if d.Name != "lo" && x.sysctl(conf+"accept_ra") == "1" && x.sysctl(conf+"forwarding") != "0" && x.sysctl(conf+"autoconf") == "1" {
			ignored = append(ignored, strings.ReplaceAll(d.Name, ".", "/"))
		}
	}
	x.findIgnoredAdvertisements(ignored)
}

// findIgnoredAdvertisements reports in one finding all devices that ignore router advertisements
// because they forward packets.
func (x *examiner) findIgnoredAdvertisements(devices []string) {
	if len(devices) == 0 {
		return
	}
	names := devices[0]
	if len(devices) > 1 {
		names = "{" + strings.Join(devices, ",") + "}" // for expansion by a shell
	}
	key := "net.ipv6.conf." + names + ".accept_ra"
	x.find("note", "sysctl.accept_ra", key, words{
		what: "is 1, which a forwarding device treats as 0",
		why:  "a default route from router advertisements expires after its lifetime, and with it the path to clients",
		do:   "sysctl -w " + key + "=2 if the routes come from router advertisements and not from a network manager",
	}, nil)
}

func (x *examiner) checkPaths(family int, w *paths) {
	for name, lost := range w.lost {
		x.find("warning", "routes.missing", "Service/"+name, words{
			what: "has backends without a route: " + shorten(strings.TrimPrefix(lost, ", "), 300),
			why:  "connections to them fail",
			do:   "add the routes, or remove the backends",
		}, nil)
	}
	for device, uncovered := range w.uncovered {
		if uncovered {
			x.find("note", "routes.aside", fmt.Sprintf("device %s (IPv%d)", device, family), words{
				what: "leads to backends, but no Interface attaches to it",
				why: "all packets to and from them take the slow path through the kernel and its firewall; " +
					"connections of the node itself to their Services get no reply",
				do: "llcli interface add " + device,
			}, nil)
		}
	}
	thresh := x.sysctl(map[int]string{4: "net.ipv4.neigh.default.gc_thresh3", 6: "net.ipv6.neigh.default.gc_thresh3"}[family])
	if n, err := strconv.Atoi(thresh); err == nil && w.count > n {
		x.find("warning", "sysctl.neighbours", fmt.Sprintf("net.ipv%d.neigh.default.gc_thresh3", family), words{
			what: fmt.Sprintf("is %d, and there are %d backends", n, w.count),
			why:  "if they are on-link, the kernel cannot keep all of them as neighbours, and drops packets",
			do:   fmt.Sprintf("raise it to %d", 2*w.count),
		}, nil)
	}
}

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// checkReversePath checks rp_filter: on the slow path, a reply arrives on the backend's device with
// the frontend's address as its source.
func (x *examiner) checkReversePath(w *paths) {
	all := x.sysctl("net.ipv4.conf.all.rp_filter")
	for device, service := range w.strict {
		name := fmt.Sprintf("net.ipv4.conf.%s.rp_filter", strings.ReplaceAll(device, ".", "/"))
		if max(all, x.sysctl(name)) != "1" { // the larger value applies, and 2 means loose mode
			continue
		}
		x.find("warning", "sysctl.rp_filter", name, words{
			what: "is strict (1, by itself or by net.ipv4.conf.all.rp_filter), and backends of Service " + service + " reply through " + device,
			why:  "replies that take the kernel's path (the first ones, packets with VLAN tags, packets that are too large) arrive there with the frontend's address, whose route uses another device: they are dropped, and not counted by loxilight",
			do:   "sysctl -w " + name + "=2 (loose)",
		}, nil)
	}
}

// fewPorts is the number of source ports below which SNAT does not have enough.
const fewPorts = 1024

func (x *examiner) checkSourcePorts(w *paths) {
	const name = "net.ipv4.ip_local_port_range"
	f := strings.Fields(x.sysctl(name))
	if len(f) != 2 || len(w.sources) == 0 {
		return
	}
	low, err1 := strconv.Atoi(f[0])
	high, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil {
		return
	}
	left := max(low-1024, 0) + max(65535-high, 0)
	if left >= fewPorts {
		return
	}
	severity := "warning"
	if left == 0 {
		severity = "error"
	}
	x.find(severity, "sysctl.ports", name, words{
		what: fmt.Sprintf("is %s to %s: %d ports are left for SNAT", f[0], f[1], left),
		why:  "connections of clients behind the same device as their backend, and of the node itself, need one port each for a backend: if no port is left, they are dropped (no_port)",
		do:   "make the range smaller, for example sysctl -w " + name + "=\"32768 60999\"",
	}, nil)
}
