// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
)

// connKey and connValue are what the entries of both families have in common.
type connKey[K any] interface {
	*K
	tuple() datapath.Tuple
	proto() uint8
}

type connValue[K, V any] interface {
	*V
	meta() *kernelCtMeta
	twin(*K) K // key of the other direction
	backend() netip.AddrPort
}

func (k *kernelCt4Key) tuple() datapath.Tuple {
	return datapath.Tuple{
		Source:      netip.AddrPortFrom(addr4(k.Saddr), swap16(k.Sport)),
		Destination: netip.AddrPortFrom(addr4(k.Daddr), swap16(k.Dport)),
	}
}

func (k *kernelCt6Key) tuple() datapath.Tuple {
	return datapath.Tuple{
		Source:      netip.AddrPortFrom(k.Saddr.addr(), swap16(k.Sport)),
		Destination: netip.AddrPortFrom(k.Daddr.addr(), swap16(k.Dport)),
	}
}

func (k *kernelCt4Key) proto() uint8 { return k.Proto }
func (k *kernelCt6Key) proto() uint8 { return k.Proto }

func (v *kernelCt4Val) meta() *kernelCtMeta { return &v.Meta }
func (v *kernelCt6Val) meta() *kernelCtMeta { return &v.Meta }

func (v *kernelCt4Val) twin(k *kernelCt4Key) kernelCt4Key {
	return kernelCt4Key{Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Zone: k.Zone}
}

func (v *kernelCt6Val) twin(k *kernelCt6Key) kernelCt6Key {
	return kernelCt6Key{Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Zone: k.Zone}
}

func (v *kernelCt4Val) backend() netip.AddrPort {
	return netip.AddrPortFrom(addr4(v.Daddr), swap16(v.Dport))
}

func (v *kernelCt6Val) backend() netip.AddrPort {
	return netip.AddrPortFrom(v.Daddr.addr(), swap16(v.Dport))
}

// connTable is one map of connections, whatever its family.
type connTable interface {
	// sweep handles the next batch of entries for p and reports whether there are more.
	sweep(p *pass) (more bool, err error)
	// list returns the connections of the next batch that match chooses.
	list(l *listing, match func(*datapath.Connection) bool) (found []datapath.Connection, more bool, err error)
}

type connMap[K, V any, KP connKey[K], VP connValue[K, V]] struct {
	d      *DataPlane
	m      *ebpf.Map
	other  *ebpf.Map // where the other direction's entry may be, too
	keys   []K       // of the batch that is swept
	values []V
}

func newConnTables(d *DataPlane) []connTable {
	est4, half4 := d.maps[kernelMapLlCt4], d.maps[kernelMapLlHalf4]
	est6, half6 := d.maps[kernelMapLlCt6], d.maps[kernelMapLlHalf6]
	type v4 = connMap[kernelCt4Key, kernelCt4Val, *kernelCt4Key, *kernelCt4Val]
	type v6 = connMap[kernelCt6Key, kernelCt6Val, *kernelCt6Key, *kernelCt6Val]
	return []connTable{
		&v4{d: d, m: half4, other: est4},
		&v4{d: d, m: est4, other: half4},
		&v6{d: d, m: half6, other: est6},
		&v6{d: d, m: est6, other: half6},
	}
}

// batch reads the next entries after cursor.
func (t *connMap[K, V, KP, VP]) batch(cursor *ebpf.MapBatchCursor, keys []K, values []V) (n int, more bool, err error) {
	n, err = t.m.BatchLookup(cursor, keys, values, nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return n, false, nil
	}
	return n, err == nil, err
}

