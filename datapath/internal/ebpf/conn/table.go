// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// key and value are the common parts of the entries of both families.
type key[K any] interface {
	*K
	Tuple() datapath.Tuple
	Protocol() uint8
	Namespace() uint8
	Expire(e *kernel.ExpirerExpire, twin *K)
}

type value[K, V any] interface {
	*V
	Common() *kernel.CtMeta
	Twin(*K) K // key of the other direction
}

// table is one map of connections, of either family.
type table interface {
	// sweep processes the next batch of entries for p and reports whether there are more.
	sweep(p *pass) (more bool, err error)
	// expire deletes the next batch of connections that sweep selected, and reports whether there
	// are more.
	expire(p *pass) (more bool, err error)
	// spare discards the list of connections that sweep selected.
	spare()
	// list returns those connections of the next batch for which match returns true.
	list(l *listing, match func(*datapath.Connection) bool) (found []datapath.Connection, more bool, err error)
}

// entries is the table of one family. Only one goroutine may use its buffers.
type entries[K comparable, V any, KP key[K], VP value[K, V]] struct {
	*Options
	m       *bpfmap.Map[K, V]
	setIdle func(k *K, units uint16)
	keys    []K // of the current batch
	values  []V
	doomed  []doomed[K, V] // selected by the current pass
}

// The tables, in the order of [Sweeper.Entries].
const (
	IPv4 = iota
	IPv6
	tableCount
)

func (o *Options) newTables() []table {
	type v4 = entries[kernel.Ct4Key, kernel.Ct4Val, *kernel.Ct4Key, *kernel.Ct4Val]
	type v6 = entries[kernel.Ct6Key, kernel.Ct6Val, *kernel.Ct6Key, *kernel.Ct6Val]
	return []table{
		IPv4: &v4{Options: o, m: &o.Tables.Ct4, setIdle: o.Tables.SetIdle4},
		IPv6: &v6{Options: o, m: &o.Tables.Ct6, setIdle: o.Tables.SetIdle6},
	}
}

// isLasting reports whether the connection of an entry counts in the shares: not while it is
// half-open.
func isLasting(m *kernel.CtMeta) bool { return m.Flags&kernel.CtLasting != 0 }

// entry implements [Entry].
type entry[K comparable, V any, KP key[K], VP value[K, V]] struct {
	k KP
	v VP
}

func (e *entry[K, V, KP, VP]) Meta() *kernel.CtMeta        { return e.v.Common() }
func (e *entry[K, V, KP, VP]) Protocol() datapath.Protocol { return datapath.Protocol(e.k.Protocol()) }
func (e *entry[K, V, KP, VP]) Namespace() uint8            { return e.k.Namespace() }

func (e *entry[K, V, KP, VP]) Tuples() (comes, leaves datapath.Tuple) {
	return e.k.Tuple(), turned(e.twin())
}

// twin returns the tuple with which packets of the other direction arrive.
func (e *entry[K, V, KP, VP]) twin() datapath.Tuple {
	other := e.v.Twin((*K)(e.k))
	return KP(&other).Tuple()
}

// client returns the client's address.
func (e *entry[K, V, KP, VP]) client() netip.Addr {
	if e.v.Common().Flags&kernel.CtReply == 0 {
		return e.k.Tuple().Source.Addr()
	}
	return e.twin().Source.Addr()
}

func turned(t datapath.Tuple) datapath.Tuple {
	return datapath.Tuple{Source: t.Destination, Destination: t.Source}
}

// twinEntry is the other direction of an entry that was deleted with it.
type twinEntry struct {
	Entry
	meta *kernel.CtMeta
}

func (e twinEntry) Meta() *kernel.CtMeta { return e.meta }

func (e twinEntry) Tuples() (comes, leaves datapath.Tuple) {
	comes, leaves = e.Entry.Tuples()
	return turned(leaves), turned(comes)
}

func (t *entries[K, V, KP, VP]) sweep(p *pass) (bool, error) {
	if t.keys == nil {
		size := min(bpfmap.BatchSize, int(t.m.MaxEntries()))
		t.keys, t.values = make([]K, size), make([]V, size)
	}
	n, more, err := t.m.NextBatch(p.cursor, t.keys, t.values)
	if err != nil {
		return false, err
	}
	e := new(entry[K, V, KP, VP])
	for i := range n {
		e.k, e.v = &t.keys[i], &t.values[i]
		if err := t.sweepOne(p, e); err != nil {
			return false, err
		}
	}
	return more, nil
}

