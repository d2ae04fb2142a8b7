// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

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
func netdev(z *hook.Netns) (*netlink.GenlFamily, error) {
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

// XDPTransmitters returns the devices whose drivers transmit XDP frames; nil if the kernel does not
// report it.
func XDPTransmitters(z *hook.Netns) (map[int]bool, error) {
	family, err := netdev(z)
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

// SubscribeXDPFeatures returns a socket that receives a message when the XDP features of a device
// change; nil if the kernel does not report them.
func SubscribeXDPFeatures(z *hook.Netns) (*nl.NetlinkSocket, error) {
	family, err := netdev(z)
	if family == nil || err != nil {
		return nil, err
	}
	var s *nl.NetlinkSocket
	err = z.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_GENERIC)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch XDP features of devices: %w", err)
	}
	for _, g := range family.Groups {
		if g.Name == netdevGroup {
			err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g.ID))
		}
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("watch XDP features of devices: %w", err)
	}
	return s, nil
}
