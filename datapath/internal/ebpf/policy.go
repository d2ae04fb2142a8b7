// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// followPolicy makes all next hops invalid when something changes that has no table of
// its own here: rules of routing (ip rule), and whether the kernel forwards at all, by
// which device. The kernel tells of both; what it says is not needed.
func (v *devices) followPolicy() error {
	s, err := nl.SubscribeAt(v.zone.ns, netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return fmt.Errorf("watch rules of routing: %w", err)
	}
	v.listen(s, "rules of routing", v.lost, func([]syscall.NetlinkMessage) { v.report(v.invalidateAll()) })
	return nil
}
