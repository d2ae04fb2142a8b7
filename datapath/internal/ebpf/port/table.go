// SPDX-License-Identifier: Apache-2.0

package port

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/keeper"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// Table is the table of devices to which the programs are attached. Each has a folder of pins,
// ports/NETNS/NAME, from which it is restored after a restart.
type Table struct {
	options    Options
	namespaces *namespace.Set
	guards     *guard.Table

	onLoopback atomic.Bool // our program is attached to the loopback device

	mu     sync.RWMutex // of byName; written by Update and Delete only
	byName map[datapath.PortName]*port
	needed map[datapath.PortName]guard.Device // inner ports of tunnels; other ports may hold them
	keeper *keeper.Keeper                     // nil: not started yet
}

// port is a device with both programs attached. A port without hooks has only its folder, since its
// device is gone.
type port struct {
	namespace uint8
	device    string // empty: from an earlier run
	address   netip.Addr
	of        datapath.PortName // the port that has the device and the programs; empty: this one
	ifindex   int
	hooks     []hook.Attachment
	mode      datapath.XDPMode // wanted mode
	learns    bool             // it has the program that learns names
	mirrored  bool             // its packets are copied, so that it has no XDP program
}

// New returns the table, which is empty until Adopt.
func New(o Options) *Table {
	return &Table{
		options: o, namespaces: o.Namespaces, guards: o.Guards,
		byName: make(map[datapath.PortName]*port), needed: make(map[datapath.PortName]guard.Device),
	}
}

// Folder returns the folder of pins of a port.
func (p *Table) Folder(namespace uint8, name datapath.PortName) string {
	return filepath.Join(p.options.Dir, strconv.Itoa(int(namespace)), pin.FolderOf(name))
}

// Update implements [datapath.Table].
func (p *Table) Update(_ context.Context, name datapath.PortName, value datapath.Port) error {
	err := p.update(name, value, nil)
	if err == nil {
		p.SoonOnLoopback() // services may be older than the first port
		p.options.FollowMirrors(name)
	}
	return err
}

// update attaches the programs to the device of a port. An endpoint's device is guarded from then
// on.
func (p *Table) update(name datapath.PortName, value datapath.Port, endpoint *datapath.Endpoint) error {
	id := p.namespaces.IDOf(value.Switch)
	if _, err := p.namespaces.Open(id); err != nil { // may take long on first use
		return err
	}
	if !p.options.InUse.Load() {
		p.options.BeforeFirst()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	z, err := p.namespaces.Open(id)
	if err != nil {
		return err
	}
	link, err := p.deviceOf(z, name, &value)
	if err != nil {
		return err
	}
	index, t := link.Attrs().Index, p.byName[name]
	if other := p.sharer(id, index, name, &value); other != "" && endpoint == nil {
		return p.share(z, index, name, other, &value)
	}
	if t != nil && (t.of != "" || t.ifindex != index) && endpoint == nil {
		if err := p.letGo(name); err != nil {
			return err
		}
	}
	if err := p.releaseFrom(id, index, name, value.Device); err != nil {
		return err
	}
	t = p.byName[name]
	if t != nil && t.namespace == id && t.ifindex == index {
		if err := p.mend(name, t); err != nil {
			return fmt.Errorf("device %q: pin again: %w", value.Device, err)
		}
	}
	if t != nil && (t.namespace != id || t.ifindex != index || !t.attached()) {
		if err := p.detachGuarded(z, name, t, link, endpoint); err != nil {
			return err
		}
		t = nil
	}
	fresh := t == nil
	if fresh {
		if t, err = p.attach(z, name, index, endpoint); err != nil {
			return fmt.Errorf("device %q: %w", value.Device, err)
		}
	}
	t.device, t.address = value.Device, value.Address
	turned := true
	if endpoint != nil {
		if turned, err = p.guards.Open(t.guarded(), string(name), endpoint.MAC, endpoint.Addresses); err != nil {
			return err
		}
	}
	z.Devices.SetRole(index, value.Device, value.Role)
	return errors.Join(p.fitNames(z, name, t, endpoint), p.fitXDP(z, name, t, link, value.XDP), noted(z, index, endpoint, fresh, turned))
}

// deviceOf returns the device of a port, and enters its name into value if it is selected by an
// address. If the device does not exist, the port's programs are forgotten. p.mu is held.
func (p *Table) deviceOf(z *namespace.Namespace, name datapath.PortName, value *datapath.Port) (netlink.Link, error) {
	if value.Address.IsValid() {
		if value.Device = z.Devices.NameByAddr(value.Address); value.Device == "" {
			return nil, fmt.Errorf("a device with address %s: %w", value.Address, datapath.ErrAbsent)
		}
	}
	link, err := z.Netlink.LinkByName(value.Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		if err = p.forgetGone(name, p.byName[name]); err == nil {
			return nil, p.namespaces.NoDevice(z.ID, name, value.Device)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", value.Device, err)
	}
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return nil, fmt.Errorf("device %q is the loopback, which needs no Interface: packets of the node to its own addresses are balanced anyway; use the outgoing devices: %w",
			value.Device, datapath.ErrUnsupported)
	}
	return link, nil
}

// attach attaches both programs to a device.
func (p *Table) attach(z *namespace.Namespace, name datapath.PortName, index int, endpoint *datapath.Endpoint) (t *port, err error) {
	t = &port{namespace: z.ID, ifindex: index}
	p.byName[name] = t
	err = p.prepare(t, name, endpoint)
	if of, is := name.Endpoint(); is && err == nil {
		err = p.options.EndpointAt(of, z.ID, index)
	}
	if err == nil {
		first := !p.options.InUse.Swap(true)
		t.hooks, err = z.Attach(p.attachedHow(endpoint), p.Folder(z.ID, name), index)
		if first {
			p.options.AfterFirst()
		}
	}
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: %w", err, datapath.ErrAbsent) // the device was deleted in the meantime
	}
	if err != nil {
		return nil, errors.Join(err, p.guards.Remove(t.guarded()))
	}
	p.keeper.Noted(p.Folder(z.ID, name))
	return t, nil
}

