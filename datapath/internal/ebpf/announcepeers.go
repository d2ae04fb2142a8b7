// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

const (
	announcedByPeers announcers = "Peer"
)

// announcing sets the announcements of one source, as [announcer] does.
type announcing interface {
	set(who announcers, list []announcement) error
}

// announce enables hosts on the pods' bridge to find addresses of their network that are behind
// peers: the single addresses of pods that moved there. o.mu is held.
func (o *overlay) announce() error {
	var list []announcement
	for _, p := range o.peers {
		prefixes := slices.Collect(maps.Keys(p.prefixes)) // of an earlier run
		if p.configured {
			prefixes = p.spec.Prefixes
		}
		if p.owner&kernel.PrefixHere != 0 {
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
	if err := o.announcer.set(announcedByPeers, list); err != nil {
		return err
	}
	o.announced = append([]announcement{}, list...)
	return nil
}

// wantedBy returns which source (peers or NAT) wrote an entry that does not belong to a service.
func wantedBy(value kernel.Announced) announcers {
	if value.Flags&kernel.AnnouncedFor != 0 {
		return announcedByPeers
	}
	return announcedByNAT
}

// byBridge adds the entry of an address behind a peer, and returns the address if it is new.
func (a *announcer) byBridge(wanted map[kernel.AnnounceKey]kernel.Announced, z *namespace, n *onLink, x *announcement) (news []netip.Addr) {
	addr := x.prefix.Addr()
	if z.ID != a.d.overlay.switchNamespace() || !n.bridge || n.role == roleUplink || !n.prefix.Contains(addr) || n.local[addr] {
		return nil
	}
	key := announceKey(z, n.index, x.prefix)
	wanted[key] = kernel.Announced{Flags: kernel.AnnouncedFor}
	if before, ok := a.written[key]; !ok || before != wanted[key] {
		news = append(news, addr)
	}
	return news
}

// announces reports whether ll_announced still contains an address for the device on which it was
// announced.
func (a *announcer) announces(t *notice, addr netip.Addr) bool {
	for key, value := range a.written {
		p := netip.PrefixFrom(netip.AddrFrom16(key.Addr.Addr().As16()), int(key.PrefixLen)-64)
		if value.Flags&kernel.AnnouncedNot == 0 && int(key.Ifindex) == t.index && key.Netns == uint32(t.namespace.ID) && p.Contains(netip.AddrFrom16(addr.As16())) {
			return true
		}
	}
	return false
}
