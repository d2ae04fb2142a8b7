// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// claim is something that belongs to at most one object of its kind.
type claim struct {
	what     claimed
	frontend datapath.Frontend
	device   string       // or the MAC of an Endpoint
	inSwitch bool         // the device or the route is in the switch's network namespace
	prefix   netip.Prefix // of a route, and its metric; or an address
	metric   uint32
}

// claimed is what is claimed.
type claimed uint8

const (
	claimFrontend  claimed = iota // by a Service
	claimInterface                // a device, by an Interface
	claimBridged                  // a device, by a Bridge, as itself or as a port
	claimRoute                    // a prefix, metric and namespace, by a Route
	claimEndpoint                 // a device, by an Endpoint
	claimMAC                      // by an Endpoint
	claimAddress                  // by an Endpoint
)

// kind returns the kind of the objects that have such claims.
func (c claim) kind() string {
	return [...]string{KindService, KindInterface, KindBridge, KindRoute, KindEndpoint, KindEndpoint, KindEndpoint}[c.what]
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
	case claimAddress:
		return "address " + c.prefix.Addr().String()
	default:
		return "device " + c.device + place
	}
}
