// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// Port is a device that is attached to a bridge, as the kernel reports it.
type Port struct {
	Bridge int   // index of the bridge
	other  bool  // the bridge uses VLAN tags other than 802.1Q
	state  uint8 // spanning tree state
	flags  portFlags
	vlans  string // the bridge_vlan_info structures, unparsed
}

// portFlags are the settings of a bridge port that decide where frames may go, indexed by attribute
// number.
type portFlags [brportFlagMax]uint8

// Attributes of a bridge port that the library does not define (linux/if_link.h).
const (
	brportLocked  = 43
	brportFlagMax = 48

	stateDisabled   = 0
	stateForwarding = 3
)

// watchedFlags lists the attributes that are kept in portFlags.
var watchedFlags = []uint16{
	nl.IFLA_BRPORT_MODE, nl.IFLA_BRPORT_GUARD, nl.IFLA_BRPORT_LEARNING, nl.IFLA_BRPORT_UNICAST_FLOOD,
	nl.IFLA_BRPORT_VLAN_TUNNEL, nl.IFLA_BRPORT_ISOLATED, brportLocked,
}

// follows reports whether the data plane may forward in place of the bridge at this port. The port
// of an endpoint is disabled until its peer device is up; no packet arrives before that, so a
// guarded port counts as forwarding without waiting for the kernel's message.
func (p *Port) follows(guarded bool) bool {
	forwards := p.state == stateForwarding || guarded && p.state == stateDisabled
	return forwards && !p.other && p.flags[nl.IFLA_BRPORT_VLAN_TUNNEL] == 0 && p.flags[brportLocked] == 0
}

// Bridging returns the spanning tree state of a port.
func (p *Port) Bridging() datapath.PortBridging {
	states := [...]datapath.PortBridging{ // BR_STATE_DISABLED to BR_STATE_BLOCKING
		datapath.BridgingDisabled, datapath.BridgingListening, datapath.BridgingLearning, datapath.BridgingForwarding, datapath.BridgingBlocking,
	}
	if int(p.state) >= len(states) {
		return datapath.BridgingUnknown
	}
	return states[p.state]
}

// eachVLAN calls each for every VLAN of a port.
func (p *Port) eachVLAN(each func(vid uint16, pvid bool)) {
	first := uint16(0)
	for raw := []byte(p.vlans); len(raw) >= 4; raw = raw[4:] {
		v := nl.DeserializeBridgeVlanInfo(raw)
		switch {
		case v.Flags&nl.BRIDGE_VLAN_INFO_RANGE_BEGIN != 0:
			first = v.Vid
			continue
		case v.Flags&nl.BRIDGE_VLAN_INFO_RANGE_END == 0:
			first = v.Vid
		}
		for vid := first; vid <= v.Vid; vid++ {
			each(vid, v.Flags&nl.BRIDGE_VLAN_INFO_PVID != 0)
		}
	}
}

// Ports returns the ports of all bridges of a namespace by ifindex.
func Ports(namespace netns.NsHandle) (map[int]Port, error) {
	socket, err := nl.GetNetlinkSocketAt(namespace, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	defer sockets[unix.NETLINK_ROUTE].Close()
	return dump.Retry(func() (map[int]Port, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
		req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_BRVLAN_COMPRESSED)))
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			return nil, err
		}
		ports := make(map[int]Port)
		for _, m := range msgs {
			err = errors.Join(err, addBridgePort(ports, m))
		}
		return ports, err
	})
}

// addBridgePort parses one message of a listing. It skips the bridge itself, which has no master.
func addBridgePort(ports map[int]Port, m []byte) error {
	msg := nl.DeserializeIfInfomsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return err
	}
	var p Port
	for _, a := range attrs {
		var nested []byte
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_MASTER:
			p.Bridge = int(nl.NativeEndian().Uint32(a.Value))
			continue
		case unix.IFLA_PROTINFO, unix.IFLA_AF_SPEC:
			nested = a.Value
		default:
			continue
		}
		of := a.Attr.Type &^ unix.NLA_F_NESTED
		inner, err := nl.ParseRouteAttr(nested)
		if err != nil {
			return err
		}
		for _, i := range inner {
			switch {
			case of == unix.IFLA_AF_SPEC && i.Attr.Type == nl.IFLA_BRIDGE_VLAN_INFO:
				p.vlans += string(i.Value)
			case of == unix.IFLA_PROTINFO && i.Attr.Type == nl.IFLA_BRPORT_STATE && len(i.Value) > 0:
				p.state = i.Value[0]
			case of == unix.IFLA_PROTINFO:
				p.setFlag(i.Attr.Type, i.Value)
			}
		}
	}
	if p.Bridge != 0 && p.Bridge != int(msg.Index) {
		ports[int(msg.Index)] = p
	}
	return nil
}

func (p *Port) setFlag(number uint16, value []byte) {
	for _, w := range watchedFlags {
		if number == w && len(value) > 0 {
			p.flags[number] = value[0]
		}
	}
}

// MarkOtherTags records for each port of a namespace whether its bridge uses VLAN tags other than
// 802.1Q. Such a bridge treats an 802.1Q tag as payload.
func MarkOtherTags(namespace netns.NsHandle, links map[int]netlink.Link, ports map[int]Port) error {
	other := make(map[int]bool)
	for index, l := range links {
		if !filtersVLANs(l) {
			continue
		}
		protocol, err := vlanProtocol(namespace, index)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("VLAN tags of bridge %s: %w", l.Attrs().Name, err)
		}
		other[index] = protocol != unix.ETH_P_8021Q
	}
	for index, p := range ports {
		p.other = other[p.Bridge]
		ports[index] = p
	}
	return nil
}

// vlanProtocol returns the EtherType of the VLAN tags that a bridge uses.
func vlanProtocol(namespace netns.NsHandle, bridge int) (uint16, error) {
	socket, err := nl.GetNetlinkSocketAt(namespace, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	defer sockets[unix.NETLINK_ROUTE].Close()
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.Sockets = sockets
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(bridge)
	req.AddData(msg)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(msgs) == 0 {
		return 0, err
	}
	value := attribute(msgs[0][msg.Len():], unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA, nl.IFLA_BR_VLAN_PROTOCOL)
	if len(value) < 2 {
		return 0, nil
	}
	return binary.BigEndian.Uint16(value), nil
}

// attribute returns the value of a nested attribute, nil if it does not exist; path lists the
// attribute numbers from the outermost inwards.
func attribute(b []byte, path ...uint16) []byte {
	for _, number := range path {
		attrs, err := nl.ParseRouteAttr(b)
		at := slices.IndexFunc(attrs, func(a syscall.NetlinkRouteAttr) bool { return a.Attr.Type&^unix.NLA_F_NESTED == number })
		if err != nil || at < 0 {
			return nil
		}
		b = attrs[at].Value
	}
	return b
}

// filtersVLANs reports whether a device is a bridge with VLAN filtering.
func filtersVLANs(l netlink.Link) bool {
	b, ok := l.(*netlink.Bridge)
	return ok && b.VlanFiltering != nil && *b.VlanFiltering
}
