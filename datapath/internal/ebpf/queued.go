// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// plainQueues are those that neither bound nor order what a device sends, or only as every
// device does that nobody has set up.
var plainQueues = map[string]bool{
	"noqueue": true, "mq": true, "pfifo_fast": true, "fq_codel": true, "fq": true, "pfifo": true, "bfifo": true, "sfq": true,
	"clsact": true, "ingress": true,
}

// bounded returns the devices of a zone that somebody bounds or orders what leaves by: frames
// of XDP would pass that by.
func (z *zone) bounded() (map[int]bool, error) {
	list, err := retry(func() ([]netlink.Qdisc, error) { return z.nl.QdiscList(nil) })
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

// queued returns the devices of a zone that have a queue of their own before they send:
// somebody bounds what leaves by them. It would be passed by where packets go straight to
// the other end of a veth.
func (z *zone) queued() (map[int]bool, error) {
	list, err := retry(func() ([]netlink.Qdisc, error) { return z.nl.QdiscList(nil) })
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
