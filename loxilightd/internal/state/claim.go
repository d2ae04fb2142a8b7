// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// claim is a resource that at most one object may own.
type claim struct {
	what     claimed
	frontend datapath.Frontend
	device   string       // or an Endpoint's MAC, or what an Entity names
	inSwitch bool         // the device or the route is in the switch's network namespace
	prefix   netip.Prefix // prefix of a route, or an address
	metric   uint32       // metric of the route, or a VNI
	port     uint16       // a tunnel's UDP port
}

// claimed is the kind of resource that a claim is for.
type claimed uint8

const (
	claimFrontend         claimed = iota // by a Service
	claimInterface                       // a device, by an Interface
	claimBridged                         // a device, by a Bridge, as itself or as a port
	claimRoute                           // a prefix, metric and namespace, by a Route or Peer
	claimEndpoint                        // a device, by an Endpoint
	claimMAC                             // by an Endpoint
	claimAddress                         // by an Endpoint or an Entity
	claimTunnel                          // a device, by a Tunnel
	claimWire                            // a type, VNI and port, by a Tunnel
	claimPeerPrefix                      // a prefix, by a Peer, or by a Route that leads to a Peer
	claimUnderlay                        // an address, by a Peer
	claimInterfaceAddress                // an address, by an Interface
	claimEntity                          // an Endpoint or a pod, by an Entity
	claimHere                            // this node, by an Entity
)

// elsewhere returns the claim on the same resource in the other network namespace (host or switch).
func (c claim) elsewhere() claim {
	c.inSwitch = !c.inSwitch
	return c
}

// netns returns the name of the network namespace in the API.
func (c claim) netns() string {
	if c.inSwitch {
		return "switch"
	}
	return "host"
}

func (c claim) String() string {
	place := ""
	if c.inSwitch {
		place = " in the switch"
	}
	switch c.what {
	case claimFrontend:
		return c.frontend.String()
	case claimRoute:
		return fmt.Sprintf("the route to %s%s with metric %d", c.prefix, place, c.metric)
	case claimMAC:
		return "MAC " + strings.ReplaceAll(c.device, " ", ":")
	case claimInterfaceAddress:
		return "the device of address " + c.prefix.Addr().String() + place
	case claimAddress:
		return "address " + c.prefix.Addr().String()
	case claimWire:
		return fmt.Sprintf("%s with VNI %d and port %d", c.device, c.metric, c.port)
	case claimPeerPrefix:
		return "prefix " + c.prefix.String()
	case claimUnderlay:
		return "underlay address " + c.device
	case claimEntity:
		return c.device
	case claimHere:
		return "this node"
	default:
		return "device " + c.device + place
	}
}

// NamesDevice reports whether an object refers to a device with the given name, as an existing
// device, as one to create, or as the target of copies. It considers the current state and the state after a rollback of the
// pending change. It ignores objects that belong to the owner but.
func (s *Store) NamesDevice(device, but string) bool {
	w := s.waiting.Load()
	return s.Snapshot().table.namesDevice(device, but) || w != nil && w.back.namesDevice(device, but)
}

func (t *table) namesDevice(device, but string) bool {
	found := false
	for _, kind := range []string{KindInterface, KindBridge, KindTunnel, KindEndpoint, KindPodNetwork, KindMirror} {
		for o := range t.each(kind) {
			if o.Owner == but {
				continue
			}
			switch v := o.Value.(type) {
			case *PodNetwork:
				found = v.Bridge == device
			case *Mirror:
				found = device != "" && v.To.Device == device
			}
			o.Value.claims(func(c claim, _ func() string) {
				switch c.what {
				case claimInterface, claimBridged, claimTunnel, claimEndpoint:
					found = found || c.device == device
				}
			})
			if found {
				return true
			}
		}
	}
	return false
}
