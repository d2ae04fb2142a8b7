// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// endSuffix is appended to the name of a tunnel's device to name its other end. Packets that the
// kernel sends through the device arrive on the other end, where the data plane encapsulates them.
const endSuffix = datapath.TunnelEndSuffix

// tunnelMAC is the MAC address of all tunnel devices, and the destination of all inner Ethernet
// headers.
var tunnelMAC = net.HardwareAddr{0x02, 0x4c, 0x4c, 0, 0, 0x01}

const addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE

// tunnels is the table of tunnels, restricted to the kernel's own forwarding: the devices to which
// routes to peers lead.
type tunnels struct {
	n *Network

	// devices is held while a device is changed or verified: peers and tunnels are reconciled at
	// the same time, and half of a change would be mistaken for an external one. It is taken before
	// mu.
	devices sync.Mutex

	mu     sync.Mutex
	wanted map[datapath.TunnelName]datapath.Tunnel
	peers  map[datapath.PeerName]datapath.Peer
	outs   map[string]bool                   // devices of the host that lead to peers
	fits   map[datapath.PeerName]int         // MTU before encapsulation, as of signals.count = seen
	seen   uint64                            // signals.count at that time
	mtus   map[datapath.TunnelName]int       // of the devices, as last set
	keep   map[datapath.TunnelName]time.Time // until when the MTU of an earlier run is kept
}

func newTunnels(n *Network) *tunnels {
	return &tunnels{n: n, wanted: map[datapath.TunnelName]datapath.Tunnel{}, peers: map[datapath.PeerName]datapath.Peer{},
		outs: map[string]bool{}, fits: map[datapath.PeerName]int{}, mtus: map[datapath.TunnelName]int{}, keep: map[datapath.TunnelName]time.Time{}}
}

func (t *tunnels) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.wanted)
}

// names reports whether a tunnel depends on the device.
func (t *tunnels) names(device string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outs[device] {
		return true
	}
	for _, w := range t.wanted {
		if w.Device == device || w.Device+endSuffix == device {
			return true
		}
	}
	return false
}

// peer records a peer. p is nil if the peer was deleted.
func (t *tunnels) peer(name datapath.PeerName, p *datapath.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.fits, name)
	if p == nil {
		delete(t.peers, name)
	} else {
		t.peers[name] = *p
	}
}

func (t *tunnels) get(name datapath.TunnelName) (datapath.Tunnel, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.wanted[name]
	return w, ok
}

// Update implements [datapath.Table].
func (t *tunnels) Update(_ context.Context, name datapath.TunnelName, value datapath.Tunnel) error {
	t.devices.Lock()
	defer t.devices.Unlock()
	t.mu.Lock()
	if old := t.wanted[name]; old != value {
		clear(t.fits) // a different encapsulation may have a different overhead
	}
	t.wanted[name] = value
	t.mu.Unlock()
	s, err := t.n.space(true)
	if err != nil {
		return err
	}
	defer t.n.done(s)
	record := &tunnelRecord{Device: value.Device, Space: s.ID}
	if old := t.n.journal.tunnel(string(name)); old != nil && *old != *record {
		if err := t.remove(string(name), old); err != nil {
			return err
		}
	}
	if err := t.n.journal.note(line{Kind: kindTunnel, Name: string(name), Tunnel: record}); err != nil {
		return err
	}
	if err := t.adopt(s, name, value.Device); err != nil {
		return fmt.Errorf("device %q: %w", value.Device, err)
	}
	if err := t.ensure(s, value.Device); err != nil {
		return fmt.Errorf("device %q: %w", value.Device, err)
	}
	if err := s.DisableSCTPOffload(value.Device); err != nil {
		return fmt.Errorf("device %q: %w", value.Device, err)
	}
	_, err = t.setMTU(s, name, value, false)
	return err
}

// ensure ensures that the device and its other end exist.
func (t *tunnels) ensure(s *namespace.Handle, device string) error {
	outer, inner, err := ends(s, device)
	if err != nil {
		return err
	}
	if outer != nil && inner != nil {
		if whole, err := t.whole(s, outer, inner); whole || err != nil {
			return err
		}
	}
	for i, end := range []netlink.Link{outer, inner} {
		if end == nil {
			continue
		}
		// The MACs that make sets; our other devices, and other programs' devices, have different
		// ones.
		mac := []net.HardwareAddr{tunnelMAC, macOf(t.n.cfg, device+endSuffix)}[i]
		if end.Type() != "veth" || !bytes.Equal(end.Attrs().HardwareAddr, mac) && end.Attrs().Alias != mark(t.n.cfg) {
			return fmt.Errorf("%s already exists and does not belong to a Tunnel: delete it, or configure another device for the Tunnel", end.Attrs().Name)
		}
	}
	switch {
	case outer != nil && inner != nil && arePeers(outer, inner):
	default:
		for _, end := range []netlink.Link{outer, inner} {
			if end == nil {
				continue
			}
			if err := s.Netlink.LinkDel(end); err != nil && !namespace.IsAbsent(err) {
				return err
			}
		}
		if outer, inner, err = t.make(s, device); err != nil {
			return err
		}
	}
	return errors.Join(s.Netlink.LinkSetAlias(outer, mark(t.n.cfg)), s.Netlink.LinkSetAlias(inner, mark(t.n.cfg)),
		s.Netlink.LinkSetHardwareAddr(outer, tunnelMAC), s.Netlink.LinkSetHardwareAddr(inner, macOf(t.n.cfg, device+endSuffix)),
		s.Netlink.LinkSetARPOff(outer), s.Netlink.LinkSetARPOff(inner), addressless(s, outer), addressless(s, inner),
		s.Netlink.LinkSetUp(inner), s.Netlink.LinkSetUp(outer))
}

