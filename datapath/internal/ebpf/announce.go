// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/gratuitous"
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

// announcers identifies a source of announcements.
type announcers string

const announcedByNAT announcers = "NAT"

// announcer maintains ll_announced, the addresses for which the programs answer requests.
type announcer struct {
	d *DataPlane

	mu      sync.Mutex
	wanted  map[announcers][]announcement
	said    map[announcers]bool // sources that called set in this run
	written map[kernel.AnnounceKey]kernel.Announced
	served  map[netip.Addr]bool // addresses of services in written; nil: to be rebuilt
	again   []notice            // to be announced a second time
	table   *bpfmap.Map[kernel.AnnounceKey, kernel.Announced]

	failed error         // of the last attempt to write the table
	pause  time.Duration // before the next attempt
	retry  time.Time     // of the next attempt
	unsent []notice      // addresses written by failed attempts
}

// notice is a device with the addresses that were announced on it.
type notice struct {
	due       time.Time
	namespace *namespace
	index     int
	mac       [6]byte
	addrs     []netip.Addr
}

const (
	// announcePause is ANNOUNCE_INTERVAL of RFC 5227.
	announcePause = 2 * time.Second
	// announceMax is the maximum number of addresses of a prefix that are announced unsolicited.
	announceMax = 256

	// After each failed attempt to write the table, the pause doubles, from announceRetry up to
	// announceRetryMax.
	announceRetry    = time.Second
	announceRetryMax = 30 * time.Second
)

const announcedByServices announcers = "Service"

// serviceAnnouncer announces addresses of services: [lb.Announcer].
type serviceAnnouncer struct{ *announcer }

// Announce implements [lb.Announcer].
func (a serviceAnnouncer) Announce(addrs []netip.Addr) error {
	return a.set(announcedByServices, onAllUplinks(addrs))
}

// Seed implements [lb.Announcer].
func (a serviceAnnouncer) Seed(addrs []netip.Addr) { a.seed(announcedByServices, onAllUplinks(addrs)) }

// Announced implements [lb.Announcer].
func (a serviceAnnouncer) Announced() map[netip.Addr]bool { return a.byServices() }

func onAllUplinks(addrs []netip.Addr) []announcement {
	list := make([]announcement, len(addrs))
	for i, addr := range addrs {
		list[i] = announcement{prefix: netip.PrefixFrom(addr, addr.BitLen()), uplinks: true}
	}
	return list
}

func newAnnouncer(d *DataPlane) (*announcer, error) {
	a := &announcer{d: d, wanted: make(map[announcers][]announcement), said: make(map[announcers]bool), written: make(map[kernel.AnnounceKey]kernel.Announced), table: &d.tables.Announced}
	var key kernel.AnnounceKey
	var value kernel.Announced
	it := a.table.Iterate()
	for it.Next(&key, &value) {
		a.written[key] = value
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("adopt announcements of an earlier run: %w", err)
	}
	return a, nil
}

// set replaces the announcements of one source.
func (a *announcer) set(who announcers, list []announcement) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[who], a.said[who] = list, true
	return a.apply()
}

// seed sets the announcements of one source from an earlier run, so that its entries stay.
func (a *announcer) seed(who announcers, list []announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[who] = list
}

// byServices returns the service addresses that an earlier run announced.
func (a *announcer) byServices() map[netip.Addr]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	addrs := make(map[netip.Addr]bool)
	for key, value := range a.written {
		if isServices(key, value) {
			addrs[key.Addr.Addr()] = true
		}
	}
	return addrs
}

// Announces implements [datapath.Telemetry].
func (t *telemetry) Announces(addr netip.Addr) bool {
	a := t.d.announcer
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.served == nil {
		a.served = make(map[netip.Addr]bool)
		for key, value := range a.written {
			if isServices(key, value) {
				a.served[key.Addr.Addr()] = true
			}
		}
	}
	return a.served[addr]
}

func isServices(key kernel.AnnounceKey, value kernel.Announced) bool {
	return key.Ifindex != 0 && value == kernel.Announced{}
}

// follow updates the announcements to match the current devices.
func (a *announcer) follow() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.apply()
}

// apply writes the wanted entries and announces new addresses. If that fails, maintain retries.
// a.mu is held.
func (a *announcer) apply() error {
	if a.failed = a.update(); a.failed == nil {
		a.pause = 0
		return nil
	}
	a.pause = min(max(2*a.pause, announceRetry), announceRetryMax)
	a.retry = time.Now().Add(a.pause)
	return a.failed
}

