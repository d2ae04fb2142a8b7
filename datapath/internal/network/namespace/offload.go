// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sctpSegmentation is the feature with which the kernel leaves SCTP segmentation to a device.
const sctpSegmentation = "tx-sctp-segmentation"

// DisableSCTPOffload makes the kernel segment SCTP packets before they reach the device of a
// tunnel: programs can encapsulate only unsegmented TCP and UDP packets. A kernel without this
// netlink setting stays unchanged.
func (h *Handle) DisableSCTPOffload(device string) error {
	handle, err := netlink.NewHandleAt(h.NS, unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer handle.Close()
	family, err := handle.GenlFamilyGet("ethtool")
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("netlink of ethtool: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(h.NS, netns.None(), unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer socket.Close()
	r := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: {Socket: socket}}
	r.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_FEATURES_SET, Version: 1})
	header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(device))
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_FLAGS, nl.Uint32Attr(unix.ETHTOOL_FLAG_OMIT_REPLY))
	r.AddData(header)
	wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
	bit := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil).AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
	bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(sctpSegmentation)) // without a value: off
	r.AddData(wanted)
	if _, err := r.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("switch off %s: %w", sctpSegmentation, err)
	}
	return nil
}
