// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// departedStay is how long endpoints are remembered that have left their slices: what they
// had begun has ended by then. That more leave happens where changes were missed, and then
// nobody knows which of them were terminating.
const (
	departedStay = time.Hour
	departedMax  = 1000
)

// departed remembers endpoints that have left the slices of their service although they
// were not about to end: a pod whose label was changed, an API server that finishes what
// it has begun. Their TCP and SCTP connections go on, as they do with kube-proxy. Of one
// that was terminating before, its pod is gone.
type departed struct {
	stay time.Duration

	mu    sync.Mutex
	of    map[string][]departure // by namespace/name of the service, in the order in which they left
	count int
}

// departure is an endpoint, as a slice of its own.
type departure struct {
	slice *discoveryv1.EndpointSlice
	until time.Time
}

func newDeparted() *departed { return &departed{stay: departedStay, of: map[string][]departure{}} }

// note takes down who has left a slice of the service by its change; now is nil where the
// slice is gone. It returns whether somebody has.
func (d *departed) note(service string, old, now *packed) (left bool) {
	if now != nil && bytes.Equal(old.raw, now.raw) {
		return false
	}
	before, stays := old.slice(), map[string]bool{}
	if now != nil {
		if after := now.slice(); reflect.DeepEqual(after.Ports, before.Ports) {
			for i := range after.Endpoints {
				stays[address(&after.Endpoints[i])] = true
			}
		}
	}
	ports := slices.DeleteFunc(slices.Clone(before.Ports), func(p discoveryv1.EndpointPort) bool {
		return p.Protocol != nil && *p.Protocol == corev1.ProtocolUDP
	})
	var alive []departure
	dead := map[string]bool{}
	for i := range before.Endpoints {
		e := &before.Endpoints[i]
		switch {
		case stays[address(e)] || address(e) == "":
		case e.Conditions.Terminating != nil && *e.Conditions.Terminating:
			dead[address(e)] = true
		case len(ports) > 0:
			alive = append(alive, departure{leaving(before.AddressType, ports, e.Addresses), time.Now().Add(d.stay)})
		}
	}
	if len(alive) == 0 && len(dead) == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.DeleteFunc(d.of[service], func(g departure) bool { return dead[address(&g.slice.Endpoints[0])] })
	d.set(service, all)
	alive = alive[:min(len(alive), departedMax-d.count)]
	d.set(service, append(all, alive...))
	return len(alive) > 0
}

// leaving is a slice of an endpoint that gets no new connections.
func leaving(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort, addresses []string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{AddressType: family, Ports: ports, Endpoints: []discoveryv1.Endpoint{{
		Addresses:  addresses,
		Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)},
	}}}
}

func address(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	return e.Addresses[0]
}

// slices returns those of a service that are remembered still.
func (d *departed) slices(service string) (list []*discoveryv1.EndpointSlice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.set(service, slices.DeleteFunc(d.of[service], func(g departure) bool { return !now.Before(g.until) }))
	for _, g := range d.of[service] {
		list = append(list, g.slice)
	}
	return list
}

// forget forgets those of a service that is gone.
func (d *departed) forget(service string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set(service, nil)
}

func (d *departed) set(service string, all []departure) {
	d.count += len(all) - len(d.of[service])
	if len(all) == 0 {
		delete(d.of, service)
		return
	}
	d.of[service] = all
}
