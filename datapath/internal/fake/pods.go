// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// PodLinks keeps the pod links in memory. It is safe for concurrent use.
type PodLinks struct {
	faults *faults

	mu        sync.Mutex
	links     map[string]PodState
	foreign   []string
	listeners map[Socket][]netip.Addr
}

// PodState is the current state of a pod's link.
type PodState struct {
	datapath.PodLink
	Open bool
}

var _ datapath.PodLinks = (*PodLinks)(nil)

// NewPodLinks returns an empty set of links. It uses only the options for faults.
func NewPodLinks(o Options) *PodLinks {
	return &PodLinks{faults: newFaults(o.Faults, o.Seed), links: map[string]PodState{}, listeners: map[Socket][]netip.Addr{}}
}

// SetForeign sets which of other programs' devices exist.
func (f *PodLinks) SetForeign(devices ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign = devices
}

// Make implements [datapath.PodLinks].
func (f *PodLinks) Make(ctx context.Context, l *datapath.PodLink) error {
	if err := f.inject("make"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.foreign, l.Device) {
		return fmt.Errorf("device %q %w", l.Device, datapath.ErrNameTaken)
	}
	for _, other := range f.links {
		if other.Netns == l.Netns && other.IfName == l.IfName {
			return fmt.Errorf("device %q of the pod: %w", l.IfName, datapath.ErrExists)
		}
	}
	if l.MTU == 0 {
		l.MTU = 1500
	}
	l.Routes = slices.DeleteFunc(slices.Clone(l.Routes), func(r datapath.PodRoute) bool { return r.Spare && f.leadsTo(l.Netns, r.Prefix) })
	f.links[l.Device] = PodState{PodLink: *l}
	return ctx.Err()
}

// leadsTo reports whether a pod has a route to a prefix. f.mu is held.
func (f *PodLinks) leadsTo(pod string, prefix netip.Prefix) bool {
	for _, l := range f.links {
		if l.Netns == pod && slices.ContainsFunc(l.Routes, func(r datapath.PodRoute) bool { return r.Prefix == prefix }) {
			return true
		}
	}
	return false
}

// Open implements [datapath.PodLinks].
func (f *PodLinks) Open(_ context.Context, l *datapath.PodLink) error {
	if err := f.inject("open"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.links[l.Device]
	if !ok {
		return fmt.Errorf("device %q: %w", l.Device, datapath.ErrAbsent)
	}
	s.Open = true
	f.links[l.Device] = s
	return nil
}

// Shut implements [datapath.PodLinks].
func (f *PodLinks) Shut(_ context.Context, device string) error {
	if err := f.inject("shut"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.links[device]; ok {
		s.Open = false
		f.links[device] = s
	}
	return nil
}

// Check implements [datapath.PodLinks].
func (f *PodLinks) Check(_ context.Context, l *datapath.PodLink) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.links[l.Device]; !ok || !s.Open {
		return fmt.Errorf("device %q: %w", l.Device, datapath.ErrAbsent)
	}
	return nil
}

// Delete implements [datapath.PodLinks].
func (f *PodLinks) Delete(_ context.Context, device string) error {
	if err := f.inject("delete"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, device)
	return nil
}

// Devices implements [datapath.PodLinks].
func (f *PodLinks) Devices(context.Context) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	devices := map[string]string{}
	for name, l := range f.links {
		devices[name] = l.Label
	}
	return devices, nil
}

// NodeAddresses implements [datapath.PodLinks].
func (f *PodLinks) NodeAddresses(context.Context) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("192.0.2.17"), netip.MustParseAddr("2001:db8::17")}, nil
}

// CheckMAC implements [datapath.PodLinks]: only the MACs of tunnels are taken.
func (f *PodLinks) CheckMAC(_ context.Context, mac net.HardwareAddr) error {
	if strings.HasPrefix(mac.String(), "02:4c:4c:00:00:") {
		return fmt.Errorf("MAC %s %w", mac, datapath.ErrMACTaken)
	}
	return nil
}

// IsLocal implements [datapath.PodLinks].
func (f *PodLinks) IsLocal(ctx context.Context, a netip.Addr) (bool, error) {
	all, err := f.NodeAddresses(ctx)
	return a.IsLoopback() || slices.Contains(all, a), err
}

// Listeners implements [datapath.PodLinks].
func (f *PodLinks) Listeners(_ context.Context, p datapath.Protocol, port uint16) ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listeners[Socket{p, port}], nil
}

// Socket is a port of the node on which something listens.
type Socket struct {
	Protocol datapath.Protocol
	Port     uint16
}

// Listen simulates a listening socket on a port at these addresses.
func (f *PodLinks) Listen(p datapath.Protocol, port uint16, addrs ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners[Socket{p, port}] = addrs
}

// Links returns all links by device.
func (f *PodLinks) Links() map[string]PodState {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]PodState{}
	for name, l := range f.links {
		all[name] = l
	}
	return all
}

// SetFaults sets the share of calls that fail.
func (f *PodLinks) SetFaults(share float64) { f.faults.set(share) }

func (f *PodLinks) inject(what string) error {
	if fails, _ := f.faults.next(); fails {
		return fmt.Errorf("%s the link of a pod: %w", what, ErrInjected)
	}
	return nil
}
