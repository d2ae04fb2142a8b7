// SPDX-License-Identifier: Apache-2.0

// Package observe reads the state of the node's ports, devices and routes that
// [datapath.Telemetry] reports. It keeps no state of its own.
package observe

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
)

// Node answers questions of [datapath.Telemetry] about the node's ports, devices and routes. It
// is safe for concurrent use.
type Node struct{ options Options }

// New returns the state of a node.
func New(o Options) *Node { return &Node{options: o} }

// Options are what a [Node] uses.
type Options struct {
	Ports      *port.Table
	Namespaces *namespace.Set
	Attach     string // how programs are attached, as configured

	// PortDrops returns the packets from a device that were dropped, by reason.
	PortDrops func(netns uint8, ifindex int) (map[string]uint64, error)
	// MirrorHooks returns the attached programs of mirrors.
	MirrorHooks func() []datapath.Hook
	// Warnings returns the problems of pins and tables.
	Warnings func() []string
	// SourcePorts returns how many source ports the programs may assign.
	SourcePorts func() int
}

// PortCounters implements [datapath.Telemetry]. Packets and bytes are the device's own, of both
// directions; they do not include packets sent with bpf_redirect_peer.
func (n *Node) PortCounters(_ context.Context, name datapath.PortName) (c datapath.PortCounters, ok bool, err error) {
	p, z, ok := n.port(name)
	if !ok {
		return c, false, nil
	}
	if link, err := z.Netlink.LinkByIndex(p.Ifindex); err == nil && link.Attrs().Statistics != nil {
		s := link.Attrs().Statistics
		c.Packets, c.Bytes = s.RxPackets+s.TxPackets, s.RxBytes+s.TxBytes
	}
	if c.Drops, err = n.options.PortDrops(p.Netns, p.Ifindex); err != nil {
		return c, false, fmt.Errorf("counters of interface %q: %w", name, err)
	}
	return c, true, nil
}

func (n *Node) port(name datapath.PortName) (port.Attached, *namespace.Namespace, bool) {
	p, ok := n.options.Ports.Get(name)
	if !ok || p.Device == "" {
		return port.Attached{}, nil, false
	}
	z, err := n.options.Namespaces.Open(p.Netns)
	return p, z, err == nil
}

// PortState implements [datapath.Telemetry].
func (n *Node) PortState(name datapath.PortName) (s datapath.PortState, ok bool) {
	p, z, ok := n.port(name)
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
func (n *Node) Devices(inSwitch bool) map[string]datapath.Device {
	z, err := n.options.Namespaces.Open(n.options.Namespaces.IDOf(inSwitch))
	if err != nil || z.Devices == nil {
		return nil
	}
	return z.Devices.List()
}

// routing returns the namespace of the switch, or of the host; false: it does not exist.
func (n *Node) routing(inSwitch bool) (route.Namespace, bool) {
	z, err := n.options.Namespaces.Open(n.options.Namespaces.IDOf(inSwitch))
	if err != nil || z.Devices == nil {
		return route.Namespace{}, false
	}
	return route.Namespace{Netns: z.Netns, Devices: z.Devices}, true
}

// Forwarding implements [datapath.Telemetry]. If the namespace does not exist, forwarding is
// reported as on: a false warning would be worse than none.
func (n *Node) Forwarding(inSwitch bool) datapath.Forwarding {
	z, ok := n.routing(inSwitch)
	if !ok {
		return datapath.Forwarding{IPv4: true, IPv6: true}
	}
	return z.Forwarding()
}

// HopTo implements [datapath.Telemetry].
func (n *Node) HopTo(to datapath.Hop, ask bool) datapath.HopState {
	z, ok := n.routing(to.Switch)
	if !ok {
		return datapath.HopState{}
	}
	return z.HopTo(to, ask)
}

// DeviceOf implements [datapath.Telemetry].
func (n *Node) DeviceOf(addr netip.Addr, inSwitch bool) string {
	z, err := n.options.Namespaces.Open(n.options.Namespaces.IDOf(inSwitch))
	if err != nil {
		return ""
	}
	return z.Devices.NameByAddr(addr)
}

// Networks implements [datapath.Telemetry].
func (n *Node) Networks(inSwitch bool) map[string][]netip.Prefix {
	z, err := n.options.Namespaces.Open(n.options.Namespaces.IDOf(inSwitch))
	if err != nil || z.Devices == nil {
		return nil
	}
	return z.Devices.Connected()
}

// LocalAddrs implements [datapath.Telemetry].
func (n *Node) LocalAddrs() (all []netip.Addr) {
	_, _ = n.options.Namespaces.Open(n.options.Namespaces.IDOf(false)) // opens it if possible
	for _, z := range n.options.Namespaces.InUse() {
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
func (n *Node) Features(context.Context) (datapath.Features, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return datapath.Features{}, err
	}
	f := datapath.Features{
		Kernel:      unix.ByteSliceToString(u.Release[:]),
		Layout:      pin.LayoutVersion,
		Fallbacks:   make(map[string]string),
		SourcePorts: n.options.SourcePorts(),
	}
	for name, p := range n.options.Ports.All() {
		_, guarded := name.Endpoint()
		device := p.Device
		if device == "" { // adopted from an earlier run, and not configured yet
			if z, err := n.options.Namespaces.Open(p.Netns); err == nil {
				device = z.Devices.NameOf(p.Ifindex)
			}
		}
		if p.Mirrored && p.XDP != datapath.XDPOff {
			f.Fallbacks["xdp "+device] = "a Mirror copies packets of the port, which XDP would bypass"
		}
		for _, h := range p.Hooks {
			x := datapath.Hook{Device: device, Netns: "host", Hook: h.Name(), Program: programName(h.Name()), ID: uint32(h.Program())}
			if p.Netns == hook.Switch {
				x.Netns = "switch"
			}
			f.Hooks = append(f.Hooks, x)
			if strings.HasPrefix(h.Name(), "tc-") && !(guarded && n.options.Attach == "") {
				f.Fallbacks["tcx"] = withoutTCX(n.options.Attach)
			}
		}
	}
	f.Hooks = append(f.Hooks, n.options.MirrorHooks()...)
	slices.SortFunc(f.Hooks, func(a, b datapath.Hook) int {
		return cmp.Or(cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Hook, b.Hook))
	})
	for _, z := range n.options.Namespaces.InUse() {
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
	f.Warnings = n.options.Warnings()
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
