// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// fastBase is a packet that fastpath.h handles, with one kind of translation.
type fastBase struct {
	name  string
	proto uint8
	tuple rigTuple
	leave rigTuple
	flags uint16
}

// bases returns TCP and UDP packets, untranslated and with all kinds of translation.
func (f *fastRig) bases() (all []fastBase) {
	for _, family := range families {
		client, vip := family.client, family.vip
		backend, router := family.far, netip.AddrPortFrom(family.outAddr, 61057)
		for _, proto := range []string{"TCP", "UDP"} {
			p := protocols[proto]
			for _, way := range []struct {
				name     string
				src, dst netip.AddrPort
				flags    uint16
			}{
				{"plain", client, vip, 0},
				{"DNAT", client, backend, kernel.CtDNAT},
				{"DNAT of the port", client, netip.AddrPortFrom(vip.Addr(), 9029), kernel.CtDNAT},
				{"DNAT of the address", client, netip.AddrPortFrom(backend.Addr(), vip.Port()), kernel.CtDNAT},
				{"SNAT", router, vip, kernel.CtSNAT},
				{"SNAT of the address, late", netip.AddrPortFrom(router.Addr(), client.Port()), vip, kernel.CtSNAT | kernel.CtSNATAtEgress},
				{"DNAT and SNAT", router, backend, kernel.CtDNAT | kernel.CtSNAT},
				{"DNAT and SNAT to itself", client, vip, kernel.CtDNAT | kernel.CtSNAT},
				{"answers", backend, client, kernel.CtReply | kernel.CtDNAT},
			} {
				all = append(all, fastBase{
					name: family.name + " " + proto + " " + way.name, proto: p, flags: way.flags,
					tuple: rigTuple{p, client, vip}, leave: rigTuple{p, way.src, way.dst},
				})
			}
		}
	}
	return all
}

// build returns the packet with changes.
func (b fastBase) build(f *fastRig, changes ...fastChange) *fastCase {
	now := rigTick()
	c := &fastCase{
		what: b.name, tuple: b.tuple, leave: b.leave,
		frame: packet(f.in.arrives(), b.proto, b.tuple.src, b.tuple.dst, stageData, 61),
		meta:  rigMeta{PacketCount: 3, ByteCount: 1000, LastSeenTick: now - fastTicksAgo, Nexthop: 5, InPort: uint16(f.in.index), State: 2, Flags: b.flags},
		next:  kernel.Nexthop{Ifindex: f.out.index, MtuBytes: 1500, Dmac: f.out.other, Smac: f.out.mac, Flags: kernel.NexthopXDPXmit | kernel.NexthopNoQdisc, CheckedTick: now - fastTicksAgo},
	}
	for _, change := range changes {
		c.what += ", " + change.name
		change.do(c)
	}
	return c
}

// value returns the entry of c.
func (c *fastCase) value() rigConn {
	c.meta.Flags |= kernel.CtLasting
	return rigConn{c.meta, false, c.leave}
}

// fastChange is one change to a fastCase.
type fastChange struct {
	name  string
	do    func(*fastCase)
	taken bool          // fastpath.h still handles it
	left  map[byte]bool // by IP version: fastpath.h must not handle it
}

// version returns the IP version of the packet.
func (b fastBase) version() byte {
	if b.tuple.src.Addr().Is4() {
		return 4
	}
	return 6
}

// l4 returns the offset of the TCP or UDP header in a frame without options and tags.
func l4(frame []byte) int {
	if frame[14]>>4 == 6 {
		return 54
	}
	return 34
}

// fixSum corrects the checksum of an IPv4 header, if the header is complete.
func fixSum(frame []byte) {
	if len(frame) < 34 || frame[12] != 8 || frame[13] != 0 || frame[14]>>4 != 4 || frame[14]&15 < 5 || len(frame) < 14+int(frame[14]&15)*4 {
		return
	}
	header := frame[14 : 14+int(frame[14]&15)*4]
	header[10], header[11] = 0, 0
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum))
}

// checksum changes the identification so that the checksum of the IPv4 header becomes want.
func checksum(want uint16) fastChange {
	return ofVersion(4, fastChange{name: "checksum", do: func(c *fastCase) {
		if len(c.frame) < 34 {
			return
		}
		for id := range 1 << 16 {
			binary.BigEndian.PutUint16(c.frame[18:], uint16(id))
			if fixSum(c.frame); binary.BigEndian.Uint16(c.frame[24:]) == want {
				return
			}
		}
	}})
}

