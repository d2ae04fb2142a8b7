// SPDX-License-Identifier: Apache-2.0

// Package fake is a data plane that forwards nothing: it keeps its configuration in memory, and
// fails as often as requested. It is for tests of the layers above a data plane. It looks up
// devices, but does not modify any.
package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// ErrInjected is wrapped by every requested failure.
var ErrInjected = errors.New("injected failure")

// Options configure how a fake behaves. The zero value never fails.
type Options struct {
	Tables datapath.Tables // zero sizes: [datapath.DefaultTables]
	// Faults is the share of calls that fail, from 0 to 1. Half of the failed changes take effect
	// nevertheless, as if a process died halfway.
	Faults float64
	Seed   uint64 // for the faults
	// Device finds the device of a port; false: the device does not exist. Nil: devices of this
	// process's network namespace, and none in the switch.
	Device func(datapath.Port) (datapath.PortState, bool)
	// Devices returns the devices of the switch's network namespace, or of the host's; nil:
	// unknown.
	Devices func(inSwitch bool) map[string]datapath.Device
	// Hop returns the state of a next hop; nil: unknown.
	Hop func(datapath.Hop) datapath.HopState
}

// DataPlane is the fake. Its contents outlive Close, like pinned maps. All methods are safe for
// concurrent use, except the methods of one Table.
type DataPlane struct {
	ports     *table[datapath.PortName, datapath.Port]
	endpoints *table[datapath.EndpointName, datapath.Endpoint]
	services  *table[datapath.ServiceName, datapath.Service]
	firewall  *table[datapath.SetName, datapath.FirewallSet]
	nat       *table[datapath.SetName, datapath.NATSet]
	device    func(datapath.Port) (datapath.PortState, bool)
	devices   func(inSwitch bool) map[string]datapath.Device
	hop       func(datapath.Hop) datapath.HopState
	tables    datapath.Tables
	changed   chan struct{}
	samples   chan datapath.Sample
	tunnels   *table[datapath.TunnelName, datapath.Tunnel]
	peers     *table[datapath.PeerName, datapath.Peer]
	mirrors   *table[datapath.MirrorName, datapath.Mirror]
	policies  *table[datapath.SetName, *policy.State]
	mostRules int // of policies; 0: no limit

	faults *faults

	mu          sync.Mutex
	cost        datapath.Cost                                // of the tables' contents; see admit
	refused     map[string]error                             // by the name of a rule
	copied      map[datapath.MirrorName]datapath.MirrorState // counters
	connections []tracked
	nextID      uint64
	maintained  int
}

// tracked is a connection with an ID that determines its place in pages and never changes.
type tracked struct {
	id uint64
	datapath.Connection
}

// New returns an empty data plane.
func New(o Options) *DataPlane {
	if o.Tables == (datapath.Tables{}) {
		o.Tables = datapath.DefaultTables()
	}
	if o.Device == nil {
		o.Device = lookUp
	}
	d := &DataPlane{
		device:  o.Device,
		devices: o.Devices,
		hop:     o.Hop,
		tables:  o.Tables,
		changed: make(chan struct{}, 1),
		samples: make(chan datapath.Sample),
		faults:  newFaults(o.Faults, o.Seed),
		refused: map[string]error{},
		copied:  map[datapath.MirrorName]datapath.MirrorState{},
	}
	d.ports = newTable[datapath.PortName](d.faults, "port", d.admitPort)
	d.endpoints = newTable[datapath.EndpointName](d.faults, "endpoint", func(_, e *datapath.Endpoint) error {
		if e == nil {
			return nil
		}
		return d.admitPort(nil, &datapath.Port{Device: e.Device, Switch: true, Role: datapath.RolePort})
	})
	d.services = newTable[datapath.ServiceName](d.faults, "service", admit[datapath.Service](d, nil))
	d.firewall = newTable[datapath.SetName](d.faults, "firewall", admit(d, func(s *datapath.FirewallSet) error {
		return errors.Join(refusal(d, slices.Sorted(maps.Keys(s.Rules))), firewallGroups(s))
	}))
	d.nat = newTable[datapath.SetName](d.faults, "nat", admit(d, func(s *datapath.NATSet) error {
		return errors.Join(refusal(d, slices.Sorted(maps.Keys(s.Rules))), natGroups(s))
	}))
	d.tunnels = newTable[datapath.TunnelName](d.faults, "tunnel", func(_, _ *datapath.Tunnel) error { return nil })
	d.peers = newTable[datapath.PeerName](d.faults, "peer", func(_, p *datapath.Peer) error {
		if p == nil || p.Tunnel == "" {
			return nil
		}
		if _, ok := d.tunnels.content()[p.Tunnel]; !ok {
			return fmt.Errorf("tunnel %q: %w", p.Tunnel, datapath.ErrAbsent)
		}
		return nil
	})
	d.mirrors = newTable[datapath.MirrorName](d.faults, "mirror", d.admitMirror)
	d.policies = newTable[datapath.SetName](d.faults, "policies", d.admitPolicies)
	return d
}

