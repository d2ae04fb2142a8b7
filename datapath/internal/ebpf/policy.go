// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// followPolicy invalidates all next hops if routing rules (ip rule) change, or if forwarding is
// enabled or disabled on any device. No table here depends on these settings, so the content of the
// kernel's messages is not used.
func (v *devices) followPolicy() error {
	s, err := nl.SubscribeAt(v.namespace.Handle, netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return fmt.Errorf("watch routing rules: %w", err)
	}
	v.listen(s, "routing rules", v.lost, func([]syscall.NetlinkMessage) {
		v.report(v.invalidateAll())
		v.d.signal()
	})
	return nil
}
