// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/gratuitous"
)

// announcement is addresses that are the node's to its neighbours, though it has them on
// no device.
type announcement struct {
	prefix  netip.Prefix
	devices []string // that it may be announced by, where they have its network; none: all
	nat     uint16   // whose it is; 0: no translation's
	// uplinks says that it is a service's: by uplinks only, wherever its address is, and what
	// comes in for it is the business of the service.
	uplinks   bool
	elsewhere bool // of these: an uplink has its network, so that others do not answer
	// alone says that nobody else has it wherever it is announced or not: what comes in for
	// it, and no connection has, is dropped.
	alone bool
	// moved says that it is behind a peer: stations of bridges in the switch with its network
	// are answered, whoever was known to have it there, and its packets are routed.
	moved bool
}

// announcers are those who want addresses announced.
type announcers string

const announcedByNAT announcers = "NAT"

// announcer keeps ll_announced: programs answer for what is in it.
type announcer struct {
	d *DataPlane

	mu      sync.Mutex
	wanted  map[announcers][]announcement
	said    map[announcers]bool // in this run
	written map[kernelAnnounceKey]kernelAnnounced
	again   []told // to be told once more
}

// told is a device, and what its neighbours were told.
type told struct {
	due   time.Time
	zone  *zone
	index int
	mac   [6]byte
	addrs []netip.Addr
}

const (
	announcedNot = 0x1 // ANNOUNCED_F_NOT

	// announcePause is ANNOUNCE_INTERVAL of RFC 5227.
	announcePause = 2 * time.Second
	// announceMax is how many addresses of a prefix neighbours are told of without asking.
	announceMax = 256
)

func newAnnouncer(d *DataPlane) (*announcer, error) {
	a := &announcer{d: d, wanted: make(map[announcers][]announcement), said: make(map[announcers]bool), written: make(map[kernelAnnounceKey]kernelAnnounced)}
	var key kernelAnnounceKey
	var value kernelAnnounced
	it := d.maps[kernelMapLlAnnounced].Iterate()
	for it.Next(&key, &value) {
		a.written[key] = value
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("take over what an earlier run announced: %w", err)
	}
	return a, nil
}

// set says what somebody wants announced, instead of what they wanted before.
func (a *announcer) set(who announcers, list []announcement) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[who], a.said[who] = list, true
	return a.apply()
}

// seed notes what somebody wanted in an earlier run, so that it stays as it is.
func (a *announcer) seed(who announcers, list []announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[who] = list
}

// byServices returns what an earlier run announced for services.
func (a *announcer) byServices() map[netip.Addr]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	addrs := make(map[netip.Addr]bool)
	for key, value := range a.written {
		if isServices(key, value) {
			addrs[key.Addr.addr()] = true
		}
	}
	return addrs
}

func isServices(key kernelAnnounceKey, value kernelAnnounced) bool {
	return key.Ifindex != 0 && value == kernelAnnounced{}
}

// follow announces by what devices there are now.
func (a *announcer) follow() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.apply()
}

// apply writes what is wanted, and tells neighbours of what is new. What an earlier run
// wrote stays until somebody has said what they want.
func (a *announcer) apply() error {
	if len(a.said) == 0 {
		return nil
	}
	wanted := make(map[kernelAnnounceKey]kernelAnnounced)
	var news []told
	for _, z := range a.d.openZones() {
		if z.devices == nil {
			continue
		}
		networks := z.devices.networks()
		placeOnUplinks(a.wanted[announcedByServices], networks)
		for _, n := range networks {
			t := told{due: time.Now().Add(announcePause), zone: z, index: n.index, mac: n.mac}
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
		return err
	}
	for i := range news {
		a.tell(&news[i])
	}
	a.again = append(a.again, news...)
	return nil
}

// alone enters what nobody else has, in each zone, but for the addresses of the node in
// any of them. Others are in a network.
func (a *announcer) alone(wanted map[kernelAnnounceKey]kernelAnnounced) {
	zones := a.d.openZones()
	for _, z := range zones {
		networks := z.devices.networks()
		for _, list := range a.wanted {
			for _, x := range list {
				if !x.alone || slices.ContainsFunc(networks, func(n onLink) bool {
					return x.prefix.Bits() <= n.prefix.Bits() && x.prefix.Contains(n.prefix.Addr())
				}) {
					continue
				}
				wanted[announceKey(z, 0, x.prefix)] = kernelAnnounced{NatId: uint32(x.nat)}
				for _, own := range zones {
					for _, addr := range own.devices.own() {
						if x.prefix.Contains(addr) {
							wanted[announceKey(z, 0, netip.PrefixFrom(addr, addr.BitLen()))] = kernelAnnounced{Flags: announcedNot}
						}
					}
				}
			}
		}
	}
}

func announceKey(z *zone, index int, p netip.Prefix) kernelAnnounceKey {
	return kernelAnnounceKey{PrefixLen: uint32(64 + bits128(p)), Ifindex: uint32(index), Zone: uint32(z.id), Addr: addrOf(p.Masked().Addr())}
}

// byNetwork enters what x has of a network, and returns which of its addresses are new. Not
// a whole network, which others are in, nor what one of them is known to have.
func (a *announcer) byNetwork(wanted map[kernelAnnounceKey]kernelAnnounced, z *zone, n *onLink, x *announcement) (news []netip.Addr) {
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
	wanted[key] = kernelAnnounced{NatId: uint32(x.nat)}
	if !x.alone {
		wanted[announceKey(z, 0, p)] = kernelAnnounced{NatId: uint32(x.nat)}
	}
	for _, other := range others {
		single := netip.PrefixFrom(other, other.BitLen())
		wanted[announceKey(z, n.index, single)] = kernelAnnounced{Flags: announcedNot}
		wanted[announceKey(z, 0, single)] = kernelAnnounced{Flags: announcedNot}
	}
	for addr := p.Addr(); !before && p.Contains(addr) && len(news) < announceMax; addr = addr.Next() {
		if !slices.Contains(others, addr) && !n.local[addr] {
			news = append(news, addr)
		}
	}
	return news
}

// byUplink enters an address of a service, and returns it where it is new. Where an uplink
// is in its network it is announced by those that are, else by all: who asks there believes
// it to be on that link.
func (a *announcer) byUplink(wanted map[kernelAnnounceKey]kernelAnnounced, z *zone, n *onLink, x *announcement) (news []netip.Addr) {
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
		return nil // by another network of the device
	}
	wanted[key] = kernelAnnounced{}
	if !before {
		news = append(news, addr)
	}
	return news
}