// lookUp finds devices in this process's own network namespace.
func lookUp(p datapath.Port) (datapath.PortState, bool) {
	if p.Switch {
		return datapath.PortState{}, false
	}
	i, err := net.InterfaceByName(p.Device)
	if p.Address.IsValid() {
		i, err = interfaceOf(p.Address)
	}
	if err != nil {
		return datapath.PortState{}, false
	}
	s := datapath.PortState{Device: i.Name, Index: i.Index, MAC: i.HardwareAddr, MTU: i.MTU}
	addrs, err := i.Addrs()
	if err != nil {
		return s, true // deleted in the meantime
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			s.Addresses = append(s.Addresses, p)
		}
	}
	return s, true
}

// interfaceOf returns the device that has an address.
func interfaceOf(addr netip.Addr) (*net.Interface, error) {
	list, err := net.Interfaces()
	for i := range list {
		addrs, aerr := list[i].Addrs()
		err = errors.Join(err, aerr)
		for _, a := range addrs {
			if p, perr := netip.ParsePrefix(a.String()); perr == nil && p.Addr() == addr {
				return &list[i], nil
			}
		}
	}
	return nil, errors.Join(err, datapath.ErrAbsent)
}

func (d *DataPlane) admitPort(_, p *datapath.Port) error {
	if p == nil {
		return nil
	}
	if _, ok := d.device(*p); !ok {
		return fmt.Errorf("device %s: %w", p.Device, datapath.ErrAbsent)
	}
	return nil
}

type namedUsage struct {
	name string
	datapath.Usage
}

func (d *DataPlane) usage(c datapath.Cost) []namedUsage {
	of := func(name string, used int, size uint32) namedUsage {
		return namedUsage{name, datapath.Usage{Used: uint64(used), Size: uint64(size)}}
	}
	return []namedUsage{
		of("services", c.Frontends, d.tables.Services),
		of("backends", c.Backends, d.tables.Backends),
		of("ranges", c.Ranges, d.tables.Ranges),
		of("rules", c.Rules, d.tables.Rules),
		of("prefixes", c.Prefixes, d.tables.Prefixes),
	}
}

// Ports implements [datapath.DataPlane].
func (d *DataPlane) Ports() datapath.Table[datapath.PortName, datapath.Port] { return d.ports }

// Endpoints implements [datapath.DataPlane].
func (d *DataPlane) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return d.endpoints
}

// Services implements [datapath.DataPlane].
func (d *DataPlane) Services() datapath.ServiceTable { return serviceTable{d.services} }

// Firewall implements [datapath.DataPlane].
func (d *DataPlane) Firewall() datapath.RuleTable[datapath.FirewallSet] {
	return ruleTable[datapath.FirewallSet]{d.firewall}
}

// NAT implements [datapath.DataPlane].
func (d *DataPlane) NAT() datapath.RuleTable[datapath.NATSet] {
	return ruleTable[datapath.NATSet]{d.nat}
}

// Tunnels implements [datapath.DataPlane].
func (d *DataPlane) Tunnels() datapath.Table[datapath.TunnelName, datapath.Tunnel] { return d.tunnels }

// Peers implements [datapath.DataPlane].
func (d *DataPlane) Peers() datapath.Table[datapath.PeerName, datapath.Peer] { return d.peers }

// Connections implements [datapath.DataPlane].
func (d *DataPlane) Connections() datapath.Connections { return (*connections)(d) }

// Telemetry implements [datapath.DataPlane].
func (d *DataPlane) Telemetry() datapath.Telemetry { return (*telemetry)(d) }

// Maintain implements [datapath.DataPlane].
func (d *DataPlane) Maintain(context.Context) error {
	if fails, _ := d.faults.next(); fails {
		return fmt.Errorf("maintain: %w", ErrInjected)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.maintained++
	return nil
}

// Close implements [datapath.DataPlane]. The fake stays usable.
func (d *DataPlane) Close() error { return nil }