func (t *connMap[K, V, KP, VP]) sweep(p *pass) (bool, error) {
	if t.keys == nil {
		size := min(batchSize, int(t.m.MaxEntries()))
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

// sweepOne ends the connection of an entry, or counts it.
func (t *connMap[K, V, KP, VP]) sweepOne(p *pass, k KP, v VP) error {
	m := v.meta()
	switch {
	case p.dead[m.BackendId]:
		_, err := t.remove(p, k, m) // the other direction is visited by itself
		return err
	case p.match != nil && m.Flags&ctReply == 0:
		c := t.connection(k, v, p.now)
		if p.match(&c) {
			p.matched++
			return t.removeBoth(p, k, v)
		}
	}
	idle := p.idle.idleFor(m, k.proto())
	if idle != 0 && p.now-m.LastSeenTick > idle && int32(p.now-m.LastSeenTick) > 0 {
		twin, err := t.twinMeta(v.twin((*K)(k)))
		if err != nil {
			return err
		}
		if twin == nil || p.now-twin.LastSeenTick > idle && int32(p.now-twin.LastSeenTick) > 0 {
			return t.removeBoth(p, k, v)
		}
	}
	p.count(m)
	return nil
}

// remove deletes one entry; false: it is not there any more.
func (t *connMap[K, V, KP, VP]) remove(p *pass, k KP, m *kernelCtMeta) (bool, error) {
	switch err := t.m.Delete((*K)(k)); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	p.close(m)
	return true, nil
}

func (t *connMap[K, V, KP, VP]) removeBoth(p *pass, k KP, v VP) error {
	twin := v.twin((*K)(k))
	if _, err := t.remove(p, k, v.meta()); err != nil {
		return err
	}
	for _, m := range []*ebpf.Map{t.m, t.other} {
		var value V
		ok, err := lookup(m, &twin, &value)
		if err != nil {
			return err
		}
		if ok && m.Delete(&twin) == nil {
			p.close(VP(&value).meta())
		}
	}
	return nil
}

// twinMeta returns the shared part of the entry at k in either table, or nil.
func (t *connMap[K, V, KP, VP]) twinMeta(k K) (*kernelCtMeta, error) {
	for _, m := range []*ebpf.Map{t.m, t.other} {
		var value V
		if ok, err := lookup(m, &k, &value); ok || err != nil {
			return VP(&value).meta(), err
		}
	}
	return nil, nil
}

// connection describes the connection of an entry of the original direction, but
// for what only the other direction knows.
func (t *connMap[K, V, KP, VP]) connection(k KP, v VP, now uint32) datapath.Connection {
	m := v.meta()
	twin := v.twin((*K)(k))
	c := datapath.Connection{
		Protocol: datapath.Protocol(k.proto()),
		Original: k.tuple(),
		Reply:    KP(&twin).tuple(),
		State:    t.d.stateName(m.State),
		Age:      since(now, m.CreatedTick),
		Idle:     since(now, m.LastSeenTick),
		Sent:     datapath.Traffic{Packets: m.PacketCount, Bytes: m.ByteCount},
		DNAT:     m.Flags&ctDNAT != 0,
		SNAT:     m.Flags&ctSNAT != 0,
		Service:  t.d.services.name(m.ServiceId),
	}
	if m.BackendId != 0 {
		c.Backend = v.backend()
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
	now := nowTick()
	for i := range n {
		k, v := KP(&keys[i]), VP(&values[i])
		m := v.meta()
		if m.Flags&ctReply != 0 {
			continue
		}
		c := t.connection(k, v, now)
		if !match(&c) {
			continue
		}
		twin, err := t.twinMeta(v.twin((*K)(k)))
		if err != nil {
			return nil, false, err
		}
		idle := l.idle.idleFor(m, k.proto())
		if twin != nil {
			c.Received = datapath.Traffic{Packets: twin.PacketCount, Bytes: twin.ByteCount}
			c.Idle = min(c.Idle, since(now, twin.LastSeenTick))
			c.Tracked = m.Nexthop != 0 && twin.Nexthop != 0
		}
		c.Expires = max(0, durationOf(idle)-c.Idle)
		found = append(found, c)
	}
	return found, more, nil
}
