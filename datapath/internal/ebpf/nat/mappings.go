// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

var (
	mappingTimeout = kernel.TicksOf(datapath.MappingTimeout)
	blockTimeout   = kernel.TicksOf(datapath.BlockTimeout)
)

// outerKey is an outer address and protocol in a namespace.
type outerKey struct {
	addr      kernel.Addr
	proto     uint8
	namespace uint8
}

// outerPorts are the outer ports in use, as found by a pass.
type outerPorts map[outerKey]*[1 << 10]uint64

func (o outerPorts) use(k outerKey, port uint16) {
	bits := o[k]
	if bits == nil {
		bits = new([1 << 10]uint64)
		o[k] = bits
	}
	bits[port/64] |= 1 << (port % 64)
}

func (o outerPorts) used(k outerKey, first uint16, count int) bool {
	bits := o[k]
	if bits == nil {
		return false
	}
	for p := int(first); p < int(first)+count && p < 1<<16; p++ {
		if bits[p/64]>>(p%64)&1 != 0 {
			return true
		}
	}
	return false
}

// translated is a mapping or block whose creation and deletion are logged.
type translated struct {
	nat          uint16
	proto        uint8
	inner, outer netip.AddrPort
	size         int // of a block (outer contains its first port, inner no port), else 0
}

// report records that a mapping or block exists, so that its creation is logged if its NAT logs. If
// its creation has been logged, its deletion is logged too, even if the rule changes in the
// meantime.
func (p *Pass) report(t translated) {
	if name := cmp.Or(p.table.reported[t], p.log[t.nat]); name != "" {
		p.reported[t] = name
	}
}

func (n *Table) logLine(what string, name datapath.NATName, t translated) {
	if t.size > 0 {
		n.logger.Info(what, "nat", name, "inner", t.inner.Addr(), "outer", t.outer.Addr(),
			"ports", fmt.Sprintf("%d-%d", t.outer.Port(), int(t.outer.Port())+t.size-1))
		return
	}
	n.logger.Info(what, "nat", name, "protocol", datapath.Protocol(t.proto), "inner", t.inner, "outer", t.outer)
}

// keeps reports whether a mapping or block without connections is kept: it was last used at most
// idle ticks before the pass, and its rule still has mappings or blocks; or it is newer than the
// pass.
func (p *Pass) keeps(id uint16, created, used, idle uint32) bool {
	return int32(created-p.began) >= 0 || kernel.TicksBetween(used, p.began) <= idle && p.shared[id]
}

func (n *Table) endMappings(p *Pass) error {
	outers, inners := &n.tables.MappingOuter, &n.tables.Mapping
	var ended []kernel.MappingKey
	count := uint64(0)
	used := make(map[kernel.MappingKey]kernel.Mapping)
	err := outers.Batches(func(keys []kernel.MappingKey, values []kernel.Mapping) error {
		count += uint64(len(keys))
		p.found = p.found || len(keys) > 0
		for i, k := range keys {
			v, at := &values[i], outerKey{k.Addr, k.Proto, k.Netns}
			if last := p.last.later(v.UsedTick, at, kernel.Swap16(k.Port), 1); last != v.UsedTick {
				v.UsedTick = last
				used[k] = *v
			}
			t := translated{nat: v.NatId, proto: k.Proto, inner: endpoint(v.Addr, v.Port), outer: endpoint(k.Addr, k.Port)}
			inUse := p.outers.used(at, kernel.Swap16(k.Port), 1)
			if inUse || p.keeps(v.NatId, v.CreatedTick, v.UsedTick, mappingTimeout) {
				p.report(t)
				continue
			}
			ended = append(ended, k)
		}
		return nil
	})
	if err = errors.Join(err, writeUsed(outers, used)); err != nil {
		return err
	}
	for i := range ended {
		var v, inner kernel.Mapping
		there, err := outers.Find(ended[i], &v)
		if err != nil {
			return err
		}
		if !there { // the programs delete one for which they find no use
			count--
			continue
		}
		// The inner side is refreshed by new connections, and may have a different mapping by now.
		key := innerKey(&ended[i], &v)
		ok, err := inners.Find(key, &inner)
		if err != nil {
			return err
		}
		if ok && inner.Addr == ended[i].Addr && inner.Port == ended[i].Port {
			if p.keeps(v.NatId, inner.CreatedTick, inner.UsedTick, mappingTimeout) {
				p.report(translated{nat: v.NatId, proto: key.Proto, inner: endpoint(v.Addr, v.Port), outer: endpoint(ended[i].Addr, ended[i].Port)})
				continue
			}
			if err := inners.Delete(key); err != nil {
				return err
			}
		}
		if err := outers.Delete(ended[i]); err != nil {
			return err
		}
		count--
	}
	n.mappings = count
	return nil
}

