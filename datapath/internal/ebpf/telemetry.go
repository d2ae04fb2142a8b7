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
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/lb"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// telemetry reads the counters of the programs.
type telemetry struct {
	d       *DataPlane
	samples sync.Mutex // held by the reader of samples
}

// perCPU returns the sum over all CPUs for each entry of a per-CPU array.
func perCPU(m *bpfmap.PerCPU[uint32, uint64]) ([]uint64, error) {
	sums := make([]uint64, m.MaxEntries())
	var values []uint64
	for i := range sums {
		if err := m.Lookup(uint32(i), &values); err != nil {
			return nil, err
		}
		for _, v := range values {
			sums[i] += v
		}
	}
	return sums, nil
}

// byReason maps counts to the names of an enum's values; it skips value 0, "none".
func byReason(counts []uint64, names []string) map[string]uint64 {
	named := make(map[string]uint64, len(names))
	for i := 1; i < min(len(counts), len(names)); i++ {
		named[names[i]] = counts[i]
	}
	return named
}

// NodeCounters implements [datapath.Telemetry].
func (t *telemetry) NodeCounters(context.Context) (c datapath.NodeCounters, err error) {
	drops, err := perCPU(&t.d.tables.Drops)
	if err != nil {
		return c, fmt.Errorf("counters of drops: %w", err)
	}
	verdicts, err := perCPU(&t.d.tables.Verdicts)
	if err != nil {
		return c, fmt.Errorf("counters of verdicts: %w", err)
	}
	c.Drops, c.Verdicts = byReason(drops, t.d.reasons), byReason(verdicts, t.d.verdicts)
	if err := t.d.sweeper.Refresh(); err != nil {
		return c, err
	}
	for _, v := range t.d.services.All() {
		s, err := t.service(v)
		if err != nil {
			return c, err
		}
		c.Packets += s.Packets
		c.Bytes += s.Bytes
		c.Connections += s.Connections
	}
	return c, t.addPlain(&c, verdicts[kernel.VerdictCountVERDICT_NONE])
}

// addPlain adds the traffic of live and ended connections without a service. opened is the number
// of such connections. Earlier versions counted them in BackendTotal 0, so that count is added as
// well.
func (t *telemetry) addPlain(c *datapath.NodeCounters, opened uint64) error {
	var total kernel.BackendTotal
	_, traffic, err := t.d.services.Traffic(0)
	if err = errors.Join(err, t.d.tables.BackendTotal.Lookup(0, &total)); err != nil {
		return fmt.Errorf("counters of connections without a Service: %w", err)
	}
	c.Packets += traffic.PacketCount
	c.Bytes += traffic.ByteCount
	c.Connections += opened + total.ConnectionCount
	return nil
}

// ServiceCounters implements [datapath.Telemetry]. If there are very many connections, packets and
// bytes are as of the last sweep.
func (t *telemetry) ServiceCounters(_ context.Context, name datapath.ServiceName) (datapath.ServiceCounters, bool, error) {
	v, ok := t.d.services.Get(name)
	if !ok {
		return datapath.ServiceCounters{}, false, nil
	}
	if err := t.d.sweeper.Refresh(); err != nil {
		return datapath.ServiceCounters{}, false, err
	}
	c, err := t.service(v)
	return c, err == nil, err
}

func (t *telemetry) service(v lb.Info) (c datapath.ServiceCounters, err error) {
	var stats []kernel.ServiceStats
	if _, err := t.d.tables.ServiceStats.Find(v.ID, &stats); err != nil {
		return c, fmt.Errorf("counters of service %q: %w", v.Name, err)
	}
	c.Drops = make(map[string]uint64, len(serviceDrops))
	for _, s := range stats {
		c.Connections += s.ConnectionCount
		for i, reason := range serviceDrops {
			c.Drops[reason] += s.DropCount[i]
		}
	}
	var gone kernel.Traffic // traffic of backends that were removed from the service
	if _, err := t.d.tables.ServiceTraffic.Find(v.ID, &gone); err != nil {
		return c, fmt.Errorf("counters of service %q: %w", v.Name, err)
	}
	c.Packets, c.Bytes = gone.PacketCount, gone.ByteCount
	for _, b := range v.Backends {
		x, err := t.backend(b)
		if err != nil {
			return c, err
		}
		c.Packets += x.Packets
		c.Bytes += x.Bytes
		c.Backends = append(c.Backends, x)
	}
	return c, nil
}

// serviceDrops are the names of enum service_drop.
var serviceDrops = []string{"no_backend", "source_range", "no_port", "other"}

