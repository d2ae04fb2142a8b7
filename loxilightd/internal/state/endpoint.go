// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// Endpoint is the spec of an Endpoint. This package does not know the bridge of its network.
type Endpoint struct {
	datapath.Endpoint
	Labels    map[string]string
	Namespace string
	Pod       string
}

func (*Endpoint) cost() datapath.Cost { return datapath.Cost{} }

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
