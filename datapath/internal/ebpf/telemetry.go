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
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/port"
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
		DeviceName: d.deviceName, EndpointOf: d.ports.EndpointOf,
	}
}

// PortCounters implements [datapath.Telemetry]. Packets and bytes are the device's own, of both
// directions; they do not include packets sent with bpf_redirect_peer.
func (t *nodeTelemetry) PortCounters(_ context.Context, name datapath.PortName) (c datapath.PortCounters, ok bool, err error) {
	p, z, ok := t.port(name)
	if !ok {
		return c, false, nil
	}
	if link, err := z.Netlink.LinkByIndex(p.Ifindex); err == nil && link.Attrs().Statistics != nil {
		s := link.Attrs().Statistics
		c.Packets, c.Bytes = s.RxPackets+s.TxPackets, s.RxBytes+s.TxBytes
	}
	if c.Drops, err = t.PortDrops(p.Netns, p.Ifindex); err != nil {
		return c, false, fmt.Errorf("counters of interface %q: %w", name, err)
	}
	return c, true, nil
}

func (t *nodeTelemetry) port(name datapath.PortName) (port.Attached, *namespace.Namespace, bool) {
	p, ok := t.d.ports.Get(name)
	if !ok || p.Device == "" {
		return port.Attached{}, nil, false
	}
	z, err := t.d.namespaces.Open(p.Netns)
	return p, z, err == nil
}

// PortState implements [datapath.Telemetry].
func (t *nodeTelemetry) PortState(name datapath.PortName) (s datapath.PortState, ok bool) {
	p, z, ok := t.port(name)
	if !ok {
		return s, false
	}
	link := z.Devices.ByName(p.Device)
	s.RuleName = z.Devices.RuleNameInForce(p.Ifindex)
	if link == nil {
		// The device was renamed, or is from an earlier run: rules match it by its old name.
		if s.Device = p.Device; s.Device == "" && p.Ifindex != 0 {
			s.Device = z.Devices.NameOf(p.Ifindex)
		} else if is := z.Devices.ByIndex(p.Ifindex); is != nil && p.Ifindex != 0 && len(p.Hooks) > 0 {
			s.Renamed = is.Attrs().Name
		}
		return s, true
	}
	a := link.Attrs()
	s = datapath.PortState{Device: a.Name, RuleName: s.RuleName, Index: a.Index, MAC: a.HardwareAddr, MTU: a.MTU, Addresses: z.Devices.Prefixes(a.Index), Link: device.LinkState(a)}
	for _, h := range p.Hooks {
		if p.Ifindex == a.Index && h.Attached() {
			s.Hooks = append(s.Hooks, h.Name())
		}
	}
	return s, true
}

// Devices implements [datapath.Telemetry].
func (t *nodeTelemetry) Devices(inSwitch bool) map[string]datapath.Device {
	z, err := t.d.namespaces.Open(t.d.namespaces.IDOf(inSwitch))
	if err != nil || z.Devices == nil {
		return nil
	}
	return z.Devices.List()
}

// routing returns the namespace of the switch, or of the host; false: it does not exist.
func (t *nodeTelemetry) routing(inSwitch bool) (route.Namespace, bool) {
	z, err := t.d.namespaces.Open(t.d.namespaces.IDOf(inSwitch))
	if err != nil || z.Devices == nil {
		return route.Namespace{}, false
	}
	return route.Namespace{Netns: z.Netns, Devices: z.Devices}, true
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
	z, err := t.d.namespaces.Open(t.d.namespaces.IDOf(inSwitch))
	if err != nil {
		return ""
	}
	return z.Devices.NameByAddr(addr)
}

// Networks implements [datapath.Telemetry].
func (t *nodeTelemetry) Networks(inSwitch bool) map[string][]netip.Prefix {
	z, err := t.d.namespaces.Open(t.d.namespaces.IDOf(inSwitch))
	if err != nil || z.Devices == nil {
		return nil
	}
	return z.Devices.Connected()
}

// LocalAddrs implements [datapath.Telemetry].
func (t *nodeTelemetry) LocalAddrs() (all []netip.Addr) {
	_, _ = t.d.namespaces.Open(t.d.namespaces.IDOf(false)) // opens it if possible
	for _, z := range t.d.namespaces.InUse() {
		if z.Devices != nil {
			all = z.Devices.AppendAddrs(all)
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
	for name, p := range t.d.ports.All() {
		_, guarded := name.Endpoint()
		device := p.Device
		if device == "" { // adopted from an earlier run, and not configured yet
			if z, err := t.d.namespaces.Open(p.Netns); err == nil {
				device = z.Devices.NameOf(p.Ifindex)
			}
		}
		for _, h := range p.Hooks {
			x := datapath.Hook{Device: device, Netns: "host", Hook: h.Name(), Program: programName(h.Name()), ID: uint32(h.Program())}
			if p.Netns == netnsSwitch {
				x.Netns = "switch"
			}
			f.Hooks = append(f.Hooks, x)
			if strings.HasPrefix(h.Name(), "tc-") && !(guarded && t.d.config.Attach == "") {
				f.Fallbacks["tcx"] = withoutTCX(t.d.config.Attach)
			}
		}
	}
	slices.SortFunc(f.Hooks, func(a, b datapath.Hook) int {
		return cmp.Or(cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Hook, b.Hook))
	})
	for _, z := range t.d.namespaces.InUse() {
		if z.Devices != nil {
			if why := z.Devices.WhyNotXDP(); why != "" {
				f.Fallbacks["xdp "+z.Label()] = why
			}
		}
		if z.Netfilter == nil {
			continue
		}
		if why := z.Netfilter.Why(); why != "" {
			f.Fallbacks["netfilter "+z.Label()] = why
		}
	}
	f.Warnings = append(t.d.keeper.Problems(), t.d.keptSizes...)
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
func (t *nodeTelemetry) Repairs() uint64 { return t.d.keeper.Repairs() }

// Changed implements [datapath.Telemetry].
func (t *nodeTelemetry) Changed() <-chan struct{} { return t.d.changed }

// deviceName returns the name of a device; if it is unknown, the index as text.
func (d *DataPlane) deviceName(namespace uint8, index int) string {
	for _, z := range d.namespaces.InUse() {
		if z.ID == namespace {
			return z.Devices.NameOf(index)
		}
	}
	return fmt.Sprint(index)
}
