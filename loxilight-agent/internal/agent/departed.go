// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// departedStay is how long endpoints that have left their slices are remembered: their connections
// have ended by then. More than departedMax endpoints leave only if changes were missed, and then
// it is unknown which of them were terminating.
const (
	departedStay = time.Hour
	departedMax  = 1000
)

// departed remembers endpoints that have left the slices of their service without terminating: a
// pod whose label was changed, an API server that finishes its requests. Their TCP and SCTP
// connections continue, as with kube-proxy. If an endpoint was terminating before, its pod is
// gone.
type departed struct {
	stay time.Duration

	mu    sync.Mutex
	of    map[string][]*departure // by namespace/name of the service, in the order in which they left
	count int
	ended map[string]bool // service and address of endpoints that ended before adopted was called; nil: it was
}

// departure is an endpoint with the ports that it had when it left.
type departure struct {
	address string
	ports   []discoveryv1.EndpointPort
	until   time.Time
}

// rememberDeparted takes over the departed endpoints that an earlier agent left in the daemon.
func (a *Agent) rememberDeparted(ctx context.Context) error {
	for o, err := range a.o.Daemon.List(ctx, api.ListParams{Kind: api.KindService, Owner: nodes.Owner}) {
		if err != nil {
			return err
		}
		key := kube.Key(o.Labels[services.LabelNamespace], o.Labels[services.LabelService])
		s := a.services.Get(key)
		if s == nil {
			continue // it was deleted, and all its connections end
		}
		port := services.PortOf(s, o.Name)
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
	a.departed.adopted()
	return nil
}

// forgetLater translates a service again when the endpoints that leave it now are forgotten.
func (a *Agent) forgetLater(service string) {
	time.AfterFunc(a.departed.stay, func() { a.queue.put(item{itemService, service}, time.Time{}) })
}

func newDeparted() *departed {
	return &departed{stay: departedStay, of: map[string][]*departure{}, ended: map[string]bool{}}
}

// place is the address and one port at which an endpoint serves.
type place struct {
	address, port string
	number        int32
}

func placeOf(address string, p *discoveryv1.EndpointPort) place {
	at := place{address: address}
	if p.Name != nil {
		at.port = *p.Name
	}
	if p.Port != nil {
		at.number = *p.Port
	}
	return at
}

// places returns the places of all endpoints in slices.
func places(list []*discoveryv1.EndpointSlice) map[place]bool {
	all := map[place]bool{}
	for _, s := range list {
		for i := range s.Endpoints {
			for j := range s.Ports {
				all[placeOf(address(&s.Endpoints[i]), &s.Ports[j])] = true
			}
		}
	}
	return all
}

// note records the endpoints that left a slice of the service when the slice changed from old to
// now; now is nil if the slice is gone. It reports whether any endpoint has left.
func (d *departed) note(service string, old, now *packed) (left bool) {
	if now != nil && bytes.Equal(old.raw, now.raw) {
		return false
	}
	var after []*discoveryv1.EndpointSlice
	here := map[string]bool{}
	if now != nil {
		after = append(after, now.slice())
		for i := range after[0].Endpoints {
			here[address(&after[0].Endpoints[i])] = true
		}
	}
	before, stays := old.slice(), places(after)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range before.Endpoints {
		e := &before.Endpoints[i]
		at := address(e)
		if !here[at] && e.Conditions.Terminating != nil && *e.Conditions.Terminating {
			d.end(service, at)
			continue
		}
		var gone []discoveryv1.EndpointPort
		for _, p := range before.Ports {
			if (p.Protocol == nil || *p.Protocol != corev1.ProtocolUDP) && !stays[placeOf(at, &p)] {
				gone = append(gone, p)
			}
		}
		left = d.add(service, at, gone) || left
	}
	return left
}

// end forgets an endpoint whose pod was deleted. d.mu is held.
func (d *departed) end(service, address string) {
	d.set(service, slices.DeleteFunc(d.of[service], func(g *departure) bool { return g.address == address }))
	if d.ended != nil {
		d.ended[service+" "+address] = true
	}
}

// add remembers an endpoint of a service, with these ports, if there is room. d.mu is held.
func (d *departed) add(service, address string, ports []discoveryv1.EndpointPort) bool {
	if address == "" || len(ports) == 0 {
		return false
	}
	all := d.of[service]
	i := slices.IndexFunc(all, func(g *departure) bool { return g.address == address })
	if i < 0 {
		if d.count >= departedMax {
			return false
		}
		i = len(all)
		d.set(service, append(all, &departure{address: address}))
	}
	g := d.of[service][i]
	g.until = time.Now().Add(d.stay)
	for _, p := range ports {
		if !slices.ContainsFunc(g.ports, func(o discoveryv1.EndpointPort) bool { return placeOf(address, &o) == placeOf(address, &p) }) {
			g.ports = append(g.ports, p)
		}
	}
	return true
}

// adopt takes over the backends of a port that the daemon has but that are in no slice of the
// service: an earlier agent remembered them, or they left while no agent ran. Whether they were
// terminating is unknown. It reports whether there are any.
func (d *departed) adopt(service string, port *corev1.ServicePort, backends []api.Backend, list []*discoveryv1.EndpointSlice) (left bool) {
	known := places(list)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range backends {
		at, err := netip.ParseAddrPort(b.Address)
		if err != nil {
			continue
		}
		address, number := at.Addr().String(), int32(at.Port())
		if p := (discoveryv1.EndpointPort{Name: &port.Name, Port: &number, Protocol: &port.Protocol}); !known[placeOf(address, &p)] && !d.ended[service+" "+address] {
			left = d.add(service, address, []discoveryv1.EndpointPort{p}) || left
		}
	}
	return left
}

// adopted records that adopt will not be called again.
func (d *departed) adopted() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = nil
}

// slice returns the endpoint in a slice of its own, which gets no new connections.
func (g *departure) slice() *discoveryv1.EndpointSlice {
	family := discoveryv1.AddressTypeIPv4
	if a, err := netip.ParseAddr(g.address); err == nil && a.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{AddressType: family, Ports: g.ports, Endpoints: []discoveryv1.Endpoint{{
		Addresses:  []string{g.address},
		Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)},
	}}}
}

// address returns the endpoint's first address in its shortest form, or an empty string if it has
// no address.
func address(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	if a, err := netip.ParseAddr(e.Addresses[0]); err == nil {
		return a.String()
	}
	return e.Addresses[0]
}

// with returns the slices of a service plus the remembered endpoints. An endpoint that is in a
// slice again is forgotten, for the ports that it has there.
func (d *departed) with(service string, list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.of[service]) == 0 {
		return list
	}
	now, back := time.Now(), places(list)
	d.set(service, slices.DeleteFunc(d.of[service], func(g *departure) bool {
		g.ports = slices.DeleteFunc(slices.Clone(g.ports), func(p discoveryv1.EndpointPort) bool { return back[placeOf(g.address, &p)] })
		return len(g.ports) == 0 || !now.Before(g.until)
	}))
	for _, g := range d.of[service] {
		list = append(list, g.slice())
	}
	return list
}

// forget forgets the endpoints of a deleted service.
func (d *departed) forget(service string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set(service, nil)
}

func (d *departed) set(service string, all []*departure) {
	d.count += len(all) - len(d.of[service])
	if len(all) == 0 {
		delete(d.of, service)
		return
	}
	d.of[service] = all
}
