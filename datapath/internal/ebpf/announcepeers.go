// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"
	"net/netip"
	"slices"
)

const (
	announcedByPeers announcers = "Peer"

	announcedFor = 0x2 // ANNOUNCED_F_FOR
)

// announce has stations of the pods' bridge find what is behind peers and they have on link:
// single addresses, of pods that moved there. o.mu is held.
func (o *overlay) announce() error {
	var list []announcement
	for _, p := range o.peers {
		prefixes := slices.Collect(maps.Keys(p.prefixes)) // of an earlier run
		if p.told {
			prefixes = p.spec.Prefixes
		}
		if p.owner&prefixHere != 0 {
			continue
		}
		for _, prefix := range prefixes {
			if prefix.IsSingleIP() {
				list = append(list, announcement{prefix: prefix, moved: true})
			}
		}
	}
	slices.SortFunc(list, func(a, b announcement) int { return a.prefix.Compare(b.prefix) })
	if o.announced != nil && slices.EqualFunc(o.announced, list, func(a, b announcement) bool { return a.prefix == b.prefix }) {
		return nil
	}
	if err := o.d.announcer.set(announcedByPeers, list); err != nil {
		return err
	}
	o.announced = append([]announcement{}, list...)
	return nil
}

// wantedBy returns whose an entry is that is no service's.
func wantedBy(value kernelAnnounced) announcers {
	if value.Flags&announcedFor != 0 {
		return announcedByPeers
	}
	return announcedByNAT
}

// byBridge enters an address behind a peer, and returns it where it is new.
func (a *announcer) byBridge(wanted map[kernelAnnounceKey]kernelAnnounced, z *zone, n *onLink, x *announcement) (news []netip.Addr) {
	addr := x.prefix.Addr()
	if z.id != a.d.overlay.switchZone() || !n.bridge || n.role == roleUplink || !n.prefix.Contains(addr) || n.local[addr] {
		return nil
	}
	key := announceKey(z, n.index, x.prefix)
	wanted[key] = kernelAnnounced{Flags: announcedFor}
	if before, ok := a.written[key]; !ok || before != wanted[key] {
		news = append(news, addr)
	}
	return news
}

// announces says whether an address that neighbours were told of is announced there still.
func (a *announcer) announces(t *told, addr netip.Addr) bool {
	for key, value := range a.written {
		p := netip.PrefixFrom(netip.AddrFrom16(key.Addr.addr().As16()), int(key.PrefixLen)-64)
		if value.Flags&announcedNot == 0 && int(key.Ifindex) == t.index && key.Zone == uint32(t.zone.id) && p.Contains(netip.AddrFrom16(addr.As16())) {
			return true
		}
	}
	return false
}
