// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// lastUses are the times of the last packets of connections that a pass ended, by outer port.
// Mappings and blocks are idle from then on; the programs record only when connections begin.
type lastUses map[outerKey][]lastUse

type lastUse struct {
	port uint16
	tick uint32
}

// ordered sorts the uses; call it after the last one is added.
func (l lastUses) ordered() {
	for _, uses := range l {
		slices.SortFunc(uses, func(a, b lastUse) int { return cmp.Compare(a.port, b.port) })
	}
}

// later returns the tick of the last use of any of count ports, starting at first, or then if that
// is later.
func (l lastUses) later(then uint32, k outerKey, first uint16, count int) uint32 {
	uses := l[k]
	i, _ := slices.BinarySearchFunc(uses, first, func(u lastUse, port uint16) int { return cmp.Compare(u.port, port) })
	for ; i < len(uses) && int(uses[i].port) < int(first)+count; i++ {
		if int32(uses[i].tick-then) > 0 {
			then = uses[i].tick
		}
	}
	return then
}

// leave records the last packet of one direction of a connection that the pass ended.
func (p *Pass) leave(e conn.Entry) {
	m := e.Meta()
	if !p.shared[m.NatId] || kernel.TicksBetween(m.LastSeenTick, p.began) > max(mappingTimeout, blockTimeout) {
		return
	}
	comes, leaves := e.Tuples()
	outer := leaves.Source
	if isInwards(m) {
		outer = comes.Destination
	}
	k := outerKey{kernel.AddrOf(outer.Addr()), uint8(e.Protocol()), e.Namespace()}
	p.last[k] = append(p.last[k], lastUse{outer.Port(), m.LastSeenTick})
}

// isInwards reports whether packets of a direction of a translated connection arrive at an outer
// port: replies, and packets from remotes that use an open mapping.
func isInwards(m *kernel.CtMeta) bool {
	return m.Flags&(kernel.CtReply|kernel.CtSNAT) == kernel.CtReply|kernel.CtSNAT || m.Flags&(kernel.CtReply|kernel.CtDNAT) == kernel.CtDNAT
}

// writeUsed records when mappings or blocks were last used. If a program concurrently records a new
// connection, its value is lost, but when the connection ends, its last packet is recorded.
func writeUsed[K comparable, V any](table *bpfmap.Map[K, V], used map[K]V) error {
	for k, v := range used {
		if err := kernel.IfThere(table.Replace(k, v)); err != nil {
			return err
		}
	}
	return nil
}
