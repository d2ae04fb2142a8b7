// SPDX-License-Identifier: Apache-2.0

// Package bridge maintains the programs' tables of bridges: to which bridge domain frames from a
// bridge port belong, and which addresses are the node's own. It reads the settings of bridge
// ports, but does not watch them.
package bridge

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// bridgedWords is BRIDGED_WORDS.
const bridgedWords = 1024

// vlanOf is a VLAN of a bridge; VLAN 0 if the bridge does not filter VLANs.
type vlanOf struct {
	bridge int
	vid    uint16
}

// Tables maintains the programs' tables of bridges and of the node's own addresses in one
// namespace: ll_bridge_port, ll_bridged and ll_local. It is not safe for concurrent use.
type Tables struct {
	options   Options
	namespace uint8
	table     *bpfmap.Map[kernel.BridgePortKey, kernel.BridgePort]
	bridged   *bpfmap.Map[uint32, uint64]
	locals    *bpfmap.Map[kernel.LocalKey, uint8]

	ports   map[int]Port
	written map[kernel.BridgePortKey]kernel.BridgePort
	words   map[uint32]uint64 // of ll_bridged
	local   map[kernel.LocalKey]bool
	domains map[vlanOf]uint16
	next    uint16 // next domain to assign
}

// Options are what [Tables] use.
type Options struct {
	Tables *kernel.Tables
	Netns  uint8 // id of the namespace in the keys of maps

	// Guard returns the required source MAC of frames from a device; false: any.
	Guard func(guard.Device) (mac [6]byte, ok bool)
	// LostAddr is called when the node has lost an address.
	LostAddr func()
}

// Adopt takes over the tables that an earlier run wrote.
func Adopt(o Options) *Tables {
	s := &Tables{
		options:   o,
		namespace: o.Netns,
		table:     &o.Tables.BridgePort,
		bridged:   &o.Tables.Bridged,
		locals:    &o.Tables.Local,
		written:   make(map[kernel.BridgePortKey]kernel.BridgePort),
		words:     make(map[uint32]uint64),
		local:     make(map[kernel.LocalKey]bool),
		domains:   make(map[vlanOf]uint16),
	}
	s.adopt()
	return s
}

// adopt takes over the tables of an earlier run: connections refer to its bridge domains.
func (s *Tables) adopt() {
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

// domain returns the number of the bridge domain for a VLAN of a bridge; 0: none is free.
func (s *Tables) domain(v vlanOf) uint16 {
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

// SetPorts writes the bridge domains of frames from bridge ports and the devices that are tunnel
// ends, and reports whether anything changed.
func (s *Tables) SetPorts(ports map[int]Port, links map[int]netlink.Link, ends []int) (changed bool, err error) {
	wanted := make(map[kernel.BridgePortKey]kernel.BridgePort)
	words := make(map[uint32]uint64)
	for _, index := range ends {
		words[uint32(s.namespace)*bridgedWords+uint32(index&0xffff)>>6] |= 1 << (index & 63)
		wanted[kernel.BridgePortKey{Ifindex: uint32(index), Netns: s.namespace}] = kernel.BridgePort{Flags: kernel.BridgePortTunnel}
	}
	live, flat := make(map[vlanOf]bool), s.flat(ports)
	for index, p := range ports {
		bridge := links[p.Bridge]
		if bridge == nil || bridge.Type() != "bridge" {
			continue
		}
		at := uint32(s.namespace)*bridgedWords + uint32(index&0xffff)>>6
		words[at] |= 1 << (index & 63)
		value := kernel.BridgePort{Bridge: uint32(p.Bridge)}
		copy(value.Mac[:], bridge.Attrs().HardwareAddr)
		if mac, ok := s.options.Guard(guard.Device{Netns: s.namespace, Ifindex: index}); ok {
			value.Guard, value.Flags = mac, kernel.BridgePortGuarded
		}
		if flat[p.Bridge] && !filtersVLANs(bridge) {
			value.Flags |= kernel.BridgePortFlat
		}
		put := func(vid uint16, of vlanOf, domain uint16) {
			value.Domain, value.Vid = domain, of.vid
			wanted[kernel.BridgePortKey{Ifindex: uint32(index), Vid: vid, Netns: s.namespace}] = value
			live[of] = true
		}
		put(0, vlanOf{p.Bridge, 0}, 0) // unless overwritten below
		switch {
		case !p.follows(value.Flags&kernel.BridgePortGuarded != 0):
		case !filtersVLANs(bridge):
			put(0, vlanOf{p.Bridge, 0}, s.domain(vlanOf{p.Bridge, 0}))
		default:
			p.eachVLAN(func(vid uint16, pvid bool) {
				of := vlanOf{p.Bridge, vid}
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

// Knows reports whether programs know the bridge domain of untagged frames from a port.
func (s *Tables) Knows(index int) bool {
	return s.written[kernel.BridgePortKey{Ifindex: uint32(index), Netns: s.namespace}].Domain != 0
}

// BridgeOf returns the bridge of a port.
func (s *Tables) BridgeOf(port int) (bridge int, ok bool) {
	p, ok := s.ports[port]
	return p.Bridge, ok
}

// Local returns the node's own addresses, as written. The caller must not change the map; SetLocal
// changes it.
func (s *Tables) Local() map[kernel.LocalKey]bool { return s.local }

// flat returns the bridges of pods: the bridges with guarded ports.
func (s *Tables) flat(ports map[int]Port) map[int]bool {
	bridges := make(map[int]bool)
	for index, p := range ports {
		if !bridges[p.Bridge] {
			_, bridges[p.Bridge] = s.options.Guard(guard.Device{Netns: s.namespace, Ifindex: index})
		}
	}
	return bridges
}

// write makes the tables equal wanted. A bit is set only while its entries exist.
func (s *Tables) write(wanted map[kernel.BridgePortKey]kernel.BridgePort, words map[uint32]uint64) error {
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

func (s *Tables) setWord(at uint32, word uint64) error {
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

// SetLocal writes the node's own addresses, and the broadcast addresses of its networks.
func (s *Tables) SetLocal(addrs []netlink.Addr) error {
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
		s.options.LostAddr()
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
