// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"

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
	v.wg.Add(2)
	go func() {
		defer v.wg.Done()
		<-v.done
		s.Close()
	}()
	go func() {
		defer v.wg.Done()
		for {
			_, _, err := s.Receive()
			select {
			case <-v.done:
				return
			default:
			}
			if errors.Is(err, unix.ENOBUFS) {
				v.lost()
				continue
			}
			if err != nil {
				v.report(fmt.Errorf("rules of routing: %w", err))
				return
			}
			v.report(v.invalidateAll())
		}
	}()
	return nil
}
