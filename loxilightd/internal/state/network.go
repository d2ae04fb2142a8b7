// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// Bridge is the spec of a Bridge.
type Bridge struct{ datapath.Bridge }

func (*Bridge) cost() datapath.Cost { return datapath.Cost{} }

func (b *Bridge) claims(each func(claim, func() string)) {
	each(claim{what: claimBridged, device: b.Device, inSwitch: true}, func() string { return "spec.device" })
	for i := range b.Ports {
		if b.Ports[i].Device == b.Device {
			continue // listed to set its VLANs
		}
		each(claim{what: claimBridged, device: b.Ports[i].Device, inSwitch: true}, func() string {
			return fmt.Sprintf("spec.ports[%d].device", i)
		})
	}
}

// Route is the spec of a Route.
type Route struct {
	datapath.Route
	Peer string // the Peer to which Prefix is added; empty: not a Route to a Peer
}

func (*Route) cost() datapath.Cost { return datapath.Cost{} }

// defaultMetric6 is the metric that the kernel gives an IPv6 route without a configured metric.
const defaultMetric6 = 1024

func (r *Route) claims(each func(claim, func() string)) {
	field := func() string { return "spec.prefix" }
	if r.Peer != "" {
		each(claim{what: claimPeerPrefix, prefix: r.Prefix}, field)
		each(claimOfRoute(r.Prefix, 0, true), field) // claim it in the switch, where the route is if the Peer has a tunnel
		return
	}
	each(claimOfRoute(r.Prefix, r.Metric, r.Switch), field)
}

// claimOfRoute returns the claim for an entry in the main routing table.
func claimOfRoute(prefix netip.Prefix, metric uint32, inSwitch bool) claim {
	if metric == 0 && prefix.Addr().Is6() {
		metric = defaultMetric6
	}
	return claim{what: claimRoute, prefix: prefix, metric: metric, inSwitch: inSwitch}
}