// sweepOne counts an entry, and selects its connection for deletion if it has ended. If an idle
// connection has entries for both directions, the client's entry decides for both.
func (t *entries[K, V, KP, VP]) sweepOne(p *pass, e *entry[K, V, KP, VP]) error {
	m := e.v.Common()
	p.see(e)
	if m.Flags&kernel.CtReply == 0 && isLasting(m) {
		p.s.shares.add(e.client())
	}
	ends := p.ends(e)
	matched := !ends && p.match != nil && t.isMatched(p, e)
	if ends || matched {
		t.doom(e, 0, true, matched)
		return nil
	}
	if units, ok := p.idle.unitsFor(m, e.Protocol()); ok && units != m.Idle {
		t.setIdle((*K)(e.k), units)
	}
	idle := p.idle.ticksFor(m, e.Protocol())
	if idle == 0 || idleSince(p.now, m) <= idle {
		return nil
	}
	twin, err := t.twinMeta(e.v.Twin((*K)(e.k)))
	if err != nil {
		return err
	}
	if twin == nil || m.Flags&kernel.CtReply == 0 && idleSince(p.now, twin) > idle {
		t.doom(e, idle, false, false)
	}
	return nil
}

func (t *entries[K, V, KP, VP]) isMatched(p *pass, e *entry[K, V, KP, VP]) bool {
	c := t.connection(e, p.now)
	return p.match(&c)
}

// idleSince returns the number of ticks since a direction last carried a packet.
func idleSince(now uint32, m *kernel.CtMeta) uint32 {
	return kernel.TicksBetween(m.LastSeenTick, now)
}

// twinMeta returns the common part of the entry at k, or nil.
func (t *entries[K, V, KP, VP]) twinMeta(k K) (*kernel.CtMeta, error) {
	var value V
	if ok, err := t.m.Find(k, &value); !ok || err != nil {
		return nil, err
	}
	return VP(&value).Common(), nil
}

// connection describes the connection of an entry, without the fields that only the other
// direction's entry holds.
func (t *entries[K, V, KP, VP]) connection(e *entry[K, V, KP, VP], now uint32) datapath.Connection {
	m := e.v.Common()
	c := datapath.Connection{
		Protocol: e.Protocol(),
		Original: e.k.Tuple(),
		Reply:    e.twin(),
		State:    stateName(t.States, m.State, e.Protocol()),
		Age:      since(now, m.CreatedTick),
		Idle:     since(now, m.LastSeenTick),
		Sent:     datapath.Traffic{Packets: m.PacketCount, Bytes: m.ByteCount},
		DNAT:     m.Flags&kernel.CtDNAT != 0,
		FromNode: m.Flags&kernel.CtFromNode != 0,
		SNAT:     m.Flags&kernel.CtSNAT != 0,
		NAT:      t.NATName(m.NatId),
	}
	if m.Flags&kernel.CtReply != 0 {
		c.Original, c.Reply = c.Reply, c.Original
		c.Sent, c.Received = c.Received, c.Sent
	}
	if m.Flags&kernel.CtService != 0 {
		c.Service = t.ServiceName(t.ServiceOf(m.BackendId))
		c.Backend = c.Reply.Source
	}
	return c
}

func (t *entries[K, V, KP, VP]) list(l *listing, match func(*datapath.Connection) bool) (found []datapath.Connection, more bool, err error) {
	size := min(listBatch, int(t.m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	n, more, err := t.m.NextBatch(l.cursor, keys, values)
	if err != nil {
		return nil, false, err
	}
	now := kernel.NowTick()
	for i := range n {
		e := &entry[K, V, KP, VP]{&keys[i], &values[i]}
		m := e.v.Common()
		if m.Flags&kernel.CtReply != 0 {
			continue
		}
		c := t.connection(e, now)
		if !match(&c) {
			continue
		}
		twin, err := t.twinMeta(e.v.Twin(&keys[i]))
		if err != nil {
			return nil, false, err
		}
		idle := l.idle.ticksFor(m, e.Protocol())
		if !l.before(m.LastSeenTick) || twin != nil && !l.before(twin.LastSeenTick) {
			c.Rule = t.RuleName(m.RuleId)
		}
		if twin != nil {
			c.Received = datapath.Traffic{Packets: twin.PacketCount, Bytes: twin.ByteCount}
			c.Idle = min(c.Idle, since(now, twin.LastSeenTick))
			c.Forth, c.Back = l.path(m), l.path(twin)
			c.Tracked = c.Forth.Tracked && c.Back.Tracked
			if twin.NatId != m.NatId {
				c.NATBack = t.NATName(twin.NatId)
			}
		}
		c.Expires = max(0, kernel.DurationOf(idle)-c.Idle)
		found = append(found, c)
	}
	return found, more, nil
}
