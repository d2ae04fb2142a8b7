// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Pass is NAT's part in a pass over all connections: it ends connections that were translated to an
// address that its device no longer has, determines which mappings and blocks are used, and adds up
// the traffic of NATs.
type Pass struct {
	table      *Table
	outers     outerPorts
	last       lastUses // of connections that this pass and given-up ones before it ended
	local      map[kernel.LocalKey]bool
	namespaces map[uint8]bool              // namespaces whose addresses are in local
	began      uint32                      // tick
	log        map[uint16]datapath.NATName // NATs that log, by id
	shared     map[uint16]bool             // ids with mappings or blocks
	found      bool                        // a mapping or a block
	reported   map[translated]datapath.NATName
	live       map[uint32]*traffic // traffic of live connections, by id
	closed     map[uint32]*traffic // traffic of deleted connections, not in a table yet
}

// PassBegins implements [conn.Judge].
func (n *Table) PassBegins(uint64) conn.Part { return n.NewPass() }

// NewPass returns NAT's part in a pass that begins now.
func (n *Table) NewPass() *Pass {
	p := &Pass{
		table: n, outers: make(outerPorts), last: n.last, began: n.Now(),
		log: make(map[uint16]datapath.NATName), shared: make(map[uint16]bool), reported: make(map[translated]datapath.NATName),
		live: make(map[uint32]*traffic), closed: n.closed,
	}
	p.local, p.namespaces = n.host.LocalAddrs()
	n.mu.RLock()
	for _, r := range n.rules {
		if r.record.BlockSize != 0 || r.record.Flags&kernel.NATMapping != 0 {
			p.shared[r.record.Id] = true
		}
	}
	for id, log := range n.log {
		if log {
			p.log[id] = n.names[id]
		}
	}
	n.mu.RUnlock()
	return p
}

// Resumed implements [conn.Part].
func (p *Pass) Resumed() {}

// Seen implements [conn.Part].
func (p *Pass) Seen(e conn.Entry) { carry(p.live, e.Meta()) }

// Ends implements [conn.Part]. Connections that stay use their outer ports.
func (p *Pass) Ends(e conn.Entry) bool {
	m := e.Meta()
	if m.NatId == 0 && m.Flags&kernel.CtDevice == 0 {
		return false
	}
	comes, leaves := e.Tuples()
	if p.ended(m, comes, leaves, e.Namespace()) {
		return true
	}
	p.note(m, comes, leaves, uint8(e.Protocol()), e.Namespace())
	return false
}

// ended reports whether a connection was translated to an address of a device, and the device no
// longer has that address. comes and leaves are the tuples of the connection's entry.
func (p *Pass) ended(m *kernel.CtMeta, comes, leaves datapath.Tuple, namespace uint8) bool {
	if m.Flags&kernel.CtDevice == 0 || !p.namespaces[namespace] || int32(m.CreatedTick-p.began) > 0 {
		return false
	}
	outer := leaves.Source.Addr()
	if m.Flags&kernel.CtReply != 0 {
		outer = comes.Destination.Addr()
	}
	return !p.local[kernel.LocalKey{Addr: kernel.AddrOf(outer), Netns: uint32(namespace)}]
}

// note records the outer ports at which replies on a connection, or packets from any remote,
// arrive.
func (p *Pass) note(m *kernel.CtMeta, comes, leaves datapath.Tuple, proto, namespace uint8) {
	answers := m.Flags&(kernel.CtReply|kernel.CtSNAT) == kernel.CtReply|kernel.CtSNAT
	switch {
	case p.shared[m.NatId] && isInwards(m):
		p.Use(comes.Destination, proto, namespace)
	case answers && !p.shared[m.NatId]:
		p.report(translated{nat: m.NatId, proto: proto, inner: leaves.Destination, outer: comes.Destination})
	}
}

// Use records that an outer address and port is in use.
func (p *Pass) Use(outer netip.AddrPort, proto, namespace uint8) {
	p.outers.use(outerKey{kernel.AddrOf(outer.Addr()), proto, namespace}, outer.Port())
}

// endUnused ends unused mappings and blocks. It does nothing if no rule has mappings or blocks, and
// two passes have found none: one pass may have missed an entry of a program that still used an
// earlier rule.
func (n *Table) endUnused(p *Pass) error {
	if len(p.shared) > 0 {
		n.empty = 0
	}
	if n.empty >= 2 {
		return nil
	}
	err := errors.Join(n.endMappings(p), n.endBlocks(p))
	n.empty++
	if err != nil || p.found {
		n.empty = 0
	}
	return err
}

// Deleted implements [conn.Part].
func (p *Pass) Deleted(e conn.Entry) {
	p.drop(e.Meta())
	p.leave(e)
}

// PassEnded implements [conn.Part]: it ends unused mappings and blocks, and logs those that began
// or ended.
func (p *Pass) PassEnded() error {
	n := p.table
	n.mu.Lock()
	defer n.mu.Unlock()
	n.live = p.live
	p.last.ordered()
	for _, r := range n.rules { // including rules that took effect since the pass began
		if r.record.BlockSize != 0 || r.record.Flags&kernel.NATMapping != 0 {
			p.shared[r.record.Id] = true
		}
	}
	closed := n.addClosed()
	if err := n.endUnused(p); err != nil {
		return errors.Join(closed, fmt.Errorf("end mappings of NAT: %w", err))
	}
	n.last = make(lastUses)
	for t, name := range p.reported {
		if _, before := n.reported[t]; !before {
			n.logLine("NAT mapping created", name, t)
		}
	}
	for t, name := range n.reported {
		if _, stays := p.reported[t]; !stays {
			n.logLine("NAT mapping deleted", name, t)
		}
	}
	n.reported = p.reported
	return closed
}
