// SPDX-License-Identifier: Apache-2.0

// Package telemetry reads the counters of the programs, their samples of packets, and how full
// their tables are.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/lb"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nat"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Reader reads counters, samples and usage. It is safe for concurrent use.
type Reader struct {
	options Options
	samples sync.Mutex // held by the reader of samples
}

// Options are what a [Reader] uses.
type Options struct {
	Tables            *kernel.Tables
	Maps              map[string]*ebpf.Map // the same, for their sizes and for samples
	Sizes             datapath.Tables      // as configured
	Reasons, Verdicts []string             // names of enum drop_reason and enum verdict_count

	Sweeper  *conn.Sweeper
	Services *lb.Table
	Firewall *rules.Firewall
	NATs     *nat.Table
	NextHops interface {
		Usage() (used, size uint32)
		Each(see func(kernel.NexthopKey)) error
	}

	Policies interface {
		Names(network string, a netip.Addr) (usable, former []string, err error)
		AddrsOf(network, name string) ([]netip.Addr, error)
		Decisions(s *kernel.Sample) (decided, logged []datapath.PolicyDecision)
		Counters(name string) (datapath.PolicyCounters, bool, error)
		Verdict(endpoint datapath.EndpointName, d policy.Direction, t policy.Traffic) (policy.Verdict, bool)
	}

	// DeviceName returns the name of a device; if it is unknown, its index as text.
	DeviceName func(netns uint8, ifindex int) string
	// EndpointOf returns the endpoint that has a device, or "".
	EndpointOf func(netns uint8, ifindex int) datapath.EndpointName
}

// New returns a reader.
func New(o Options) *Reader { return &Reader{options: o} }

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
func (r *Reader) NodeCounters(context.Context) (c datapath.NodeCounters, err error) {
	drops, err := perCPU(&r.options.Tables.Drops)
	if err != nil {
		return c, fmt.Errorf("counters of drops: %w", err)
	}
	verdicts, err := perCPU(&r.options.Tables.Verdicts)
	if err != nil {
		return c, fmt.Errorf("counters of verdicts: %w", err)
	}
	c.Drops, c.Verdicts = byReason(drops, r.options.Reasons), byReason(verdicts, r.options.Verdicts)
	if err := r.options.Sweeper.Refresh(); err != nil {
		return c, err
	}
	for _, v := range r.options.Services.All() {
		s, err := r.service(v)
		if err != nil {
			return c, err
		}
		c.Packets += s.Packets
		c.Bytes += s.Bytes
		c.Connections += s.Connections
	}
	return c, r.addPlain(&c, verdicts[kernel.VerdictCountVERDICT_NONE])
}

// addPlain adds the traffic of connections without a service, live and ended. opened is the number
// of these connections; earlier versions counted them with the backends' connections.
func (r *Reader) addPlain(c *datapath.NodeCounters, opened uint64) error {
	var total kernel.BackendTotal
	_, traffic, err := r.options.Services.Traffic(0)
	if err = errors.Join(err, r.options.Tables.BackendTotal.Lookup(0, &total)); err != nil {
		return fmt.Errorf("counters of connections without a Service: %w", err)
	}
	c.Packets += traffic.PacketCount
	c.Bytes += traffic.ByteCount
	c.Connections += opened + total.ConnectionCount
	return nil
}

// ServiceCounters implements [datapath.Telemetry]. If there are very many connections, packets and
// bytes are as of the last sweep.
func (r *Reader) ServiceCounters(_ context.Context, name datapath.ServiceName) (datapath.ServiceCounters, bool, error) {
	v, ok := r.options.Services.Get(name)
	if !ok {
		return datapath.ServiceCounters{}, false, nil
	}
	if err := r.options.Sweeper.Refresh(); err != nil {
		return datapath.ServiceCounters{}, false, err
	}
	c, err := r.service(v)
	return c, err == nil, err
}

func (r *Reader) service(v lb.Info) (c datapath.ServiceCounters, err error) {
	var stats []kernel.ServiceStats
	if _, err := r.options.Tables.ServiceStats.Find(v.ID, &stats); err != nil {
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
	if _, err := r.options.Tables.ServiceTraffic.Find(v.ID, &gone); err != nil {
		return c, fmt.Errorf("counters of service %q: %w", v.Name, err)
	}
	c.Packets, c.Bytes = gone.PacketCount, gone.ByteCount
	for _, b := range v.Backends {
		x, err := r.backend(b)
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

func (r *Reader) backend(b lb.BackendInfo) (datapath.BackendCounters, error) {
	var total kernel.BackendTotal
	active, traffic, err := r.options.Services.Traffic(b.ID)
	if err = errors.Join(err, r.options.Tables.BackendTotal.Lookup(b.ID, &total)); err != nil {
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

// PortDrops returns the packets from a device that the programs have dropped, by reason.
func (r *Reader) PortDrops(netns uint8, ifindex int) (map[string]uint64, error) {
	drops := make(map[string]uint64, len(r.options.Reasons))
	for reason := 1; reason < len(r.options.Reasons); reason++ {
		key := kernel.PortDropKey{Ifindex: uint32(ifindex), Netns: uint32(netns), Reason: uint32(reason)}
		var counts []uint64
		if _, err := r.options.Tables.PortDrops.Find(key, &counts); err != nil {
			return drops, err
		}
		sum := uint64(0)
		for _, n := range counts {
			sum += n
		}
		drops[r.options.Reasons[reason]] = sum
	}
	return drops, nil
}

// RuleCounters implements [datapath.Telemetry].
func (r *Reader) RuleCounters(_ context.Context, name datapath.RuleName) (datapath.RuleCounters, bool, error) {
	return r.options.Firewall.Counters(name)
}

// PolicyCounters implements [datapath.Telemetry].
func (r *Reader) PolicyCounters(_ context.Context, name string) (datapath.PolicyCounters, bool, error) {
	return r.options.Policies.Counters(name)
}

// PolicyNames implements [datapath.Telemetry].
func (r *Reader) PolicyNames(network string, a netip.Addr) (usable, former []string, err error) {
	return r.options.Policies.Names(network, a)
}

// PolicyAddrs implements [datapath.Telemetry].
func (r *Reader) PolicyAddrs(network, name string) ([]netip.Addr, error) {
	return r.options.Policies.AddrsOf(network, name)
}

// PolicyVerdict implements [datapath.Telemetry].
func (r *Reader) PolicyVerdict(endpoint datapath.EndpointName, d policy.Direction, t policy.Traffic) (policy.Verdict, bool) {
	return r.options.Policies.Verdict(endpoint, d, t)
}

// NATCounters implements [datapath.Telemetry].
func (r *Reader) NATCounters(_ context.Context, name datapath.NATName) (datapath.NATCounters, bool, error) {
	if err := r.options.Sweeper.Refresh(); err != nil {
		return datapath.NATCounters{}, false, err
	}
	return r.options.NATs.Counters(name)
}
