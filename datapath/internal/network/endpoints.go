// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
)

// endpoints is the table of endpoints as far as bridges go: whose ports their devices are.
type endpoints struct {
	n *Network

	mu     sync.Mutex
	wanted map[datapath.EndpointName]datapath.Endpoint // what Update was told last
}

// endpointRecord says which device we made a port of a bridge.
type endpointRecord struct {
	Space  spaceID `json:"space"`
	Device string  `json:"device"`
	Index  int     `json:"index"`
	Bridge int     `json:"bridge"` // index
}

// Endpoints implements [datapath.Network].
func (n *Network) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return n.endpoints
}

// Update implements [datapath.Table]. The device is set up here at last: before that nothing
// came in by it.
func (e *endpoints) Update(_ context.Context, name datapath.EndpointName, value datapath.Endpoint) error {
	e.mu.Lock()
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
	ours := record != nil && record.Space == s.id && record.Index == a.Index && record.Bridge == a.MasterIndex
	if record != nil && record.Device != value.Device {
		if err := e.release(record); err != nil {
			return err
		}
	}
	if a.MasterIndex != index {
		if a.MasterIndex != 0 && !ours {
			return fmt.Errorf("device %q is part of another device: take it out (ip link set %s nomaster)", value.Device, value.Device)
		}
		if err := e.n.journal.note(line{Kind: kindEndpoint, Name: string(name), Endpoint: &endpointRecord{s.id, value.Device, a.Index, index}}); err != nil {
			return err
		}
		if err := s.nl.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("device %q: make it a port of %q: %w", value.Device, value.Bridge, err)
		}
	}
	if a.Flags&net.FlagUp != 0 {
		return nil
	}
	if err := s.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("device %q: set it up: %w", value.Device, err)
	}
	return nil
}

// devicesOf returns the device of an endpoint and its bridge.
func devicesOf(s *space, value datapath.Endpoint) (link, bridge netlink.Link, err error) {
	if link, err = s.link(value.Device); err != nil {
		return nil, nil, err
	}
	if bridge, err = s.link(value.Bridge); err != nil {
		return nil, nil, err
	}
	switch {
	case link == nil:
		return nil, nil, absent("device %q", value.Device)
	case bridge == nil:
		return nil, nil, absent("bridge %q", value.Bridge)
	case bridge.Type() != "bridge":
		return nil, nil, fmt.Errorf("device %q is no bridge", value.Bridge)
	}
	return link, bridge, nil
}

// Delete implements [datapath.Table].
func (e *endpoints) Delete(_ context.Context, name datapath.EndpointName) error {
	e.mu.Lock()
	delete(e.wanted, name)
	e.mu.Unlock()
	record := e.n.journal.endpoint(string(name))
	if record == nil {
		return nil
	}
	if err := e.release(record); err != nil {
		return err
	}
	return e.n.journal.note(line{Kind: kindEndpoint, Name: string(name)})
}

// release takes a device out of the bridge that we put it into, if it is there still.
func (e *endpoints) release(record *endpointRecord) error {
	s, err := e.n.present(record.Space)
	if err != nil || s == nil {
		return err
	}
	defer e.n.done(s)
	link, err := s.link(record.Device)
	if err != nil || link == nil || link.Attrs().Index != record.Index || link.Attrs().MasterIndex != record.Bridge {
		return err
	}
	// Down: it is about to lose its guard.
	if err := s.nl.LinkSetDown(link); err != nil && !isGone(err) {
		return fmt.Errorf("device %q: set it down: %w", record.Device, err)
	}
	if err := s.nl.LinkSetNoMaster(link); err != nil && !isGone(err) {
		return fmt.Errorf("device %q: take it out of its bridge: %w", record.Device, err)
	}
	return nil
}

// Keys implements [datapath.Table].
func (e *endpoints) Keys(context.Context) iter.Seq2[datapath.EndpointName, error] {
	e.n.journal.mu.Lock()
	names := slices.Sorted(maps.Keys(e.n.journal.held.Endpoints))
	e.n.journal.mu.Unlock()
	return func(yield func(datapath.EndpointName, error) bool) {
		for _, name := range names {
			if !yield(datapath.EndpointName(name), nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (e *endpoints) Verify(_ context.Context, name datapath.EndpointName) (bool, error) {
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
		return false, nil // Update says what is wrong
	}
	return link.Attrs().MasterIndex == bridge.Attrs().Index && link.Attrs().Flags&net.FlagUp != 0, nil
}
