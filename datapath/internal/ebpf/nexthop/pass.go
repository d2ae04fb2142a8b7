// SPDX-License-Identifier: Apache-2.0

package nexthop

import (
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// pass is the part of the next hops in a pass: it determines to which of them connections and peers
// refer.
type pass struct {
	n    *Table
	used [kernel.NexthopCount]bool
}

// PassBegins implements [conn.Judge].
func (n *Table) PassBegins(uint64) conn.Part {
	n.sweepBegins()
	return &pass{n: n}
}

// Resumed implements [conn.Part].
func (p *pass) Resumed() {}

// Seen implements [conn.Part].
func (p *pass) Seen(e conn.Entry) {
	if index := e.Meta().Nexthop; index < kernel.NexthopCount {
		p.used[index] = true
	}
}

// Ends implements [conn.Part].
func (p *pass) Ends(conn.Entry) bool { return false }

// Deleted implements [conn.Part].
func (p *pass) Deleted(conn.Entry) {}

// PassEnded implements [conn.Part].
func (p *pass) PassEnded() error {
	peers := p.n.options.Peers()
	return p.n.sweepEnded(func(index uint32) bool { return peers[index] || index < kernel.NexthopCount && p.used[index] })
}
