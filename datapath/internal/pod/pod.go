// SPDX-License-Identifier: Apache-2.0

// Package pod creates, checks and removes the veth pairs between pods and the switch through
// netlink. It holds no state: it recognizes its devices by their marks. It creates no bridges, and
// attaches no programs.
package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/network"
)

// nsfs is the file system type of namespaces.
const nsfs = 0x6e736673

// Links are the pod links of one instance.
type Links struct {
	cfg  datapath.Config
	log  *slog.Logger
	home netns.NsHandle // the daemon's own
}

var _ datapath.PodLinks = (*Links)(nil)

// Open returns the links of the instance, and changes nothing.
func Open(cfg datapath.Config, log *slog.Logger) (*Links, error) {
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace of the daemon: %w", err)
	}
	return &Links{cfg: cfg, log: log, home: home}, nil
}

// end is a network namespace, with a netlink handle for it.
type end struct {
	*netlink.Handle
	ns   netns.NsHandle
	kept bool // close must not close ns
}

func (e *end) close() {
	e.Handle.Close()
	if !e.kept {
		_ = e.ns.Close() // it was opened read-only
	}
}

// endAt opens the namespace ns, which the result owns.
func endAt(ns netns.NsHandle, kept bool) (*end, error) {
	e := &end{ns: ns, kept: kept}
	var err error
	if e.Handle, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		if !kept {
			_ = ns.Close() // read only, too
		}
		return nil, err
	}
	return e, nil
}

// openSwitch opens the switch's network namespace; the error wraps [datapath.ErrAbsent] if the
// namespace does not exist.
func (l *Links) openSwitch() (*end, error) {
	name := l.cfg.SwitchNamespace
	if name == "" || name == "host" {
		return endAt(l.home, true)
	}
	ns, err := netns.GetFromName(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("network namespace %q (switch.namespace): %w", name, datapath.ErrAbsent)
	}
	if err != nil {
		return nil, fmt.Errorf("network namespace %q (switch.namespace): %w", name, err)
	}
	e, err := endAt(ns, false)
	if err != nil {
		return nil, fmt.Errorf("network namespace %q (switch.namespace): %w", name, err)
	}
	return e, nil
}

// openPod opens the network namespace of a pod by its path.
func openPod(path string) (*end, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%w)", path, datapath.ErrNetns, err)
	}
	var at unix.Statfs_t
	if err := unix.Fstatfs(fd, &at); err != nil || at.Type != nsfs {
		_ = unix.Close(fd) // nothing was written
		return nil, fmt.Errorf("%s: %w: it is another kind of file", path, datapath.ErrNetns)
	}
	e, err := endAt(netns.NsHandle(fd), false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%w)", path, datapath.ErrNetns, err)
	}
	return e, nil
}

// link returns the device called name; nil if it does not exist.
func (e *end) link(name string) (netlink.Link, error) {
	link, err := e.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", name, err)
	}
	return link, nil
}

// alias returns the alias of the switch's end of a link.
func (l *Links) alias(label string) string {
	text := network.Mark(l.cfg) + " pod " + label
	return text[:min(len(text), maxAlias)]
}

// maxAlias is the kernel's IFALIASZ, without the terminating zero.
const maxAlias = 255

// label returns the label in an alias; empty if it was truncated.
func (l *Links) label(alias string) string {
	if len(alias) >= maxAlias {
		return ""
	}
	text, _ := strings.CutPrefix(alias, network.Mark(l.cfg)+" pod ")
	return text
}

// isOurs reports whether a device is the switch's end of a link that we created: it has our mark,
// or, if we were killed before setting the mark, our MAC address.
func (l *Links) isOurs(link netlink.Link) bool {
	a := link.Attrs()
	return link.Type() == "veth" && (strings.HasPrefix(a.Alias, network.Mark(l.cfg)+" pod ") ||
		a.Alias == "" && bytes.Equal(a.HardwareAddr, network.MACOf(l.cfg, a.Name)))
}

// Delete implements [datapath.PodLinks].
func (l *Links) Delete(_ context.Context, device string) error {
	return l.withOurs(device, remove)
}

// Shut implements [datapath.PodLinks].
func (l *Links) Shut(_ context.Context, device string) error {
	return l.withOurs(device, func(sw *end, link netlink.Link) error {
		if err := sw.LinkSetDown(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("device %q: %w", device, err)
		}
		return nil
	})
}

// withOurs calls f with the switch's end of a link, if it exists and is ours.
func (l *Links) withOurs(device string, f func(sw *end, link netlink.Link) error) error {
	sw, err := l.openSwitch()
	if errors.Is(err, datapath.ErrAbsent) {
		return nil // its devices were deleted with the namespace
	}
	if err != nil {
		return err
	}
	defer sw.close()
	link, err := sw.link(device)
	if err != nil || link == nil {
		return err
	}
	if !l.isOurs(link) {
		l.log.Warn("a device has the name of a pod's link, and is not ours", slog.String("device", device))
		return nil
	}
	return f(sw, link)
}

func remove(sw *end, link netlink.Link) error {
	if err := sw.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %q: %w", link.Attrs().Name, err)
	}
	return nil
}

// Devices implements [datapath.PodLinks].
func (l *Links) Devices(context.Context) (map[string]string, error) {
	sw, err := l.openSwitch()
	if errors.Is(err, datapath.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer sw.close()
	list, err := dump.Retry(sw.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	devices := map[string]string{}
	for _, link := range list {
		if a := link.Attrs(); l.isOurs(link) && a.Name != l.cfg.SwitchDevice && a.Name != l.cfg.HostDevice {
			devices[a.Name] = l.label(a.Alias)
		}
	}
	return devices, nil
}

// CheckMAC implements [datapath.PodLinks].
func (l *Links) CheckMAC(_ context.Context, mac net.HardwareAddr) error {
	taken := func(by string) error {
		return fmt.Errorf("MAC %s %w: it is the MAC of %s", mac, datapath.ErrMACTaken, by)
	}
	if datapath.IsTunnelMAC([6]byte(mac)) {
		return taken("tunnels")
	}
	sw, err := l.openSwitch()
	if errors.Is(err, datapath.ErrAbsent) {
		return nil // without the switch, ADD fails, too
	}
	if err != nil {
		return err
	}
	defer sw.close()
	list, err := dump.Retry(sw.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	host, err := endAt(l.home, true)
	if err != nil {
		return err
	}
	defer host.close()
	if l.cfg.HostDevice != "" {
		link, err := host.link(l.cfg.HostDevice)
		if err != nil {
			return err
		}
		if link != nil {
			list = append(list, link)
		}
	}
	for _, link := range list {
		if bytes.Equal(link.Attrs().HardwareAddr, mac) {
			return taken(fmt.Sprintf("device %q", link.Attrs().Name))
		}
	}
	return nil
}

// NodeAddresses implements [datapath.PodLinks].
func (l *Links) NodeAddresses(context.Context) ([]netip.Addr, error) {
	host, err := endAt(l.home, true)
	if err != nil {
		return nil, err
	}
	defer host.close()
	list, err := dump.Retry(func() ([]netlink.Addr, error) { return host.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, x := range list {
		a, ok := netip.AddrFromSlice(x.IP)
		if a = a.Unmap(); ok && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all, nil
}
