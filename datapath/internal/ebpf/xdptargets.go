// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
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
func (v *devices) findXDPTargets() (err error) {
	v.xdpTargets = xdpTargets{wanted: len(v.xdp) > 0}
	if !v.xdpTargets.wanted {
		return nil
	}
	if v.xdpTargets.bounded, err = v.namespace.BoundedDevices(); err != nil {
		return err
	}
	v.xdpTargets.frames, err = v.namespace.xdpTransmitters()
	return err
}

// whyNotXDP returns why packets that arrive on a port in native XDP take the tc path because of
// their output device; "" if nothing prevents XDP.
func (v *devices) whyNotXDP() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if native := slices.Contains(slices.Collect(maps.Values(v.xdp)), datapath.XDPNative); !native || !v.xdpTargets.wanted {
		return ""
	}
	if v.xdpTargets.frames == nil {
		return "the kernel reports XDP transmit support only from Linux 6.3 on: in native XDP packets leave only by their input device, others take the tc path"
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
	return fmt.Sprintf("packets that leave by %s%s take the tc path: the driver cannot transmit XDP frames (a veth can while its other end has GRO on: ethtool -K DEVICE gro on), or the device is down or has a qdisc that limits or reorders packets",
		strings.Join(names, ", "), more)
}

// setXDP records the mode in which our XDP program is attached to a device.
func (v *devices) setXDP(index int, mode datapath.XDPMode) {
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
func (v *devices) followXDPFeaturesAgain() error {
	v.mu.Lock()
	listening := v.listening
	v.mu.Unlock()
	if !listening {
		return nil
	}
	return v.followXDPFeatures()
}

// The kernel's generic netlink family for devices: linux/netdev.h.
const (
	netdevFamily   = "netdev"
	netdevGroup    = "mgmt"
	netdevGet      = 1 // NETDEV_CMD_DEV_GET
	netdevIfindex  = 1 // NETDEV_A_DEV_IFINDEX
	netdevFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
	netdevXmit     = 4 // NETDEV_XDP_ACT_NDO_XMIT
)

// genericHeader is struct genlmsghdr: command, version, and two bytes that the kernel requires to
// be zero; the library does not zero them.
type genericHeader [nl.SizeofGenlmsg]byte

func (h genericHeader) Len() int          { return len(h) }
func (h genericHeader) Serialize() []byte { return h[:] }

// netdev returns the netdev family; nil if the kernel lacks it.
func (z *namespace) netdev() (*netlink.GenlFamily, error) {
	h, err := netlink.NewHandleAt(z.Handle, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("generic netlink: %w", err)
	}
	defer h.Close()
	family, err := h.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return family, err
}

// xdpTransmitters returns the devices whose drivers transmit XDP frames; nil if the kernel does not
// report it.
func (z *namespace) xdpTransmitters() (map[int]bool, error) {
	family, err := z.netdev()
	if family == nil || err != nil {
		return nil, err
	}
	found := map[int]bool{}
	err = z.Do(func() error {
		s, err := nl.Subscribe(unix.NETLINK_GENERIC) // no multicast group
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
		req.AddData(genericHeader{netdevGet, 1})
		if err := s.Send(req); err != nil {
			return err
		}
		// The library stops after the first message, since that has no NLM_F_MULTI.
		for {
			messages, _, err := s.Receive()
			if err != nil {
				return err
			}
			for _, m := range messages {
				if m.Header.Type == unix.NLMSG_DONE {
					return nil
				}
				if err := addTransmitter(found, &m, req.Seq); err != nil {
					return err
				}
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("query XDP features of devices: %w", err)
	}
	return found, nil
}

// addTransmitter parses one message of an answer.
func addTransmitter(found map[int]bool, m *syscall.NetlinkMessage, seq uint32) error {
	if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
		return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	}
	if m.Header.Seq != seq || len(m.Data) < nl.SizeofGenlmsg {
		return nil
	}
	attrs, err := nl.ParseRouteAttr(m.Data[nl.SizeofGenlmsg:])
	if err != nil {
		return err
	}
	index, features := 0, uint64(0)
	for _, a := range attrs {
		switch {
		case a.Attr.Type == netdevIfindex && len(a.Value) == 4:
			index = int(binary.NativeEndian.Uint32(a.Value))
		case a.Attr.Type == netdevFeatures && len(a.Value) == 8:
			features = binary.NativeEndian.Uint64(a.Value)
		}
	}
	found[index] = features&netdevXmit != 0
	return nil
}

// followXDPFeatures refreshes the devices when the kernel reports a change of their XDP features,
// until v.done.
func (v *devices) followXDPFeatures() error {
	family, err := v.namespace.netdev()
	if family == nil || err != nil {
		return err
	}
	var s *nl.NetlinkSocket
	err = v.namespace.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_GENERIC)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch XDP features of devices: %w", err)
	}
	for _, g := range family.Groups {
		if g.Name == netdevGroup {
			err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g.ID))
		}
	}
	if err != nil {
		s.Close()
		return fmt.Errorf("watch XDP features of devices: %w", err)
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
