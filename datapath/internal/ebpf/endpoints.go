// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
)

// endpoints is the table of endpoints: ports with a guard. What is known of one after a
// restart is the folder of its port and the guard in the maps.
type endpoints struct{ p *ports }

// Endpoints implements [datapath.DataPlane].
func (d *DataPlane) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return endpoints{d.ports}
}

// Update implements [datapath.Table].
func (e endpoints) Update(_ context.Context, name datapath.EndpointName, value datapath.Endpoint) error {
	return e.p.update(name.Port(), datapath.Port{Device: value.Device, Switch: true, Role: datapath.RolePort}, &value)
}

// Joined implements [datapath.EndpointJoiner]. The kernel tells so, too, but that may be heard
// late where there is much to do, and what the pod sends until then is not translated.
func (e endpoints) Joined(name datapath.EndpointName) error {
	e.p.mu.RLock()
	t := e.p.byName[name.Port()]
	e.p.mu.RUnlock()
	if t == nil {
		return nil
	}
	z, err := e.p.d.zone(t.zone)
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
	return e.p.d.guards.intact(t.guarded())
}

// endpointOf returns the endpoint whose device it is; empty: none's.
func (d *DataPlane) endpointOf(zone uint8, index int) datapath.EndpointName {
	d.ports.mu.RLock()
	defer d.ports.mu.RUnlock()
	name, _ := d.ports.holder(zone, index).Endpoint()
	return name
}

func (t *port) guarded() guardedDevice { return guardedDevice{t.zone, t.ifindex} }

// prepare does what has to be before programs are attached to a device: that of an
// endpoint is closed.
func (p *ports) prepare(t *port, endpoint *datapath.Endpoint) error {
	if endpoint == nil {
		return p.d.guards.clear(t.guarded())
	}
	// Connections know the lower half of an index.
	for name, other := range p.byName {
		if other != t && other.zone == t.zone && len(other.hooks) > 0 && other.ifindex&0xffff == t.ifindex&0xffff {
			return fmt.Errorf("device %q has index %d and that of %s %d, which the data plane cannot tell apart: delete the device and make it again",
				endpoint.Device, t.ifindex, name, other.ifindex)
		}
	}
	return p.d.guards.close(t.guarded())
}

// noted has the zone know that programs are attached to a device, and of its guard where that
// has turned.
func (z *zone) noted(index int, endpoint *datapath.Endpoint, fresh, turned bool) error {
	switch {
	case endpoint != nil && fresh:
		return z.devices.addPort(index)
	case !turned && z.devices.hasPort(index):
		return nil
	}
	return z.devices.setPort(index, true)
}

// forgotten has the zone know that programs are attached to a device no more.
func (z *zone) forgotten(name datapath.PortName, index int) error {
	if _, ok := name.Endpoint(); ok {
		return z.devices.dropPort(index)
	}
	return z.devices.setPort(index, false)
}

// attachedHow is by which kind of hook programs are attached to a device that has none yet.
// A link makes the kernel wait for a grace period, some 14 ms with the lock of all network
// devices held, and twice; a filter of a new device does not. It costs packets a hundredth
// more, and pods come by the hundred.
func (p *ports) attachedHow(endpoint *datapath.Endpoint) string {
	if how := p.d.config.Attach; how != "" || endpoint == nil {
		return how
	}
	return "tc"
}

// forgetGuards removes what guards of ports there are that are no endpoint's any more.
func (p *ports) forgetGuards() error {
	live := make(map[guardedDevice]bool)
	for name, t := range p.byName {
		if _, ok := name.Endpoint(); ok && t.ifindex != 0 && len(t.hooks) > 0 {
			live[t.guarded()] = true
		}
	}
	return p.d.guards.keep(live)
}

// forgetDrops removes the counters of a device that went, or is ours no more.
func (d *DataPlane) forgetDrops(v guardedDevice) (err error) {
	for reason := range d.reasons {
		key := kernelPortDropKey{Ifindex: uint32(v.index), Zone: uint32(v.zone), Reason: uint32(reason)}
		if e := d.maps[kernelMapLlPortDrops].Delete(&key); e != nil && !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// detachGuarded is detach, of programs that are about to be attached anew. The device of an
// endpoint is down meanwhile, for it has no guard then; the network sets it up again.
func (p *ports) detachGuarded(z *zone, name datapath.PortName, t *port, link netlink.Link, endpoint *datapath.Endpoint) error {
	if endpoint != nil && t.ifindex == link.Attrs().Index && len(t.hooks) > 0 {
		if err := z.nl.LinkSetDown(link); err != nil {
			return fmt.Errorf("device %q: set it down while it has no guard: %w", endpoint.Device, err)
		}
	}
	return p.detach(name, t)
}

// releaseFrom has another port let go of a device that was called otherwise when it got it,
// or that a tunnel has only because nobody else had.
func (p *ports) releaseFrom(zone uint8, index int, name datapath.PortName, device string) error {
	other := p.holder(zone, index)
	if other == "" || other == name {
		return nil
	}
	o := p.byName[other]
	if isInner(other) && !isInner(name) {
		if t := p.byName[name]; t != nil {
			if err := p.detach(name, t); err != nil {
				return err
			}
		}
		return p.rename(other, name)
	}
	if o.device == "" || o.device == device {
		return fmt.Errorf("device %q is the device of %s already", device, describe(other))
	}
	return p.detach(other, o)
}

// describe is what a port is called in messages.
func describe(name datapath.PortName) string {
	if endpoint, ok := name.Endpoint(); ok {
		return fmt.Sprintf("endpoint %q", endpoint)
	}
	if isInner(name) {
		return string(name)
	}
	return fmt.Sprintf("interface %q", name)
}
