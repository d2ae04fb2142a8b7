// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// bridgedWords is BRIDGED_WORDS.
const bridgedWords = 1024

// vlanOf is a VLAN of a bridge; VLAN 0 if the bridge does not filter VLANs.
type vlanOf struct {
	bridge int
	vid    uint16
}

// bridgeTables maintains the programs' tables of bridges and of the node's own addresses:
// ll_bridge_port, ll_bridged and ll_local.
type bridgeTables struct {
	gone      func()                              // called when the node loses an address
	guard     func(guardedDevice) ([6]byte, bool) // the required source MAC of frames from a device
	namespace uint8
	table     *bpfmap.Map[kernel.BridgePortKey, kernel.BridgePort]
	bridged   *bpfmap.Map[uint32, uint64]
	locals    *bpfmap.Map[kernel.LocalKey, uint8]

	ports   map[int]bridgePort
	written map[kernel.BridgePortKey]kernel.BridgePort
	words   map[uint32]uint64 // of ll_bridged
	local   map[kernel.LocalKey]bool
	domains map[vlanOf]uint16
	next    uint16 // next domain to assign
}

func newBridgeTables(d *DataPlane, namespace uint8) *bridgeTables {
	s := &bridgeTables{
		gone:      d.sweeper.Kick,
		guard:     d.guards.mac,
		namespace: namespace,
		table:     &d.tables.BridgePort,
		bridged:   &d.tables.Bridged,
		locals:    &d.tables.Local,
		written:   make(map[kernel.BridgePortKey]kernel.BridgePort),
		words:     make(map[uint32]uint64),
		local:     make(map[kernel.LocalKey]bool),
		domains:   make(map[vlanOf]uint16),
	}
	s.adopt()
	return s
}

// adopt takes over the tables of an earlier run: connections refer to its bridge domains.
func (s *bridgeTables) adopt() {
	var key kernel.BridgePortKey
	var value kernel.BridgePort
	for it := s.table.Iterate(); it.Next(&key, &value); {
		if key.Netns != s.namespace {
			continue
		}
		s.written[key] = value
		if value.Domain != 0 {
			s.domains[vlanOf{int(value.Bridge), value.Vid}] = value.Domain
			s.next = max(s.next, value.Domain)
		}
	}
	var local kernel.LocalKey
	var one uint8
	for it := s.locals.Iterate(); it.Next(&local, &one); {
		if local.Netns == uint32(s.namespace) {
			s.local[local] = true
		}
	}
	for i := range uint32(bridgedWords) {
		var word uint64
		at := uint32(s.namespace)*bridgedWords + i
		if s.bridged.Lookup(at, &word) == nil && word != 0 {
			s.words[at] = word
		}
	}
}

// domain returns the number of the bridge domain for a VLAN of a bridge, or 0 if no number is free.
func (s *bridgeTables) domain(v vlanOf) uint16 {
	if id, ok := s.domains[v]; ok {
		return id
	}
	used := make(map[uint16]bool, len(s.domains))
	for _, id := range s.domains {
		used[id] = true
	}
	for range 1 << 16 {
		s.next++
		if s.next != 0 && !used[s.next] {
			s.domains[v] = s.next
			return s.next
		}
	}
	return 0
}

// setPorts writes the bridge domains of frames from bridge ports and the devices that are tunnel
// ends, and reports whether anything changed.
func (s *bridgeTables) setPorts(ports map[int]bridgePort, links map[int]netlink.Link, ends []int) (changed bool, err error) {
	wanted := make(map[kernel.BridgePortKey]kernel.BridgePort)
	words := make(map[uint32]uint64)
	for _, index := range ends {
		words[uint32(s.namespace)*bridgedWords+uint32(index&0xffff)>>6] |= 1 << (index & 63)
		wanted[kernel.BridgePortKey{Ifindex: uint32(index), Netns: s.namespace}] = kernel.BridgePort{Flags: kernel.BridgePortTunnel}
	}
	live, flat := make(map[vlanOf]bool), s.flat(ports)
	for index, p := range ports {
		bridge := links[p.bridge]
		if bridge == nil || bridge.Type() != "bridge" {
			continue
		}
		at := uint32(s.namespace)*bridgedWords + uint32(index&0xffff)>>6
		words[at] |= 1 << (index & 63)
		value := kernel.BridgePort{Bridge: uint32(p.bridge)}
		copy(value.Mac[:], bridge.Attrs().HardwareAddr)
		if mac, ok := s.guard(guardedDevice{s.namespace, index}); ok {
			value.Guard, value.Flags = mac, kernel.BridgePortGuarded
		}
		if flat[p.bridge] && !filtersVLANs(bridge) {
			value.Flags |= kernel.BridgePortFlat
		}
		put := func(vid uint16, of vlanOf, domain uint16) {
			value.Domain, value.Vid = domain, of.vid
			wanted[kernel.BridgePortKey{Ifindex: uint32(index), Vid: vid, Netns: s.namespace}] = value
			live[of] = true
		}
		put(0, vlanOf{p.bridge, 0}, 0) // unless overwritten below
		switch {
		case !p.follows(value.Flags&kernel.BridgePortGuarded != 0):
		case !filtersVLANs(bridge):
			put(0, vlanOf{p.bridge, 0}, s.domain(vlanOf{p.bridge, 0}))
		default:
			p.eachVLAN(func(vid uint16, pvid bool) {
				of := vlanOf{p.bridge, vid}
				put(vid, of, s.domain(of))
				if pvid {
					put(0, of, s.domain(of))
				}
			})
		}
	}
	changed = !maps.Equal(s.ports, ports) || !maps.Equal(s.written, wanted)
	s.ports = ports
	err = s.write(wanted, words)
	maps.DeleteFunc(s.domains, func(v vlanOf, _ uint16) bool { return !live[v] })
	return changed, err
}

