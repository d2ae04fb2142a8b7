// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Port is one end of a veth pair.
type Port struct {
	NS    *NS
	Name  string
	Addrs []string // with prefix length
	MAC   string   // empty: random
	MTU   int      // 0: 1500
}

// Veth connects two namespaces with a pair of interfaces, both up and addressed.
func Veth(t T, a, b Port) {
	t.Helper()
	a.NS.Do(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = a.Name, mtuOr1500(a.MTU)
		veth := &netlink.Veth{
			LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(b.NS.handle),
			PeerMTU: uint32(mtuOr1500(b.MTU)),
		}
		var err error
		if a.MAC != "" {
			if veth.HardwareAddr, err = net.ParseMAC(a.MAC); err != nil {
				return err
			}
		}
		if b.MAC != "" {
			if veth.PeerHardwareAddr, err = net.ParseMAC(b.MAC); err != nil {
				return err
			}
		}
		return netlink.LinkAdd(veth)
	})
	for _, p := range []Port{a, b} {
		p.NS.Up(t, p.Name)
		p.NS.Addr(t, p.Name, p.Addrs...)
	}
}

// Bridge makes a bridge with devices as its ports, and sets it up.
func (ns *NS) Bridge(t T, name string, ports ...string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	ns.Do(t, func() error { return netlink.LinkAdd(bridge) })
	ns.Up(t, name)
	for _, port := range ports {
		ns.withLink(t, port, func(link netlink.Link) error { return netlink.LinkSetMaster(link, bridge) })
	}
}

func mtuOr1500(mtu int) int {
	if mtu == 0 {
		return 1500
	}
	return mtu
}

// Up sets a device's link state to up.
func (ns *NS) Up(t T, device string) {
	t.Helper()
	ns.withLink(t, device, netlink.LinkSetUp)
}

// MTU sets the MTU of a device.
func (ns *NS) MTU(t T, device string, mtu int) {
	t.Helper()
	ns.withLink(t, device, func(link netlink.Link) error { return netlink.LinkSetMTU(link, mtu) })
}

// DeleteLink removes a device.
func (ns *NS) DeleteLink(t T, device string) {
	t.Helper()
	ns.withLink(t, device, netlink.LinkDel)
}

// MAC returns the hardware address of a device.
func (ns *NS) MAC(t T, device string) (mac [6]byte) {
	t.Helper()
	ns.withLink(t, device, func(link netlink.Link) error {
		mac = [6]byte(link.Attrs().HardwareAddr)
		return nil
	})
	return mac
}

// Addr adds addresses, with prefix length, to a device; they can be used immediately.
func (ns *NS) Addr(t T, device string, addrs ...string) {
	t.Helper()
	ns.withLink(t, device, func(link netlink.Link) error {
		for _, s := range addrs {
			addr, err := netlink.ParseAddr(s)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("address %s on %s: %w", s, device, err)
			}
		}
		return nil
	})
}

// Route adds a route to prefix via a gateway ("default" means every IPv4 or IPv6 address, depending
// on the family of via).
func (ns *NS) Route(t T, prefix, via string) {
	t.Helper()
	route := netlink.Route{Gw: net.ParseIP(via)}
	if prefix == "default" {
		bits := 32
		if netip.MustParseAddr(via).Is6() {
			bits = 128
		}
		route.Dst = &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
	} else {
		_, dst, err := net.ParseCIDR(prefix)
		if err != nil {
			t.Fatalf("route %s: %v", prefix, err)
		}
		route.Dst = dst
	}
	ns.Do(t, func() error {
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("route %s via %s: %w", prefix, via, err)
		}
		return nil
	})
}

// Neighbour adds a permanent neighbour entry, so that the address need not be resolved.
func (ns *NS) Neighbour(t T, device, addr string, mac [6]byte) {
	t.Helper()
	ns.withLink(t, device, func(link netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(addr), HardwareAddr: mac[:],
		})
	})
}

func (ns *NS) withLink(t T, device string, fn func(netlink.Link) error) {
	t.Helper()
	ns.Do(t, func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("device %s: %w", device, err)
		}
		return fn(link)
	})
}

// Feature is an offload, identified by the number of the ethtool command that sets it.
type Feature uint32

// The offloads.
const (
	RxChecksum Feature = 0x15
	TxChecksum Feature = 0x17
	Scatter    Feature = 0x19
	TSO        Feature = 0x1f
	GSO        Feature = 0x24
	GRO        Feature = 0x2c
)

// Offload turns offloads of a device on or off. Without TxChecksum the kernel completes checksums
// before a packet leaves; with it, veth passes on partial checksums, which the receiver trusts.
func (ns *NS) Offload(t T, device string, on bool, features ...Feature) {
	t.Helper()
	for _, feature := range features {
		ns.Do(t, func() error { return ethtool(device, feature, on) })
	}
}

func ethtool(device string, feature Feature, on bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{cmd: uint32(feature)}
	if on {
		value.data = 1
	}
	ifr := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(ifr.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
	if errno != 0 {
		return fmt.Errorf("ethtool command %#x on %s: %w", uint32(feature), device, errno)
	}
	return nil
}
