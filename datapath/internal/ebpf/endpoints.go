// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// endpoints is the table of endpoints: ports with a source guard. After a restart an endpoint is
// recovered from the folder of its port and its guard in the maps.
type endpoints struct{ p *ports }

// Endpoints implements [datapath.DataPlane].
func (d *DataPlane) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return endpoints{d.ports}
}

// Update implements [datapath.Table].
func (e endpoints) Update(_ context.Context, name datapath.EndpointName, value datapath.Endpoint) error {
	defer e.p.d.followMirrors(name.Port())
	return e.p.update(name.Port(), datapath.Port{Device: value.Device, Switch: true, Role: datapath.RolePort}, &value)
}

// Joined implements [datapath.EndpointJoiner]. The kernel also reports that a device has joined a
// bridge, but that message may be processed late under load, and until then packets of the pod are
// not translated.
func (e endpoints) Joined(name datapath.EndpointName) error {
	e.p.mu.RLock()
	t := e.p.byName[name.Port()]
	e.p.mu.RUnlock()
	if t == nil {
		return nil
	}
	z, err := e.p.d.namespace(t.namespace)
	if err != nil {
		return err
	}
	return z.devices.joined(t.ifindex)
}

// Delete implements [datapath.Table].
func (e endpoints) Delete(_ context.Context, name datapath.EndpointName) error {
	return e.p.remove(name.Port())
}

// Keys implements [datapath.Table].
func (e endpoints) Keys(context.Context) iter.Seq2[datapath.EndpointName, error] {
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
func (e endpoints) Verify(_ context.Context, name datapath.EndpointName) (bool, error) {
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
	return e.p.d.guards.Intact(t.guarded())
}

// endpointOf returns the endpoint that has a device, or "".
func (d *DataPlane) endpointOf(namespace uint8, index int) datapath.EndpointName {
	d.ports.mu.RLock()
	defer d.ports.mu.RUnlock()
	name, _ := d.ports.holder(namespace, index).Endpoint()
	return name
}

func (t *port) guarded() guard.Device { return guard.Device{Netns: t.namespace, Ifindex: t.ifindex} }

// prepare sets the guard of a device before programs are attached to it: closed for an endpoint,
// none for any other port.
func (p *ports) prepare(t *port, endpoint *datapath.Endpoint) error {
	if endpoint == nil {
		return p.d.guards.Clear(t.guarded())
	}
	// Connections hold only the lower 16 bits of an ifindex.
	for name, other := range p.byName {
		if other != t && other.namespace == t.namespace && len(other.hooks) > 0 && other.ifindex&0xffff == t.ifindex&0xffff {
			return fmt.Errorf("device %q has index %d and the device of %s has index %d, whose lower 16 bits are equal: delete the device and create it again",
				endpoint.Device, t.ifindex, name, other.ifindex)
		}
	}
	return p.d.guards.Close(t.guarded())
}

// noted records that programs are attached to a device; turned: its guard has changed.
func (z *namespace) noted(index int, endpoint *datapath.Endpoint, fresh, turned bool) error {
	switch {
	case endpoint != nil && fresh:
		return z.devices.addPort(index)
	case !turned && z.devices.hasPort(index):
		return nil
	}
	return z.devices.setPort(index, true)
}

// forgotten records that programs are no longer attached to a device.
func (z *namespace) forgotten(name datapath.PortName, index int) error {
	if _, ok := name.Endpoint(); ok {
		return z.devices.dropPort(index)
	}
	return z.devices.setPort(index, false)
}

// attachedHow returns the kind of hook for a device that has no programs yet. Attaching a link
// takes two RCU grace periods, about 14 ms each, with the RTNL lock held; adding a filter to a new
// device does not. A filter costs about 1 % more per packet, but pods are created by the hundred.
func (p *ports) attachedHow(endpoint *datapath.Endpoint) string {
	if how := p.d.config.Attach; how != "" || endpoint == nil {
		return how
	}
	return "tc"
}

// forgetGuards removes the guards of devices that no longer belong to an endpoint.
func (p *ports) forgetGuards() error {
	live := make(map[guard.Device]bool)
	for name, t := range p.byName {
		if _, ok := name.Endpoint(); ok && t.ifindex != 0 && len(t.hooks) > 0 {
			live[t.guarded()] = true
		}
	}
	return p.d.guards.Keep(live)
}

// forgetDrops removes the drop counters of a device that is gone, or no longer ours.
func (d *DataPlane) forgetDrops(v guard.Device) (err error) {
	for reason := range d.reasons {
		key := kernel.PortDropKey{Ifindex: uint32(v.Ifindex), Netns: uint32(v.Netns), Reason: uint32(reason)}
		if e := d.tables.PortDrops.Delete(key); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// detachGuarded is detach for programs that are about to be attached again. The device of an
// endpoint is set down first, since it has no guard until then; package network sets it up again.
func (p *ports) detachGuarded(z *namespace, name datapath.PortName, t *port, link netlink.Link, endpoint *datapath.Endpoint) error {
	if endpoint != nil && t.ifindex == link.Attrs().Index && len(t.hooks) > 0 {
		if err := z.Netlink.LinkSetDown(link); err != nil {
			return fmt.Errorf("device %q: set it down while it has no source guard: %w", endpoint.Device, err)
		}
	}
	return p.detach(name, t)
}

// releaseFrom makes another port release a device if the device has been renamed since, or if the
// other port exists only for a tunnel.
func (p *ports) releaseFrom(namespace uint8, index int, name datapath.PortName, device string) error {
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