func (t *telemetry) backend(b lb.BackendInfo) (datapath.BackendCounters, error) {
	var total kernel.BackendTotal
	active, traffic, err := t.d.services.Traffic(b.ID)
	if err = errors.Join(err, t.d.tables.BackendTotal.Lookup(b.ID, &total)); err != nil {
		return datapath.BackendCounters{}, fmt.Errorf("counters of backend %s: %w", b.Addr, err)
	}
	return datapath.BackendCounters{
		Backend:     b.Addr,
		Connections: total.ConnectionCount,
		Active:      active,
		Packets:     traffic.PacketCount,
		Bytes:       traffic.ByteCount,
	}, nil
}

// PortCounters implements [datapath.Telemetry]. Packets and bytes are the device's own, of both
// directions; they do not include packets sent with bpf_redirect_peer.
func (t *telemetry) PortCounters(_ context.Context, name datapath.PortName) (c datapath.PortCounters, ok bool, err error) {
	p, z, ok := t.port(name)
	if !ok {
		return c, false, nil
	}
	if link, err := z.Netlink.LinkByIndex(p.ifindex); err == nil && link.Attrs().Statistics != nil {
		s := link.Attrs().Statistics
		c.Packets, c.Bytes = s.RxPackets+s.TxPackets, s.RxBytes+s.TxBytes
	}
	c.Drops = make(map[string]uint64, len(t.d.reasons))
	for reason := 1; reason < len(t.d.reasons); reason++ {
		key := kernel.PortDropKey{Ifindex: uint32(p.ifindex), Netns: uint32(p.namespace), Reason: uint32(reason)}
		var counts []uint64
		if _, err := t.d.tables.PortDrops.Find(key, &counts); err != nil {
			return c, false, fmt.Errorf("counters of interface %q: %w", name, err)
		}
		sum := uint64(0)
		for _, n := range counts {
			sum += n
		}
		c.Drops[t.d.reasons[reason]] = sum
	}
	return c, true, nil
}

// RuleCounters implements [datapath.Telemetry].
func (t *telemetry) RuleCounters(_ context.Context, name datapath.RuleName) (datapath.RuleCounters, bool, error) {
	return t.d.firewall.Counters(name)
}

// NATCounters implements [datapath.Telemetry].
func (t *telemetry) NATCounters(_ context.Context, name datapath.NATName) (datapath.NATCounters, bool, error) {
	if err := t.d.sweeper.Refresh(); err != nil {
		return datapath.NATCounters{}, false, err
	}
	return t.d.nats.Counters(name)
}

func (t *telemetry) port(name datapath.PortName) (port, *namespace, bool) {
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
func (t *telemetry) PortState(name datapath.PortName) (s datapath.PortState, ok bool) {
	p, z, ok := t.port(name)
	if !ok {
		return s, false
	}
	link := z.devices.byName(p.device)
	s.RuleName = z.devices.ruleNameInForce(p.ifindex)
	if link == nil {
		// The device was renamed, or is from an earlier run: rules match it by its old name.
		if s.Device = p.device; s.Device == "" && p.ifindex != 0 {
			s.Device = z.devices.nameOf(p.ifindex)
		} else if is := z.devices.byIndex(p.ifindex); is != nil && p.ifindex != 0 && len(p.hooks) > 0 {
			s.Renamed = is.Attrs().Name
		}
		return s, true
	}
	a := link.Attrs()
	s = datapath.PortState{Device: a.Name, RuleName: s.RuleName, Index: a.Index, MAC: a.HardwareAddr, MTU: a.MTU, Addresses: z.devices.prefixes(a.Index), Link: linkState(a)}
	for _, h := range p.hooks {
		if p.ifindex == a.Index && h.Attached() {
			s.Hooks = append(s.Hooks, h.Name())
		}
	}
	return s, true
}

// DeviceOf implements [datapath.Telemetry].
func (t *telemetry) DeviceOf(addr netip.Addr, inSwitch bool) string {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil {
		return ""
	}
	return z.devices.nameByAddr(addr)
}

// Networks implements [datapath.Telemetry].
func (t *telemetry) Networks(inSwitch bool) map[string][]netip.Prefix {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil || z.devices == nil {
		return nil
	}
	return z.devices.connected()
}

// LocalAddrs implements [datapath.Telemetry].
func (t *telemetry) LocalAddrs() (all []netip.Addr) {
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
func (t *telemetry) Features(context.Context) (datapath.Features, error) {
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
				device = z.devices.nameOf(p.ifindex)
			}
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
		if why := z.netfilter.why(); why != "" {
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

func (z *namespace) where() string {
	if z.Name == "" {
		return ""
	}
	return " in network namespace " + z.Name
}

// Usage implements [datapath.Telemetry].
func (t *telemetry) Usage(context.Context) (map[string]datapath.Usage, error) {
	return t.d.usage()
}

// Repairs implements [datapath.Telemetry].
func (t *telemetry) Repairs() uint64 { return t.d.keeper.repairs.Load() }

// Changed implements [datapath.Telemetry].
func (t *telemetry) Changed() <-chan struct{} { return t.d.changed }
