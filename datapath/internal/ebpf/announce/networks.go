// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// announceMax is the maximum number of addresses of a prefix that are announced unsolicited.
const announceMax = 256

// alone adds the addresses that no other host has, in each namespace, except addresses of the node
// in any namespace. A prefix that covers a network of the namespace is skipped: other hosts are in
// it.
func (a *Announcer) alone(wanted map[kernel.AnnounceKey]kernel.Announced) {
	namespaces := a.netns()
	for _, z := range namespaces {
		networks := z.Networks()
		for _, list := range a.wanted {
			for _, x := range list {
				if !x.alone || slices.ContainsFunc(networks, func(n Network) bool {
					return x.prefix.Bits() <= n.Prefix.Bits() && x.prefix.Contains(n.Prefix.Addr())
				}) {
					continue
				}
				wanted[announceKey(z, 0, x.prefix)] = kernel.Announced{NatId: uint32(x.nat)}
				for _, own := range namespaces {
					for _, addr := range own.Addrs() {
						if x.prefix.Contains(addr) {
							wanted[announceKey(z, 0, netip.PrefixFrom(addr, addr.BitLen()))] = kernel.Announced{Flags: kernel.AnnouncedNot}
						}
					}
				}
			}
		}
	}
}

func announceKey(z Netns, index int, p netip.Prefix) kernel.AnnounceKey {
	return kernel.AnnounceKey{PrefixLen: uint32(64 + kernel.Bits128(p)), Ifindex: uint32(index), Netns: uint32(z.ID()), Addr: kernel.AddrOf(p.Masked().Addr())}
}

// byNetwork adds the entries of x for network n and returns the new addresses. A prefix that covers
// the whole network is skipped, since other hosts are in it; so are addresses of known neighbours.
func (a *Announcer) byNetwork(wanted map[kernel.AnnounceKey]kernel.Announced, z Netns, n *Network, x *announcement) (news []netip.Addr) {
	if x.uplinks {
		return a.byUplink(wanted, z, n, x)
	}
	if x.moved {
		return a.byBridge(wanted, z, n, x)
	}
	p := x.prefix
	if p.Addr().Is4() != n.Prefix.Addr().Is4() || p.Bits() <= n.Prefix.Bits() || !n.Prefix.Contains(p.Addr()) ||
		len(x.devices) > 0 && !slices.Contains(x.devices, n.Name) {
		return nil
	}
	var others []netip.Addr
	for _, other := range n.Neighbours {
		if p.Contains(other) {
			others = append(others, other)
		}
	}
	if p.IsSingleIP() && len(others) > 0 {
		return nil
	}
	key := announceKey(z, n.Index, p)
	_, before := a.written[key]
	wanted[key] = kernel.Announced{NatId: uint32(x.nat)}
	if !x.alone {
		wanted[announceKey(z, 0, p)] = kernel.Announced{NatId: uint32(x.nat)}
	}
	for _, other := range others {
		single := netip.PrefixFrom(other, other.BitLen())
		wanted[announceKey(z, n.Index, single)] = kernel.Announced{Flags: kernel.AnnouncedNot}
		wanted[announceKey(z, 0, single)] = kernel.Announced{Flags: kernel.AnnouncedNot}
	}
	for addr := p.Addr(); !before && p.Contains(addr) && len(news) < announceMax; addr = addr.Next() {
		if !slices.Contains(others, addr) && !n.Local[addr] {
			news = append(news, addr)
		}
	}
	return news
}

// byUplink adds the address of a service and returns it if it is new. If the network of an uplink
// contains the address, only such uplinks announce it; else all do, since a host that sends a
// request on a link expects the address on that link.
func (a *Announcer) byUplink(wanted map[kernel.AnnounceKey]kernel.Announced, z Netns, n *Network, x *announcement) (news []netip.Addr) {
	key := announceKey(z, n.Index, x.prefix)
	_, before := a.written[key]
	addr := x.prefix.Addr()
	switch {
	case n.Role == RoleOther, n.Role == RoleUnknown && !before, n.Local[addr]:
		return nil
	case n.Prefix.Contains(addr):
	case x.elsewhere:
		return nil
	}
	if _, twice := wanted[key]; twice {
		return nil // announced for another network of the device
	}
	wanted[key] = kernel.Announced{}
	if !before {
		news = append(news, addr)
	}
	return news
}

// byBridge adds the entry of an address behind a peer, and returns the address if it is new.
func (a *Announcer) byBridge(wanted map[kernel.AnnounceKey]kernel.Announced, z Netns, n *Network, x *announcement) (news []netip.Addr) {
	addr := x.prefix.Addr()
	if z.ID() != a.switchNetns || !n.Bridge || n.Role == RoleUplink || !n.Prefix.Contains(addr) || n.Local[addr] {
		return nil
	}
	key := announceKey(z, n.Index, x.prefix)
	wanted[key] = kernel.Announced{Flags: kernel.AnnouncedFor}
	if before, ok := a.written[key]; !ok || before != wanted[key] {
		news = append(news, addr)
	}
	return news
}

// placeOnUplinks records which service addresses are in the network of an uplink.
func placeOnUplinks(list []announcement, networks []Network) {
	for i := range list {
		list[i].elsewhere = slices.ContainsFunc(networks, func(n Network) bool {
			return n.Role != RoleOther && n.Prefix.Contains(list[i].prefix.Addr())
		})
	}
}
