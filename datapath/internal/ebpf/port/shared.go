// SPDX-License-Identifier: Apache-2.0

package port

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// sharer returns the port that already has a device which port name selects by an address, or an
// empty name if there is no such port, so that port name may take the device.
func (p *Table) sharer(namespace uint8, index int, name datapath.PortName, value *datapath.Port) datapath.PortName {
	other := p.holder(namespace, index)
	if _, guarded := other.Endpoint(); !value.Address.IsValid() || other == "" || other == name || guarded || overlay.IsInner(other) {
		return ""
	}
	return other
}

// holder returns the port that has the device, or "".
func (p *Table) holder(namespace uint8, index int) datapath.PortName {
	for name, t := range p.byName {
		if t.namespace == namespace && t.ifindex == index && len(t.hooks) > 0 {
			return name
		}
	}
	return ""
}

// LacksProgram reports whether the port that has a device lacks a program; false if done is closed
// while another operation on ports runs, which may wait for the caller to end.
func (p *Table) LacksProgram(namespace uint8, index int, done <-chan struct{}) bool {
	for !p.mu.TryRLock() {
		select {
		case <-time.After(time.Millisecond):
		case <-done:
			return false
		}
	}
	defer p.mu.RUnlock()
	t := p.byName[p.holder(namespace, index)]
	return t != nil && !t.attached()
}

// share records that a port that selects its device by an address is on the device of another port,
// which has the programs. If a node has two addresses, it is not known in advance whether both are
// on one device.
func (p *Table) share(z *namespace.Namespace, index int, name, other datapath.PortName, value *datapath.Port) error {
	if o := p.byName[other]; o.device != "" {
		if !z.Devices.HasRole(index, value.Role) || o.mode != value.XDP {
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
func (p *Table) Delete(_ context.Context, name datapath.PortName) error { return p.remove(name) }

func (p *Table) remove(name datapath.PortName) error {
	defer p.options.FollowMirrors(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.letGo(name)
}

// letGo detaches the programs of a port, unless another port shares the device, or tunnels need it:
// then the programs pass to the other port.
func (p *Table) letGo(name datapath.PortName) error {
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
func (p *Table) neededAs(name datapath.PortName, t *port) datapath.PortName {
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
func (p *Table) leaveTo(inner, name datapath.PortName, t *port) error {
	z, err := p.namespaces.Open(t.namespace)
	if err != nil {
		return err
	}
	if err := p.rename(name, inner); err != nil {
		return err
	}
	t.device, t.address = strings.TrimPrefix(string(inner), overlay.LinkPrefix), netip.Addr{}
	z.Devices.SetRole(t.ifindex, t.device, datapath.RoleHost)
	return z.Devices.SetPort(t.ifindex, true)
}

// Need implements [overlay.Ports].
func (p *Table) Need(inner datapath.PortName, inSwitch bool, ifindex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.needed[inner] = guard.Device{Netns: p.namespaces.IDOf(inSwitch), Ifindex: ifindex}
}

// Holder implements [overlay.Ports].
func (p *Table) Holder(inSwitch bool, ifindex int) datapath.PortName {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.holder(p.namespaces.IDOf(inSwitch), ifindex)
}

// Unneed implements [overlay.Ports].
func (p *Table) Unneed(inner datapath.PortName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.needed, inner)
}

// sharesStill reports whether a port is still on the same device as the port that has the programs.
func (p *Table) sharesStill(z *namespace.Namespace, t *port) bool {
	o := p.byName[t.of]
	if o == nil || o.of != "" || o.namespace != t.namespace || !o.attached() {
		return false
	}
	link := z.Devices.ByName(t.device)
	return link != nil && link.Attrs().Index == o.ifindex && z.Devices.NameByAddr(t.address) == t.device
}

// withHooks returns a copy of a port with the programs on its device, even if these belong to
// another port.
func (p *Table) withHooks(t *port) *port {
	is := *t
	if o := p.byName[t.of]; t.of != "" && o != nil {
		is.hooks, is.ifindex, is.mode, is.mirrored = o.hooks, o.ifindex, o.mode, o.mirrored
	}
	return &is
}

// rename changes the name of a port, whose hooks stay attached. p.mu is held.
func (p *Table) rename(from, to datapath.PortName) error {
	t := p.byName[from]
	folder := p.Folder(t.namespace, to)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.Rename(p.Folder(t.namespace, from), folder); err != nil {
		return fmt.Errorf("port %q: take over the programs of %q: %w", to, from, err)
	}
	p.keeper.Forget(p.Folder(t.namespace, from))
	p.keeper.Forget(folder)
	p.keeper.Noted(folder)
	for _, h := range t.hooks {
		h.Moved(folder)
	}
	p.byName[to] = t
	delete(p.byName, from)
	return nil
}

// RenewSwitch closes the switch's namespace if its name no longer exists or refers to another
// namespace, and reports whether it did. The programs are attached again when a new namespace exists.
func (p *Table) RenewSwitch() (closed bool, err error) {
	// Locked so that no operation on ports uses the namespace after it is closed.
	p.mu.Lock()
	defer p.mu.Unlock()
	z := p.namespaces.TakeDeleted()
	if z == nil {
		return false, nil
	}
	p.options.Log.Warn("the network namespace of the switch was deleted", slog.String("namespace", z.Name))
	err = errors.Join(p.abandon(hook.Switch), z.Close())
	if z.Devices != nil {
		err = errors.Join(err, z.Devices.Forget())
	}
	return true, err
}

// attached reports whether the tc programs of a port are still attached.
func (t *port) attached() bool { return hook.AllAttached(t.hooks, t.ifindex) }
