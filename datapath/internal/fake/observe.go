// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// connections implements [datapath.Connections] for the fake.
type connections DataPlane

// List implements [datapath.Connections]. A cursor is the ID of the last connection of the previous
// page.
func (c *connections) List(_ context.Context, f datapath.ConnectionFilter, cursor string, limit int) (
	[]datapath.Connection, string, error,
) {
	after := uint64(0)
	if cursor != "" {
		var err error
		if after, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return nil, "", fmt.Errorf("cursor %q is not one of this data plane's", cursor)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, _ := slices.BinarySearchFunc(c.connections, after+1, func(t tracked, id uint64) int { return cmp.Compare(t.id, id) })
	var page []datapath.Connection
	for i := range c.connections[first:] {
		t := &c.connections[first+i]
		if !f.Match(&t.Connection) {
			continue
		}
		if len(page) == limit {
			return page, strconv.FormatUint(after, 10), nil
		}
		page, after = append(page, t.Connection), t.id
	}
	return page, "", nil
}

// Each implements [datapath.Connections].
func (c *connections) Each(_ context.Context, each func(*datapath.Connection)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.connections {
		each(&c.connections[i].Connection)
	}
	return nil
}

// Flush implements [datapath.Connections].
func (c *connections) Flush(_ context.Context, f datapath.ConnectionFilter) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.connections)
	c.connections = slices.DeleteFunc(c.connections, func(t tracked) bool { return f.Match(&t.Connection) })
	return uint64(before - len(c.connections)), nil
}

// telemetry implements [datapath.Telemetry] for the fake. No packets pass a fake, so its counters
// are zero.
type telemetry DataPlane

// NodeCounters implements [datapath.Telemetry].
func (t *telemetry) NodeCounters(context.Context) (datapath.NodeCounters, error) {
	return datapath.NodeCounters{Verdicts: map[string]uint64{}, Drops: map[string]uint64{}}, nil
}

// ServiceCounters implements [datapath.Telemetry].
func (t *telemetry) ServiceCounters(_ context.Context, name datapath.ServiceName) (datapath.ServiceCounters, bool, error) {
	s, ok := t.services.get(name)
	c := datapath.ServiceCounters{Drops: map[string]uint64{}}
	for _, b := range s.Backends {
		c.Backends = append(c.Backends, datapath.BackendCounters{Backend: b.Addr})
	}
	return c, ok, nil
}

// PortCounters implements [datapath.Telemetry].
func (t *telemetry) PortCounters(_ context.Context, name datapath.PortName) (datapath.PortCounters, bool, error) {
	_, ok := t.ports.get(name)
	return datapath.PortCounters{Drops: map[string]uint64{}}, ok, nil
}

// RuleCounters implements [datapath.Telemetry].
func (t *telemetry) RuleCounters(_ context.Context, name datapath.RuleName) (c datapath.RuleCounters, ok bool, err error) {
	s, _ := t.firewall.get(datapath.NodeSet)
	_, ok = s.Rules[name]
	return c, ok, nil
}

// NATCounters implements [datapath.Telemetry].
func (t *telemetry) NATCounters(_ context.Context, name datapath.NATName) (c datapath.NATCounters, ok bool, err error) {
	s, _ := t.nat.get(datapath.NodeSet)
	_, ok = s.Rules[name]
	return c, ok, nil
}

// PolicyCounters implements [datapath.Telemetry].
func (t *telemetry) PolicyCounters(_ context.Context, name string) (c datapath.PolicyCounters, ok bool, err error) {
	s, _ := t.policies.get(datapath.NodeSet)
	if s == nil || s.Policies[name] == nil {
		return c, false, nil
	}
	return c, true, nil
}

// PolicyAddrs implements [datapath.Telemetry].
func (t *telemetry) PolicyAddrs(string, string) ([]netip.Addr, error) { return nil, nil }

// PolicyNames implements [datapath.Telemetry]. No packets arrive from which to learn.
func (t *telemetry) PolicyNames(string, netip.Addr) (usable, former []string, err error) {
	return nil, nil, nil
}

// PolicyVerdict implements [datapath.Telemetry].
func (t *telemetry) PolicyVerdict(endpoint datapath.EndpointName, d policy.Direction, traffic policy.Traffic) (v policy.Verdict, found bool) {
	s, _ := t.policies.get(datapath.NodeSet)
	if s == nil {
		return v, false
	}
	for _, e := range s.Entities {
		if e.Endpoint == string(endpoint) {
			return s.Evaluate(e, d, traffic, false), true
		}
	}
	return v, false
}

// TunnelState implements [datapath.Telemetry].
func (t *telemetry) TunnelState(name datapath.TunnelName) (s datapath.TunnelState, ok bool) {
	tunnel, ok := t.tunnels.content()[name]
	s.MTU = tunnel.MTU // 0: the MTU of a device is unknown
	for _, p := range t.peers.content() {
		if p.Tunnel == name {
			s.Peers++
		}
	}
	return s, ok
}

// PeerState implements [datapath.Telemetry].
func (t *telemetry) PeerState(name datapath.PeerName) (s datapath.PeerState, ok bool) {
	_, ok = t.peers.content()[name]
	return s, ok
}

// PortState implements [datapath.Telemetry].
func (t *telemetry) PortState(name datapath.PortName) (datapath.PortState, bool) {
	p, ok := t.ports.get(name)
	if of, is := name.Endpoint(); is {
		var e datapath.Endpoint
		e, ok = t.endpoints.get(of)
		p = datapath.Port{Device: e.Device, Switch: true}
	}
	if !ok {
		return datapath.PortState{}, false
	}
	s, _ := t.device(p)
	return s, true
}

