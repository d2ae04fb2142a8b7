// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// endpoints is the table of endpoints, restricted to the kernel's own forwarding: each device's
// bridge and routes.
type endpoints struct {
	n *Network

	mu     sync.Mutex
	wanted map[datapath.EndpointName]datapath.Endpoint // the values of the last Update
	routed map[string]bool                             // that may have routes; nil: not known yet
}

// endpointRecord describes a device that we attached to a bridge.
type endpointRecord struct {
	Space  namespace.ID `json:"space"`
	Device string       `json:"device"`
	Index  int          `json:"index"`
	Bridge int          `json:"bridge"` // index
}

// Endpoints implements [datapath.Network].
func (n *Network) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return n.endpoints
}

// Update implements [datapath.Table]. The device is not set up before this, so nothing arrives
// through it earlier.
func (e *endpoints) Update(ctx context.Context, name datapath.EndpointName, value datapath.Endpoint) error {
	if err := e.join(name, value); err != nil {
		return err
	}
	return e.route(ctx, name, routesOf(name, value))
}

// route gives an endpoint exactly these routes. Most endpoints have no routes.
func (e *endpoints) route(ctx context.Context, name datapath.EndpointName, wanted map[datapath.RouteName]datapath.Route) error {
	e.mu.Lock()
	if e.routed == nil {
		e.routed = e.n.journal.routeOwners(endpointMark)
	}
	had := e.routed[string(name)]
	if len(wanted) > 0 {
		e.routed[string(name)] = true
	}
	e.mu.Unlock()
	var err error
	for route, v := range wanted {
		err = errors.Join(err, e.n.routes.Update(ctx, route, v))
	}
	if !had {
		return err
	}
	if err = errors.Join(err, e.n.routes.removeBut(ctx, endpointOwner(name), wanted)); err == nil && len(wanted) == 0 {
		e.mu.Lock()
		delete(e.routed, string(name))
		e.mu.Unlock()
	}
	return err
}

// routesOf returns the routes of an endpoint. Of two routes with the same prefix, one is for the
// host and one for the switch.
func routesOf(name datapath.EndpointName, value datapath.Endpoint) map[datapath.RouteName]datapath.Route {
	wanted := make(map[datapath.RouteName]datapath.Route, len(value.Routes))
	for _, r := range value.Routes {
		where := "host"
		if r.Switch {
			where = "switch"
		}
		wanted[endpointOwner(name).route(where+" "+r.Prefix.String())] = r
	}
	return wanted
}

// join makes the device of an endpoint a port of its bridge.
func (e *endpoints) join(name datapath.EndpointName, value datapath.Endpoint) error {
	e.mu.Lock()
	var before net.HardwareAddr
	if v, ok := e.wanted[name]; ok {
		before = v.MAC[:]
	}
	e.wanted[name] = value
	e.mu.Unlock()
	s, err := e.n.space(true)
	if err != nil {
		return err
	}
	defer e.n.done(s)
	link, bridge, err := devicesOf(s, value)
	if err != nil {
		return err
	}
	a, index := link.Attrs(), bridge.Attrs().Index
	record := e.n.journal.endpoint(string(name))
	ours := record != nil && record.Space == s.ID && record.Index == a.Index && record.Bridge == a.MasterIndex
	if record != nil && record.Device != value.Device {
		if err := e.release(record); err != nil {
			return err
		}
	}
	if err := e.n.checkMAC(s, link, bridge, value.MAC[:]); err != nil {
		return fmt.Errorf("device %q: %w", value.Device, err)
	}
	if a.MasterIndex != index {
		if a.MasterIndex != 0 && !ours {
			return fmt.Errorf("device %q is already enslaved to another device: remove it (ip link set %s nomaster)", value.Device, value.Device)
		}
		if err := e.n.journal.note(line{Kind: kindEndpoint, Name: string(name), Endpoint: &endpointRecord{s.ID, value.Device, a.Index, index}}); err != nil {
			return err
		}
		if err := s.Netlink.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("device %q: make it a port of %q: %w", value.Device, value.Bridge, err)
		}
		ours = true
	}
	if ours && !filters(bridge) {
		if err := s.SecurePort(link, bridge, before, value.MAC[:]); err != nil {
			return fmt.Errorf("device %q: %w", value.Device, err)
		}
	}
	if value.MTU != 0 && a.MTU != value.MTU {
		if err := s.Netlink.LinkSetMTU(link, value.MTU); err != nil {
			return fmt.Errorf("device %q: set its MTU to %d: %w", value.Device, value.MTU, err)
		}
	}
	if a.Flags&net.FlagUp != 0 {
		return nil
	}
	if err := s.Netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("device %q: set it up: %w", value.Device, err)
	}
	return nil
}

