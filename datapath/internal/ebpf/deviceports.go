// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"maps"
)

// portsOfBefore are the devices that an earlier run's programs are attached to, as far as
// those know: this one takes them for ports until it has found what there is.
func portsOfBefore(d *DataPlane, zone uint8) map[int]bool {
	ports := make(map[int]bool)
	var key kernelDeviceKey
	var device kernelDevice
	for it := d.maps[kernelMapLlDevice].Iterate(); it.Next(&key, &device); {
		if key.Zone == uint32(zone) && device.Flags&devicePort != 0 {
			ports[int(key.Ifindex)] = true
		}
	}
	return ports
}

// setPort notes whether our programs are attached to a device.
func (v *devices) setPort(index int, attached bool) error {
	v.mu.Lock()
	if attached {
		v.ports[index] = true
	} else {
		delete(v.ports, index)
	}
	v.mu.Unlock()
	return errors.Join(v.scan(), v.d.announcer.follow())
}

// keepPorts notes that our programs are attached to these devices only.
func (v *devices) keepPorts(attached map[int]bool) error {
	v.mu.Lock()
	maps.DeleteFunc(v.ports, func(index int, _ bool) bool { return !attached[index] })
	v.mu.Unlock()
	return v.scan()
}
