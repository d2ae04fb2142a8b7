// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// nexthopJudge determines to which next hops connections and peers refer.
type nexthopJudge struct{ d *DataPlane }

// nexthopPass is the part of the next hops in a pass.
type nexthopPass struct {
	d    *DataPlane
	used [kernel.NexthopCount]bool
}

// PassBegins implements [conn.Judge].
func (j nexthopJudge) PassBegins(uint64) conn.Part {
	j.d.nexthops.sweepBegins()
	return &nexthopPass{d: j.d}
}

// Resumed implements [conn.Part].
func (p *nexthopPass) Resumed() {}

// Seen implements [conn.Part].
func (p *nexthopPass) Seen(e conn.Entry) {
	if index := e.Meta().Nexthop; index < kernel.NexthopCount {
		p.used[index] = true
	}
}

// Ends implements [conn.Part].
func (p *nexthopPass) Ends(conn.Entry) bool { return false }

// Deleted implements [conn.Part].
func (p *nexthopPass) Deleted(conn.Entry) {}

// PassEnded implements [conn.Part].
func (p *nexthopPass) PassEnded() error {
	peers := p.d.overlay.Nexthops()
	return p.d.nexthops.sweepEnded(func(index uint32) bool { return peers[index] || index < kernel.NexthopCount && p.used[index] })
}
