// SPDX-License-Identifier: Apache-2.0

// Package device reads the devices of a namespace from the kernel: their links, addresses and XDP
// features. It keeps no state.
package device

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/bridge"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// carriedKinds are the kinds of devices whose packets cross their parent device. For a veth, the
// parent index names its other end.
var carriedKinds = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"}

// List returns the devices, keyed by name. bridged are the bridge ports, first are the source
// addresses that [FirstAddrs] returns, and name returns the name of a device.
func List(
	links map[int]netlink.Link, bridged map[int]bridge.Port, addrs map[int][]netip.Prefix, first map[int][2]netip.Addr, name func(netlink.Link) string,
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
		d := datapath.Device{Kind: l.Type(), Loopback: index == hook.LoopbackIndex, Ports: ports[index], Link: LinkState(l.Attrs()), Addresses: addrs[index], Sources: first[index]}
		slices.Sort(d.Ports)
		if p, ok := bridged[index]; ok {
			d.Bridging = p.Bridging()
		}
		if slices.Contains(carriedKinds, d.Kind) && l.Attrs().NetNsID < 0 {
			d.Parent = names[l.Attrs().ParentIndex]
		}
		all[names[index]] = d
	}
	return all
}

// Inspect returns the devices of a namespace, keyed by name, without a running data plane.
func Inspect(z *hook.Netns) (map[string]datapath.Device, error) {
	list, err := dump.Retry(z.Netlink.LinkList)
	if err != nil {
		return nil, err
	}
	addrs, err := dump.Retry(func() ([]netlink.Addr, error) { return z.Netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	links, all := make(map[int]netlink.Link, len(list)), make(map[int][]netip.Prefix)
	for _, l := range list {
		links[l.Attrs().Index] = l
	}
	first := FirstAddrs(addrs, all)
	return List(links, nil, all, first, func(l netlink.Link) string { return l.Attrs().Name }), nil
}

// FirstAddrs adds the addresses of each device to all, and returns the source address of each
// device and family: the first that is global, neither deprecated nor tentative. Index 0 has the
// addresses for devices without their own.
func FirstAddrs(addrs []netlink.Addr, all map[int][]netip.Prefix) map[int][2]netip.Addr {
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

// LinkState returns whether a device can carry packets.
func LinkState(a *netlink.LinkAttrs) datapath.LinkState {
	switch {
	case a.RawFlags&unix.IFF_UP == 0:
		return datapath.LinkDown
	case a.RawFlags&unix.IFF_LOWER_UP == 0:
		return datapath.LinkNoCarrier
	}
	return datapath.LinkUp
}
