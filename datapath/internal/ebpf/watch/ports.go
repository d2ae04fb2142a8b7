// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/announce"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/bridge"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// devicesOfBefore returns the devices that have a flag in an earlier run's entries. The flag
// applies until this run has read the current state.
func devicesOfBefore(o *Options, flag uint32) map[int]bool {
	those := make(map[int]bool)
	var key kernel.DeviceKey
	var device kernel.Device
	for it := o.Tables.Device.Iterate(); it.Next(&key, &device); {
		if key.Netns == uint32(o.Netns.ID) && device.Flags&flag != 0 {
			those[int(key.Ifindex)] = true
		}
	}
	return those
}

// SetRole records the role of a device to which our programs are or will be attached, and the name
// by which its object refers to it.
func (v *Devices) SetRole(index int, device string, role datapath.Role) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.named[index] = device
	v.roles[index] = roleOf(role)
	delete(v.uplinks, index)
	if role == datapath.RoleUplink {
		v.uplinks[index] = true
	}
}

// ruleName returns the name by which rules match a device. While our programs are attached, this is
// the name in the object, even if another program renames the device: otherwise packets would
// bypass rules and NAT until the device has its name again. An uplink keeps its name in force until
// the NAT rules in force contain the new name as well. v.mu is held.
func (v *Devices) ruleName(l netlink.Link) string {
	a := l.Attrs()
	if !v.ports[a.Index] {
		return a.Name
	}
	inForce := ""
	if old, err := v.before(v.Key(l)); err == nil {
		inForce = old.Text()
	}
	next := v.named[a.Index]
	if next == "" {
		next = inForce // from an earlier run
	}
	if next == "" || next != a.Name && v.isOther(next) {
		next = a.Name
	}
	if v.uplinks[a.Index] && inForce != "" && inForce != next && !v.options.Uplinks.allow(inForce, next) {
		v.keeping = true
		return inForce
	}
	return next
}

// isOther reports whether any device has this name. The caller holds v.mu.
func (v *Devices) isOther(name string) bool {
	for _, l := range v.links {
		if l.Attrs().Name == name {
			return true
		}
	}
	return false
}

// RuleNameInForce returns the name by which rules match a device, or "".
func (v *Devices) RuleNameInForce(index int) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.written[kernel.DeviceKey{Ifindex: uint32(index), Netns: uint32(v.namespace.ID)}]
	return old.Text()
}

// UplinkNames are the names of uplinks in the NAT rules in force.
type UplinkNames struct {
	names atomic.Pointer[[]string] // nil: unknown, set by an earlier run
}

// allow reports whether rules may match an uplink by its next name from now on.
func (u *UplinkNames) allow(old, next string) bool {
	names := u.names.Load()
	return names != nil && (slices.Contains(*names, next) || !slices.Contains(*names, old))
}

// Set records the names in the NAT rules now in force. The caller then calls ChangeNames.
func (u *UplinkNames) Set(names []string) { u.names.Store(&names) }

// ChangeNames applies the new names of devices that ruleName has deferred.
func (v *Devices) ChangeNames() {
	v.mu.Lock()
	keeping := v.keeping
	v.mu.Unlock()
	if keeping {
		v.report(v.Scan())
		v.options.Signal()
	}
}

// HasRole reports whether setRole recorded this role.
func (v *Devices) HasRole(index int, role datapath.Role) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.roles[index] == roleOf(role)
}

func roleOf(role datapath.Role) announce.Role {
	if role == datapath.RoleUplink {
		return announce.RoleUplink
	}
	return announce.RoleOther
}

// SetPort records whether our programs are attached to a device.
func (v *Devices) SetPort(index int, attached bool) error {
	v.mu.Lock()
	if attached {
		v.ports[index] = true
	} else {
		delete(v.ports, index)
		delete(v.named, index)
		delete(v.xdp, index)
		delete(v.roles, index)
		delete(v.uplinks, index)
	}
	v.mu.Unlock()
	return errors.Join(v.Scan(), v.options.FollowAddrs())
}

// AddPort records that our programs are attached to a new device, which is not up yet. It does not
// Scan all devices, since that takes long if there are many; the kernel reports later changes of
// this device.
func (v *Devices) AddPort(index int) error {
	if ok, err := v.addFresh(index); ok || err != nil {
		return err
	}
	return v.SetPort(index, true)
}

func (v *Devices) addFresh(index int) (ok bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l, err := v.namespace.Netlink.LinkByIndex(index) // an earlier result may be older than the last scan
	if err != nil || l.Attrs().Flags&net.FlagUp != 0 || l.Attrs().MasterIndex != 0 {
		return false, nil
	}
	v.ports[index], v.links[index] = true, l
	wanted := maps.Clone(v.written)
	wanted[v.Key(l)] = v.encode(l)
	return true, v.write(wanted)
}

// DropPort records that our programs are detached from a device that is about to be deleted.
func (v *Devices) DropPort(index int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.ports, index)
	delete(v.named, index)
	delete(v.roles, index)
	delete(v.uplinks, index)
	wanted := maps.Clone(v.written)
	key := kernel.DeviceKey{Ifindex: uint32(index), Netns: uint32(v.namespace.ID)}
	if device, ok := wanted[key]; ok {
		device.Flags &^= kernel.DevicePort
		wanted[key] = device
	}
	return v.write(wanted)
}

// KeepPorts records that our programs are attached to exactly these devices.
func (v *Devices) KeepPorts(attached map[int]bool) error {
	v.mu.Lock()
	v.ports = make(map[int]bool, len(attached))
	maps.Copy(v.ports, attached)
	v.mu.Unlock()
	return errors.Join(v.Scan(), v.options.FollowAddrs())
}

// HasPort reports whether our programs are recorded as attached to a device.
func (v *Devices) HasPort(index int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ports[index]
}

// Joined writes the entries of a bridge port if the tables do not contain it yet.
func (v *Devices) Joined(index int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bridges.Knows(index) {
		return nil
	}
	ports, err := bridge.Ports(v.namespace.Handle)
	if err != nil {
		return fmt.Errorf("list ports of bridges: %w", err)
	}
	if err := bridge.MarkOtherTags(v.namespace.Handle, v.links, ports); err != nil {
		return err
	}
	_, err = v.bridges.SetPorts(ports, v.links, v.tunnelEnds())
	return err
}

// netnsCount is the number of namespaces.
const netnsCount = hook.Switch + 1

// writeUplinks updates the bits of uplinks in ll_guarded, which follow the bits of guards, from
// ll_device. v.mu is held.
func (v *Devices) writeUplinks() error {
	words := make(map[uint32]uint64)
	for key, device := range v.written {
		if device.Flags&kernel.DeviceUplink != 0 && !v.IsLink(device.Text()) {
			at, bit := guard.Device{Netns: v.namespace.ID, Ifindex: int(key.Ifindex)}.Word()
			words[netnsCount*guard.Words+at] |= bit
		}
	}
	for i := range uint32(guard.Words) {
		at := uint32(netnsCount+v.namespace.ID)*guard.Words + i
		if words[at] == v.uplinkWords[at] && v.uplinksKnown {
			continue
		}
		if err := v.tables.Guarded.Put(at, words[at]); err != nil {
			return fmt.Errorf("uplinks: %w", err)
		}
	}
	v.uplinkWords, v.uplinksKnown = words, true
	return nil
}

// IsLink reports whether a device is an end of the link between host and switch. Its packets are
// this node's own, so it is not treated as an uplink even if its Interface has that role.
func (v *Devices) IsLink(device string) bool {
	return device != "" && device == v.options.LinkDevice
}
