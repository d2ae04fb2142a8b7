// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
)

const (
	// leastBurst is enough for a frame of a common MTU, and for kernel timers that fire late.
	leastBurst = 8 << 10
	// latency is how long a packet may be queued, in seconds.
	latency = 0.025
)

// shape limits the rate at which a device sends.
func shape(e *end, link netlink.Link, r datapath.PodRate) error {
	if r.Rate == 0 {
		return nil
	}
	rate := max(r.Rate/8, 1)
	burst := min(max(r.Burst/8, leastBurst), math.MaxInt32)
	limit := min(uint64(float64(rate)*latency)+burst, math.MaxUint32)
	return e.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Limit: uint32(limit), Buffer: netlink.Xmittime(rate, uint32(burst)),
	})
}
