// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// noteServing records the state of the backends of a Service, as the daemon reports it.
func (d *desired) noteServing(o *api.Object) {
	var status api.ServiceStatus
	if o.Kind != api.KindService || json.Unmarshal(o.Status, &status) != nil {
		return
	}
	if d.serving == nil {
		d.serving = map[string]map[string]string{}
	}
	backends := map[string]string{}
	for _, b := range status.Backends {
		backends[b.Address] = b.State
	}
	d.serving[o.Name] = backends
}

// checkServing reports Services without any backend that accepts connections.
func (x *examiner) checkServing() {
	for _, o := range x.desired.objects {
		s, ok := o.Value.(*state.Service)
		if !ok || o.Owner == state.OwnerK8s {
			continue
		}
		for _, family := range []int{4, 6} {
			fronts := slices.ContainsFunc(s.Frontends, func(f datapath.Frontend) bool { return isFamily(f.Addr.Addr(), family) })
			total, usable := x.serving(o.Name, s, family)
			if !fronts || usable > 0 {
				continue
			}
			x.find("warning", "services.no_backend", o.Key.String(), words{
				what: fmt.Sprintf("has no IPv%d backend that takes connections, of %d", family, total),
				why:  "new connections to its frontends are refused or dropped, depending on spec.noBackend",
				do:   fmt.Sprintf("llcli describe service %s shows why its backends are unhealthy; add or enable backends", o.Name),
			}, nil)
		}
	}
}

// serving returns how many backends of one address family a Service has, and how many of them get
// new connections: the active backends with a nonzero weight or, if there are none, all other
// backends that are not down.
func (x *examiner) serving(name string, s *state.Service, family int) (total, usable int) {
	reported := x.desired.serving[name]
	active, fallback := 0, 0
	for _, b := range s.Backends {
		if !isFamily(b.Addr.Addr(), family) {
			continue
		}
		total++
		is, known := reported[b.Addr.String()]
		if !known {
			is = [...]string{datapath.BackendActive: "active", datapath.BackendDraining: "draining", datapath.BackendDown: "down"}[b.State]
		}
		switch {
		case is == "active" && b.Weight > 0:
			active++
		case is != "down":
			fallback++
		}
	}
	if active > 0 {
		return total, active
	}
	return total, fallback
}

// checkUnseen reports devices that have an address and whose packets bypass the rules.
func (x *examiner) checkUnseen() {
	rules := 0
	for _, o := range x.desired.objects {
		if o.Kind == state.KindFirewallRule {
			rules++
		}
	}
	if rules == 0 {
		return
	}
	uplinks := x.uplinks()
	for _, device := range slices.Sorted(maps.Keys(x.plane.Found)) {
		if !x.receives(device) || x.covers(device) {
			continue
		}
		has := "an address"
		if slices.Contains(uplinks, device) {
			has = "a default route"
		}
		x.find("warning", "rules.unseen", "device "+device, words{
			what: fmt.Sprintf("has %s, but no Interface attaches to it, although there are FirewallRules (%d)", has, rules),
			why:  "packets that arrive on this device are not evaluated by rules: none is denied",
			do:   "llcli interface add " + device,
		}, nil)
	}
}

// receives reports whether a device of the host receives packets from other hosts: it has an
// address, is not a loopback, dummy or VRF device, and is not one of the daemon's devices or
// bridges.
func (x *examiner) receives(device string) bool {
	d := x.plane.Found[device]
	if d.Loopback || d.Kind == "dummy" || d.Kind == "vrf" || device == x.Config.HostDevice || device == x.Config.SwitchDevice || x.isOurBridge(device) {
		return false
	}
	return slices.ContainsFunc(d.Addresses, func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() })
}

// isOurBridge reports whether a device is the Linux bridge of a Bridge or PodNetwork. The programs
// are attached to all ports of such a bridge.
func (x *examiner) isOurBridge(device string) bool {
	return slices.ContainsFunc(x.desired.objects, func(o *state.Object) bool {
		switch v := o.Value.(type) {
		case *state.Bridge:
			return v.Device == device
		case *state.PodNetwork:
			return v.Bridge == device
		}
		return false
	})
}

