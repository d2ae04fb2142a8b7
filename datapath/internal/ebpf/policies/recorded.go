// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// A run records a hash of the state that is in force, and of the tables with which it is, once nothing
// has changed for a while. A later run of the same program that desires the same state, and finds these
// tables, writes nothing. The record is removed before anything is written.

// build identifies this program: another version may compile a state differently. An error: the linker
// has left no build id.
var build = sync.OnceValues(func() ([]byte, error) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer f.Close() // was only read
	note := f.Section(".note.go.buildid")
	if note == nil {
		return nil, errors.New("the program has no build id")
	}
	return note.Data()
})

// sum returns a hash of a state, with the tables by which it is in force; 0: it cannot be recorded.
func (p *Policies) sum(s *policy.State) (uint64, error) {
	id, err := build()
	if err != nil {
		return 0, nil // each start writes the tables
	}
	h := sha256.New()  // users of the cluster choose parts of the state
	_, _ = h.Write(id) // never fails
	if err := json.NewEncoder(h).Encode(s); err != nil {
		return 0, fmt.Errorf("hash of policies: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(p.portOf)) {
		fmt.Fprintf(h, "%q %d\n", name, p.portOf[name])
	}
	side := p.side()
	fmt.Fprintf(h, "%d %d\n", p.word, p.inForceID)
	var addrs, ports uint64 // independent of the order
	for addr, v := range p.addrs {
		addrs += hashOf(kernel.AddrOf(addr), v.Class[side], v.Port[side])
	}
	for port, v := range p.ports {
		ports += hashOf(port, v.Table[side], v.Network[side])
	}
	fmt.Fprintf(h, "%d %d %d %d %d\n", len(p.addrs), addrs, len(p.ports), ports, p.domains.sum())
	return max(binary.LittleEndian.Uint64(h.Sum(nil)), 1), nil
}

// hashOf returns a hash of values of fixed size.
func hashOf(values ...any) uint64 {
	h := fnv.New64a()
	for _, v := range values {
		_ = binary.Write(io.Writer(h), binary.LittleEndian, v) // never fails
	}
	return h.Sum64()
}

func (p *Policies) readRecord() error {
	var r kernel.Rules
	err := p.Tables.Rules.Lookup(uint32(kernel.RuleSetRULES_POLICY_STATE), &r)
	p.recorded = uint64(r.Image) | uint64(r.Flags)<<32
	return err
}

func (p *Policies) writeRecord(sum uint64) error {
	if sum == p.recorded {
		return nil
	}
	if err := p.Tables.Rules.Put(uint32(kernel.RuleSetRULES_POLICY_STATE), kernel.Rules{Image: uint32(sum), Flags: uint32(sum >> 32)}); err != nil {
		return fmt.Errorf("record the policies in force: %w", err)
	}
	p.recorded = sum
	return nil
}

// record records the state in force, whose tables have just been verified.
func (p *Policies) record() error {
	if p.recorded != 0 || p.image == nil || p.current == nil {
		return nil
	}
	sum, err := p.sum(p.current)
	if err != nil {
		return err
	}
	return p.writeRecord(sum)
}

// findsInForce reports whether a state is in force by the tables of an earlier run: then they need not be
// written.
func (p *Policies) findsInForce(s *policy.State) (bool, error) {
	if p.image != nil || p.word&policyImage == 0 || p.recorded == 0 {
		return false, nil
	}
	if word, err := p.readWord(); err != nil || word != p.word {
		return false, err
	}
	var id ebpf.MapID
	if err := p.Maps[sizes[p.word&policyImage-1].name].Lookup(uint32(p.setInForce()), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	p.inForceID = id
	sum, err := p.sum(s)
	if err != nil || sum != p.recorded {
		return false, err
	}
	if p.adopted == nil {
		if err := p.ledger.retire(s, nil); err != nil {
			return false, err
		}
	}
	p.adopted, p.inForce, p.compiled = s, s, nil
	p.noteNetworks(s)
	return true, nil
}

// setInForce returns the key of the image in force in the outer map.
func (p *Policies) setInForce() kernel.RuleSet {
	if p.word&policySlot != 0 {
		return kernel.RuleSetRULES_POLICY_OTHER
	}
	return kernel.RuleSetRULES_POLICY
}

// rewrite writes the tables of an earlier run anew, since they are about to change.
func (p *Policies) rewrite() error {
	if p.adopted == nil {
		return nil
	}
	return p.update(p.adopted)
}
