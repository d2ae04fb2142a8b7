// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
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

// rememberDeparted takes over what an agent of before has left with the daemon.
func (a *Agent) rememberDeparted(ctx context.Context) error {
	for o, err := range a.o.Daemon.List(ctx, api.ListParams{Kind: api.KindService, Owner: nodes.Owner}) {
		if err != nil {
			return err
		}
		key := kube.Key(o.Labels[services.LabelNamespace], o.Labels[services.LabelService])
		s := a.services.Get(key)
		if s == nil {
			continue // it is gone, and all its connections end
		}
		port := services.PortLabelled(s, o.Labels[services.LabelPort])
		if port == nil || port.Protocol == corev1.ProtocolUDP {
			continue
		}
		var spec api.ServiceSpec
		if err := decode(o.Spec, &spec); err != nil {
			return err
		}
		if a.departed.adopt(key, port, spec.Backends, unpack(a.slices.By(key))) {
			a.forgetLater(key)
		}
	}
	return nil
}

// forgetLater translates a service again when those that leave it now are forgotten.
func (a *Agent) forgetLater(service string) {
	time.AfterFunc(a.departed.stay, func() { a.queue.put(item{itemService, service}, time.Time{}) })
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
	d.set(service, slices.DeleteFunc(d.of[service], func(g departure) bool { return dead[address(&g.slice.Endpoints[0])] }))
	return d.add(service, alive)
}

// add remembers endpoints of a service, as many as there is room for. d.mu is held.
func (d *departed) add(service string, alive []departure) bool {
	alive = alive[:min(len(alive), departedMax-d.count)]
	d.set(service, append(d.of[service], alive...))
	return len(alive) > 0
}

// adopt takes over those of a port that the daemon has, and no slice of the service: an agent
// of before remembered them, or they left while there was none. Whether these were
// terminating nobody knows any more. It returns whether there is one.
func (d *departed) adopt(service string, port *corev1.ServicePort, backends []api.Backend, list []*discoveryv1.EndpointSlice) bool {
	known := map[string]bool{}
	for _, s := range append(list, d.slices(service)...) {
		for i := range s.Ports {
			if p := &s.Ports[i]; p.Port != nil && p.Name != nil && *p.Name == port.Name {
				for j := range s.Endpoints {
					known[net.JoinHostPort(address(&s.Endpoints[j]), strconv.Itoa(int(*p.Port)))] = true
				}
			}
		}
	}
	var alive []departure
	for _, b := range backends {
		at, err := netip.ParseAddrPort(b.Address)
		if known[b.Address] || err != nil {
			continue
		}
		family, number := discoveryv1.AddressTypeIPv4, int32(at.Port())
		if at.Addr().Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		ports := []discoveryv1.EndpointPort{{Name: &port.Name, Port: &number, Protocol: &port.Protocol}}
		alive = append(alive, departure{leaving(family, ports, []string{at.Addr().String()}), time.Now().Add(d.stay)})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.add(service, alive)
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
