// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// connKey and connValue are the common parts of the entries of both families.
type connKey[K any] interface {
	*K
	Tuple() datapath.Tuple
	Protocol() uint8
	Namespace() uint8
	Expire(*kernel.ExpirerExpire)
}

type connValue[K, V any] interface {
	*V
	Common() *kernel.CtMeta
	Twin(*K) K // key of the other direction
}

// connTable is one map of connections, of either family.
type connTable interface {
	// sweep processes the next batch of entries for p and reports whether there are more.
	sweep(p *pass) (more bool, err error)
	// expire deletes the next batch of connections that sweep selected, and reports whether there
	// are more.
	expire(p *pass) (more bool, err error)
	// spare discards the list of connections that sweep selected.
	spare()
	// list returns the connections of the next batch that match selects.
	list(l *listing, match func(*datapath.Connection) bool) (found []datapath.Connection, more bool, err error)
}

type connMap[K comparable, V any, KP connKey[K], VP connValue[K, V]] struct {
	d       *DataPlane
	m       *bpfmap.Map[K, V]
	lasting bool              // holds established connections
	other   *bpfmap.Map[K, V] // the other table that may hold the entry of the other direction
	keys    []K               // of the current batch
	values  []V
	doomed  []doomed[K, V] // selected by the current pass
}

func newConnTables(d *DataPlane) []connTable {
	est4, half4 := &d.tables.Ct4, &d.tables.Half4
	est6, half6 := &d.tables.Ct6, &d.tables.Half6
	type v4 = connMap[kernel.Ct4Key, kernel.Ct4Val, *kernel.Ct4Key, *kernel.Ct4Val]
	type v6 = connMap[kernel.Ct6Key, kernel.Ct6Val, *kernel.Ct6Key, *kernel.Ct6Val]
	return []connTable{
		&v4{d: d, m: half4, other: est4},
		&v4{d: d, m: est4, lasting: true, other: half4},
		&v6{d: d, m: half6, other: est6},
		&v6{d: d, m: est6, lasting: true, other: half6},
	}
}

// kind returns the index of this table's counts of shares.
func (t *connMap[K, V, KP, VP]) kind() int {
	if t.lasting {
		return shareEstablished
	}
	return shareHalfOpen
}

// batch reads the next entries after cursor.
func (t *connMap[K, V, KP, VP]) batch(cursor *bpfmap.Cursor, keys []K, values []V) (n int, more bool, err error) {
	return t.m.NextBatch(cursor, keys, values)
}

func (t *connMap[K, V, KP, VP]) sweep(p *pass) (bool, error) {
	if t.keys == nil {
		size := min(bpfmap.BatchSize, int(t.m.MaxEntries()))
		t.keys, t.values = make([]K, size), make([]V, size)
	}
	n, more, err := t.batch(p.cursor, t.keys, t.values)
	if err != nil {
		return false, err
	}
	for i := range n {
		if err := t.sweepOne(p, KP(&t.keys[i]), VP(&t.values[i])); err != nil {
			return false, err
		}
	}
	return more, nil
}

// sweepOne counts an entry, and selects its connection for deletion if it has ended. If an idle
// connection has entries for both directions, the client's entry decides for both.
func (t *connMap[K, V, KP, VP]) sweepOne(p *pass, k KP, v VP) error {
	m := v.Common()
	p.count(m)
	if m.Flags&kernel.CtReply == 0 {
		t.d.sweeper.shares.add(t.kind(), k.Tuple().Source.Addr(), 1)
	}
	if ends, matched := t.isEnded(p, k, v); ends {
		t.doom(k, v, 0, true, matched)
		return nil
	}
	idle := p.idle.idleFor(m, k.Protocol())
	if idle == 0 || idleSince(p.now, m) <= idle {
		return nil
	}
	twin, err := t.twinMeta(v.Twin((*K)(k)))
	if err != nil {
		return err
	}
	if twin == nil || m.Flags&kernel.CtReply == 0 && idleSince(p.now, twin) > idle {
		t.doom(k, v, idle, false, false)
	}
	return nil
}

