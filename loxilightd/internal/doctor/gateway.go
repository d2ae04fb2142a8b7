// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ownerK8s owns Kubernetes Services, for which a lack of endpoints is normal.
const ownerK8s = "k8s"

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
		if !ok || o.Owner == ownerK8s {
			continue
		}
		for _, family := range []int{4, 6} {
			fronts := slices.ContainsFunc(s.Frontends, func(f datapath.Frontend) bool { return isFamily(f.Addr.Addr(), family) })
			total, active := x.serving(o.Name, s, family)
			if !fronts || active > 0 {
				continue
			}
			x.find("warning", "services.no_backend", o.Key.String(), words{
				what: fmt.Sprintf("has no IPv%d backend that takes connections, of %d", family, total),
				why:  "new connections to its frontends are refused or dropped, as spec.noBackend says",
				do:   fmt.Sprintf("llcli describe service %s, which says why its backends are unhealthy; add or enable backends", o.Name),
			}, nil)
		}
	}
}

func (x *examiner) serving(name string, s *state.Service, family int) (total, active int) {
	reported := x.desired.serving[name]
	for _, b := range s.Backends {
		if !isFamily(b.Addr.Addr(), family) {
			continue
		}
		total++
		is, known := reported[b.Addr.String()]
		if b.Weight > 0 && (known && is == "active" || !known && b.State == datapath.BackendActive) {
			active++
		}
	}
	return total, active
}

// checkUnseen reports devices of default routes whose packets bypass the rules.
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
	covered := map[string]bool{}
	for _, p := range x.interfaces() {
		covered[p.Device] = true
	}
	for _, device := range x.uplinks() {
		if covered[device] {
			continue
		}
		x.find("warning", "rules.unseen", "device "+device, words{
			what: fmt.Sprintf("has a default route, and no Interface attaches to it, while there are FirewallRules (%d)", rules),
			why:  "packets of this device pass no rule: nothing of them is denied",
			do:   "llcli interface add " + device,
		}, nil)
	}
}

// uplinks returns the devices of default routes of both families.
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

// checkGateway checks NAT and FirewallRules for packets that the host forwards.
func (x *examiner) checkGateway(family int) {
	name := map[int]string{4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}[family]
	if x.sysctl(name) != "0" {
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
	if of == "" {
		return
	}
	x.find("error", "sysctl.gateway", name, words{
		what: "is 0, and " + of + " is about packets that the host forwards",
		why:  fmt.Sprintf("the kernel routes no IPv%d packet from one device to another", family),
		do:   fmt.Sprintf("sysctl -w %s=1, and for good in /etc/sysctl.d/", name),
	}, nil)
}

// isAbout reports whether addresses are of a family; an empty list counts as IPv4.
func isAbout(list []netip.Prefix, family int) bool {
	if len(list) == 0 {
		return family == 4
	}
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return isFamily(p.Addr(), family) })
}
