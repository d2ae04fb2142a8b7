// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// ports is the table of devices to which the programs are attached. Each has a folder of pins,
// ports/NETNS/NAME, from which it is restored after a restart.
type ports struct {
	d   *DataPlane
	dir string

	mu     sync.RWMutex // of byName; written by Update and Delete only
	byName map[datapath.PortName]*port
	needed map[datapath.PortName]guard.Device // inner ports of tunnels; other ports may hold them
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
	mirrored  bool             // its packets are copied, so that it has no XDP program
}

func newPorts(d *DataPlane) *ports {
	return &ports{d: d, dir: filepath.Join(d.dir, "ports"), byName: make(map[datapath.PortName]*port), needed: make(map[datapath.PortName]guard.Device)}
}

func (p *ports) folder(namespace uint8, name datapath.PortName) string {
	return filepath.Join(p.dir, strconv.Itoa(int(namespace)), pin.FolderOf(name))
}

// adopt takes over the ports of an earlier run, and replaces its programs by this run's: all in one
// go, since until then some programs may use different maps from the rest.
func (p *ports) adopt(r *pin.Replacements) error {
	for namespace := range p.d.namespaces {
		folders, err := os.ReadDir(filepath.Join(p.dir, strconv.Itoa(namespace)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, f := range folders {
			if err := p.openOne(uint8(namespace), pin.PortOf(f.Name())); err != nil {
				return fmt.Errorf("take over port %q of an earlier run: %w", pin.PortOf(f.Name()), err)
			}
		}
	}
	if err := p.takeOver(r); err != nil {
		return err
	}
	attached := make(map[uint8]map[int]bool)
	err := p.each(func(t *port, h hook.Attachment) error {
		if err := kernel.Step("settle "+h.Name(), h.Finish); err != nil || t.ifindex == 0 || t.ifindex == hook.LoopbackIndex {
			return err
		}
		z, err := p.d.namespace(t.namespace)
		if err != nil {
			return err
		}
		if attached[t.namespace] == nil {
			attached[t.namespace] = make(map[int]bool)
		}
		attached[t.namespace][t.ifindex] = true
		if x := t.xdp(); x != nil {
			z.devices.setXDP(t.ifindex, x.Mode())
		}
		return nil
	})
	for _, z := range p.d.openNamespaces() {
		if err == nil && z.devices != nil {
			err = z.devices.keepPorts(attached[z.ID])
		}
	}
	if err != nil {
		return err
	}
	return p.forgetGuards()
}

// warnOfOtherHooks logs the ports that keep a kind of hook from an earlier run although another
// kind is configured.
func (p *ports) warnOfOtherHooks() {
	want := p.d.config.Attach
	if want == "" {
		return
	}
	for name, t := range p.byName {
		for _, h := range t.hooks {
			if !strings.HasPrefix(h.Name(), want+"-") && !strings.HasPrefix(h.Name(), "xdp") {
				p.d.log.Warn("a port keeps the hooks of an earlier run instead of the configured datapath.attach; stop loxilightd, run llcli detach, and start loxilightd again",
					"port", string(name), "hook", h.Name(), "configured", want)
				break
			}
		}
	}
}

// each calls f for every hook of every port.
func (p *ports) each(f func(*port, hook.Attachment) error) error {
	for name, t := range p.byName {
		for _, h := range t.hooks {
			if err := f(t, h); err != nil {
				return fmt.Errorf("take over port %q of an earlier run, %s: %w", name, h.Name(), err)
			}
		}
	}
	return nil
}

// openOne opens the pins of a port, and changes nothing.
func (p *ports) openOne(id uint8, name datapath.PortName) error {
	t := &port{namespace: id}
	p.byName[name] = t
	z, err := p.d.namespace(id)
	if errors.Is(err, datapath.ErrAbsent) {
		return nil // its namespace is gone, and the device with it
	}
	if err != nil {
		return err
	}
	t.hooks, t.ifindex, err = z.OpenAttachments(p.folder(id, name))
	return err
}

// Update implements [datapath.Table].
func (p *ports) Update(_ context.Context, name datapath.PortName, value datapath.Port) error {
	err := p.update(name, value, nil)
	if err == nil {
		p.d.soonOnLoopback() // services may be older than the first port
		p.d.followMirrors(name)
	}
	return err
}

// update attaches the programs to the device of a port. An endpoint's device is guarded from then
// on.
func (p *ports) update(name datapath.PortName, value datapath.Port, endpoint *datapath.Endpoint) error {
	id := p.d.namespaceOf(value.Switch)
	if _, err := p.d.namespace(id); err != nil { // may take long on first use
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	z, err := p.d.namespace(id)
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
		if err := p.mend(t, p.folder(id, name)); err != nil {
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
		if turned, err = p.d.guards.Open(t.guarded(), endpoint.MAC, endpoint.Addresses); err != nil {
			return err
		}
	}
	z.devices.setRole(index, value.Device, value.Role)
	return errors.Join(p.fitXDP(z, name, t, link, value.XDP), z.noted(index, endpoint, fresh, turned))
}

// deviceOf returns the device of a port, and enters its name into value if it is selected by an
// address. If the device does not exist, the port's programs are forgotten. p.mu is held.
func (p *ports) deviceOf(z *namespace, name datapath.PortName, value *datapath.Port) (netlink.Link, error) {
	if value.Address.IsValid() {
		if value.Device = z.devices.nameByAddr(value.Address); value.Device == "" {
			return nil, fmt.Errorf("a device with address %s: %w", value.Address, datapath.ErrAbsent)
		}
	}
	link, err := z.Netlink.LinkByName(value.Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		if err = p.forgetGone(name, p.byName[name]); err == nil {
			return nil, p.d.noDevice(z.ID, name, value.Device)
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
func (p *ports) attach(z *namespace, name datapath.PortName, index int, endpoint *datapath.Endpoint) (t *port, err error) {
	t = &port{namespace: z.ID, ifindex: index}
	p.byName[name] = t
	if err = p.prepare(t, endpoint); err == nil {
		t.hooks, err = z.Attach(p.attachedHow(endpoint), p.folder(z.ID, name), index)
	}
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: %w", err, datapath.ErrAbsent) // the device was deleted meanwhile
	}
	if err != nil {
		return nil, errors.Join(err, p.d.guards.Remove(t.guarded()))
	}
	p.d.keeper.noted(p.folder(z.ID, name))
	return t, nil
}

// forgetGone removes the programs and pins of a port whose device is no longer in the namespace: it
// was deleted, or moved to another namespace, whose packets the programs must not process. If the
// device was only renamed, they stay.
func (p *ports) forgetGone(name datapath.PortName, t *port) error {
	if t == nil || len(t.hooks) == 0 {
		return nil
	}
	if t.ifindex != 0 {
		z, err := p.d.namespace(t.namespace)
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

func (p *ports) detach(name datapath.PortName, t *port) error {
	for _, h := range slices.Backward(t.hooks) {
		if err := h.Detach(); err != nil {
			return err
		}
	}
	t.hooks = nil
	if z, err := p.d.namespace(t.namespace); err == nil {
		if err := z.RestoreLocalSources(p.folder(t.namespace, name)); err != nil {
			return err
		}
		if t.ifindex != 0 {
			err = z.forgotten(name, t.ifindex)
		}
		if err != nil {
			return err
		}
	}
	if t.ifindex != 0 {
		if err := errors.Join(p.d.guards.Remove(t.guarded()), p.d.forgetDrops(t.guarded())); err != nil {
			return err
		}
	}
	p.d.keeper.forget(p.folder(t.namespace, name))
	return os.RemoveAll(p.folder(t.namespace, name))
}

// abandon forgets the ports of a namespace that was deleted with its devices. Their programs ended
// with the devices, or end with their pins. p.mu is held.
func (p *ports) abandon(namespace uint8) (err error) {
	for name, t := range p.byName {
		if t.namespace != namespace {
			continue
		}
		for _, h := range t.hooks {
			h.Close()
		}
		if t.ifindex != 0 {
			err = errors.Join(err, p.d.guards.Remove(t.guarded()), p.d.forgetDrops(t.guarded()))
		}
		t.hooks, t.ifindex = nil, 0
		p.d.keeper.forget(p.folder(namespace, name))
		err = errors.Join(err, os.RemoveAll(p.folder(namespace, name)))
	}
	return err
}

// Keys implements [datapath.Table].
func (p *ports) Keys(context.Context) iter.Seq2[datapath.PortName, error] {
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
func (p *ports) names() []datapath.PortName {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Sorted(maps.Keys(p.byName))
}

// Verify implements [datapath.Table].
func (p *ports) Verify(_ context.Context, name datapath.PortName) (bool, error) {
	return p.verify(name)
}

func (p *ports) verify(name datapath.PortName) (bool, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	t := p.byName[name]
	if t == nil || t.device == "" {
		return false, nil
	}
	z, err := p.d.namespace(t.namespace)
	if errors.Is(err, datapath.ErrAbsent) {
		return false, nil // the namespace was deleted
	}
	if err != nil {
		return false, err
	}
	if t.of != "" {
		return p.sharesStill(z, t), nil
	}
	if t.address.IsValid() && z.devices.nameByAddr(t.address) != t.device {
		return false, nil
	}
	link, err := z.Netlink.LinkByName(t.device)
	return err == nil && link.Attrs().Index == t.ifindex && t.attached() && t.fitsXDP(link), nil
}

func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.byName {
		for _, h := range t.hooks {
			h.Close()
		}
	}
}
