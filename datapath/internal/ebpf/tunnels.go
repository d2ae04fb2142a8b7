// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// innerPrefix is the prefix of the names of ports without an Interface.
const innerPrefix = "tunnel "

// linkPrefix is the prefix of the names of the ports at both ends of the link between host and
// switch, which tunnels need.
const linkPrefix = innerPrefix + "link "

// isInner reports whether a port exists for a tunnel, not for an Interface.
func isInner(name datapath.PortName) bool { return strings.HasPrefix(string(name), innerPrefix) }

// innerPorts returns the names of a tunnel's own ports.
func innerPorts(name datapath.TunnelName) (device, end datapath.PortName) {
	return datapath.PortName(innerPrefix + string(name)), datapath.PortName(innerPrefix + string(name) + " end")
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
		h.moved(folder)
	}
	p.byName[to] = t
	delete(p.byName, from)
	return nil
}

// tunnelTable is the table of tunnels.
type tunnelTable struct{ *overlay }

// Update implements [datapath.Table].
func (o tunnelTable) Update(ctx context.Context, name datapath.TunnelName, value datapath.Tunnel) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tunnels[name]
	if t == nil {
		t = &tunnel{keys: map[kernel.TunnelKey]bool{}}
	}
	renew := !t.whole || t.spec != value
	if err := o.name(name, t, value.Device); err != nil {
		return err
	}
	t.spec, t.configured, t.whole, t.changes = value, true, false, o.changes.Load()
	o.tunnels[name] = t
	if err := o.attach(ctx, name, t); err != nil {
		return err
	}
	if err := o.setKeys(t); err != nil {
		return err
	}
	t.whole = true
	for _, peer := range slices.Sorted(maps.Keys(o.peers)) {
		if p := o.peers[peer]; p.configured && p.spec.Tunnel == name && (renew || p.index == 0) {
			// The peer reports the error.
			if o.put(peer, p) != nil {
				p.changes = 0
				o.signal()
			}
		}
	}
	return errors.Join(o.finish(), o.isLocal(t))
}

// name assigns an id to a tunnel, and writes its name.
func (o tunnelTable) name(name datapath.TunnelName, t *tunnel, device string) (err error) {
	if t.id == 0 {
		if t.id, err = o.newTunnelID(); err != nil {
			return err
		}
	}
	k, err := nameOfPeer(string(name), device)
	if err == nil {
		err = o.tables.TunnelName.Put(t.id, k)
	}
	if err != nil {
		return err
	}
	o.namesMu.Lock()
	defer o.namesMu.Unlock()
	maps.DeleteFunc(o.devices, func(_ string, of datapath.TunnelName) bool { return of == name })
	o.devices[device] = name
	return nil
}

// attach attaches the programs to the devices on the path of the tunnel's packets.
func (o tunnelTable) attach(ctx context.Context, name datapath.TunnelName, t *tunnel) (err error) {
	device, end := innerPorts(name)
	split := o.switchNamespace() == netnsSwitch
	if err := o.ports.Update(ctx, device, datapath.Port{Device: t.spec.Device, Switch: true, Role: datapath.RoleTunnel}); err != nil {
		return err
	}
	if err := o.ports.Update(ctx, end, datapath.Port{Device: t.spec.Device + endSuffix, Switch: true, Role: datapath.RoleTunnel}); err != nil {
		return err
	}
	if t.device, err = o.indexOf(o.switchNamespace(), t.spec.Device); err != nil {
		return err
	}
	t.crossing, t.back = 0, 0
	if !split {
		return nil
	}
	c := o.config
	if t.back, err = o.hold(ctx, netnsHost, c.HostDevice); err == nil {
		t.crossing, err = o.hold(ctx, netnsSwitch, c.SwitchDevice)
	}
	return err
}

// hold attaches the programs to an end of the link between host and switch, unless it is already a
// port.
func (o *overlay) hold(ctx context.Context, namespace uint8, device string) (index int, err error) {
	if device == "" {
		return 0, fmt.Errorf("no link exists between host and switch: set switch.hostDevice and switch.switchDevice, or switch.namespace to host: %w", datapath.ErrUnsupported)
	}
	if index, err = o.indexOf(namespace, device); err != nil {
		return 0, err
	}
	inner := datapath.PortName(linkPrefix + device)
	o.ports.need(inner, namespace, index)
	isHeld := func() bool {
		o.ports.mu.RLock()
		defer o.ports.mu.RUnlock()
		holder := o.ports.holder(namespace, index)
		return holder != "" && !isInner(holder)
	}
	if isHeld() {
		return index, nil
	}
	err = o.ports.Update(ctx, inner, datapath.Port{Device: device, Switch: namespace == netnsSwitch, Role: datapath.RoleHost})
	if err != nil && isHeld() {
		return index, nil // another goroutine was faster
	}
	return index, err
}

func (o *overlay) indexOf(namespace uint8, device string) (int, error) {
	z, err := o.namespace(namespace)
	if err != nil {
		return 0, err
	}
	link, err := z.nl.LinkByName(device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		err = datapath.ErrAbsent
	}
	if err != nil {
		return 0, fmt.Errorf("device %q: %w", device, err)
	}
	return link.Attrs().Index, nil
}

