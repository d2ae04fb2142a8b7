// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// Network is a network without devices: bridges, routes and links are kept in memory. All methods
// are safe for concurrent use, except the methods of one Table.
type Network struct {
	bridges   *table[datapath.BridgeName, datapath.Bridge]
	routes    *table[datapath.RouteName, datapath.Route]
	links     *table[datapath.LinkName, datapath.Link]
	endpoints *table[datapath.EndpointName, datapath.Endpoint]
	faults    *faults
	changed   chan struct{}
	tunnels   *table[datapath.TunnelName, datapath.Tunnel]
	peers     *table[datapath.PeerName, datapath.Peer]

	mu         sync.Mutex
	maintained int
	calls      []string
}

// NewNetwork returns an empty network. It uses only the options for faults.
func NewNetwork(o Options) *Network {
	n := &Network{faults: newFaults(o.Faults, o.Seed), changed: make(chan struct{}, 1)}
	n.bridges = newTable[datapath.BridgeName](n.faults, "bridge", func(old, wanted *datapath.Bridge) error {
		n.note("bridge", old != nil, wanted != nil)
		return nil
	})
	n.routes = newTable[datapath.RouteName](n.faults, "route", func(old, wanted *datapath.Route) error {
		n.note("route", old != nil, wanted != nil)
		return nil
	})
	n.links = newTable[datapath.LinkName](n.faults, "link", func(old, wanted *datapath.Link) error {
		n.note("link", old != nil, wanted != nil)
		return nil
	})
	n.endpoints = newTable[datapath.EndpointName](n.faults, "endpoint", func(old, wanted *datapath.Endpoint) error {
		n.note("endpoint", old != nil, wanted != nil)
		return nil
	})
	n.tunnels = newTable[datapath.TunnelName](n.faults, "tunnel", func(old, wanted *datapath.Tunnel) error {
		n.note("tunnel", old != nil, wanted != nil)
		return nil
	})
	n.peers = newTable[datapath.PeerName](n.faults, "peer", func(old, wanted *datapath.Peer) error {
		n.note("peer", old != nil, wanted != nil)
		return nil
	})
	return n
}

func (n *Network) note(kind string, before, after bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case after:
		n.calls = append(n.calls, "put "+kind)
	case before:
		n.calls = append(n.calls, "remove "+kind)
	}
}

// Bridges implements [datapath.Network].
func (n *Network) Bridges() datapath.Table[datapath.BridgeName, datapath.Bridge] { return n.bridges }

// Routes implements [datapath.Network].
func (n *Network) Routes() datapath.Table[datapath.RouteName, datapath.Route] { return n.routes }

// Links implements [datapath.Network].
func (n *Network) Links() datapath.Table[datapath.LinkName, datapath.Link] { return n.links }

// Endpoints implements [datapath.Network].
func (n *Network) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return n.endpoints
}

// Tunnels implements [datapath.Network].
func (n *Network) Tunnels() datapath.Table[datapath.TunnelName, datapath.Tunnel] { return n.tunnels }

// Peers implements [datapath.Network].
func (n *Network) Peers() datapath.Table[datapath.PeerName, datapath.Peer] { return n.peers }

// Maintain implements [datapath.Network].
func (n *Network) Maintain(context.Context) error {
	if fails, _ := n.faults.next(); fails {
		return fmt.Errorf("maintain the network: %w", ErrInjected)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.maintained++
	return nil
}

// Repairs implements [datapath.Network].
func (n *Network) Repairs() uint64 { return 0 }

// Changed implements [datapath.Network].
func (n *Network) Changed() <-chan struct{} { return n.changed }

// Close implements [datapath.Network]. The fake stays usable.
func (n *Network) Close() error { return nil }

// The functions below are for tests: observation and external changes.

// SetFaults sets the share of calls that fail.
func (n *Network) SetFaults(share float64) { n.faults.set(share) }

// Content returns copies of all bridges and routes.
func (n *Network) Content() (map[datapath.BridgeName]datapath.Bridge, map[datapath.RouteName]datapath.Route) {
	return n.bridges.content(), n.routes.content()
}

// LinksContent returns a copy of all links.
func (n *Network) LinksContent() map[datapath.LinkName]datapath.Link { return n.links.content() }

// EndpointContent returns copies of all endpoints.
func (n *Network) EndpointContent() map[datapath.EndpointName]datapath.Endpoint {
	return n.endpoints.content()
}

// PeerContent returns copies of all peers.
func (n *Network) PeerContent() map[datapath.PeerName]datapath.Peer { return n.peers.content() }

// Maintained returns how often Maintain succeeded.
func (n *Network) Maintained() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.maintained
}

// Calls returns the calls made so far, such as "put bridge" and "remove route", in order.
func (n *Network) Calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

// DamageRoute removes a route as an external change, and signals it.
func (n *Network) DamageRoute(name datapath.RouteName) error {
	err := n.routes.damage(name, true)
	select {
	case n.changed <- struct{}{}:
	default:
	}
	return err
}
