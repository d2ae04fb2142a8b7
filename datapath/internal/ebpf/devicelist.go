// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// carriedKinds are the kinds of devices whose packets cross their parent device. For a veth, the
// parent index names its other end.
var carriedKinds = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"}

// Devices implements [datapath.Telemetry].
func (t *telemetry) Devices(inSwitch bool) map[string]datapath.Device {
	z, err := t.d.namespace(t.d.namespaceOf(inSwitch))
	if err != nil || z.devices == nil {
		return nil
	}
	z.devices.mu.Lock()
	defer z.devices.mu.Unlock()
	return z.devices.listed
}

// list returns the devices, keyed by the names that rules match. v.mu is held.
func (v *devices) list(ports map[int]bridgePort) map[string]datapath.Device {
	return listDevices(v.links, ports, v.addrs, v.first, v.ruleName)
}

// bridging returns the spanning tree state of a port.
func (p *bridgePort) bridging() datapath.PortBridging {
	states := [...]datapath.PortBridging{ // BR_STATE_DISABLED to BR_STATE_BLOCKING
		datapath.BridgingDisabled, datapath.BridgingListening, datapath.BridgingLearning, datapath.BridgingForwarding, datapath.BridgingBlocking,
	}
	if int(p.state) >= len(states) {
		return datapath.BridgingUnknown
	}
	return states[p.state]
}

// listDevices returns the devices, keyed by name; bridged are the bridge ports.
func listDevices(
	links map[int]netlink.Link, bridged map[int]bridgePort, addrs map[int][]netip.Prefix, first map[int][2]netip.Addr, name func(netlink.Link) string,
) map[string]datapath.Device {
	names := make(map[int]string, len(links))
	for index, l := range links {
		names[index] = name(l)
	}
	ports := make(map[int][]string)
	for index, l := range links {
		if master := l.Attrs().MasterIndex; master != 0 {
			ports[master] = append(ports[master], names[index])
		}
	}
	all := make(map[string]datapath.Device, len(links))
	for index, l := range links {
		d := datapath.Device{Kind: l.Type(), Loopback: index == hook.LoopbackIndex, Ports: ports[index], Link: linkState(l.Attrs()), Addresses: addrs[index], Sources: first[index]}
		slices.Sort(d.Ports)
		if p, ok := bridged[index]; ok {
			d.Bridging = p.bridging()
		}
		if slices.Contains(carriedKinds, d.Kind) && l.Attrs().NetNsID < 0 {
			d.Parent = names[l.Attrs().ParentIndex]
		}
		all[names[index]] = d
	}
	return all
}

// inspectDevices returns the devices of a namespace, keyed by name, without a running data plane.
func inspectDevices(z *hook.Netns) (map[string]datapath.Device, error) {
	list, err := retry(z.Netlink.LinkList)
	if err != nil {
		return nil, err
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return z.Netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	links, all := make(map[int]netlink.Link, len(list)), make(map[int][]netip.Prefix)
	for _, l := range list {
		links[l.Attrs().Index] = l
	}
	first := firstAddrs(addrs, all)
	return listDevices(links, nil, all, first, func(l netlink.Link) string { return l.Attrs().Name }), nil
}