// covers reports whether Interfaces attach the programs to a device of the host, to all of its
// ports, or to its parent device.
func (x *examiner) covers(device string) bool {
	for _, p := range x.interfaces() {
		if p.Device == device && (!p.Switch || x.Config.SwitchNamespace == "host") {
			return true
		}
	}
	d := x.plane.Found[device]
	if len(d.Ports) > 0 {
		return !slices.ContainsFunc(d.Ports, func(port string) bool { return !x.covers(port) })
	}
	return d.Parent != "" && d.Parent != device && x.covers(d.Parent)
}

// uplinks returns the devices of the default routes for both address families.
func (x *examiner) uplinks() (devices []string) {
	add := func(device string) {
		if device != "lo" && !slices.Contains(devices, device) {
			devices = append(devices, device)
		}
	}
	table4, _ := x.read("/proc/net/route")
	for line := range strings.Lines(table4) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			add(f[0])
		}
	}
	const reject = 0x200 // RTF_REJECT
	table6, _ := x.read("/proc/net/ipv6_route")
	for line := range strings.Lines(table6) {
		// destination length source length next-hop metric references use flags device
		f := strings.Fields(line)
		if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" {
			continue
		}
		if flags, err := strconv.ParseUint(f[8], 16, 32); err == nil && flags&reject == 0 {
			add(f[9])
		}
	}
	return devices
}

// checkGateway checks whether the host forwards packets, if NATs or FirewallRules require
// forwarding.
func (x *examiner) checkGateway(family int) {
	if x.hostForwards(family) {
		return
	}
	of := ""
	for _, o := range x.desired.objects {
		var m *datapath.Match
		var to []netip.Prefix
		switch v := o.Value.(type) {
		case *state.NAT:
			m, to = &v.Match, v.Addresses
		case *state.FirewallRule:
			if v.Hooks == datapath.HookForward && v.Action == datapath.ActionAllow {
				m = &v.Match
			}
		}
		if m != nil && isAbout(slices.Concat(m.Source, m.Destination, to), family) && of == "" {
			of = o.Key.String()
		}
	}
	if of != "" {
		x.findForwarding(family, "sysctl.gateway", of+" applies to forwarded packets",
			fmt.Sprintf("the kernel routes no IPv%d packet from one device to another", family))
	}
}

// checkInner reports devices whose IPv4 packets the kernel does not forward, so that no NAT
// translates them. If there are Services, checkPortSysctls reports the devices of Interfaces. For
// IPv6, the kernel ignores the per-device parameter when it forwards.
func (x *examiner) checkInner(w *paths) {
	at := slices.IndexFunc(x.desired.objects, func(o *state.Object) bool { return o.Kind == state.KindNAT })
	if at < 0 || !x.hostForwards(4) {
		return
	}
	for _, device := range slices.Sorted(maps.Keys(x.plane.Found)) {
		reported := len(w.beyond) > 0 && slices.ContainsFunc(x.plane.Devices, func(d datapath.InspectedDevice) bool { return d.Name == device && !d.Switch })
		name := fmt.Sprintf("net.ipv4.conf.%s.forwarding", strings.ReplaceAll(device, ".", "/"))
		if reported || !x.receives(device) || x.sysctl(name) != "0" {
			continue
		}
		x.find("warning", "sysctl.device_forwarding", name, words{
			what: fmt.Sprintf("is 0, and there are NATs, such as %s", x.desired.objects[at].Key),
			why:  "the kernel routes no IPv4 packet that arrives on " + device + ": packets to other devices are not translated",
			do:   "sysctl -w " + name + "=1",
		}, nil)
	}
}

// isAbout reports whether one of the addresses belongs to a family; an empty list counts as IPv4.
func isAbout(list []netip.Prefix, family int) bool {
	if len(list) == 0 {
		return family == 4
	}
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return isFamily(p.Addr(), family) })
}