// at changes bytes of the frame if it is long enough. A negative place is relative to the layer 4
// header: -1 is its first byte.
func at(name string, place int, bytes ...byte) fastChange {
	return fastChange{name: name, do: func(c *fastCase) {
		if len(c.frame) < 34 {
			return
		}
		where := place
		if place < 0 {
			where = l4(c.frame) - place - 1
		}
		if where+len(bytes) <= len(c.frame) {
			copy(c.frame[where:], bytes)
			fixSum(c.frame)
		}
	}}
}

// at4 is at for IPv4, at6 for IPv6.
func at4(name string, place int, bytes ...byte) fastChange {
	return ofVersion(4, at(name, place, bytes...))
}
func at6(name string, place int, bytes ...byte) fastChange {
	return ofVersion(6, at(name, place, bytes...))
}

func ofVersion(version byte, change fastChange) fastChange {
	return fastChange{name: change.name, do: func(c *fastCase) {
		if len(c.frame) > 14 && c.frame[14]>>4 == version {
			change.do(c)
		}
	}}
}

// taken marks a change after which fastpath.h still handles the packet.
func taken(change fastChange) fastChange {
	change.taken = true
	return change
}

// left marks a change that fastpath.h must detect.
func left(version byte, change fastChange) fastChange {
	change.left = map[byte]bool{version: true}
	return change
}

// longer changes the length in the IP header, but not the length of the packet.
func longer(name string, bytes int) fastChange {
	return fastChange{name: name, do: func(c *fastCase) {
		if len(c.frame) < 34 {
			return
		}
		field := c.frame[16:]
		if c.frame[14]>>4 == 6 {
			field = c.frame[18:]
		}
		binary.BigEndian.PutUint16(field, uint16(int(binary.BigEndian.Uint16(field))+bytes))
		fixSum(c.frame)
	}}
}

func cut(name string, size int) fastChange {
	return fastChange{name: name, do: func(c *fastCase) { c.frame = c.frame[:min(size, len(c.frame))] }}
}

// insert inserts bytes into the frame.
func insert(name string, version byte, place int, bytes ...byte) fastChange {
	return ofVersion(version, fastChange{name: name, do: func(c *fastCase) {
		if len(c.frame) < place {
			return
		}
		c.frame = slices.Insert(c.frame, place, bytes...)
		if place == 34 && version == 4 {
			c.frame[14] += byte(len(bytes) / 4)
		}
		if place == 54 && version == 6 {
			c.frame[14+6] = bytes[0]
			c.frame[place] = c.tuple.proto
		}
		if place > 14 {
			longer("", len(bytes)).do(c)
		}
	}})
}

// extension inserts an IPv6 extension header before layer 4.
func extension(name string, proto byte, rest ...byte) fastChange {
	return insert(name, 6, 54, append([]byte{proto}, rest...)...)
}

func entry(name string, do func(*rigMeta)) fastChange {
	return fastChange{name: name, do: func(c *fastCase) { do(&c.meta) }}
}

func fromBridge(name string, do func(*fastCase)) fastChange {
	return fastChange{name: name, do: func(c *fastCase) {
		c.mayBridge, c.bridgePort = true, &kernel.BridgePort{Bridge: 99, Domain: 3}
		c.meta.LastSeenTick = rigTick() // the bridge has just seen a packet
		copy(c.bridgePort.Mac[:], c.frame)
		do(c)
	}}
}

func changedHop(name string, do func(*kernel.Nexthop)) fastChange {
	return fastChange{name: name, do: func(c *fastCase) { do(&c.next) }}
}

// fastChanges are all changes: of the packet, its connection, its next hop, and other state that
// the programs check.
var fastChanges = slices.Concat(packetChanges(), layer4Changes(), entryChanges(), nexthopChanges(), xdpChanges)