// locals returns the addresses of this node at which a tunnel ends.
func (o *overlay) locals(t *tunnel) (all []netip.Addr, err error) {
	if t.spec.Local.IsValid() {
		return []netip.Addr{t.spec.Local}, nil
	}
	addrs, err := o.hostAddresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Scope == unix.RT_SCOPE_UNIVERSE && !ip.IsLoopback() {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}

func (o *overlay) hostAddresses() ([]netlink.Addr, error) {
	z, err := o.namespace(netnsHost)
	if err != nil {
		return nil, err
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return z.nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

// isLocal checks that a device of the host has the local address of a tunnel: otherwise no reply
// arrives.
func (o *overlay) isLocal(t *tunnel) error {
	if !t.spec.Local.IsValid() {
		return nil
	}
	addrs, err := o.hostAddresses()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == t.spec.Local {
			return nil
		}
	}
	return fmt.Errorf("address %s of the host (spec.local): %w", t.spec.Local, datapath.ErrAbsent)
}

// keys returns the keys by which packets of the tunnel are recognized.
func (o *overlay) keys(t *tunnel) (map[kernel.TunnelKey]bool, error) {
	locals, err := o.locals(t)
	if err != nil {
		return nil, err
	}
	wanted := make(map[kernel.TunnelKey]bool, len(locals))
	for _, a := range locals {
		k := kernel.TunnelKey{Local: kernel.AddrOf(a), Vni: t.spec.VNI, Proto: unix.IPPROTO_UDP, Port: kernel.Swap16(t.spec.Port)}
		if t.spec.Type == datapath.TunnelGRE {
			k.Proto, k.Port = unix.IPPROTO_GRE, 0
			if t.spec.VNI != 0 {
				k.Keyed = 1
			}
		}
		wanted[k] = true
	}
	return wanted, nil
}

// setKeys writes the keys of a tunnel.
func (o *overlay) setKeys(t *tunnel) error {
	wanted, err := o.keys(t)
	if err != nil {
		return err
	}
	if err := o.checkPorts(t, wanted); err != nil {
		return err
	}
	for k := range wanted {
		value := kernel.Tunnel{Id: t.id, Type: kernel.TunnelTypes[t.spec.Type]}
		t.keys[k] = true // also if this fails: it may be in the kernel
		if err := o.tables.Tunnel.Put(k, value); err != nil {
			return kernel.TableError("tunnels", err)
		}
	}
	for k := range t.keys {
		if !wanted[k] {
			if err := o.tables.Tunnel.Delete(k); err != nil {
				return err
			}
			delete(t.keys, k)
		}
	}
	return o.setGate()
}

// Delete implements [datapath.Table].
func (o tunnelTable) Delete(ctx context.Context, name datapath.TunnelName) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tunnels[name]
	if t == nil {
		return nil
	}
	for k := range t.keys {
		if err := o.tables.Tunnel.Delete(k); err != nil {
			return err
		}
		delete(t.keys, k)
	}
	t.whole = false // in case this fails halfway, and the tunnel is updated again
	if err := o.setGate(); err != nil {
		return err
	}
	for peer, p := range o.peers {
		if p.entry.TunnelId == t.id {
			if err := o.clear(p); err != nil {
				return fmt.Errorf("peer %q: %w", peer, err)
			}
		}
	}
	if err := o.finish(); err != nil {
		return err
	}
	device, end := innerPorts(name)
	inner := []datapath.PortName{device, end}
	if len(o.tunnels) == 1 {
		for _, device := range []string{o.config.HostDevice, o.config.SwitchDevice} {
			link := datapath.PortName(linkPrefix + device)
			o.ports.unneed(link)
			inner = append(inner, link)
		}
	}
	for _, port := range inner {
		if err := o.ports.Delete(ctx, port); err != nil {
			return err
		}
	}
	if err := o.tables.TunnelName.Delete(t.id); err != nil {
		return err
	}
	o.namesMu.Lock()
	maps.DeleteFunc(o.devices, func(_ string, of datapath.TunnelName) bool { return of == name })
	o.namesMu.Unlock()
	delete(o.tunnels, name)
	return nil
}

// Keys implements [datapath.Table].
func (o tunnelTable) Keys(context.Context) iter.Seq2[datapath.TunnelName, error] {
	o.mu.Lock()
	defer o.mu.Unlock()
	return eachName(slices.Sorted(maps.Keys(o.tunnels)))
}

func eachName[K any](names []K) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (o tunnelTable) Verify(ctx context.Context, name datapath.TunnelName) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tunnels[name]
	if t == nil || !t.configured {
		return false, nil
	}
	if changes := o.changes.Load(); t.changes != changes {
		keys, err := o.keys(t)
		if err != nil {
			return false, err
		}
		if !maps.Equal(keys, t.keys) {
			return false, fmt.Errorf("the host has other addresses: %w", datapath.ErrOutdated)
		}
		if err := o.isLocal(t); errors.Is(err, datapath.ErrAbsent) {
			return false, fmt.Errorf("%w (%w)", err, datapath.ErrOutdated)
		} else if err != nil {
			return false, err
		}
		t.changes = changes
	}
	device, end := innerPorts(name)
	for _, port := range []datapath.PortName{device, end} {
		if ok, err := o.ports.Verify(ctx, port); !ok || err != nil {
			return false, err
		}
	}
	if t.crossing == 0 {
		return true, nil
	}
	o.ports.mu.RLock()
	defer o.ports.mu.RUnlock()
	return o.ports.holder(netnsHost, t.back) != "" && o.ports.holder(netnsSwitch, t.crossing) != "", nil
}
