// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// ByName returns the device with a name, or nil.
func (v *Devices) ByName(name string) netlink.Link {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range v.links {
		if l.Attrs().Name == name {
			return l
		}
	}
	return nil
}

// NameByAddr returns the name of the device that has an address, or "".
func (v *Devices) NameByAddr(addr netip.Addr) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	found := ""
	for index, list := range v.addrs {
		has := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == addr })
		if l := v.links[index]; has && l != nil && (found == "" || l.Attrs().Name < found) {
			found = l.Attrs().Name
		}
	}
	return found
}

// Connected returns the networks of the addresses of each device that is up, to which the kernel
// has connected routes, in ascending order and without link-local ones.
func (v *Devices) Connected() map[string][]netip.Prefix {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[string][]netip.Prefix{}
	for index, list := range v.addrs {
		l := v.links[index]
		if l == nil || index == hook.LoopbackIndex || l.Attrs().RawFlags&unix.IFF_UP == 0 {
			continue
		}
		var of []netip.Prefix
		for _, p := range list {
			if !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() {
				of = append(of, p.Masked())
			}
		}
		if len(of) > 0 {
			slices.SortFunc(of, netip.Prefix.Compare)
			all[l.Attrs().Name] = slices.Compact(of)
		}
	}
	return all
}

// AppendAddrs appends the addresses of all devices, except loopback and link-local ones.
func (v *Devices) AppendAddrs(all []netip.Addr) []netip.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, list := range v.addrs {
		for _, p := range list {
			if a := p.Addr().Unmap().WithZone(""); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				all = append(all, a)
			}
		}
	}
	return all
}

// NameOf returns the name of the device with index, or the index as text.
func (v *Devices) NameOf(index int) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.links[index]; l != nil {
		return l.Attrs().Name
	}
	return strconv.Itoa(index)
}

// Prefixes returns the addresses of a device, with their networks.
func (v *Devices) Prefixes(index int) []netip.Prefix {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.addrs[index]
}

// Cause returns the device that prevents link from carrying packets, and the state of that device:
// a VLAN has no carrier while the device below it is down. If link can carry packets, Cause returns
// link itself.
func (v *Devices) Cause(link netlink.Link) (name string, state datapath.LinkState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	const mostBelow = 8 // VLANs on VLANs
	for range mostBelow {
		a := link.Attrs()
		below := v.links[a.ParentIndex]
		if device.LinkState(a) != datapath.LinkNoCarrier || a.NetNsID >= 0 || below == nil || device.LinkState(below.Attrs()) == datapath.LinkUp {
			break
		}
		link = below
	}
	return link.Attrs().Name, device.LinkState(link.Attrs())
}

// DownTo returns a device that is down and whose network contains addr. If no such device exists,
// it returns the one down device with our programs or with an address of addr's family, or "" if
// there is not exactly one.
func (v *Devices) DownTo(addr netip.Addr) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var candidates []string
	for index, l := range v.links {
		if device.LinkState(l.Attrs()) != datapath.LinkDown || index == hook.LoopbackIndex {
			continue
		}
		if slices.ContainsFunc(v.addrs[index], func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return l.Attrs().Name
		}
		// The kernel removes IPv6 addresses when a link goes down, so any device with our programs
		// is a candidate.
		if v.ports[index] || slices.ContainsFunc(v.addrs[index], func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() }) {
			candidates = append(candidates, l.Attrs().Name)
		}
	}
	if len(candidates) == 1 {
		return candidates[0]
	}
	return ""
}

// ByIndex returns the device with an index, or nil.
func (v *Devices) ByIndex(index int) netlink.Link {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.links[index]
}

// NeighbourState reports whether the link-layer address of a neighbour is known, and whether the
// kernel has given up resolving it.
func (v *Devices) NeighbourState(index int, addr netip.Addr) (resolved, failed bool) {
	n := neighbour{index, addr}
	v.mu.Lock()
	defer v.mu.Unlock()
	_, resolved = v.neighbours[n]
	return resolved, v.failed[n]
}

// noteFailed records whether the kernel has given up resolving a neighbour. v.mu is held.
func (v *Devices) noteFailed(n neighbour, u *netlink.NeighUpdate) {
	if u.Type != unix.RTM_DELNEIGH && u.State&unix.NUD_FAILED != 0 {
		v.failed[n] = true
	} else if u.State&unix.NUD_INCOMPLETE == 0 || u.Type == unix.RTM_DELNEIGH {
		delete(v.failed, n)
	}
}