func packetChanges() []fastChange {
	all := []fastChange{
		{name: "as it is", do: func(*fastCase) {}},
		at4("TTL 0", 22, 0), at4("TTL 1", 22, 1), at4("TTL 2", 22, 2), at4("TTL 255", 22, 255), at4("type of service", 15, 0xff),
		left(4, at4("more fragments", 20, 0x20, 0)), left(4, at4("a later fragment", 20, 0, 1)), at4("the last bit of the offset", 20, 0x10, 0),
		at4("without DF", 20, 0, 0), at4("the reserved bit", 20, 0x80, 0), at4("all bits", 20, 0xff, 0xff),
		at4("a header of 16 bytes", 14, 0x44), at4("a header of 24", 14, 0x46), at4("a header of 60", 14, 0x4f), at4("version 5", 14, 0x55), at4("version 6", 14, 0x65),
		at4("length 0", 16, 0, 0), at4("length 19", 16, 0, 19), at4("length 20", 16, 0, 20), at4("length 27", 16, 0, 27), at4("length 28", 16, 0, 28), at4("length 39", 16, 0, 39), at4("length 65535", 16, 255, 255),
		at4("another protocol", 23, 47), at4("SCTP", 23, 132), at4("ICMP", 23, 1), at4("IPv6 inside", 23, 41),
		at4("another source", 29, 99), at4("another destination", 33, 99),
		{name: "a wrong checksum", do: func(c *fastCase) { c.frame[min(24, len(c.frame)-1)]++ }},
		at6("hop limit 0", 21, 0), at6("hop limit 1", 21, 1), at6("hop limit 2", 21, 2), at6("hop limit 255", 21, 255),
		at6("class and flow label", 14, 0x6f, 0xff, 0xff, 0xff), at6("version 4", 14, 0x45), at6("version 5", 14, 0x50),
		at6("length 0", 18, 0, 0), at6("length 7", 18, 0, 7), at6("length 8", 18, 0, 8), at6("length 19", 18, 0, 19), at6("length 65535", 18, 255, 255),
		at6("no next header", 20, 59), at6("another protocol", 20, 47), at6("SCTP", 20, 132), at6("ICMPv6", 20, 58),
		at6("another source", 37, 99), at6("another destination", 53, 99),
		extension("hop by hop", testpkt.HopByHop, 0, 1, 4, 0, 0, 0, 0), extension("routing", testpkt.Routing, 0, 0, 0, 0, 0, 0, 0),
		extension("destination options", testpkt.Destination, 0, 1, 4, 0, 0, 0, 0), extension("an atomic fragment", testpkt.Fragment, 0, 0, 0, 1, 2, 3, 4),
		left(6, extension("a first fragment", testpkt.Fragment, 0, 0, 1, 1, 2, 3, 4)), left(6, extension("a later fragment", testpkt.Fragment, 0, 0, 8, 1, 2, 3, 4)),
		longer("one byte missing", 1), longer("one byte behind", -1), longer("1,000 bytes missing", 1000),
		insert("an option", 4, 34, 1, 1, 1, 1), insert("a VLAN tag", 4, 12, 0x81, 0, 0, 7), insert("a VLAN tag", 6, 12, 0x81, 0, 0, 7),
		insert("a tag of 802.1ad", 4, 12, 0x88, 0xa8, 0, 7),
		{name: "padding", do: func(c *fastCase) { c.frame = append(c.frame, make([]byte, 18)...) }},
		at("ARP", 12, 8, 6), at("IPv4 by type", 12, 8, 0), at("IPv6 by type", 12, 0x86, 0xdd),
		at("for another station", 0, 2, 0, 0x5e, 0x10, 1, 0x99), at("for all", 0, 255, 255, 255, 255, 255, 255), at("for a group", 0, 1, 0, 0x5e, 0, 0, 1),
		{name: "a mark", do: func(c *fastCase) { c.mark = 7 }},
	}
	for _, sum := range []uint16{0, 1, 0xfdff, 0xfeff, 0xff00, 0xfffe, 0xffff} {
		all = append(all, checksum(sum))
	}
	for _, gso := range []uint32{1, 50, 61, 81, 100, 1000, 1448, 1460, 1472, 9000} {
		all = append(all, fastChange{name: "pieces", do: func(c *fastCase) { c.gso = gso }})
	}
	for _, size := range []int{15, 33, 34, 41, 42, 53, 54, 61, 62, 73, 74} {
		all = append(all, cut("cut", size))
	}
	return all
}

