// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// ports attaches the wanted ports, and releases those that are no longer wanted.
func (u *bridgeUpdate) ports() (err error) {
	if u.value.VLANFiltering {
		if u.vlans, err = dump.Retry(u.s.Netlink.BridgeVlanList); err != nil {
			return fmt.Errorf("list VLANs: %w", err)
		}
	}
	wanted := map[string]bool{}
	var problems []error
	for i := range u.value.Ports {
		p := &u.value.Ports[i]
		wanted[p.Device] = true
		// A bad port does not prevent the others from being attached.
		if err := u.port(p); err != nil {
			problems = append(problems, err)
		}
	}
	if u.value.VLANFiltering && !u.removing && !wanted[u.value.Device] {
		wanted[u.value.Device] = true
		problems = append(problems, u.self())
	}
	for _, device := range slices.Sorted(maps.Keys(u.record.Ports)) {
		if !wanted[device] {
			if err := u.release(device); err != nil {
				problems = append(problems, err)
			}
		}
	}
	return errors.Join(problems...)
}

// self adds the bridge itself to the default VLAN, as the kernel does, if there is a port without
// configured VLANs. It is in other VLANs only if the bridge is listed among its own ports.
func (u *bridgeUpdate) self() error {
	p := &datapath.BridgePort{Device: u.value.Device}
	for i := range u.value.Ports {
		if u.value.Ports[i].PVID == 1 {
			p.PVID = 1
		}
	}
	if !u.record.Made && p.PVID == 0 && u.record.Ports[u.value.Device] == nil {
		return nil
	}
	return u.setVLANs(u.bridge, p, u.record.port(p.Device), true)
}

func (u *bridgeUpdate) port(p *datapath.BridgePort) error {
	if p.Device == u.value.Device {
		return u.setVLANs(u.bridge, p, u.record.port(p.Device), true)
	}
	link, err := u.s.Link(p.Device)
	if err != nil {
		return err
	}
	if link == nil {
		u.absent = append(u.absent, p.Device)
		return nil
	}
	record := u.record.port(p.Device)
	fresh := false
	switch link.Attrs().MasterIndex {
	case u.bridge.Attrs().Index:
	case 0:
		// The settings that the bridge gives to each new port are removed unless they are
		// configured.
		record.Enslaved, record.VLANs, record.Isolated = true, u.defaultVLANs(), false
		fresh = true
		if err := u.change("add port "+p.Device, func() error { return u.enslave(link) }); err != nil {
			return err
		}
		if u.dry {
			return nil
		}
		if fresh, err := u.s.Link(p.Device); err == nil && fresh != nil {
			link = fresh
		}
	default:
		return fmt.Errorf("bridge %q: device %q is already enslaved to another device: remove it (ip link set %s nomaster)",
			u.value.Device, p.Device, p.Device)
	}
	if err := errors.Join(u.isolate(link, p, record), u.pinHost(link)); err != nil {
		return err
	}
	if !u.value.VLANFiltering {
		return nil
	}
	if fresh {
		if u.vlans, err = dump.Retry(u.s.Netlink.BridgeVlanList); err != nil {
			return fmt.Errorf("list VLANs: %w", err)
		}
	}
	return u.setVLANs(link, p, record, false)
}

// defaultVLANs returns the VLANs of a new port of the bridge.
func (u *bridgeUpdate) defaultVLANs() []uint16 {
	if b, ok := u.bridge.(*netlink.Bridge); ok && b.VlanDefaultPVID != nil && *b.VlanDefaultPVID != 0 {
		return []uint16{*b.VlanDefaultPVID}
	}
	return nil
}

// enslave makes link a port. A port that is down carries no traffic, so it is set up, and only
// here.
func (u *bridgeUpdate) enslave(link netlink.Link) error {
	if err := u.note(); err != nil {
		return err
	}
	if err := u.s.Netlink.LinkSetMaster(link, u.bridge); err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	return u.s.Netlink.LinkSetUp(link)
}

func (u *bridgeUpdate) isolate(link netlink.Link, p *datapath.BridgePort, record *portRecord) error {
	if !p.Isolated && !record.Isolated {
		return nil
	}
	now, err := dump.Retry(func() (netlink.Protinfo, error) { return u.s.Netlink.LinkGetProtinfo(link) })
	if err != nil {
		return fmt.Errorf("port %q: %w", p.Device, err)
	}
	if now.Isolated == p.Isolated {
		return nil
	}
	record.Isolated = p.Isolated
	return u.change("isolate port "+p.Device, func() error {
		return errors.Join(u.note(), u.s.Netlink.LinkSetIsolated(link, p.Isolated))
	})
}

const vlanFlags = nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED

