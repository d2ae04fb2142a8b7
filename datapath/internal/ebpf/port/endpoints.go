// SPDX-License-Identifier: Apache-2.0

package port

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// Endpoints is the table of endpoints: ports with a source guard. After a restart an endpoint is
// recovered from the folder of its port and its guard in the maps.
type Endpoints struct{ p *Table }

// Endpoints returns the table of endpoints.
func (p *Table) Endpoints() Endpoints { return Endpoints{p} }

// Update implements [datapath.Table].
func (e Endpoints) Update(_ context.Context, name datapath.EndpointName, value datapath.Endpoint) error {
	defer e.p.options.FollowMirrors(name.Port())
	return e.p.update(name.Port(), datapath.Port{Device: value.Device, Switch: true, Role: datapath.RolePort}, &value)
}

// Joined implements [datapath.EndpointJoiner]. The kernel also reports that a device has joined a
// bridge, but that message may be processed late under load, and until then packets of the pod are
// not translated.
func (e Endpoints) Joined(name datapath.EndpointName) error {
	e.p.mu.RLock()
	t := e.p.byName[name.Port()]
	e.p.mu.RUnlock()
	if t == nil {
		return nil
	}
	z, err := e.p.namespaces.Open(t.namespace)
	if err != nil {
		return err
	}
	return z.Devices.Joined(t.ifindex)
}

// Delete implements [datapath.Table].
func (e Endpoints) Delete(_ context.Context, name datapath.EndpointName) error {
	return e.p.remove(name.Port())
}

// Keys implements [datapath.Table].
func (e Endpoints) Keys(context.Context) iter.Seq2[datapath.EndpointName, error] {
	names := e.p.names()
	return func(yield func(datapath.EndpointName, error) bool) {
		for _, port := range names {
			if name, ok := port.Endpoint(); ok && !yield(name, nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (e Endpoints) Verify(_ context.Context, name datapath.EndpointName) (bool, error) {
	intact, err := e.p.verify(name.Port())
	if !intact || err != nil {
		return false, err
	}
	e.p.mu.RLock()
	defer e.p.mu.RUnlock()
	t := e.p.byName[name.Port()]
	if t == nil {
		return false, nil
	}
	return e.p.guards.Intact(t.guarded())
}

// EndpointOf returns the endpoint that has a device, or "".
func (p *Table) EndpointOf(namespace uint8, index int) datapath.EndpointName {
	p.mu.RLock()
	defer p.mu.RUnlock()
	name, _ := p.holder(namespace, index).Endpoint()
	return name
}

func (t *port) guarded() guard.Device { return guard.Device{Netns: t.namespace, Ifindex: t.ifindex} }

// prepare sets the guard of a device before programs are attached to it: closed for an endpoint,
// none for any other port.
func (p *Table) prepare(t *port, name datapath.PortName, endpoint *datapath.Endpoint) error {
	if endpoint == nil {
		return p.guards.Clear(t.guarded())
	}
	// Connections hold only the lower 16 bits of an ifindex.
	for holder, other := range p.byName {
		if other != t && other.namespace == t.namespace && len(other.hooks) > 0 && other.ifindex&0xffff == t.ifindex&0xffff {
			return fmt.Errorf("device %q has index %d and the device of %s has index %d, whose lower 16 bits are equal: delete the device and create it again",
				endpoint.Device, t.ifindex, holder, other.ifindex)
		}
	}
	if err := p.guards.Close(t.guarded()); err != nil {
		return err
	}
	return p.guards.Take(t.guarded(), string(name), append([]netip.Addr{datapath.LinkLocal(endpoint.MAC)}, endpoint.Addresses...))
}

// noted records that programs are attached to a device; turned: its guard has changed.
func noted(z *namespace.Namespace, index int, endpoint *datapath.Endpoint, fresh, turned bool) error {
	switch {
	case endpoint != nil && fresh:
		return z.Devices.AddPort(index)
	case !turned && z.Devices.HasPort(index):
		return nil
	}
	return z.Devices.SetPort(index, true)
}

// forgotten records that programs are no longer attached to a device.
func forgotten(z *namespace.Namespace, name datapath.PortName, index int) error {
	if _, ok := name.Endpoint(); ok {
		return z.Devices.DropPort(index)
	}
	return z.Devices.SetPort(index, false)
}

// attachedHow returns the kind of hook for a device that has no programs yet. Attaching a link
// takes two RCU grace periods, about 14 ms each, with the RTNL lock held; adding a filter to a new
// device does not. A filter costs about 1 % more per packet, but pods are created by the hundred.
func (p *Table) attachedHow(endpoint *datapath.Endpoint) string {
	if how := p.options.Attach; how != "" || endpoint == nil {
		return how
	}
	return "tc"
}

// forgetGuards removes the guards of devices that no longer belong to an endpoint.
func (p *Table) forgetGuards() error {
	live := make(map[guard.Device]bool)
	for name, t := range p.byName {
		if _, ok := name.Endpoint(); ok && t.ifindex != 0 && len(t.hooks) > 0 {
			live[t.guarded()] = true
		}
	}
	return p.guards.Keep(live)
}

// forgetDrops removes the drop counters of a device that is gone, or no longer ours.
func (p *Table) forgetDrops(v guard.Device) (err error) {
	for reason := range p.options.Reasons {
		key := kernel.PortDropKey{Ifindex: uint32(v.Ifindex), Netns: uint32(v.Netns), Reason: uint32(reason)}
		if e := p.options.Tables.PortDrops.Delete(key); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// detachGuarded is detach for programs that are about to be attached again. The device of an
// endpoint is set down first, since it has no guard until then; package network sets it up again.
func (p *Table) detachGuarded(z *namespace.Namespace, name datapath.PortName, t *port, link netlink.Link, endpoint *datapath.Endpoint) error {
	if endpoint != nil && t.ifindex == link.Attrs().Index && len(t.hooks) > 0 {
		if err := z.Netlink.LinkSetDown(link); err != nil {
			return fmt.Errorf("device %q: set it down while it has no source guard: %w", endpoint.Device, err)
		}
	}
	return p.detach(name, t)
}

// releaseFrom makes another port release a device if the device has been renamed since, or if the
// other port exists only for a tunnel.
func (p *Table) releaseFrom(namespace uint8, index int, name datapath.PortName, device string) error {
	other := p.holder(namespace, index)
	if other == "" || other == name {
		return nil
	}
	o := p.byName[other]
	if overlay.IsInner(other) && !overlay.IsInner(name) {
		if t := p.byName[name]; t != nil {
			if err := p.detach(name, t); err != nil {
				return err
			}
		}
		return p.rename(other, name)
	}
	if o.device == "" || o.device == device {
		return fmt.Errorf("device %q already belongs to %s", device, describe(other))
	}
	return p.detach(other, o)
}

// describe returns the name of a port for messages.
func describe(name datapath.PortName) string {
	if endpoint, ok := name.Endpoint(); ok {
		return fmt.Sprintf("endpoint %q", endpoint)
	}
	if overlay.IsInner(name) {
		return string(name)
	}
	return fmt.Sprintf("interface %q", name)
}