// innerKey returns the key that a mapping has on its inner side.
func innerKey(outer *kernel.MappingKey, v *kernel.Mapping) kernel.MappingKey {
	return kernel.MappingKey{Addr: v.Addr, Port: v.Port, Proto: outer.Proto, Netns: outer.Netns, NatId: uint32(v.NatId) | portsHash(outer.Addr)<<16}
}

// portsHash is ports_hash of nat_port_share.h.
func portsHash(a kernel.Addr) uint32 {
	h := uint32(0x10c112)
	for _, word := range a.Word {
		h ^= word
		h ^= h >> 16
		h *= 0x85ebca6b
		h ^= h >> 13
		h *= 0xc2b2ae35
		h ^= h >> 16
	}
	return h
}

func endpoint(a kernel.Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), kernel.Swap16(port))
}

func (n *Table) endBlocks(p *Pass) error {
	blocks := &n.tables.Block
	held := make(map[kernel.BlockOwnerKey]bool)
	hold := func(k kernel.BlockKey, v *kernel.Block) {
		held[kernel.BlockOwnerKey{Outer: v.Outer, First: v.First, Netns: k.Netns}] = true
		p.report(translated{
			nat: k.NatId, size: int(v.Size), inner: netip.AddrPortFrom(k.Inner.Addr(), 0), outer: netip.AddrPortFrom(v.Outer.Addr(), v.First),
		})
	}
	var ended []kernel.BlockKey
	used := make(map[kernel.BlockKey]kernel.Block)
	err := blocks.Batches(func(keys []kernel.BlockKey, values []kernel.Block) error {
		p.found = p.found || len(keys) > 0
		for i, k := range keys {
			v := &values[i]
			last := v.UsedTick
			for _, proto := range translatedProtocols {
				last = p.last.later(last, outerKey{v.Outer, uint8(proto), k.Netns}, v.First, int(v.Size))
			}
			if last != v.UsedTick {
				v.UsedTick = last
				used[k] = *v
			}
			if !p.inUse(v, k.Netns) && !p.keeps(k.NatId, v.CreatedTick, v.UsedTick, blockTimeout) {
				ended = append(ended, k)
				continue
			}
			hold(k, v)
		}
		return nil
	})
	err = errors.Join(err, writeUsed(blocks, used))
	for _, k := range ended {
		var v kernel.Block
		there, e := blocks.Find(k, &v)
		switch {
		case e != nil:
		case there && p.keeps(k.NatId, v.CreatedTick, v.UsedTick, blockTimeout):
			hold(k, &v) // a new connection has begun to use it
		default:
			e = blocks.Delete(k)
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	return n.endOwners(p, held)
}

// endOwners deletes the owners whose block is gone, or was concurrently assigned to a different
// owner. held are the owners of blocks.
func (n *Table) endOwners(p *Pass, held map[kernel.BlockOwnerKey]bool) error {
	owners := &n.tables.BlockOwner
	owns := func(k kernel.BlockOwnerKey, block kernel.BlockKey) (bool, error) {
		var v kernel.Block
		ok, err := n.tables.Block.Find(block, &v)
		return ok && v.Outer == k.Outer && v.First == k.First, err
	}
	left := make(map[kernel.BlockOwnerKey]kernel.BlockKey)
	count := uint64(0)
	err := owners.Batches(func(keys []kernel.BlockOwnerKey, values []kernel.BlockKey) error {
		count += uint64(len(keys))
		p.found = p.found || len(keys) > 0
		for i, k := range keys {
			if held[k] {
				continue
			}
			ok, err := owns(k, values[i])
			if err != nil {
				return err
			}
			if !ok {
				left[k] = values[i]
			}
		}
		return nil
	})
	for k, block := range left {
		ok, e := owns(k, block) // the programs insert the block just after its owner
		if e == nil && !ok {
			e = owners.Delete(k)
			count--
		}
		err = errors.Join(err, e)
	}
	if err == nil {
		n.blocks = count
	}
	return err
}

// translatedProtocols are the protocols with ports, or with an identifier in their place.
var translatedProtocols = []datapath.Protocol{datapath.TCP, datapath.UDP, datapath.SCTP, datapath.ICMP, datapath.ICMPv6}

func (p *Pass) inUse(b *kernel.Block, namespace uint8) bool {
	for _, proto := range translatedProtocols {
		if p.outers.used(outerKey{b.Outer, uint8(proto), namespace}, b.First, int(b.Size)) {
			return true
		}
	}
	return false
}