// vlansOf returns each VLAN to which a port must belong, with its flags.
func vlansOf(p *datapath.BridgePort) map[uint16]uint16 {
	wanted := map[uint16]uint16{}
	each(p.VLANs, func(v uint16) { wanted[v] = 0 })
	if p.PVID != 0 {
		if _, tagged := wanted[p.PVID]; !tagged {
			wanted[p.PVID] |= nl.BRIDGE_VLAN_INFO_UNTAGGED
		}
		wanted[p.PVID] |= nl.BRIDGE_VLAN_INFO_PVID
	}
	each(p.Untagged, func(v uint16) { wanted[v] |= nl.BRIDGE_VLAN_INFO_UNTAGGED })
	return wanted
}

func each(ranges []datapath.VLANRange, f func(uint16)) {
	for _, r := range ranges {
		for v := r.First; v <= r.Last; v++ {
			f(v)
		}
	}
}

// setVLANs makes the VLANs of a port match the wanted ones. It adds before it removes, so that a
// VLAN that stays is never missing.
func (u *bridgeUpdate) setVLANs(link netlink.Link, p *datapath.BridgePort, record *portRecord, self bool) error {
	wanted := vlansOf(p)
	add, remove := map[uint16]uint16{}, []uint16{}
	now := map[uint16]uint16{}
	for _, v := range u.vlans[int32(link.Attrs().Index)] {
		now[v.Vid] = v.Flags & vlanFlags
	}
	for v, flags := range wanted {
		if is, ok := now[v]; !ok || is != flags {
			add[v] = flags
		}
	}
	for v, flags := range now {
		_, stays := wanted[v]
		switch {
		case stays:
		case slices.Contains(record.VLANs, v):
			remove = append(remove, v)
		case flags&nl.BRIDGE_VLAN_INFO_PVID != 0 && p.PVID == 0 && !u.removing:
			add[v] = flags &^ nl.BRIDGE_VLAN_INFO_PVID // another program's VLAN, which stays
		}
	}
	// A VLAN that existed before is not ours to remove.
	var ours []uint16
	for v := range wanted {
		if _, before := now[v]; !before || slices.Contains(record.VLANs, v) {
			ours = append(ours, v)
		}
	}
	slices.Sort(ours)
	if len(add) == 0 && len(remove) == 0 {
		return u.noteVLANs(record, ours)
	}
	return u.change("VLANs of port "+p.Device, func() error {
		// Until the change is complete, the VLANs of both lists may be ours.
		both := slices.Concat(record.VLANs, ours)
		slices.Sort(both)
		record.VLANs = slices.Compact(both)
		if err := u.note(); err != nil {
			return err
		}
		if err := u.addVLANs(link, add, self); err != nil {
			return err
		}
		for _, v := range remove {
			if err := u.s.Netlink.BridgeVlanDel(link, v, false, false, self, false); err != nil && !namespace.IsAbsent(err) {
				return fmt.Errorf("remove VLAN %d: %w", v, err)
			}
		}
		return u.noteVLANs(record, ours)
	})
}

func (u *bridgeUpdate) noteVLANs(record *portRecord, ours []uint16) error {
	if slices.Equal(ours, record.VLANs) || u.dry {
		return nil
	}
	record.VLANs = ours
	return u.note()
}

// addVLANs adds VLANs, consecutive ones as a range.
func (u *bridgeUpdate) addVLANs(link netlink.Link, add map[uint16]uint16, self bool) error {
	all := slices.Sorted(maps.Keys(add))
	for i := 0; i < len(all); {
		first, flags := all[i], add[all[i]]
		last := first
		i++
		pvid := flags&nl.BRIDGE_VLAN_INFO_PVID != 0
		for !pvid && i < len(all) && all[i] == last+1 && add[all[i]] == flags {
			last = all[i]
			i++
		}
		untagged := flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0
		var err error
		if first == last {
			err = u.s.Netlink.BridgeVlanAdd(link, first, pvid, untagged, self, false)
		} else {
			err = u.s.Netlink.BridgeVlanAddRange(link, first, last, pvid, untagged, self, false)
		}
		if err != nil {
			return fmt.Errorf("add VLANs %d to %d: %w", first, last, err)
		}
	}
	return nil
}

// release removes our settings from a port, or the port itself if we attached it.
func (u *bridgeUpdate) release(device string) error {
	record := u.record.Ports[device]
	err := u.change("release port "+device, func() error {
		link, err := u.s.Link(device)
		if err != nil || link == nil {
			return err
		}
		self := device == u.value.Device
		inside := self || link.Attrs().MasterIndex == u.bridge.Attrs().Index
		if inside && record.Enslaved {
			return u.s.Netlink.LinkSetNoMaster(link)
		}
		if !inside {
			return nil
		}
		if record.Isolated {
			if err := u.s.Netlink.LinkSetIsolated(link, false); err != nil {
				return err
			}
		}
		for _, v := range record.VLANs {
			if err := u.s.Netlink.BridgeVlanDel(link, v, false, false, self, false); err != nil && !namespace.IsAbsent(err) {
				return fmt.Errorf("remove VLAN %d: %w", v, err)
			}
		}
		return nil
	})
	if err != nil || u.dry {
		return err
	}
	delete(u.record.Ports, device)
	return u.note()
}
