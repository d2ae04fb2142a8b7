// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// tags finds the VLAN devices on top of a device, and whether the device strips VLAN tags from
// frames.
func (x *inspector) tags(z *hook.Netns, d *datapath.InspectedDevice, links []netlink.Link) {
	for _, l := range links {
		if l.Type() == "vlan" && l.Attrs().ParentIndex == d.Index {
			d.VLANs = append(d.VLANs, l.Attrs().Name)
		}
	}
	if len(d.VLANs) == 0 {
		return
	}
	err := z.Do(func() (err error) {
		d.TagsHidden, err = takesTagsOut(d.Name)
		return err
	})
	if err != nil {
		x.unseen("offloads of "+d.Name, err)
	}
}

const ethFlagRxVLAN = 1 << 8 // ETH_FLAG_RXVLAN of linux/ethtool.h

// takesTagsOut reports whether a device in the thread's namespace strips VLAN tags (an offload
// setting).
func takesTagsOut(device string) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GFLAGS}
	ifr := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(ifr.name[:unix.IFNAMSIZ-1], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return false, errno
	}
	return value.data&ethFlagRxVLAN != 0, nil
}
