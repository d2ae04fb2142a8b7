// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// followHooks signals if another program removes one of our filters, or its qdisc, from a device:
// from then on packets bypass our program. The kernel does not report the removal of other kinds of
// hooks.
func (v *Devices) followHooks() error {
	s, err := nl.SubscribeAt(v.namespace.Handle, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return fmt.Errorf("watch filters of devices: %w", err)
	}
	v.listen(s, "filters of devices", v.options.Signal, func(messages []syscall.NetlinkMessage) {
		for i := range messages {
			if m := &messages[i]; m.Header.Type == unix.RTM_DELQDISC || m.Header.Type == unix.RTM_DELTFILTER {
				v.hookWent(m.Data)
			}
		}
	})
	return nil
}

// hookWent signals if the port in a message lacks a program. If we removed the hook ourselves, the
// port lacks none, or is no longer a port.
func (v *Devices) hookWent(message []byte) {
	if len(message) < nl.SizeofTcMsg {
		return
	}
	index := int(nl.DeserializeTcMsg(message).Ifindex)
	if v.options.HasMirrors(index) {
		v.options.Signal()
	}
	if !v.HasPort(index) {
		return
	}
	if v.options.LacksProgram(index, v.done) {
		v.options.Signal()
	}
}