// write brings the table to wanted: first what is more, for a single address may be taken
// out of a prefix.
func (a *announcer) write(wanted map[kernelAnnounceKey]kernelAnnounced) error {
	table := a.d.maps[kernelMapLlAnnounced]
	for key, value := range wanted {
		if have, ok := a.written[key]; ok && have == value {
			continue
		}
		if err := table.Update(&key, &value, ebpf.UpdateAny); err != nil {
			return tableError("prefixes", err)
		}
		a.written[key] = value
	}
	for key, value := range a.written {
		if _, ok := wanted[key]; ok || !a.said[wantedBy(value)] && !isServices(key, value) {
			continue
		}
		if err := ifThere(table.Delete(&key)); err != nil {
			return err
		}
		delete(a.written, key)
	}
	return nil
}

// tell sends what nobody asked for. Neighbours that do not hear it ask, and are answered.
func (a *announcer) tell(t *told) {
	err := t.zone.do(func() error { return gratuitous.Send(t.index, t.mac[:], t.addrs) })
	if err != nil {
		a.d.log.Warn("cannot tell the neighbours of addresses; those who ask are answered", "device", t.index, "error", err)
	}
}

// maintain tells once more what was new a moment ago (RFC 5227, section 2.3), and looks
// again for what could not be written.
func (a *announcer) maintain() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for len(a.again) > 0 && !now.Before(a.again[0].due) {
		if t := &a.again[0]; slices.Contains(a.d.openZones(), t.zone) {
			t.addrs = slices.DeleteFunc(t.addrs, func(addr netip.Addr) bool { return !a.announces(t, addr) })
			a.tell(t)
		}
		a.again = a.again[1:]
	}
	return nil
}

// onLink is one network that a port, or a bridge of ports, is in.
type onLink struct {
	index      int
	name       string
	mac        [6]byte
	prefix     netip.Prefix
	neighbours []netip.Addr // that are known there
	local      map[netip.Addr]bool
	role       deviceRole
	bridge     bool
}

// deviceRole is whether a device is an uplink.
type deviceRole uint8

const (
	roleUnknown deviceRole = iota // an earlier run attached to it, and nobody has said so yet
	roleUplink
	roleOther
)

// own returns the node's addresses in the zone.
func (v *devices) own() (all []netip.Addr) {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.stations.local {
		all = append(all, key.Addr.addr())
	}
	return all
}

// networks returns those whose questions our programs see.
func (v *devices) networks() (all []onLink) {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := make(map[int]deviceRole)
	for index := range v.ports {
		asked[index] = v.roles[index]
		if p, ok := v.stations.ports[index]; ok && asked[p.bridge] != roleUplink {
			asked[p.bridge] = v.roles[index]
		}
	}
	local := make(map[netip.Addr]bool)
	for key := range v.stations.local {
		local[key.Addr.addr()] = true
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

// natAnnouncements returns what translations want announced: the addresses that they
// translate to, and those that they translate from where these are single ones, or stand for
// others one to one. A rule for some devices wants them announced by these, and one that is
// Unannounced wants none announced.
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
