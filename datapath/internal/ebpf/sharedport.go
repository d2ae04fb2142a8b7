// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// sharer returns the port that already has a device which port name selects by an address, or an
// empty name if there is no such port, so that port name may take the device.
func (p *ports) sharer(namespace uint8, index int, name datapath.PortName, value *datapath.Port) datapath.PortName {
	other := p.holder(namespace, index)
	if _, guarded := other.Endpoint(); !value.Address.IsValid() || other == "" || other == name || guarded || overlay.IsInner(other) {
		return ""
	}
	return other
}

// holder returns the port that has the device, or "".
func (p *ports) holder(namespace uint8, index int) datapath.PortName {
	for name, t := range p.byName {
		if t.namespace == namespace && t.ifindex == index && len(t.hooks) > 0 {
			return name
		}
	}
	return ""
}

// share records that a port that selects its device by an address is on the device of another port,
// which has the programs. If a node has two addresses, it is not known in advance whether both are
// on one device.
func (p *ports) share(z *namespace, index int, name, other datapath.PortName, value *datapath.Port) error {
	if o := p.byName[other]; o.device != "" {
		if role := z.devices.role(index); role != roleOf(value.Role) || o.mode != value.XDP {
			return fmt.Errorf("device %q, which has %s, already belongs to %s with another role or xdp: delete one of the two, or set the same role and xdp", value.Device, value.Address, describe(other))
		}
	}
	if err := p.letGo(name); err != nil {
		return err
	}
	p.byName[name] = &port{namespace: z.ID, device: value.Device, address: value.Address, of: other}
	return nil
}

// Delete implements [datapath.Table].
func (p *ports) Delete(_ context.Context, name datapath.PortName) error { return p.remove(name) }

func (p *ports) remove(name datapath.PortName) error {
	defer p.d.followMirrors(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.letGo(name)
}

// letGo detaches the programs of a port, unless another port shares the device, or tunnels need it:
// then the programs pass to the other port.
func (p *ports) letGo(name datapath.PortName) error {
	t := p.byName[name]
	if t == nil {
		return nil
	}
	var heir datapath.PortName
	for _, other := range slices.Sorted(maps.Keys(p.byName)) {
		switch o := p.byName[other]; {
		case o.of != name:
		case heir == "":
			heir = other
		default:
			o.of = heir
		}
	}
	if heir == "" {
		if inner := p.neededAs(name, t); inner != "" {
			return p.leaveTo(inner, name, t)
		}
	}
	if heir == "" || len(t.hooks) == 0 {
		if err := p.detach(name, t); err != nil {
			return err
		}
		delete(p.byName, name)
		return nil
	}
	device, address := p.byName[heir].device, p.byName[heir].address
	if err := p.rename(name, heir); err != nil {
		return err
	}
	t.device, t.address = device, address
	return nil
}

// neededAs returns the inner port for which tunnels need the device of a port, or an empty name if
// they do not need it.
func (p *ports) neededAs(name datapath.PortName, t *port) datapath.PortName {
	if overlay.IsInner(name) || len(t.hooks) == 0 || t.mode != datapath.XDPOff {
		return ""
	}
	for inner, device := range p.needed {
		if o := p.byName[inner]; device == t.guarded() && (o == nil || len(o.hooks) == 0) {
			return inner
		}
	}
	return ""
}

// leaveTo turns a port into an inner port of tunnels, which keeps the programs.
func (p *ports) leaveTo(inner, name datapath.PortName, t *port) error {
	z, err := p.d.namespace(t.namespace)
	if err != nil {
		return err
	}
	if err := p.rename(name, inner); err != nil {
		return err
	}
	t.device, t.address = strings.TrimPrefix(string(inner), overlay.LinkPrefix), netip.Addr{}
	z.devices.setRole(t.ifindex, t.device, datapath.RoleHost)
	return z.devices.setPort(t.ifindex, true)
}

// need records that tunnels need a device as an inner port until unneed.
func (p *ports) need(inner datapath.PortName, namespace uint8, index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.needed[inner] = guard.Device{Netns: namespace, Ifindex: index}
}

func (p *ports) unneed(inner datapath.PortName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.needed, inner)
}

// sharesStill reports whether a port is still on the same device as the port that has the programs.
func (p *ports) sharesStill(z *namespace, t *port) bool {
	o := p.byName[t.of]
	if o == nil || o.of != "" || o.namespace != t.namespace || !o.attached() {
		return false
	}
	link := z.devices.ByName(t.device)
	return link != nil && link.Attrs().Index == o.ifindex && z.devices.nameByAddr(t.address) == t.device
}

// withHooks returns a copy of a port with the programs on its device, even if these belong to
// another port.
func (p *ports) withHooks(t *port) port {
	is := *t
	if o := p.byName[t.of]; t.of != "" && o != nil {
		is.hooks, is.ifindex, is.mode, is.mirrored = o.hooks, o.ifindex, o.mode, o.mirrored
	}
	return is
}

// rename changes the name of a port, whose hooks stay attached. p.mu is held.
func (p *ports) rename(from, to datapath.PortName) error {
	t := p.byName[from]
	folder := p.folder(t.namespace, to)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.Rename(p.folder(t.namespace, from), folder); err != nil {
		return fmt.Errorf("port %q: take over the programs of %q: %w", to, from, err)
	}
	p.d.keeper.forget(p.folder(t.namespace, from))
	p.d.keeper.forget(folder)
	p.d.keeper.noted(folder)
	for _, h := range t.hooks {
		h.Moved(folder)
	}
	p.byName[to] = t
	delete(p.byName, from)
	return nil
}
