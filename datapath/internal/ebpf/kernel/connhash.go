// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

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

// PrepareConnTable chooses the keys of the connection table, unless an earlier run has.
func PrepareConnTable(maps map[string]*ebpf.Map) error {
	var s Shares
	if err := maps[MapLlShares].Lookup(uint32(0), &s); err != nil || s.CtHash != (ConnHash{}) {
		return err
	}
	var b [len(s.CtHash) * 8]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range s.CtHash {
		s.CtHash[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return maps[MapLlShares].Put(uint32(0), s)
}

// SetConnTable sets the constants of programs that use the connection table of maps.
func SetConnTable(s *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	hash, blocks, idle := s.Variables[VarConfigCtHash], s.Variables[VarConfigCtBlocks], s.Variables[VarConfigCtIdle]
	if idle != nil {
		t := datapath.PlainIdleTimeout()
		if err := idle.Set([...]uint16{IdleUnits(t.TCP), IdleUnits(t.UDP), IdleUnits(t.SCTP), IdleUnits(datapath.EchoTimeout)}); err != nil {
			return err
		}
	}
	if hash == nil || maps[MapLlCt4] == nil {
		return nil
	}
	k, err := connHashOf(maps[MapLlShares])
	return errors.Join(err, hash.Set(k), blocks.Set([2]uint32{maps[MapLlCt4].MaxEntries(), maps[MapLlCt6].MaxEntries()}))
}