// DeviceOf implements [datapath.Telemetry].
func (t *telemetry) DeviceOf(addr netip.Addr, inSwitch bool) string {
	s, _ := t.device(datapath.Port{Address: addr, Switch: inSwitch})
	return s.Device
}

// Networks implements [datapath.Telemetry].
func (t *telemetry) Networks(bool) map[string][]netip.Prefix { return nil }

// LocalAddrs implements [datapath.Telemetry].
func (t *telemetry) LocalAddrs() (all []netip.Addr) {
	for _, inSwitch := range []bool{false, true} {
		for _, d := range t.Devices(inSwitch) {
			for _, p := range d.Addresses {
				all = append(all, p.Addr())
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Devices implements [datapath.Telemetry].
func (t *telemetry) Devices(inSwitch bool) map[string]datapath.Device {
	if t.devices == nil {
		return nil
	}
	return t.devices(inSwitch)
}

// Announces implements [datapath.Telemetry]: any attached uplink announces any address.
func (t *telemetry) Announces(netip.Addr) bool {
	for _, p := range t.ports.content() {
		if p.Role == datapath.RoleUplink {
			return true
		}
	}
	return false
}

// Forwarding implements [datapath.Telemetry].
func (t *telemetry) Forwarding(bool) datapath.Forwarding {
	return datapath.Forwarding{IPv4: true, IPv6: true}
}

// HopTo implements [datapath.Telemetry].
func (t *telemetry) HopTo(to datapath.Hop, _ bool) datapath.HopState {
	if t.hop == nil {
		return datapath.HopState{}
	}
	return t.hop(to)
}

// Features implements [datapath.Telemetry].
func (t *telemetry) Features(context.Context) (datapath.Features, error) {
	return datapath.Features{
		Kernel:   "none (fake data plane)",
		Warnings: []string{"the data plane is a fake: nothing is forwarded by it"},
		// The kernel keeps 32768 to 60999 for the node's own connections by default.
		SourcePorts: 1<<16 - 1024 - 28232,
	}, nil
}

// Usage implements [datapath.Telemetry].
func (t *telemetry) Usage(context.Context) (map[string]datapath.Usage, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := map[string]datapath.Usage{
		"connections IPv4": {Size: uint64(t.tables.Connections)},
		"connections IPv6": {Size: uint64(t.tables.Connections)},
		"affinity":         {Size: uint64(t.tables.Affinity)},
	}
	for i := range t.connections {
		table := "connections IPv4"
		if t.connections[i].Original.Source.Addr().Is6() {
			table = "connections IPv6"
		}
		m[table] = datapath.Usage{Used: m[table].Used + 1, Size: m[table].Size}
	}
	for _, u := range (*DataPlane)(t).usage(t.cost) {
		m[u.name] = u.Usage
	}
	return m, nil
}

// Owners implements [datapath.Telemetry].
func (t *telemetry) Owners(context.Context, func(string, datapath.Owner, uint64)) error { return nil }

// Repairs implements [datapath.Telemetry].
func (t *telemetry) Repairs() uint64 { return 0 }

// IsIdle implements [datapath.Telemetry].
func (t *telemetry) IsIdle() bool { return false }

// Changed implements [datapath.Telemetry].
func (t *telemetry) Changed() <-chan struct{} { return t.changed }

// Samples implements [datapath.Telemetry].
func (t *telemetry) Samples(ctx context.Context, each func(datapath.Sample)) error {
	for {
		select {
		case s := <-t.samples:
			each(s)
		case <-ctx.Done():
			return nil
		}
	}
}

// The functions below are for tests: observation and external changes.

// SetFaults sets the share of calls that fail.
func (d *DataPlane) SetFaults(share float64) { d.faults.set(share) }

// Refuse makes every set with a rule of that name fail with err; if err is nil, such sets no longer
// fail.
func (d *DataPlane) Refuse(rule string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused[rule] = err
}

// Rules returns the sets in force; false if a set does not exist.
func (d *DataPlane) Rules() (firewall datapath.FirewallSet, hasFirewall bool, nat datapath.NATSet, hasNAT bool) {
	firewall, hasFirewall = d.firewall.get(datapath.NodeSet)
	nat, hasNAT = d.nat.get(datapath.NodeSet)
	return firewall, hasFirewall, nat, hasNAT
}

// Content returns copies of all ports and services.
func (d *DataPlane) Content() (map[datapath.PortName]datapath.Port, map[datapath.ServiceName]datapath.Service) {
	return d.ports.content(), d.services.content()
}

// Maintained returns how often Maintain succeeded.
func (d *DataPlane) Maintained() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.maintained
}

// DamageService changes or removes the service in the data plane as an external change.
func (d *DataPlane) DamageService(name datapath.ServiceName, remove bool) error {
	return d.services.damage(name, remove)
}

// DamageFirewall changes the rules of the firewall as an external change.
func (d *DataPlane) DamageFirewall() error { return d.firewall.damage(datapath.NodeSet, false) }

// SignalChange signals an external change.
func (d *DataPlane) SignalChange() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Track adds a connection.
func (d *DataPlane) Track(c datapath.Connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextID++
	d.connections = append(d.connections, tracked{d.nextID, c})
}

// Emit delivers a sample to the reader of Samples, and waits until it is read.
func (d *DataPlane) Emit(ctx context.Context, s datapath.Sample) error {
	select {
	case d.samples <- s:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