// knows reports whether programs know the bridge domain of untagged frames from a port.
func (s *bridgeTables) knows(index int) bool {
	return s.written[kernel.BridgePortKey{Ifindex: uint32(index), Netns: s.namespace}].Domain != 0
}

// flat returns the bridges of pods: the bridges with guarded ports.
func (s *bridgeTables) flat(ports map[int]bridgePort) map[int]bool {
	bridges := make(map[int]bool)
	for index, p := range ports {
		if !bridges[p.bridge] {
			_, bridges[p.bridge] = s.guard(guardedDevice{s.namespace, index})
		}
	}
	return bridges
}

// write makes the tables equal wanted. A bit is set only while its entries exist.
func (s *bridgeTables) write(wanted map[kernel.BridgePortKey]kernel.BridgePort, words map[uint32]uint64) error {
	for at, old := range maps.Clone(s.words) {
		if err := s.setWord(at, old&words[at]); err != nil {
			return err
		}
	}
	for key, value := range wanted {
		if old, ok := s.written[key]; ok && old == value {
			continue
		}
		if err := s.table.Put(key, value); err != nil {
			return fmt.Errorf("bridge port %d: %w", key.Ifindex, err)
		}
		s.written[key] = value
	}
	for key := range maps.Clone(s.written) {
		if _, ok := wanted[key]; ok {
			continue
		}
		if err := s.table.Delete(key); err != nil {
			return fmt.Errorf("bridge port %d: %w", key.Ifindex, err)
		}
		delete(s.written, key)
	}
	for at, word := range words {
		if err := s.setWord(at, word); err != nil {
			return err
		}
	}
	return nil
}

func (s *bridgeTables) setWord(at uint32, word uint64) error {
	if s.words[at] == word {
		return nil
	}
	if err := s.bridged.Put(at, word); err != nil {
		return fmt.Errorf("bridge ports: %w", err)
	}
	s.words[at] = word
	if word == 0 {
		delete(s.words, at)
	}
	return nil
}

// setLocal writes the node's own addresses, and the broadcast addresses of its networks.
func (s *bridgeTables) setLocal(addrs []netlink.Addr) error {
	wanted := make(map[kernel.LocalKey]bool)
	for i := range addrs {
		for _, ip := range ownAddrs(&addrs[i]) {
			wanted[kernel.LocalKey{Addr: kernel.AddrOf(ip), Netns: uint32(s.namespace)}] = true
		}
	}
	for key := range wanted {
		if s.local[key] {
			continue
		}
		if err := s.locals.Put(key, 1); err != nil {
			return fmt.Errorf("address of the node: %w", err)
		}
		s.local[key] = true
	}
	gone := false
	for key := range maps.Clone(s.local) {
		if wanted[key] {
			continue
		}
		if err := s.locals.Delete(key); err != nil {
			return fmt.Errorf("address of the node: %w", err)
		}
		delete(s.local, key)
		gone = true
	}
	if gone {
		s.gone()
	}
	return nil
}

// ownAddrs returns the addresses that are local because the node has address a: a itself and its
// broadcast address, but not the lowest address of the network, which a host may have since Linux
// 5.14.
func ownAddrs(a *netlink.Addr) (all []netip.Addr) {
	if a.IPNet == nil {
		return nil
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return nil
	}
	ip = ip.Unmap()
	all = []netip.Addr{ip}
	if bits, _ := a.Mask.Size(); !ip.Is4() || bits > 30 {
		return all
	}
	if b, ok := netip.AddrFromSlice(a.Broadcast); ok {
		all = append(all, b.Unmap())
	}
	return all
}

// markOtherTags records for each port whether its bridge uses VLAN tags other than 802.1Q. Such a
// bridge treats an 802.1Q tag as payload.
func (v *devices) markOtherTags(ports map[int]bridgePort) error {
	other := make(map[int]bool)
	for index, l := range v.links {
		if !filtersVLANs(l) {
			continue
		}
		protocol, err := v.namespace.vlanProtocol(index)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("VLAN tags of bridge %s: %w", l.Attrs().Name, err)
		}
		other[index] = protocol != unix.ETH_P_8021Q
	}
	for index, p := range ports {
		p.other = other[p.bridge]
		ports[index] = p
	}
	return nil
}

// firstAddrs adds the addresses of each device to all, and returns the source address of each
// device and family: the first that is global, neither deprecated nor tentative. Index 0 has the
// addresses for devices without their own.
func firstAddrs(addrs []netlink.Addr, all map[int][]netip.Prefix) map[int][2]netip.Addr {
	first := make(map[int][2]netip.Addr)
	const unfit = unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY
	for _, a := range addrs {
		if a.IPNet == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		bits, _ := a.Mask.Size()
		all[a.LinkIndex] = append(all[a.LinkIndex], netip.PrefixFrom(ip, bits))
		secondary := ip.Is4() && a.Flags&unix.IFA_F_SECONDARY != 0
		if a.Scope != unix.RT_SCOPE_UNIVERSE || ip.IsLoopback() || secondary || ip.Is6() && a.Flags&unfit != 0 {
			continue
		}
		family := 0
		if ip.Is6() {
			family = 1
		}
		for _, index := range []int{a.LinkIndex, 0} {
			if f := first[index]; !f[family].IsValid() {
				f[family] = ip
				first[index] = f
			}
		}
	}
	return first
}
