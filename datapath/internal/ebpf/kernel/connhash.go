// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
)

// ConnHash are the keys of the hash that selects the home of an entry: config_ct_hash.
type ConnHash [len(Shares{}.CtHash)]uint64

// end is ct_hash_end.
func (k *ConnHash) end(h uint64) uint64 { return (h ^ h>>32) * 0x9fb21c651e98df25 }

// of is ct4_hash and ct6_hash.
func (k *ConnHash) of(words []uint64) uint64 {
	h := k[0]
	for i, w := range words {
		h += (w&0xffffffff + k[1+2*i]) * (w>>32 + k[2+2*i])
	}
	return k.end(h)
}

// connHashOf returns the keys in ll_shares, or the keys for tests if it has none.
func connHashOf(shares *ebpf.Map) (k ConnHash, err error) {
	if shares != nil {
		var s Shares
		if err := shares.Lookup(uint32(0), &s); err != nil {
			return k, fmt.Errorf("keys of the connection table: %w", err)
		}
		if k = s.CtHash; k != (ConnHash{}) {
			return k, nil
		}
	}
	spec, err := LoadExpirer()
	if err != nil {
		return k, err
	}
	return k, spec.Variables[ExpirerVarConfigCtHash].Get(&k)
}

// PrepareConnTable chooses the keys of the connection table, unless an earlier run has, and creates
// its missing segments, whose numbers of blocks are given by family, IPv4 first.
func PrepareConnTable(maps map[string]*ebpf.Map, blocks [2]uint32) error {
	if err := prepareConnHash(maps[MapLlShares]); err != nil {
		return err
	}
	return CreateSegments(maps, blocks)
}

// CreateSegments creates the missing segments of the connection table; see [PrepareConnTable].
func CreateSegments(maps map[string]*ebpf.Map, blocks [2]uint32) error {
	var size CtSize
	if err := maps[MapLlCtSize].Lookup(uint32(0), &size); err != nil {
		return err
	}
	for i, name := range []string{MapLlCt4, MapLlCt6} {
		count := max(size.Segments[i]&0xffff, size.Segments[i]>>16)>>segmentShift + 1
		for segment := range count {
			m, err := segmentAt(maps[name], segment)
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				err = createSegment(maps[name], name, segment, blocks[i])
			} else if err == nil {
				m.Close() // nothing was written
			}
			if err != nil {
				return err
			}
		}
		if err := removeSegments(maps[name], count); err != nil {
			return err
		}
	}
	return nil
}

func createSegment(table *ebpf.Map, name string, segment, blocks uint32) error {
	m, err := newSegment(name, blocks)
	if err != nil {
		return err
	}
	if err := table.Put(segment, m); err != nil {
		return errors.Join(err, m.Close())
	}
	go func() { // the start does not wait
		_ = touch(m) // it only saves time
		m.Close()
	}()
	return nil
}

func prepareConnHash(shares *ebpf.Map) error {
	var s Shares
	if err := shares.Lookup(uint32(0), &s); err != nil || s.CtHash != (ConnHash{}) {
		return err
	}
	var b [len(s.CtHash) * 8]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range s.CtHash {
		s.CtHash[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return shares.Put(uint32(0), s)
}

// SetConnTable sets the constants of programs that use the connection table of maps.
func SetConnTable(s *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	hash, blocks, idle := s.Variables[VarConfigCtHash], s.Variables[VarConfigCtBlocks], s.Variables[VarConfigCtIdle]
	if idle != nil {
		t := datapath.PlainIdleTimeout()
		// By enum ct_limit.
		limits := [...]uint32{
			TicksOf(datapath.OneWayTimeout), TicksOf(datapath.TransitoryTimeout),
			TicksOf(datapath.FINTimeout), TicksOf(datapath.FINLongest),
		}
		if err := s.Variables[VarConfigCtLimit].Set(limits); err != nil {
			return err
		}
		if err := idle.Set([...]uint16{IdleUnits(t.TCP), IdleUnits(t.UDP), IdleUnits(t.SCTP), IdleUnits(datapath.EchoTimeout)}); err != nil {
			return err
		}
	}
	if hash == nil || maps[MapLlCt4] == nil {
		return nil
	}
	k, err := connHashOf(maps[MapLlShares])
	if err != nil {
		return err
	}
	var of [2]uint32
	for i, name := range []string{MapLlCt4, MapLlCt6} {
		segment, err := segmentAt(maps[name], 0)
		if err != nil {
			return err
		}
		of[i] = segment.MaxEntries()
		segment.Close() // nothing was written
	}
	return errors.Join(hash.Set(k), blocks.Set(of))
}

// SharedMap returns the map of maps that replaces the map of that name in the description of a
// program; nil: none. A variable in section .data.x is in map ll_x.
func SharedMap(maps map[string]*ebpf.Map, name string) *ebpf.Map {
	if variable, ok := strings.CutPrefix(name, ".data."); ok {
		name = "ll_" + variable
	}
	return maps[name]
}
