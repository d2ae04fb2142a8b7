// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// interfaces returns the desired ports: Interfaces, and the ports that pod networks and Endpoints
// need.
func (x *examiner) interfaces() map[datapath.PortName]datapath.Port {
	ports := make(map[datapath.PortName]datapath.Port)
	for _, o := range x.desired.objects {
		if name, port, ok := portOf(o); ok {
			ports[name] = port
		}
	}
	x.addBridgePorts(ports)
	if x.hasPods() && x.Config.SwitchNamespace != "host" {
		x.addPodPorts(ports)
	}
	return ports
}

// addBridgePorts adds the ports of Bridges to which no other object attaches the programs.
func (x *examiner) addBridgePorts(ports map[datapath.PortName]datapath.Port) {
	taken := map[string]bool{}
	for _, p := range ports {
		taken[p.Device] = taken[p.Device] || p.Switch || x.Config.SwitchNamespace == "host"
	}
	for _, o := range x.desired.objects {
		b, ok := o.Value.(*state.Bridge)
		if !ok {
			continue
		}
		for name, p := range state.BridgePorts(o.Name, b, x.Config.SwitchDevice) {
			if !taken[p.Device] {
				ports[name] = p
			}
		}
	}
}

func (x *examiner) hasPods() bool {
	return slices.ContainsFunc(x.desired.objects, func(o *state.Object) bool { return o.Kind == state.KindPodNetwork })
}

func (x *examiner) addPodPorts(ports map[datapath.PortName]datapath.Port) {
	for name, port := range state.PodPorts(x.Config.HostDevice, x.Config.SwitchDevice) {
		configured := false
		for _, p := range ports {
			configured = configured || p.Device == port.Device && p.Switch == port.Switch
		}
		if !configured {
			ports[name] = port
		}
	}
}

// portOf returns the port of an object; it returns false if the object has no port.
func portOf(o *state.Object) (datapath.PortName, datapath.Port, bool) {
	switch v := o.Value.(type) {
	case *state.Interface:
		port, ok := resolved(v.Port)
		return datapath.PortName(o.Name), port, ok
	case *state.Endpoint:
		return datapath.EndpointName(o.Name).Port(), datapath.Port{Device: v.Device, Switch: true, Role: datapath.RolePort}, true
	}
	return "", datapath.Port{}, false
}

// exists reports whether the device of a port exists.
func (x *examiner) exists(port *datapath.Port) bool { return x.deviceOf(*port).Exists }

// checkInterface reports a desired port that has no programs, or whose device does not exist or is
// down. If the daemon is running, it reports by itself what it is waiting for.
func (x *examiner) checkInterface(o *state.Object, name datapath.PortName, i datapath.Port) {
	if x.plane.Layout == 0 || x.Config.Backend != "ebpf" {
		return // not inspected
	}
	port := slices.IndexFunc(x.plane.Ports, func(p datapath.InspectedPort) bool {
		return p.Current && p.Name == name && (p.Index != 0 || p.Unknown)
	})
	device := x.deviceOf(i)
	switch renamed := port >= 0 && x.plane.Ports[port].Index != 0; {
	case device.Exists:
		x.checkAttached(o, i, &device, port >= 0)
	case x.daemon.running():
	case device.Switch && x.plane.NoSwitch:
		x.find("warning", "devices.no_switch", o.Key.String(), words{
			what: "needs a device in the network namespace " + x.Config.SwitchNamespace + ", which does not exist",
			why:  "no packets are load-balanced on that device", do: "start the daemon, which creates it; or set netns: host in the object",
		}, nil)
	case !renamed: // checkPort reports renamed devices
		x.find("warning", "devices.missing", o.Key.String(), words{
			what: "needs the device " + i.Device + ", which does not exist",
			why:  "no packets are load-balanced on that device", do: "create the device, or delete the object; a running daemon attaches to a new device within a second",
		}, nil)
	}
}

// deviceOf returns the inspected device of a port; its zero value if it was not inspected.
func (x *examiner) deviceOf(port datapath.Port) (device datapath.InspectedDevice) {
	for _, d := range x.plane.Devices {
		if d.Name == port.Device && d.Switch == (port.Switch && x.Config.SwitchNamespace != "host") {
			device = d
		}
	}
	return device
}

// checkAttached reports a desired port without programs, or whose device, which exists, is down.
func (x *examiner) checkAttached(o *state.Object, i datapath.Port, device *datapath.InspectedDevice, attached bool) {
	switch {
	case !attached && x.shares(i, device): // reported for the Interface that has the programs
	case x.waits(o.Key.String()):
	case !attached:
		x.find("error", "hooks.missing", o.Key.String(), words{
			what: "has no programs on the device " + i.Device,
			why:  "packets to services that arrive on this device are not balanced",
			do:   x.start() + "; if it runs, see llcli status",
		}, nil)
	case !device.Up:
		x.find("warning", "devices.down", "device "+i.Device, words{
			what: "is down", why: "it carries no packets", do: "ip link set " + i.Device + " up",
		}, nil)
	}
}

// shares reports whether a port that is selected by address is on a device to which another
// Interface has attached the programs; they then serve both Interfaces.
func (x *examiner) shares(i datapath.Port, device *datapath.InspectedDevice) bool {
	return i.Address.IsValid() && slices.ContainsFunc(x.plane.Ports, func(p datapath.InspectedPort) bool {
		_, guarded := p.Name.Endpoint()
		return p.Current && !guarded && p.Index != 0 && p.Device == device.Name && p.Switch == device.Switch
	})
}

// waits reports whether the daemon is waiting for an object.
func (x *examiner) waits(object string) bool {
	if x.daemon.status == nil {
		return false
	}
	for _, o := range x.daemon.status.NotReady {
		if o.Object == object {
			return true
		}
	}
	return false
}
