// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// source identifies a source of announcements.
type source string

const (
	sourceNAT      source = "NAT"
	sourcePeers    source = "Peer"
	sourceServices source = "Service"
)

// announcement is a prefix for which the node answers ARP and NDP requests although no device of
// the node has it.
type announcement struct {
	prefix  netip.Prefix
	devices []string // devices that may announce it, if they are in its network; empty: all
	nat     uint16   // id of the NAT rule; 0: none
	// uplinks: the address belongs to a service. Only uplinks announce it, even if it is not in
	// their network, and the service handles the packets for it.
	uplinks   bool
	elsewhere bool // with uplinks: an uplink is in its network, so the others do not answer
	// alone: no other host has the address, announced or not. A packet for it that belongs to no
	// connection is dropped.
	alone bool
	// moved: the address is behind a peer. Requests from hosts on bridges of the switch in its
	// network are answered, even if another host was known to have the address there, and packets
	// to it are routed.
	moved bool
}

// SetNAT replaces the announcements of NAT rules. ids are the ids of the rules in the keys of maps.
func (a *Announcer) SetNAT(rules map[datapath.NATName]datapath.NAT, ids map[datapath.NATName]uint16) error {
	return a.set(sourceNAT, natAnnouncements(rules, ids))
}

// natAnnouncements returns the announcements of NAT rules: the addresses to which SNAT translates,
// and the destinations of DNAT that are single addresses or mapped one to one. The addresses of a
// rule that is limited to some devices are announced only there, and the addresses of an
// Unannounced rule not at all.
func natAnnouncements(rules map[datapath.NATName]datapath.NAT, ids map[datapath.NATName]uint16) (list []announcement) {
	for name, v := range rules {
		if v.Unannounced {
			continue
		}
		switch v.Type {
		case datapath.SNAT:
			for _, p := range v.Addresses {
				list = append(list, announcement{prefix: p.Masked(), devices: v.Match.Out, nat: ids[name], alone: true})
			}
		case datapath.DNAT:
			for _, p := range v.Match.Destination {
				if v.OneToOne || p.IsSingleIP() {
					list = append(list, announcement{prefix: p.Masked(), devices: v.Match.In, nat: ids[name]})
				}
			}
		}
	}
	return list
}

// SetPeers replaces the addresses behind peers. Hosts on bridges of the switch find those that are
// in their network.
func (a *Announcer) SetPeers(addrs []netip.Addr) error {
	list := make([]announcement, len(addrs))
	for i, addr := range addrs {
		list[i] = announcement{prefix: netip.PrefixFrom(addr, addr.BitLen()), moved: true}
	}
	return a.set(sourcePeers, list)
}

// Services announces the addresses of services.
type Services struct{ a *Announcer }

// Services returns the part of the announcer for services.
func (a *Announcer) Services() Services { return Services{a} }

// Announce replaces the announced addresses.
func (s Services) Announce(addrs []netip.Addr) error {
	return s.a.set(sourceServices, onAllUplinks(addrs))
}

// Seed records the addresses that an earlier run announced, without changing anything.
func (s Services) Seed(addrs []netip.Addr) { s.a.seed(sourceServices, onAllUplinks(addrs)) }

// Announced returns the addresses that an earlier run announced.
func (s Services) Announced() map[netip.Addr]bool {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	return s.a.serviceAddrs()
}

func onAllUplinks(addrs []netip.Addr) []announcement {
	list := make([]announcement, len(addrs))
	for i, addr := range addrs {
		list[i] = announcement{prefix: netip.PrefixFrom(addr, addr.BitLen()), uplinks: true}
	}
	return list
}

// AnnouncesService reports whether the address of a service is announced on a device.
func (a *Announcer) AnnouncesService(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.served == nil {
		a.served = a.serviceAddrs()
	}
	return a.served[addr]
}

// serviceAddrs returns the addresses of services that are announced. a.mu is held.
func (a *Announcer) serviceAddrs() map[netip.Addr]bool {
	addrs := make(map[netip.Addr]bool)
	for key, value := range a.written {
		if isServices(key, value) {
			addrs[key.Addr.Addr()] = true
		}
	}
	return addrs
}

func isServices(key kernel.AnnounceKey, value kernel.Announced) bool {
	return key.Ifindex != 0 && value == kernel.Announced{}
}

// wantedBy returns which source (peers or NAT) wrote an entry that does not belong to a service.
func wantedBy(value kernel.Announced) source {
	if value.Flags&kernel.AnnouncedFor != 0 {
		return sourcePeers
	}
	return sourceNAT
}
