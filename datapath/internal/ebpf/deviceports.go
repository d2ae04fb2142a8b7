// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
)

// devicesOfBefore are the devices that an earlier run's programs know to have a flag: this
// one takes them for such until it has found what there is.
func devicesOfBefore(d *DataPlane, zone uint8, flag uint32) map[int]bool {
	those := make(map[int]bool)
	var key kernelDeviceKey
	var device kernelDevice
	for it := d.maps[kernelMapLlDevice].Iterate(); it.Next(&key, &device); {
		if key.Zone == uint32(zone) && device.Flags&flag != 0 {
			those[int(key.Ifindex)] = true
		}
	}
	return those
}

// setRole notes what lies behind a device that our programs are, or are going to be, attached to,
// and the name that its object has for it.
func (v *devices) setRole(index int, device string, role datapath.Role) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.named[index] = device
	v.roles[index] = roleOf(role)
	delete(v.uplinks, index)
	if role == datapath.RoleUplink {
		v.uplinks[index] = true
	}
}

// ruleName returns the name by which rules match a device. While our programs are attached it is
// that of the object, also where another program renames the device: else packets would pass
// untranslated, and by no rule, until it has its name again. v.mu is held.
func (v *devices) ruleName(l netlink.Link) string {
	a := l.Attrs()
	name := v.named[a.Index]
	if name == "" {
		if old, err := v.before(v.key(l)); err == nil { // of an earlier run
			name = old.name()
		}
	}
	if !v.ports[a.Index] || name == "" || name == a.Name {
		return a.Name
	}
	for _, other := range v.links {
		if other.Attrs().Name == name {
			return a.Name
		}
	}
	return name
}

// role returns what setRole noted.
func (v *devices) role(index int) deviceRole {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.roles[index]
}

func roleOf(role datapath.Role) deviceRole {
	if role == datapath.RoleUplink {
		return roleUplink
	}
	return roleOther
}

// setPort notes whether our programs are attached to a device.
func (v *devices) setPort(index int, attached bool) error {
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
	return errors.Join(v.scan(), v.d.announcer.follow())
}

// addPort notes that our programs are attached to a device that has just come and is not up
// yet. What else there is is not read for it: that takes long where devices are many, and
// what becomes of this one the kernel tells.
func (v *devices) addPort(index int) error {
	if ok, err := v.addFresh(index); ok || err != nil {
		return err
	}
	return v.setPort(index, true)
}

func (v *devices) addFresh(index int) (ok bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l, err := v.zone.nl.LinkByIndex(index) // now: what was read before may be older than the last scan
	if err != nil || l.Attrs().Flags&net.FlagUp != 0 || l.Attrs().MasterIndex != 0 {
		return false, nil
	}
	v.ports[index], v.links[index] = true, l
	wanted := maps.Clone(v.written)
	wanted[v.key(l)] = v.encode(l)
	return true, v.write(wanted)
}

// dropPort notes that they are taken off one that is about to go.
func (v *devices) dropPort(index int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.ports, index)
	delete(v.named, index)
	delete(v.roles, index)
	delete(v.uplinks, index)
	wanted := maps.Clone(v.written)
	key := kernelDeviceKey{Ifindex: uint32(index), Zone: uint32(v.zone.id)}
	if device, ok := wanted[key]; ok {
		device.Flags &^= devicePort
		wanted[key] = device
	}
	return v.write(wanted)
}

// keepPorts notes that our programs are attached to these devices only.
func (v *devices) keepPorts(attached map[int]bool) error {
	v.mu.Lock()
	v.ports = make(map[int]bool, len(attached))
	maps.Copy(v.ports, attached)
	v.mu.Unlock()
	return errors.Join(v.scan(), v.d.announcer.follow())
}

// hasPort says whether that is noted of a device.
func (v *devices) hasPort(index int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ports[index]
}

// joined has the programs know a port of a bridge, if they do not yet.
func (v *devices) joined(index int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stations.knows(index) {
		return nil
	}
	ports, err := v.zone.bridgePorts()
	if err != nil {
		return fmt.Errorf("list ports of bridges: %w", err)
	}
	if err := v.markOtherTags(ports); err != nil {
		return err
	}
	_, err = v.stations.setPorts(ports, v.links, v.tunnelEnds())
	return err
}

// zoneCount is how many zones there are.
const zoneCount = zoneSwitch + 1

// writeUplinks brings the bits of uplinks, which are behind those of guards, to what ll_device
// says. v.mu is held.
func (v *devices) writeUplinks() error {
	words := make(map[uint32]uint64)
	for key, device := range v.written {
		if device.Flags&deviceUplink != 0 && !v.isLink(device.name()) {
			at, bit := guardedDevice{v.zone.id, int(key.Ifindex)}.word()
			words[zoneCount*guardedWords+at] |= bit
		}
	}
	for i := range uint32(guardedWords) {
		at := uint32(zoneCount+v.zone.id)*guardedWords + i
		if words[at] == v.uplinkWords[at] && v.uplinksKnown {
			continue
		}
		if err := v.d.maps[kernelMapLlGuarded].Put(at, words[at]); err != nil {
			return fmt.Errorf("uplinks: %w", err)
		}
	}
	v.uplinkWords, v.uplinksKnown = words, true
	return nil
}

// isLink reports whether a device is an end of the link between host and switch: what comes by
// it is this node's, whatever an Interface says.
func (v *devices) isLink(device string) bool {
	c := v.d.config
	return device != "" && (v.zone.id == zoneHost && device == c.HostDevice ||
		v.zone.id == zoneSwitch && device == c.SwitchDevice)
}