// update writes the wanted entries and announces new addresses. Entries of an earlier run stay
// until their source has called set.
func (a *announcer) update() error {
	if len(a.said) == 0 {
		return nil
	}
	wanted := make(map[kernel.AnnounceKey]kernel.Announced)
	var news []notice
	for _, z := range a.d.openNamespaces() {
		if z.devices == nil {
			continue
		}
		networks := z.devices.networks()
		placeOnUplinks(a.wanted[announcedByServices], networks)
		for _, n := range networks {
			t := notice{due: time.Now().Add(announcePause), namespace: z, index: n.index, mac: n.mac}
			for _, list := range a.wanted {
				for i := range list {
					t.addrs = append(t.addrs, a.byNetwork(wanted, z, &n, &list[i])...)
				}
			}
			if len(t.addrs) > 0 {
				news = append(news, t)
			}
		}
	}
	a.alone(wanted)
	if err := a.write(wanted); err != nil {
		a.unsent = a.stillAnnounced(append(a.unsent, news...)) // the next attempt finds the others
		return err
	}
	news = append(news, a.stillAnnounced(a.unsent)...)
	a.unsent = nil
	for i := range news {
		a.send(&news[i])
	}
	a.again = append(a.again, news...)
	return nil
}

// alone adds the addresses that no other host has, in each namespace, except addresses of the node
// in any namespace. A prefix that covers a network of the namespace is skipped: other hosts are in
// it.
func (a *announcer) alone(wanted map[kernel.AnnounceKey]kernel.Announced) {
	namespaces := a.d.openNamespaces()
	for _, z := range namespaces {
		networks := z.devices.networks()
		for _, list := range a.wanted {
			for _, x := range list {
				if !x.alone || slices.ContainsFunc(networks, func(n onLink) bool {
					return x.prefix.Bits() <= n.prefix.Bits() && x.prefix.Contains(n.prefix.Addr())
				}) {
					continue
				}
				wanted[announceKey(z, 0, x.prefix)] = kernel.Announced{NatId: uint32(x.nat)}
				for _, own := range namespaces {
					for _, addr := range own.devices.own() {
						if x.prefix.Contains(addr) {
							wanted[announceKey(z, 0, netip.PrefixFrom(addr, addr.BitLen()))] = kernel.Announced{Flags: kernel.AnnouncedNot}
						}
					}
				}
			}
		}
	}
}

func announceKey(z *namespace, index int, p netip.Prefix) kernel.AnnounceKey {
	return kernel.AnnounceKey{PrefixLen: uint32(64 + kernel.Bits128(p)), Ifindex: uint32(index), Netns: uint32(z.ID), Addr: kernel.AddrOf(p.Masked().Addr())}
}

// byNetwork adds the entries of x for network n and returns the new addresses. A prefix that covers
// the whole network is skipped, since other hosts are in it; so are addresses of known neighbours.
func (a *announcer) byNetwork(wanted map[kernel.AnnounceKey]kernel.Announced, z *namespace, n *onLink, x *announcement) (news []netip.Addr) {
	if x.uplinks {
		return a.byUplink(wanted, z, n, x)
	}
	if x.moved {
		return a.byBridge(wanted, z, n, x)
	}
	p := x.prefix
	if p.Addr().Is4() != n.prefix.Addr().Is4() || p.Bits() <= n.prefix.Bits() || !n.prefix.Contains(p.Addr()) ||
		len(x.devices) > 0 && !slices.Contains(x.devices, n.name) {
		return nil
	}
	var others []netip.Addr
	for _, other := range n.neighbours {
		if p.Contains(other) {
			others = append(others, other)
		}
	}
	if p.IsSingleIP() && len(others) > 0 {
		return nil
	}
	key := announceKey(z, n.index, p)
	_, before := a.written[key]
	wanted[key] = kernel.Announced{NatId: uint32(x.nat)}
	if !x.alone {
		wanted[announceKey(z, 0, p)] = kernel.Announced{NatId: uint32(x.nat)}
	}
	for _, other := range others {
		single := netip.PrefixFrom(other, other.BitLen())
		wanted[announceKey(z, n.index, single)] = kernel.Announced{Flags: kernel.AnnouncedNot}
		wanted[announceKey(z, 0, single)] = kernel.Announced{Flags: kernel.AnnouncedNot}
	}
	for addr := p.Addr(); !before && p.Contains(addr) && len(news) < announceMax; addr = addr.Next() {
		if !slices.Contains(others, addr) && !n.local[addr] {
			news = append(news, addr)
		}
	}
	return news
}