// whole reports whether both ends of a tunnel's device are configured as ensure does it.
func (t *tunnels) whole(s *namespace.Handle, outer, inner netlink.Link) (bool, error) {
	if !arePeers(outer, inner) {
		return false, nil
	}
	for _, end := range []netlink.Link{outer, inner} {
		a := end.Attrs()
		mac := tunnelMAC
		if end == inner {
			mac = macOf(t.n.cfg, a.Name)
		}
		if !isUp(end) || a.Alias != mark(t.n.cfg) || a.RawFlags&unix.IFF_NOARP == 0 || !bytes.Equal(a.HardwareAddr, mac) {
			return false, nil
		}
		local, err := linkLocal(s, end)
		if err != nil || len(local) > 0 {
			return false, err
		}
	}
	return true, nil
}

// linkLocal returns the link-local addresses that the kernel itself assigned to a device.
func linkLocal(s *namespace.Handle, l netlink.Link) ([]netip.Prefix, error) {
	all, err := s.Addresses(l)
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() }), err
}

// addressless prevents the kernel from assigning an IPv6 address to a device. The kernel forgets
// the mode if an MTU below 1280 disables IPv6 on the device.
func addressless(s *namespace.Handle, l netlink.Link) error {
	err := s.Netlink.LinkSetIP6AddrGenMode(l, addrGenNone)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel without IPv6
	}
	local, e := linkLocal(s, l)
	err = errors.Join(err, e)
	for _, p := range local {
		if e := s.RemoveAddress(l.Attrs().Index, p); e != nil && !namespace.IsAbsent(e) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

// ends returns the device and its other end; nil for an end that does not exist.
func ends(s *namespace.Handle, device string) (outer, inner netlink.Link, err error) {
	if outer, err = s.Link(device); err == nil {
		inner, err = s.Link(device + endSuffix)
	}
	return outer, inner, err
}

func (t *tunnels) make(s *namespace.Handle, device string) (outer, inner netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = device, tunnelMAC
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: device + endSuffix, PeerHardwareAddr: macOf(t.n.cfg, device+endSuffix)}
	if err := s.Netlink.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("make: %w", err)
	}
	outer, inner, err = ends(s, device)
	if err == nil && (outer == nil || inner == nil) {
		err = absent("device %q", device)
	}
	if err == nil {
		t.n.log.Info("device of a tunnel created", slog.String("device", device))
	}
	return outer, inner, err
}

// Delete implements [datapath.Table].
func (t *tunnels) Delete(_ context.Context, name datapath.TunnelName) error {
	t.devices.Lock()
	defer t.devices.Unlock()
	t.mu.Lock()
	delete(t.wanted, name)
	delete(t.mtus, name)
	delete(t.keep, name)
	t.mu.Unlock()
	record := t.n.journal.tunnel(string(name))
	if record == nil {
		return nil
	}
	return t.remove(string(name), record)
}

// remove removes the device, then its record.
func (t *tunnels) remove(name string, record *tunnelRecord) error {
	s, err := t.n.present(record.Space)
	if err != nil {
		return err
	}
	if s != nil {
		defer t.n.done(s)
		link, err := s.Link(record.Device)
		if err == nil && link != nil && isOurs(t.n.cfg, link) {
			err = s.Netlink.LinkDel(link)
		}
		if err != nil && !namespace.IsAbsent(err) {
			return fmt.Errorf("device %q: %w", record.Device, err)
		}
	}
	return t.n.journal.note(line{Kind: kindTunnel, Name: name})
}

// Keys implements [datapath.Table].
func (t *tunnels) Keys(context.Context) iter.Seq2[datapath.TunnelName, error] {
	return keysOf[datapath.TunnelName](namesOf(t.n.journal, t.n.journal.current.Tunnels))
}

// Verify implements [datapath.Table].
func (t *tunnels) Verify(_ context.Context, name datapath.TunnelName) (bool, error) {
	t.devices.Lock()
	defer t.devices.Unlock()
	value, ok := t.get(name)
	record := t.n.journal.tunnel(string(name))
	if !ok || record == nil {
		return false, nil
	}
	s, err := t.n.present(record.Space)
	if err != nil || s == nil {
		return false, err
	}
	defer t.n.done(s)
	outer, inner, err := ends(s, value.Device)
	if err != nil || outer == nil || inner == nil {
		return false, err
	}
	if whole, err := t.whole(s, outer, inner); !whole || err != nil {
		return false, err
	}
	return t.setMTU(s, name, value, true)
}
