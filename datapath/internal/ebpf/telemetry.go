// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/route"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/telemetry"
)

// nodeTelemetry implements [datapath.Telemetry]: the counters of the programs, and the state of the
// node's devices.
type nodeTelemetry struct {
	*telemetry.Reader
	d *DataPlane
}

func (d *DataPlane) telemetryOptions() telemetry.Options {
	return telemetry.Options{
		Tables: d.tables, Maps: d.maps, Sizes: d.config.Tables, Reasons: d.reasons, Verdicts: d.verdicts,
		Sweeper: d.sweeper, Services: d.services, Firewall: d.firewall, NATs: d.nats,
		DeviceName: d.deviceName, EndpointOf: d.endpointOf,
	}
}

// PortCounters implements [datapath.Telemetry]. Packets and bytes are the device's own, of both
// directions; they do not include packets sent with bpf_redirect_peer.
func (t *nodeTelemetry) PortCounters(_ context.Context, name datapath.PortName) (c datapath.PortCounters, ok bool, err error) {
	p, z, ok := t.port(name)
	if !ok {
		return c, false, nil
	}
	if link, err := z.Netlink.LinkByIndex(p.ifindex); err == nil && link.Attrs().Statistics != nil {
		s := link.Attrs().Statistics
		c.Packets, c.Bytes = s.RxPackets+s.TxPackets, s.RxBytes+s.TxBytes
	}
	if c.Drops, err = t.PortDrops(p.namespace, p.ifindex); err != nil {
		return c, false, fmt.Errorf("counters of interface %q: %w", name, err)
	}
	return c, true, nil
}

func (t *nodeTelemetry) port(name datapath.PortName) (port, *namespace, bool) {
	t.d.ports.mu.RLock()
	p := t.d.ports.byName[name]
	var is port
	if p != nil {
		is = t.d.ports.withHooks(p)
	}
	t.d.ports.mu.RUnlock()
	if is.device == "" {
		return port{}, nil, false
	}
	z, err := t.d.namespace(is.namespace)
	return is, z, err == nil
}

// PortState implements [datapath.Telemetry].
func (t *nodeTelemetry) PortState(name datapath.PortName) (s datapath.PortState, ok bool) {
	p, z, ok := t.port(name)
	if !ok {
		return s, false
	}
	link := z.devices.ByName(p.device)
	s.RuleName = z.devices.ruleNameInForce(p.ifindex)
	if link == nil {
		// The device was renamed, or is from an earlier run: rules match it by its old name.
		if s.Device = p.device; s.Device == "" && p.ifindex != 0 {
			s.Device = z.devices.NameOf(p.ifindex)
		} else if is := z.devices.ByIndex(p.ifindex); is != nil && p.ifindex != 0 && len(p.hooks) > 0 {
			s.Renamed = is.Attrs().Name
		}
		return s, true
	}
	a := link.Attrs()
	s = datapath.PortState{Device: a.Name, RuleName: s.RuleName, Index: a.Index, MAC: a.HardwareAddr, MTU: a.MTU, Addresses: z.devices.Prefixes(a.Index), Link: device.LinkState(a)}
	for _, h := range p.hooks {
		if p.ifindex == a.Index && h.Attached() {
			s.Hooks = append(s.Hooks, h.Name())
		}
	}
	return s, true
}

// Devices implements [datapath.Telemetry].
func (t *nodeTelemetry) Devices(inSwitch bool) map[string]datapath.Device {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil || z.devices == nil {
		return nil
	}
	z.devices.mu.Lock()
	defer z.devices.mu.Unlock()
	return z.devices.listed
}

// routing returns the namespace of the switch, or of the host; false: it does not exist.
func (t *nodeTelemetry) routing(inSwitch bool) (route.Namespace, bool) {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil || z.devices == nil {
		return route.Namespace{}, false
	}
	return route.Namespace{Netns: z.Netns, Devices: z.devices}, true
}

// Forwarding implements [datapath.Telemetry]. If the namespace does not exist, forwarding is
// reported as on: a false warning would be worse than none.
func (t *nodeTelemetry) Forwarding(inSwitch bool) datapath.Forwarding {
	z, ok := t.routing(inSwitch)
	if !ok {
		return datapath.Forwarding{IPv4: true, IPv6: true}
	}
	return z.Forwarding()
}

// HopTo implements [datapath.Telemetry].
func (t *nodeTelemetry) HopTo(to datapath.Hop, ask bool) datapath.HopState {
	z, ok := t.routing(to.Switch)
	if !ok {
		return datapath.HopState{}
	}
	return z.HopTo(to, ask)
}