// byUplink adds the address of a service and returns it if it is new. If the network of an uplink
// contains the address, only such uplinks announce it; else all do, since a host that sends a
// request on a link expects the address on that link.
func (a *announcer) byUplink(wanted map[kernel.AnnounceKey]kernel.Announced, z *namespace, n *onLink, x *announcement) (news []netip.Addr) {
	key := announceKey(z, n.index, x.prefix)
	_, before := a.written[key]
	addr := x.prefix.Addr()
	switch {
	case n.role == roleOther, n.role == roleUnknown && !before, n.local[addr]:
		return nil
	case n.prefix.Contains(addr):
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

// write makes the table equal wanted. It inserts before it deletes, since an entry for a single
// address may exclude that address from a prefix.
func (a *announcer) write(wanted map[kernel.AnnounceKey]kernel.Announced) error {
	a.served = nil
	for key, value := range wanted {
		if have, ok := a.written[key]; ok && have == value {
			continue
		}
		if err := a.table.Put(key, value); err != nil {
			return kernel.TableError("prefixes", err)
		}
		a.written[key] = value
	}
	for key, value := range a.written {
		if _, ok := wanted[key]; ok || !a.said[wantedBy(value)] && !isServices(key, value) {
			continue
		}
		if err := a.table.Delete(key); err != nil {
			return err
		}
		delete(a.written, key)
	}
	return nil
}

// stillAnnounced returns the addresses of list that ll_announced still contains.
func (a *announcer) stillAnnounced(list []notice) (rest []notice) {
	for _, t := range list {
		t.addrs = slices.DeleteFunc(t.addrs, func(addr netip.Addr) bool { return !a.announces(&t, addr) })
		if len(t.addrs) > 0 && slices.Contains(a.d.openNamespaces(), t.namespace) {
			rest = append(rest, t)
		}
	}
	return rest
}

// send transmits unsolicited announcements. Neighbours that miss them send requests later, which
// are answered.
func (a *announcer) send(t *notice) {
	err := t.namespace.Do(func() error { return gratuitous.Send(t.index, t.mac[:], t.addrs) })
	if err != nil {
		a.d.log.Warn("cannot announce addresses; ARP and NDP requests are still answered", "device", t.index, "error", err)
	}
}

// maintain repeats recent announcements after a pause (RFC 5227, section 2.3), and writes the table
// again after a failed attempt. It returns the error of the last attempt.
func (a *announcer) maintain() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.failed != nil && !now.Before(a.retry) {
		_ = a.apply() // kept in a.failed
	}
	for len(a.again) > 0 && !now.Before(a.again[0].due) {
		if t := &a.again[0]; slices.Contains(a.d.openNamespaces(), t.namespace) {
			t.addrs = slices.DeleteFunc(t.addrs, func(addr netip.Addr) bool { return !a.announces(t, addr) })
			a.send(t)
		}
		a.again = a.again[1:]
	}
	return a.failed
}

// onLink is a network of a port, or of a bridge with ports.
type onLink struct {
	index      int
	name       string
	mac        [6]byte
	prefix     netip.Prefix
	neighbours []netip.Addr // neighbours known in this network
	local      map[netip.Addr]bool
	role       deviceRole
	bridge     bool
}

// deviceRole distinguishes uplinks from other devices.
type deviceRole uint8

const (
	roleUnknown deviceRole = iota // attached by an earlier run and not yet configured in this one
	roleUplink
	roleOther
)

// own returns the node's addresses in the namespace.
func (v *devices) own() (all []netip.Addr) {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.bridges.local {
		all = append(all, key.Addr.Addr())
	}
	return all
}

// networks returns the networks whose ARP and NDP requests our programs see.
func (v *devices) networks() (all []onLink) {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := make(map[int]deviceRole)
	for index := range v.ports {
		asked[index] = v.roles[index]
		if p, ok := v.bridges.ports[index]; ok && asked[p.bridge] != roleUplink {
			asked[p.bridge] = v.roles[index]
		}
	}
	local := make(map[netip.Addr]bool)
	for key := range v.bridges.local {
		local[key.Addr.Addr()] = true
	}
	known := make(map[int][]netip.Addr)
	for n := range v.neighbours {
		known[n.ifindex] = append(known[n.ifindex], n.addr)
	}
	for index, role := range asked {
		l := v.links[index]
		if l == nil || len(l.Attrs().HardwareAddr) != 6 {
			continue
		}
		for _, p := range v.addrs[index] {
			if p.Addr().IsLinkLocalUnicast() || p.Bits() == 0 {
				continue
			}
			all = append(all, onLink{
				index: index, name: l.Attrs().Name, mac: [6]byte(l.Attrs().HardwareAddr), prefix: p.Masked(), neighbours: known[index], local: local,
				role: role, bridge: l.Type() == "bridge",
			})
		}
	}
	return all
}

// natAnnouncements returns the announcements of NAT rules: the addresses to which SNAT translates,
// and the destinations of DNAT that are single addresses or mapped one to one. The addresses of a
// rule that is limited to some devices are announced only there, and the addresses of an Unannounced
// rule not at all.
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

// placeOnUplinks records which service addresses are in the network of an uplink.
func placeOnUplinks(list []announcement, networks []onLink) {
	for i := range list {
		list[i].elsewhere = slices.ContainsFunc(networks, func(n onLink) bool {
			return n.role != roleOther && n.prefix.Contains(list[i].prefix.Addr())
		})
	}
}
