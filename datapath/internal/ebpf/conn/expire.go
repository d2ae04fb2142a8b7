// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// ExpireBatch is EXPIRE_COUNT: the maximum number of connections that one run of the program
// deletes.
const ExpireBatch = 64

// Expirer deletes connections, both directions together, with a program in the kernel
// (expire.bpf.c). It is not safe for concurrent use.
type Expirer struct {
	program *ebpf.Program
	list    *ebpf.Map
	indexes []uint32
	frame   []byte // packet for the test run of the program
}

// NewExpirer loads the program with these maps.
func NewExpirer(maps map[string]*ebpf.Map) (*Expirer, error) {
	spec, err := kernel.LoadExpirer()
	if err != nil {
		return nil, err
	}
	if err := kernel.SetConnTable(spec, maps); err != nil {
		return nil, err
	}
	replace := make(map[string]*ebpf.Map)
	used := mapsUsed(spec.Programs[kernel.ExpirerProgLlExpireRun])
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if strings.HasPrefix(name, "ll_") && !used[name] {
			delete(spec.Maps, name)
		} else if shared := kernel.SharedMap(maps, name); shared != nil {
			replace[name] = shared
			m.MaxEntries = shared.MaxEntries()
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", kernel.ExpirerProgLlExpireRun, err)
	}
	defer c.Close()
	x := &Expirer{
		program: c.DetachProgram(kernel.ExpirerProgLlExpireRun),
		list:    c.DetachMap(kernel.ExpirerMapLlExpire),
		frame:   make([]byte, 64),
	}
	for i := range uint32(ExpireBatch) {
		x.indexes = append(x.indexes, i)
	}
	return x, nil
}

// mapsUsed returns the names of the maps that a program refers to.
func mapsUsed(p *ebpf.ProgramSpec) map[string]bool {
	used := make(map[string]bool)
	for i := range p.Instructions {
		if ins := &p.Instructions[i]; ins.IsLoadFromMap() {
			used[ins.Reference()] = true
		}
	}
	return used
}

// Close unloads the program.
func (x *Expirer) Close() error { return errors.Join(x.program.Close(), x.list.Close()) }

// Run deletes up to ExpireBatch connections and fills in the result of each.
func (x *Expirer) Run(all []kernel.ExpirerExpire) error {
	if len(all) == 0 {
		return nil
	}
	n := len(all)
	if n < ExpireBatch {
		all = append(all, kernel.ExpirerExpire{}) // end of the list
	}
	if _, err := x.list.BatchUpdate(x.indexes[:len(all)], all, nil); err != nil {
		return fmt.Errorf("connections to be deleted: %w", err)
	}
	if _, err := x.program.Run(&ebpf.RunOptions{Data: x.frame}); err != nil {
		return fmt.Errorf("delete connections: %w", err)
	}
	keys := make([]uint32, n)
	var cursor ebpf.MapBatchCursor
	got, err := x.list.BatchLookup(&cursor, keys, all[:n], nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("deleted connections: %w", err)
	}
	if got != n {
		return fmt.Errorf("deleted connections: %d of %d read", got, n)
	}
	return nil
}

// doomed is a connection that a pass deletes after it has seen all entries. Thus each of its two
// entries is counted once in the totals, whichever is seen first.
type doomed[K, V any] struct {
	key     K
	value   V
	idle    uint32 // it is deleted if it was idle for more than these ticks
	force   bool   // deleted even if it was not idle
	matched bool   // selected by pass.match
}

// doom selects the connection of an entry for deletion.
func (t *entries[K, V, KP, VP]) doom(e *entry[K, V, KP, VP], idle uint32, force, matched bool) {
	t.doomed = append(t.doomed, doomed[K, V]{*e.k, *e.v, idle, force, matched})
}

// spare discards the list of connections to be deleted.
func (t *entries[K, V, KP, VP]) spare() { t.doomed = nil }

// expire deletes the next batch of the connections that the pass selected, and reports whether
// there are more.
func (t *entries[K, V, KP, VP]) expire(p *pass) (bool, error) {
	n := min(ExpireBatch, len(t.doomed))
	batch := t.doomed[:n]
	all := make([]kernel.ExpirerExpire, n, ExpireBatch)
	for i := range batch {
		twin := VP(&batch[i].value).Twin(&batch[i].key)
		KP(&batch[i].key).Expire(&all[i], &twin)
		all[i].NowTick, all[i].IdleTicks = p.now, batch[i].idle
		if batch[i].force {
			all[i].Force = 1
		}
	}
	if err := p.s.expirer.Run(all); err != nil {
		return false, err
	}
	for i := range batch {
		t.expired(p, &batch[i], &all[i])
	}
	if t.doomed = t.doomed[n:]; len(t.doomed) == 0 {
		t.doomed = nil
	}
	return t.doomed != nil, nil
}

// expired records the result for a connection that was to be deleted.
func (t *entries[K, V, KP, VP]) expired(p *pass, x *doomed[K, V], e *kernel.ExpirerExpire) {
	result := e.Result
	if result != kernel.ExpirerExpireResultEXPIRE_ALONE && result != kernel.ExpirerExpireResultEXPIRE_BOTH {
		return
	}
	if x.matched {
		p.matched++
	}
	both := result == kernel.ExpirerExpireResultEXPIRE_BOTH
	seen := &entry[K, V, KP, VP]{&x.key, &x.value} // x is not used any more
	m, twin := kernel.MetaOf(&e.Meta, (*kernel.CtMore)(&e.More)), kernel.MetaOf(&e.Twin, (*kernel.CtMore)(&e.TwinMore))
	m.State, twin.State = uint8(e.State), uint8(e.State)
	*seen.v.Common() = m
	p.deleted(seen)
	if both {
		p.deleted(twinEntry{seen, &twin})
	}
}