// DeviceOf implements [datapath.Telemetry].
func (t *nodeTelemetry) DeviceOf(addr netip.Addr, inSwitch bool) string {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil {
		return ""
	}
	return z.devices.nameByAddr(addr)
}

// Networks implements [datapath.Telemetry].
func (t *nodeTelemetry) Networks(inSwitch bool) map[string][]netip.Prefix {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil || z.devices == nil {
		return nil
	}
	return z.devices.connected()
}

// LocalAddrs implements [datapath.Telemetry].
func (t *nodeTelemetry) LocalAddrs() (all []netip.Addr) {
	_, _ = t.d.namespace(t.d.namespaceOf(false)) // opens it if possible
	for _, z := range t.d.openNamespaces() {
		if z.devices != nil {
			all = z.devices.appendAddrs(all)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// withoutTCX returns the reason why a port has filters instead of tcx links.
func withoutTCX(configured string) string {
	switch {
	case configured == "tc":
		return "cls_bpf is used as configured"
	case errors.Is(hook.HaveTCX(), ebpf.ErrNotSupported):
		return "this kernel lacks tcx (Linux 6.6 or later has it); using cls_bpf"
	default:
		return "ports that an earlier run attached keep cls_bpf until llcli detach"
	}
}

// Features implements [datapath.Telemetry].
func (t *nodeTelemetry) Features(context.Context) (datapath.Features, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return datapath.Features{}, err
	}
	f := datapath.Features{
		Kernel:    unix.ByteSliceToString(u.Release[:]),
		Layout:    pin.LayoutVersion,
		Fallbacks: make(map[string]string),
	}
	ports := make(map[datapath.PortName]port)
	t.d.ports.mu.RLock()
	for name, p := range t.d.ports.byName {
		ports[name] = *p
	}
	t.d.ports.mu.RUnlock()
	for name, p := range ports {
		_, guarded := name.Endpoint()
		device := p.device
		if device == "" { // adopted from an earlier run, and not configured yet
			if z, err := t.d.namespace(p.namespace); err == nil {
				device = z.devices.NameOf(p.ifindex)
			}
		}
		if p.mode != datapath.XDPOff && p.xdpMode() == datapath.XDPOff {
			f.Fallbacks["xdp "+device] = "a Mirror copies packets of the port, which XDP would bypass"
		}
		for _, h := range p.hooks {
			x := datapath.Hook{Device: device, Netns: "host", Hook: h.Name(), Program: programName(h.Name()), ID: uint32(h.Program())}
			if p.namespace == netnsSwitch {
				x.Netns = "switch"
			}
			f.Hooks = append(f.Hooks, x)
			if strings.HasPrefix(h.Name(), "tc-") && !(guarded && t.d.config.Attach == "") {
				f.Fallbacks["tcx"] = withoutTCX(t.d.config.Attach)
			}
		}
	}
	f.Hooks = append(f.Hooks, t.d.mirrorHooks()...)
	slices.SortFunc(f.Hooks, func(a, b datapath.Hook) int {
		return cmp.Or(cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Hook, b.Hook))
	})
	for _, z := range t.d.openNamespaces() {
		if z.devices != nil {
			if why := z.devices.whyNotXDP(); why != "" {
				f.Fallbacks["xdp "+z.Label()] = why
			}
		}
		if z.netfilter == nil {
			continue
		}
		if why := z.netfilter.Why(); why != "" {
			f.Fallbacks["netfilter "+z.Label()] = why
		}
	}
	f.Warnings = append(t.d.keeper.problems(), t.d.keptSizes...)
	return f, nil
}

func programName(hook string) string {
	if strings.HasPrefix(hook, "xdp-") {
		return kernel.ShortestProgLlXdp
	}
	if strings.HasSuffix(hook, "ingress") {
		return kernel.ProgLlTcIngress
	}
	return kernel.EgressProgLlTcEgress
}

// Repairs implements [datapath.Telemetry].
func (t *nodeTelemetry) Repairs() uint64 { return t.d.keeper.repairs.Load() }

// Changed implements [datapath.Telemetry].
func (t *nodeTelemetry) Changed() <-chan struct{} { return t.d.changed }

// deviceName returns the name of a device; if it is unknown, the index as text.
func (d *DataPlane) deviceName(namespace uint8, index int) string {
	for _, z := range d.openNamespaces() {
		if z.ID == namespace {
			return z.devices.NameOf(index)
		}
	}
	return fmt.Sprint(index)
}