// devicesOf returns the device of an endpoint and its bridge.
func devicesOf(s *namespace.Handle, value datapath.Endpoint) (link, bridge netlink.Link, err error) {
	if link, err = s.Link(value.Device); err != nil {
		return nil, nil, err
	}
	if bridge, err = s.Link(value.Bridge); err != nil {
		return nil, nil, err
	}
	switch {
	case link == nil:
		return nil, nil, absent("device %q", value.Device)
	case bridge == nil:
		return nil, nil, absent("bridge %q", value.Bridge)
	case bridge.Type() != "bridge":
		return nil, nil, fmt.Errorf("device %q is not a bridge", value.Bridge)
	}
	return link, bridge, nil
}

// Delete implements [datapath.Table].
func (e *endpoints) Delete(ctx context.Context, name datapath.EndpointName) error {
	e.mu.Lock()
	delete(e.wanted, name)
	e.mu.Unlock()
	if err := e.route(ctx, name, nil); err != nil {
		return err
	}
	record := e.n.journal.endpoint(string(name))
	if record == nil {
		return nil
	}
	if err := e.release(record); err != nil {
		return err
	}
	return e.n.journal.note(line{Kind: kindEndpoint, Name: string(name)})
}

// release removes a device from the bridge if we attached it and it is still attached.
func (e *endpoints) release(record *endpointRecord) error {
	s, err := e.n.present(record.Space)
	if err != nil || s == nil {
		return err
	}
	defer e.n.done(s)
	link, err := s.Link(record.Device)
	if err != nil || link == nil || link.Attrs().Index != record.Index || link.Attrs().MasterIndex != record.Bridge {
		return err
	}
	// Set the device down, because it is about to lose its source guard.
	if err := s.Netlink.LinkSetDown(link); err != nil && !namespace.IsAbsent(err) {
		return fmt.Errorf("device %q: set it down: %w", record.Device, err)
	}
	if err := s.Netlink.LinkSetNoMaster(link); err != nil && !namespace.IsAbsent(err) {
		return fmt.Errorf("device %q: detach it from its bridge: %w", record.Device, err)
	}
	return nil
}

// Keys implements [datapath.Table].
func (e *endpoints) Keys(context.Context) iter.Seq2[datapath.EndpointName, error] {
	all := e.n.journal.routeOwners(endpointMark)
	for _, name := range namesOf(e.n.journal, e.n.journal.current.Endpoints) {
		all[name] = true
	}
	return keysOf[datapath.EndpointName](slices.Sorted(maps.Keys(all)))
}

// Verify implements [datapath.Table].
func (e *endpoints) Verify(ctx context.Context, name datapath.EndpointName) (bool, error) {
	e.mu.Lock()
	value, ok := e.wanted[name]
	e.mu.Unlock()
	if !ok {
		return false, nil
	}
	s, err := e.n.space(true)
	if err != nil {
		return false, err
	}
	defer e.n.done(s)
	link, bridge, err := devicesOf(s, value)
	if err != nil {
		return false, nil // Update reports the error
	}
	a := link.Attrs()
	if a.MasterIndex != bridge.Attrs().Index || a.Flags&net.FlagUp == 0 || value.MTU != 0 && a.MTU != value.MTU {
		return false, nil
	}
	if record := e.n.journal.endpoint(string(name)); record != nil && record.Bridge == a.MasterIndex && !filters(bridge) {
		if ok, err := s.IsPortSecure(link, bridge, value.MAC[:]); !ok || err != nil {
			return false, err
		}
	}
	for route := range routesOf(name, value) {
		if ok, err := e.n.routes.Verify(ctx, route); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}
