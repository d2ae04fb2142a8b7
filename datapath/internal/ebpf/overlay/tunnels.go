// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Tunnels returns the table of tunnels.
func (o *Overlay) Tunnels() datapath.Table[datapath.TunnelName, datapath.Tunnel] {
	return tunnelTable{o}
}

// tunnelTable is the table of tunnels.
type tunnelTable struct{ *Overlay }

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
				o.options.Signal()
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
	o.leafMu.Lock()
	defer o.leafMu.Unlock()
	maps.DeleteFunc(o.devices, func(_ string, of datapath.TunnelName) bool { return of == name })
	o.devices[device] = name
	return nil
}

// locals returns the addresses of this node at which a tunnel ends.
func (o *Overlay) locals(t *tunnel) (all []netip.Addr, err error) {
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

func (o *Overlay) hostAddresses() ([]netlink.Addr, error) {
	host, err := o.options.Netns(false)
	if err != nil {
		return nil, err
	}
	addrs, err := dump.Retry(func() ([]netlink.Addr, error) { return host.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

// isLocal checks that a device of the host has the local address of a tunnel: otherwise no reply
// arrives.
func (o *Overlay) isLocal(t *tunnel) error {
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
func (o *Overlay) keys(t *tunnel) (map[kernel.TunnelKey]bool, error) {
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
func (o *Overlay) setKeys(t *tunnel) error {
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
		for _, device := range []string{o.options.HostDevice, o.options.SwitchDevice} {
			link := datapath.PortName(LinkPrefix + device)
			o.options.Ports.Unneed(link)
			inner = append(inner, link)
		}
	}
	for _, port := range inner {
		if err := o.options.Ports.Delete(ctx, port); err != nil {
			return err
		}
	}
	if err := o.tables.TunnelName.Delete(t.id); err != nil {
		return err
	}
	o.leafMu.Lock()
	maps.DeleteFunc(o.devices, func(_ string, of datapath.TunnelName) bool { return of == name })
	o.leafMu.Unlock()
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
			return false, fmt.Errorf("the host's addresses have changed: %w", datapath.ErrOutdated)
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
		if ok, err := o.options.Ports.Verify(ctx, port); !ok || err != nil {
			return false, err
		}
	}
	if t.crossing == 0 {
		return true, nil
	}
	return o.options.Ports.Holder(false, t.back) != "" && o.options.Ports.Holder(true, t.crossing) != "", nil
}