func layer4Changes() []fastChange {
	all := []fastChange{
		at("another source port", -1, 1, 2), at("another destination port", -3, 1, 2),
		at("checksum of UDP 0", -7, 0, 0), at("checksum of UDP 65535", -7, 255, 255), at("length of UDP 0", -5, 0, 0), at("window 0", -15, 0, 0), at("acknowledgement", -9, 0xff, 0xfe, 0xfd, 0xfc),
		{name: "an unfinished checksum", do: func(c *fastCase) { unfinish(c.frame, 0) }},
		{name: "nearly an unfinished checksum", do: func(c *fastCase) { unfinish(c.frame, 1) }},
		{name: "nearly an unfinished checksum, below", do: func(c *fastCase) { unfinish(c.frame, 0xfffe) }},
	}
	for doff := range byte(16) {
		all = append(all, at("data offset", -13, doff<<4))
	}
	for bit := range 9 {
		all = append(all, at("flags", -14, byte(1<<bit)), at("flags and ACK", -14, byte(1<<bit)|testpkt.ACK))
	}
	return append(all, at("all flags", -14, 0xff))
}

// policiesChanged records a change of the policies of a port: 0 input, 1 output.
func (c *fastCase) policiesChanged(port int, tick uint32) {
	c.ports[port] = kernel.Epoch{Count: 1, ChangedTick: tick}
	c.epoch = kernel.Epoch{PortCount: 1, PortChangedTick: tick}
}

func entryChanges() []fastChange {
	all := []fastChange{
		entry("another port", func(m *rigMeta) { m.InPort++ }), entry("no port", func(m *rigMeta) { m.InPort = 0 }),
		entry("no next hop", func(m *rigMeta) { m.Nexthop = 0 }), entry("another next hop", func(m *rigMeta) { m.Nexthop = 6 }), entry("a next hop that cannot be", func(m *rigMeta) { m.Nexthop = 65535 }),
		entry("denied", func(m *rigMeta) { m.Flags |= kernel.CtDenied }), entry("an answer", func(m *rigMeta) { m.Flags |= kernel.CtReply }),
		entry("late", func(m *rigMeta) { m.Flags |= kernel.CtSNATAtEgress }), entry("a reason", func(m *rigMeta) { m.Flags |= 0xf000 }),
		entry("a FIN and a RST", func(m *rigMeta) { m.Flags |= 0x50 }), entry("of the node", func(m *rigMeta) { m.Flags |= 0x28 }),
		entry("of a service", func(m *rigMeta) { m.Flags, m.BackendId = m.Flags|kernel.CtService, 3 }), entry("translated by a rule", func(m *rigMeta) { m.NatId = 9 }),
		taken(entry("silent for a while", func(m *rigMeta) { m.LastSeenTick -= 100 })),
		entry("seen later", func(m *rigMeta) { m.LastSeenTick += 100 }),
		{name: "rules that have changed since", do: func(c *fastCase) { c.epoch = kernel.Epoch{Count: 1, ChangedTick: rigTick()} }},
		{name: "rules that changed then", do: func(c *fastCase) { c.epoch = kernel.Epoch{Count: 1, ChangedTick: c.meta.LastSeenTick} }},
		{name: "rules that changed before", do: func(c *fastCase) { c.epoch = kernel.Epoch{Count: 1, ChangedTick: c.meta.LastSeenTick - 1} }},
		{name: "policies of the input port since", do: func(c *fastCase) { c.policiesChanged(0, rigTick()) }},
		{name: "policies of the output port since", do: func(c *fastCase) { c.policiesChanged(1, rigTick()) }},
		{name: "policies of the output port then", do: func(c *fastCase) { c.policiesChanged(1, c.meta.LastSeenTick) }},
		{name: "policies of the input port before", taken: true, do: func(c *fastCase) { c.policiesChanged(0, c.meta.LastSeenTick-1) }},
		{name: "policies of another port since", taken: true, do: func(c *fastCase) {
			c.policiesChanged(0, c.meta.LastSeenTick-1)
			c.epoch.PortChangedTick = rigTick()
		}},
		taken(entry("in one direction", func(m *rigMeta) { m.State = uint8(kernel.CtStateCT_ONE_WAY) })),
		{name: "services since", taken: true, do: func(c *fastCase) { c.added = kernel.Epoch{Count: 1, ChangedTick: rigTick()} }},
		{name: "in one direction, services since", do: func(c *fastCase) {
			c.meta.State, c.added = uint8(kernel.CtStateCT_ONE_WAY), kernel.Epoch{Count: 1, ChangedTick: rigTick()}
		}},
		{name: "in one direction, services before", taken: true, do: func(c *fastCase) {
			c.meta.State, c.added = uint8(kernel.CtStateCT_ONE_WAY), kernel.Epoch{Count: 1, ChangedTick: c.meta.LastSeenTick - 1}
		}},
		{name: "of a service in one direction, services since", taken: true, do: func(c *fastCase) {
			c.meta.Flags |= kernel.CtService
			c.meta.State, c.added = uint8(kernel.CtStateCT_ONE_WAY), kernel.Epoch{Count: 1, ChangedTick: rigTick()}
		}},
		fromBridge("a part of a bridge", func(c *fastCase) {}),
		taken(fromBridge("a part of a bridge, to its MAC", func(c *fastCase) {
			c.bridgePort.Mac = [6]byte{2, 0, 0x5e, 0x10, 1, 0x99}
			copy(c.frame, c.bridgePort.Mac[:])
		})),
		fromBridge("a part of a bridge, to another station", func(c *fastCase) {
			c.bridgePort.Mac = [6]byte{2, 0, 0x5e, 0x10, 1, 0x99}
			copy(c.frame, []byte{2, 0, 0x5e, 0x10, 1, 0x98})
		}),
		fromBridge("a part of a bridge, from a group", func(c *fastCase) { c.frame[6] |= 1 }),
		fromBridge("a part of a bridge, shut", func(c *fastCase) { c.bridgePort.Domain = 0 }),
		taken(fromBridge("a part of a bridge, of a pod", func(c *fastCase) {
			c.bridgePort.Flags, c.guarded = 1, true
			copy(c.bridgePort.Guard[:], c.frame[6:12])
		})),
		fromBridge("a part of a bridge, not from its pod", func(c *fastCase) {
			c.bridgePort.Flags, c.guarded = 1, true
			copy(c.bridgePort.Guard[:], c.frame[6:12])
			c.bridgePort.Guard[5]++
		}),
		fromBridge("a part of a bridge, long ago", func(c *fastCase) { c.meta.LastSeenTick -= 64 }),
		{name: "a guard", do: func(c *fastCase) { c.guarded = true }},
		{name: "a guard, and another port", do: func(c *fastCase) { c.guarded, c.meta.InPort = true, c.meta.InPort+1 }},
		{name: "perhaps a part of a bridge", do: func(c *fastCase) { c.mayBridge = true }},
	}
	for state := range uint8(kernel.CtStateCT_STATE_MAX) {
		all = append(all, entry("state", func(m *rigMeta) { m.State = state }))
	}
	return all
}

