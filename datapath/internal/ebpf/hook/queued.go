// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// plainQueues are the qdiscs that do not limit or reorder the packets of a device more than the
// kernel's default qdisc does.
var plainQueues = map[string]bool{
	"noqueue": true, "mq": true, "pfifo_fast": true, "fq_codel": true, "fq": true, "pfifo": true, "bfifo": true, "sfq": true,
	"clsact": true, "ingress": true,
}

// BoundedDevices returns the devices, by ifindex, whose qdisc limits or reorders packets: XDP
// frames would bypass it.
func (z *Netns) BoundedDevices() (map[int]bool, error) {
	list, err := dump.Retry(func() ([]netlink.Qdisc, error) { return z.Netlink.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	bounded := map[int]bool{}
	for _, q := range list {
		if !plainQueues[q.Type()] {
			bounded[q.Attrs().LinkIndex] = true
		}
	}
	return bounded, nil
}

// QueuedDevices returns the devices, by ifindex, with a qdisc that queues packets, which may limit
// them. Packets that are redirected to the peer of a veth would bypass the qdisc.
func (z *Netns) QueuedDevices() (map[int]bool, error) {
	list, err := dump.Retry(func() ([]netlink.Qdisc, error) { return z.Netlink.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	queued := map[int]bool{}
	for _, q := range list {
		if a := q.Attrs(); a.Parent == netlink.HANDLE_ROOT && q.Type() != "noqueue" {
			queued[a.LinkIndex] = true
		}
	}
	return queued, nil
}
