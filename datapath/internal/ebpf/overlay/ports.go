// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
)

// InnerPrefix is the prefix of the names of ports without an Interface.
const InnerPrefix = "tunnel "

// LinkPrefix is the prefix of the names of the ports at both ends of the link between host and
// switch, which tunnels need.
const LinkPrefix = InnerPrefix + "link "

// IsInner reports whether a port exists without an Interface: for a tunnel, or the port of the
// loopback device.
func IsInner(name datapath.PortName) bool { return strings.HasPrefix(string(name), InnerPrefix) }

// innerPorts returns the names of a tunnel's own ports.
func innerPorts(name datapath.TunnelName) (device, end datapath.PortName) {
	return datapath.PortName(InnerPrefix + string(name)), datapath.PortName(InnerPrefix + string(name) + " end")
}

// attach attaches the programs to the devices on the path of the tunnel's packets.
func (o tunnelTable) attach(ctx context.Context, name datapath.TunnelName, t *tunnel) (err error) {
	device, end := innerPorts(name)
	if err := o.options.Ports.Update(ctx, device, datapath.Port{Device: t.spec.Device, Switch: true, Role: datapath.RoleTunnel}); err != nil {
		return err
	}
	if err := o.options.Ports.Update(ctx, end, datapath.Port{Device: t.spec.Device + datapath.TunnelEndSuffix, Switch: true, Role: datapath.RoleTunnel}); err != nil {
		return err
	}
	if t.device, err = o.indexOf(true, t.spec.Device); err != nil {
		return err
	}
	t.crossing, t.back = 0, 0
	if o.options.SwitchNetns == 0 {
		return nil
	}
	if t.back, err = o.hold(ctx, false, o.options.HostDevice); err == nil {
		t.crossing, err = o.hold(ctx, true, o.options.SwitchDevice)
	}
	return err
}

// hold attaches the programs to an end of the link between host and switch, unless it is already a
// port.
func (o *Overlay) hold(ctx context.Context, inSwitch bool, device string) (index int, err error) {
	if device == "" {
		return 0, fmt.Errorf("no link exists between host and switch: set switch.hostDevice and switch.switchDevice, or switch.namespace to host: %w", datapath.ErrUnsupported)
	}
	if index, err = o.indexOf(inSwitch, device); err != nil {
		return 0, err
	}
	inner := datapath.PortName(LinkPrefix + device)
	o.options.Ports.Need(inner, inSwitch, index)
	isHeld := func() bool {
		holder := o.options.Ports.Holder(inSwitch, index)
		return holder != "" && !IsInner(holder)
	}
	if isHeld() {
		return index, nil
	}
	err = o.options.Ports.Update(ctx, inner, datapath.Port{Device: device, Switch: inSwitch, Role: datapath.RoleHost})
	if err != nil && isHeld() {
		return index, nil // another goroutine was faster
	}
	return index, err
}

// indexOf returns the ifindex of a device. The error wraps [datapath.ErrAbsent] if the device does
// not exist.
func (o *Overlay) indexOf(inSwitch bool, device string) (int, error) {
	netns, err := o.options.Netns(inSwitch)
	if err != nil {
		return 0, err
	}
	link, err := netns.LinkByName(device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		err = datapath.ErrAbsent
	}
	if err != nil {
		return 0, fmt.Errorf("device %q: %w", device, err)
	}
	return link.Attrs().Index, nil
}
