// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// followHooks signals where somebody takes a filter of ours, or the qdisc that it is on, off a
// device: packets pass without the program from then on. The kernel tells of no other hooks.
func (v *devices) followHooks() error {
	s, err := nl.SubscribeAt(v.zone.ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return fmt.Errorf("watch filters of devices: %w", err)
	}
	// Where this ends, verification finds the same, later.
	v.listen(s, "filters of devices", v.d.signal, func(messages []syscall.NetlinkMessage) {
		for i := range messages {
			if m := &messages[i]; m.Header.Type == unix.RTM_DELQDISC || m.Header.Type == unix.RTM_DELTFILTER {
				v.hookWent(m.Data)
			}
		}
	})
	return nil
}

// hookWent signals where the port that a message is of lacks a program. It lacks none, or is no
// port any more, where it was ourselves.
func (v *devices) hookWent(message []byte) {
	if len(message) < nl.SizeofTcMsg {
		return
	}
	index := int(nl.DeserializeTcMsg(message).Ifindex)
	if !v.hasPort(index) {
		return
	}
	p := v.d.ports
	for !p.mu.TryRLock() { // who has it may wait for us to end
		select {
		case <-time.After(time.Millisecond):
		case <-v.done:
			return
		}
	}
	t := p.byName[p.holder(v.zone.id, index)]
	lacks := t != nil && !v.zone.attached(t)
	p.mu.RUnlock()
	if lacks {
		v.d.signal()
	}
}
