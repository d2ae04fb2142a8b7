// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace without a name: it vanishes with the last process that uses it,
// however that process ended.
type namespace struct {
	handle netns.NsHandle
	links  *netlink.Handle
}

func newNamespace() (*namespace, error) {
	ns := new(namespace)
	err := onThread(func() (err error) {
		if ns.handle, err = netns.New(); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if ns.links, err = netlink.NewHandleAt(ns.handle, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("netlink socket in namespace: %w", err)
	}
	// IPv6 is not used here; its addresses would become valid during a measurement.
	if err := ns.sysctl("ipv6/conf/default/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("switch IPv6 off: %w", err)
	}
	return ns, ns.up("lo")
}

func (ns *namespace) close() {
	ns.links.Close()
	ns.handle.Close() // harmless if it fails: the process is about to end
}

// do runs fn on a thread inside the namespace. Goroutines that fn starts are outside it.
func (ns *namespace) do(fn func() error) error {
	return onThread(func() error {
		if err := netns.Set(ns.handle); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// onThread runs fn on an OS thread of its own, which ends with fn: a network namespace and a CPU
// affinity belong to a thread.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}

// run runs a command inside the namespace. If it fails, the error contains its output.
func (ns *namespace) run(stdin string, name string, args ...string) error {
	_, err := ns.output(stdin, name, args...)
	return err
}

// output runs a command inside the namespace and returns its output. If it fails, the error
// contains the output.
func (ns *namespace) output(stdin string, name string, args ...string) (out []byte, err error) {
	err = ns.do(func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, firstLines(out))
		}
		return nil
	})
	return out, err
}

func firstLines(out []byte) string {
	const limit = 500
	return strings.TrimSpace(string(out[:min(len(out), limit)]))
}

// sysctl sets a variable below /proc/sys/net in the namespace.
func (ns *namespace) sysctl(name, value string) error {
	return ns.do(func() error {
		return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
	})
}

func (ns *namespace) up(device string) error {
	link, err := ns.links.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	if err := ns.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("set device %s up: %w", device, err)
	}
	return nil
}

// veth connects two namespaces with a veth pair, with both devices up.
func veth(a *namespace, nameA string, b *namespace, nameB string) error {
	err := a.links.LinkAdd(&netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: nameA},
		PeerName:      nameB,
		PeerNamespace: netlink.NsFd(b.handle),
	})
	if err != nil {
		return fmt.Errorf("create veth pair %s and %s: %w", nameA, nameB, err)
	}
	if err := a.up(nameA); err != nil {
		return err
	}
	return b.up(nameB)
}

// remote connects another machine to a port of a node through a wire: a veth pair with both ends in
// the node's namespace. The machine's own device is a macvlan on the far end.
func remote(node *namespace, port, wire string, machine *namespace, name string) error {
	if err := veth(node, port, node, wire); err != nil {
		return err
	}
	far, err := node.links.LinkByName(wire)
	if err != nil {
		return fmt.Errorf("device %s: %w", wire, err)
	}
	err = node.links.LinkAdd(&netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: far.Attrs().Index, Namespace: netlink.NsFd(machine.handle)},
		Mode:      netlink.MACVLAN_MODE_PRIVATE,
	})
	if err != nil {
		return fmt.Errorf("create %s on %s: %w", name, wire, err)
	}
	return machine.up(name)
}

// bridge creates a bridge that is up.
func (ns *namespace) bridge(name string) error {
	if err := ns.links.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	return ns.up(name)
}

// enslave attaches a device to a bridge.
func (ns *namespace) enslave(device, bridge string) error {
	port, err := ns.links.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	master, err := ns.links.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	if err := ns.links.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("make %s a port of %s: %w", device, bridge, err)
	}
	return nil
}

// mac returns the MAC address of a device.
func (ns *namespace) mac(device string) (net.HardwareAddr, error) {
	link, err := ns.links.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", device, err)
	}
	return link.Attrs().HardwareAddr, nil
}

// address assigns addresses, each with its prefix length, to a device.
func (ns *namespace) address(device string, addresses ...string) error {
	link, err := ns.links.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := ns.links.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, device, err)
		}
	}
	return nil
}

// mtu sets the MTU of a device.
func (ns *namespace) mtu(device string, bytes int) error {
	link, err := ns.links.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	if err := ns.links.LinkSetMTU(link, bytes); err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", device, bytes, err)
	}
	return nil
}

// route adds a route to prefix via a gateway.
func (ns *namespace) route(prefix, gateway string) error {
	_, dst, err := net.ParseCIDR(prefix)
	if err != nil {
		return err
	}
	if err := ns.links.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gateway)}); err != nil {
		return fmt.Errorf("add route %s via %s: %w", prefix, gateway, err)
	}
	return nil
}

// neighbour adds a permanent neighbour entry, so that no packet waits for ARP.
func (ns *namespace) neighbour(device, address string, mac net.HardwareAddr) error {
	link, err := ns.links.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	err = ns.links.NeighSet(&netlink.Neigh{
		LinkIndex:    link.Attrs().Index,
		State:        netlink.NUD_PERMANENT,
		IP:           net.ParseIP(address),
		HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s on %s: %w", address, device, err)
	}
	return nil
}

// The offloads of a device, as ETHTOOL_S commands of linux/ethtool.h.
const (
	offloadGSO = 0x24
	offloadGRO = 0x2c
	offloadTSO = 0x1f
)

// offload switches one offload of a device on or off.
func (ns *namespace) offload(device string, command uint32, on bool) error {
	return ns.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		value := struct{ command, data uint32 }{command: command}
		if on {
			value.data = 1
		}
		request := struct { // struct ifreq
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:unix.IFNAMSIZ-1], device)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			return fmt.Errorf("ethtool %s, command %#x: %w", device, command, errno)
		}
		return nil
	})
}
