// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// Bridge is the spec of a Bridge.
type Bridge struct {
	datapath.Bridge
	Resolvers []netip.Addr // as in PodNetwork
}

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

// Endpoint is the spec of an Endpoint. This package does not know the bridge of its network.
type Endpoint struct {
	datapath.Endpoint
	Labels    map[string]string
	Namespace string
	Pod       string
	UID       string // of the pod; empty: unknown
}

func (e *Endpoint) cost() datapath.Cost { return datapath.Cost{Entities: 1 + len(e.Addresses)} } // 1: link-local

func (e *Endpoint) claims(each func(claim, func() string)) {
	each(claim{what: claimEndpoint, device: e.Device}, func() string { return "spec.device" })
	each(claim{what: claimMAC, device: fmt.Sprintf("% x", e.MAC)}, func() string { return "spec.mac" })
	for i, a := range e.Addresses {
		each(claim{what: claimAddress, prefix: netip.PrefixFrom(a, a.BitLen())}, func() string {
			return fmt.Sprintf("spec.addresses[%d]", i)
		})
	}
}

// PodName returns the pod's name as shown to users: namespace/pod, or only pod, or an empty string.
func (e *Endpoint) PodName() string {
	if e.Namespace != "" && e.Pod != "" {
		return e.Namespace + "/" + e.Pod
	}
	return e.Pod
}

// Has reports whether an Endpoint has all of these labels.
func (e *Endpoint) Has(labels map[string]string) bool {
	for k, v := range labels {
		if is, ok := e.Labels[k]; !ok || is != v {
			return false
		}
	}
	return true
}

// Endpoints returns the Endpoints in a snapshot, keyed by address.
func (s *Snapshot) Endpoints() map[netip.Addr]*Object {
	byAddr := map[netip.Addr]*Object{}
	for o := range s.After(KindEndpoint, "") {
		for _, a := range o.Value.(*Endpoint).Addresses {
			byAddr[a] = o
		}
	}
	return byAddr
}