// forgetGone removes the programs and pins of a port whose device is no longer in the namespace: it
// was deleted, or moved to another namespace, whose packets the programs must not process. If the
// device was only renamed, they stay.
func (p *Table) forgetGone(name datapath.PortName, t *port) error {
	if t == nil || len(t.hooks) == 0 {
		return nil
	}
	if t.ifindex != 0 {
		z, err := p.namespaces.Open(t.namespace)
		if err != nil {
			return err
		}
		if _, err := z.Netlink.LinkByIndex(t.ifindex); !errors.As(err, new(netlink.LinkNotFoundError)) {
			return err
		}
	}
	if err := p.detach(name, t); err != nil {
		return err
	}
	t.ifindex = 0
	return nil
}

func (p *Table) detach(name datapath.PortName, t *port) error {
	for _, h := range slices.Backward(t.hooks) {
		if err := h.Detach(); err != nil {
			return err
		}
	}
	t.hooks = nil
	if z, err := p.namespaces.Open(t.namespace); err == nil {
		if err := z.RestoreLocalSources(p.Folder(t.namespace, name)); err != nil {
			return err
		}
		if t.ifindex != 0 {
			err = forgotten(z, name, t.ifindex)
		}
		if err != nil {
			return err
		}
	}
	if t.ifindex != 0 {
		if err := errors.Join(p.guards.Remove(t.guarded()), p.forgetDrops(t.guarded())); err != nil {
			return err
		}
	}
	if of, is := name.Endpoint(); is {
		if err := p.options.EndpointGone(of); err != nil {
			return err
		}
	}
	p.keeper.Forget(p.Folder(t.namespace, name))
	return os.RemoveAll(p.Folder(t.namespace, name))
}

// abandon forgets the ports of a namespace that was deleted with its devices. Their programs ended
// with the devices, or end with their pins. p.mu is held.
func (p *Table) abandon(namespace uint8) (err error) {
	for name, t := range p.byName {
		if t.namespace != namespace {
			continue
		}
		for _, h := range t.hooks {
			h.Close()
		}
		if t.ifindex != 0 {
			err = errors.Join(err, p.guards.Remove(t.guarded()), p.forgetDrops(t.guarded()))
		}
		if of, is := name.Endpoint(); is {
			err = errors.Join(err, p.options.EndpointGone(of))
		}
		t.hooks, t.ifindex = nil, 0
		p.keeper.Forget(p.Folder(namespace, name))
		err = errors.Join(err, os.RemoveAll(p.Folder(namespace, name)))
	}
	return err
}

// Keys implements [datapath.Table].
func (p *Table) Keys(context.Context) iter.Seq2[datapath.PortName, error] {
	names := p.names()
	return func(yield func(datapath.PortName, error) bool) {
		for _, name := range names {
			if _, other := name.Endpoint(); !other && !overlay.IsInner(name) && !yield(name, nil) {
				return
			}
		}
	}
}

// names returns the names of all ports, including endpoints.
func (p *Table) names() []datapath.PortName {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Sorted(maps.Keys(p.byName))
}

// Verify implements [datapath.Table].
func (p *Table) Verify(_ context.Context, name datapath.PortName) (bool, error) {
	return p.verify(name)
}

func (p *Table) verify(name datapath.PortName) (bool, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	t := p.byName[name]
	if t == nil || t.device == "" {
		return false, nil
	}
	z, err := p.namespaces.Open(t.namespace)
	if errors.Is(err, datapath.ErrAbsent) {
		return false, nil // the namespace was deleted
	}
	if err != nil {
		return false, err
	}
	if t.of != "" {
		return p.sharesStill(z, t), nil
	}
	if t.address.IsValid() && z.Devices.NameByAddr(t.address) != t.device {
		return false, nil
	}
	link, err := z.Netlink.LinkByName(t.device)
	return err == nil && link.Attrs().Index == t.ifindex && t.attached() && t.fitsXDP(link) && t.fitsNames(), nil
}

// Close closes the handles of the programs, which stay attached.
func (p *Table) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.byName {
		for _, h := range t.hooks {
			h.Close()
		}
	}
}
