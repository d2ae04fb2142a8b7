// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// xdpTargets are the XDP transmit targets: the devices through which XDP can send packets.
//
// A driver transmits XDP frames only if it reports NETDEV_XDP_ACT_NDO_XMIT; frames that are
// redirected to any other device are lost silently. A veth reports it while its peer has NAPI,
// which GRO or an XDP program on the peer enables. Kernels report this flag from 6.3 on.
type xdpTargets struct {
	wanted  bool // XDP is in use
	bounded map[int]bool
	frames  map[int]bool // nil: the kernel does not report it
}

// flags returns the flags of a device.
func (t *xdpTargets) flags(a *netlink.LinkAttrs) (flags uint32) {
	if !t.wanted || t.bounded[a.Index] || a.Flags&unix.IFF_UP == 0 {
		return 0
	}
	if t.frames[a.Index] {
		flags |= kernel.DeviceXDPXmit
	}
	return flags | kernel.DeviceNoQdisc
}

// findXDPTargets updates v.xdpTargets. v.mu is held.
func (v *Devices) findXDPTargets() (err error) {
	v.xdpTargets = xdpTargets{wanted: len(v.xdp) > 0}
	if !v.xdpTargets.wanted {
		return nil
	}
	if v.xdpTargets.bounded, err = v.namespace.BoundedDevices(); err != nil {
		return err
	}
	v.xdpTargets.frames, err = device.XDPTransmitters(v.namespace)
	return err
}

// WhyNotXDP returns why packets that arrive on a port in native XDP take the tc path because of
// their output device; "" if nothing prevents XDP.
func (v *Devices) WhyNotXDP() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if native := slices.Contains(slices.Collect(maps.Values(v.xdp)), datapath.XDPNative); !native || !v.xdpTargets.wanted {
		return ""
	}
	if v.xdpTargets.frames == nil {
		return "the kernel reports XDP transmit support only from Linux 6.3 on: in native XDP, packets leave only through their input device; others take the tc path"
	}
	var names []string
	for index := range v.ports {
		if l := v.links[index]; l != nil && v.xdpTargets.flags(l.Attrs())&kernel.DeviceXDPXmit == 0 {
			names = append(names, l.Attrs().Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	const shown = 4
	more := ""
	if len(names) > shown {
		names, more = names[:shown], fmt.Sprintf(" and %d others", len(names)-shown)
	}
	return fmt.Sprintf("packets that leave through %s%s take the tc path: the driver cannot transmit XDP frames (a veth can while its other end has GRO on: ethtool -K DEVICE gro on), or the device is down or has a qdisc that limits or reorders packets",
		strings.Join(names, ", "), more)
}

// SetXDP records the mode in which our XDP program is attached to a device.
func (v *Devices) SetXDP(index int, mode datapath.XDPMode) {
	v.mu.Lock()
	first := mode != datapath.XDPOff && !v.listening
	if mode != datapath.XDPOff {
		v.xdp[index] = mode
	} else {
		delete(v.xdp, index)
	}
	v.listening = v.listening || first
	v.mu.Unlock()
	if !first {
		return
	}
	if err := v.followXDPFeatures(); err != nil {
		v.report(err)
		v.unheard()
	}
}

// followXDPFeaturesAgain follows XDP features if they were followed before.
func (v *Devices) followXDPFeaturesAgain() error {
	v.mu.Lock()
	listening := v.listening
	v.mu.Unlock()
	if !listening {
		return nil
	}
	return v.followXDPFeatures()
}

// followXDPFeatures refreshes the devices when the kernel reports a change of their XDP features,
// until v.done.
func (v *Devices) followXDPFeatures() error {
	s, err := device.SubscribeXDPFeatures(v.namespace)
	if s == nil || err != nil {
		return err
	}
	news := make(chan struct{}, 1) // notifications during a refresh are merged
	v.whileSubscribed(func(done <-chan struct{}) {
		for {
			select {
			case <-news:
				v.refresh()
			case <-done:
				return
			}
		}
	})
	tell := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	v.listen(s, "watch XDP features of devices", tell, func([]syscall.NetlinkMessage) { tell() })
	return nil
}