// isEnded reports whether the connection of an entry ends even if it is not idle. matched: the
// pass's match selected it.
func (t *connMap[K, V, KP, VP]) isEnded(p *pass, k KP, v VP) (ends, matched bool) {
	m := v.Common()
	gone, down := p.dead[m.BackendId]
	ends = gone || down && datapath.Protocol(k.Protocol()) == datapath.UDP
	if len(p.departed) > 0 && !ends {
		other := v.Twin((*K)(k))
		ends = p.departs(m, k.Namespace(), k.Tuple(), KP(&other).Tuple())
	}
	if len(p.taken) > 0 && !ends && m.ServiceId != 0 && datapath.Protocol(k.Protocol()) == datapath.UDP {
		other := v.Twin((*K)(k))
		ends = p.isTaken(t.d.services, m, k.Tuple(), KP(&other).Tuple())
	}
	if (m.NatId != 0 || m.Flags&kernel.CtDevice != 0) && !ends {
		comes, leaves := tuplesOf[K, V](k, v)
		if ends = p.nat.Ended(m, comes, leaves, k.Namespace()); !ends {
			p.nat.Note(m, comes, leaves, k.Protocol(), k.Namespace())
		}
	}
	if !ends && p.match != nil {
		c := t.connection(k, v, p.now)
		matched = p.match(&c)
	}
	return ends || matched, matched
}

// tuplesOf returns the tuples with which the packets that match an entry arrive and leave.
func tuplesOf[K comparable, V any, KP connKey[K], VP connValue[K, V]](k KP, v VP) (comes, leaves datapath.Tuple) {
	other := v.Twin((*K)(k))
	leaves = KP(&other).Tuple()
	leaves.Source, leaves.Destination = leaves.Destination, leaves.Source
	return k.Tuple(), leaves
}

// idleSince returns the number of ticks since a direction last carried a packet.
func idleSince(now uint32, m *kernel.CtMeta) uint32 {
	return kernel.TicksBetween(m.LastSeenTick, now)
}

// twinMeta returns the common part of the entry at k in either table, or nil.
func (t *connMap[K, V, KP, VP]) twinMeta(k K) (*kernel.CtMeta, error) {
	for _, m := range []*bpfmap.Map[K, V]{t.m, t.other} {
		var value V
		if ok, err := m.Find(k, &value); ok || err != nil {
			return VP(&value).Common(), err
		}
	}
	return nil, nil
}

// connection describes the connection of an entry, without the fields that only the other
// direction's entry holds.
func (t *connMap[K, V, KP, VP]) connection(k KP, v VP, now uint32) datapath.Connection {
	m := v.Common()
	other := v.Twin((*K)(k))
	c := datapath.Connection{
		Protocol: datapath.Protocol(k.Protocol()),
		Original: k.Tuple(),
		Reply:    KP(&other).Tuple(),
		State:    t.d.stateName(m.State, datapath.Protocol(k.Protocol())),
		Age:      since(now, m.CreatedTick),
		Idle:     since(now, m.LastSeenTick),
		Sent:     datapath.Traffic{Packets: m.PacketCount, Bytes: m.ByteCount},
		DNAT:     m.Flags&kernel.CtDNAT != 0,
		SNAT:     m.Flags&kernel.CtSNAT != 0,
		Service:  t.d.services.Name(m.ServiceId),
		NAT:      t.d.nats.Name(m.NatId),
	}
	if m.Flags&kernel.CtReply != 0 {
		c.Original, c.Reply = c.Reply, c.Original
		c.Sent, c.Received = c.Received, c.Sent
	}
	if m.BackendId != 0 {
		c.Backend = c.Reply.Source
	}
	return c
}

func (t *connMap[K, V, KP, VP]) list(l *listing, match func(*datapath.Connection) bool) (found []datapath.Connection, more bool, err error) {
	size := min(listBatch, int(t.m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	n, more, err := t.batch(l.cursor, keys, values)
	if err != nil {
		return nil, false, err
	}
	now := kernel.NowTick()
	for i := range n {
		k, v := KP(&keys[i]), VP(&values[i])
		m := v.Common()
		if m.Flags&kernel.CtReply != 0 {
			continue
		}
		c := t.connection(k, v, now)
		if !match(&c) {
			continue
		}
		twin, err := t.twinMeta(v.Twin((*K)(k)))
		if err != nil {
			return nil, false, err
		}
		idle := l.idle.idleFor(m, k.Protocol())
		if twin != nil {
			c.Received = datapath.Traffic{Packets: twin.PacketCount, Bytes: twin.ByteCount}
			c.Idle = min(c.Idle, since(now, twin.LastSeenTick))
			c.Forth, c.Back = l.ways.of(m), l.ways.of(twin)
			c.Tracked = c.Forth.Tracked && c.Back.Tracked
			if twin.NatId != m.NatId {
				c.NATBack = t.d.nats.Name(twin.NatId)
			}
		}
		c.Expires = max(0, kernel.DurationOf(idle)-c.Idle)
		found = append(found, c)
	}
	return found, more, nil
}