func nexthopChanges() []fastChange {
	all := []fastChange{
		changedHop("no device", func(n *kernel.Nexthop) { n.Ifindex = 0 }), {name: "a VLAN", do: func(c *fastCase) { c.next.Vid = 7 }, left: map[byte]bool{4: true, 6: true}},
		changedHop("behind a veth", func(n *kernel.Nexthop) { n.Flags |= 1 }), {name: "a tunnel", do: func(c *fastCase) { c.next.Flags |= 8 }, left: map[byte]bool{4: true, 6: true}},
		changedHop("bridged", func(n *kernel.Nexthop) { n.Flags |= 2 }),
		changedHop("of a bridge", func(n *kernel.Nexthop) { n.Flags |= 4 }),
		changedHop("to be confirmed", func(n *kernel.Nexthop) { n.CheckedTick -= 18 }), changedHop("hardly confirmed", func(n *kernel.Nexthop) { n.CheckedTick -= 14 }),
		changedHop("confirmed later", func(n *kernel.Nexthop) { n.CheckedTick += 100 }),
	}
	for doff := range byte(16) {
		// Segments that barely fit, and that are barely too large.
		for more := range uint32(2) {
			all = append(all, fastChange{name: "MTU by the data offset", do: func(c *fastCase) {
				c.gso, c.next.MtuBytes = 5, uint32(l4(c.frame)-14)+5+uint32(doff)*4-more
				at("", -13, doff<<4).do(c)
			}})
		}
	}
	for more := range uint32(2) {
		all = append(all, fastChange{name: "MTU of a datagram", do: func(c *fastCase) {
			c.gso, c.next.MtuBytes = 5, uint32(l4(c.frame)-14)+5+8-more
		}})
	}
	for _, mtu := range []uint32{0, 20, 44, 45, 55, 56, 70, 90, 100, 101, 102, 121, 1460} {
		all = append(all, changedHop("MTU", func(n *kernel.Nexthop) { n.MtuBytes = mtu }))
	}
	return all
}
