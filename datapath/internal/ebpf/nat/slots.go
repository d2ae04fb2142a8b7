// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Variants is the number of slots that a rule can have. At most two of them are in force: one in
// each set, if publishing the second set failed.
const Variants = 4

// put writes the rules and makes them take effect.
func (n *Table) put(sets [2][]*natRule, groups map[datapath.GroupName]datapath.AddressGroup) error {
	wanted := make(map[uint32]*natRule)
	var images [2]*classify.Image
	for i, rules := range sets {
		list := make([]classify.Rule, len(rules))
		for j, r := range rules {
			n.choose(r)
			wanted[r.slot] = r
			list[j] = classify.Rule{Name: string(r.name), ID: uint32(r.record.Id), Hooks: datapath.HookAll, Match: &r.match, Flags: uint8(r.slot & 3)}
		}
		if len(list) == 0 {
			continue
		}
		var err error
		if images[i], err = classify.Compile(list, groups); err != nil {
			return err
		}
	}
	if err := n.writeNew(wanted); err != nil {
		return err
	}
	maps.Copy(n.rules, wanted)
	if err := n.host.SetTargetPorts(n.targetPorts()); err != nil {
		return err
	}
	n.inForce = n.inForce || len(wanted) > 0
	if err := n.images.PublishAll(natSets[:], images[:]); err != nil {
		n.unclear = true
		return err
	}
	n.unclear, n.dirty, n.referred = false, false, nil
	err := n.exchange(func(slot uint32) bool { return wanted[slot] != nil })
	n.inForce = len(wanted) > 0
	return errors.Join(err, n.host.SetTargetPorts(n.targetPorts()), n.endUncovered(groups))
}

// exchange makes lookups by id find the rules of the slots in force, and schedules the others for
// removal.
func (n *Table) exchange(inForce func(slot uint32) bool) (err error) {
	for slot, r := range n.rules {
		if !r.found && inForce(slot) {
			e := n.tables.NatRule.Put(slot, r.record)
			r.found = e == nil
			err = errors.Join(err, kernel.TableError("rules", e))
		}
	}
	for slot, r := range n.rules {
		if inForce(slot) {
			continue
		}
		n.old = append(n.old, r.natSlot)
		delete(n.rules, slot)
		if r.found {
			r.record.Flags |= kernel.NATReplaced
			err = errors.Join(err, kernel.IfThere(n.tables.NatRule.Replace(slot, r.record)))
		}
	}
	return err
}

// settle determines which rules are in force after publishing failed, or after an earlier run.
func (n *Table) settle() error {
	if !n.unclear {
		return nil
	}
	n.referred = map[uint32]bool{}
	for _, set := range natSets {
		image, err := n.images.InForce(set)
		if err != nil {
			return err
		}
		if image == nil {
			continue // no rules, or no program can read them
		}
		for _, r := range image.Rules() {
			n.referred[r.ID<<2|uint32(r.Flags)] = true
		}
	}
	err := n.exchange(func(slot uint32) bool { return n.referred[slot] })
	n.unclear = false
	return err
}

// adoptRules reads the rules that an earlier run wrote, in force or not.
func (n *Table) adoptRules() error {
	err := n.tables.NatRule.Batches(func(slots []uint32, rules []kernel.NatRule) error {
		for i, slot := range slots {
			r := &natRule{natSlot: natSlot{slot: slot}, record: rules[i], found: rules[i].Flags&kernel.NATReplaced == 0}
			r.record.Flags &^= kernel.NATReplaced
			r.set = natSets[1]
			if rules[i].Type == natTypes[datapath.DNAT] {
				r.set = natSets[0]
			}
			for f, first := range rules[i].PoolFirst {
				for j := range rules[i].PoolCount[f] {
					r.pools = append(r.pools, first+j)
				}
			}
			n.rules[slot] = r
		}
		return nil
	})
	if err != nil {
		return err
	}
	return n.adoptPrefixes()
}

// adoptPrefixes reads the prefixes of the rules. Prefixes without a rule are scheduled for removal:
// an earlier run was killed before it wrote the rule.
func (n *Table) adoptPrefixes() error {
	prefixes, orphaned := make(map[uint32]kernel.NatPrefix), natSlot{}
	err := n.tables.NatPool.Batches(func(indexes []uint32, values []kernel.NatPrefix) error {
		for i, index := range indexes {
			prefixes[index] = values[i]
			n.lastPool = max(n.lastPool, index+1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range n.rules {
		for _, index := range r.pools {
			r.pool = append(r.pool, prefixes[index])
			delete(prefixes, index)
		}
	}
	orphaned.pools = slices.Collect(maps.Keys(prefixes))
	var key kernel.NatPairKey
	var value kernel.NatPrefix
	pairs := n.tables.NatPair.Iterate()
	for pairs.Next(&key, &value) {
		if r := n.rules[key.Slot]; r != nil {
			r.pairs = append(r.pairs, key)
			r.pairAddrs = append(r.pairAddrs, value)
		} else {
			orphaned.pairs = append(orphaned.pairs, key)
		}
	}
	if len(orphaned.pools)+len(orphaned.pairs) > 0 {
		n.old = append(n.old, orphaned) // slot 0: ids begin at 1
	}
	return pairs.Err()
}

// choose assigns to r a slot that no rule in force uses, or its current slot if r has not changed.
func (n *Table) choose(r *natRule) {
	for variant := range uint32(Variants) {
		if have := n.rules[r.slot|variant]; have != nil && have.same(r) {
			r.natSlot, r.record, r.found = have.natSlot, have.record, have.found
			r.pool, r.pairAddrs = have.pool, have.pairAddrs
			n.rules[r.slot] = r
			return
		}
	}
	for n.rules[r.slot] != nil || n.referred[r.slot] {
		r.slot++
	}
	for i := range r.pairs {
		r.pairs[i].Slot = r.slot
	}
	for f, count := range r.record.PoolCount {
		r.record.PoolFirst[f] = n.lastPool
		for range count {
			r.pools = append(r.pools, n.lastPool)
			n.lastPool++
		}
	}
}

// same reports whether r and other translate in the same way.
func (r *natRule) same(other *natRule) bool {
	a, b := r.record, other.record
	a.PoolFirst, b.PoolFirst = [2]uint32{}, [2]uint32{}
	return a == b && slices.Equal(r.pool, other.pool) && maps.Equal(r.translations(), other.translations())
}

// translations returns the pairs of r, without its slot.
func (r *natRule) translations() map[kernel.NatPairKey]kernel.NatPrefix {
	pairs := make(map[kernel.NatPairKey]kernel.NatPrefix, len(r.pairs))
	for i, key := range r.pairs {
		key.Slot = 0
		pairs[key] = r.pairAddrs[i]
	}
	return pairs
}

// holds reports whether the tables contain r as written.
func (n *Table) holds(r *natRule) (bool, error) {
	var have kernel.NatRule
	if ok, err := n.tables.NatRule.Find(r.slot, &have); !ok || err != nil || have != r.record {
		return false, err
	}
	var prefix kernel.NatPrefix
	for i, index := range r.pools {
		if ok, err := n.tables.NatPool.Find(index, &prefix); !ok || err != nil || prefix != r.pool[i] {
			return false, err
		}
	}
	for i, key := range r.pairs {
		if ok, err := n.tables.NatPair.Find(key, &prefix); !ok || err != nil || prefix != r.pairAddrs[i] {
			return false, err
		}
	}
	return true, nil
}

// writeNew writes the rules that are not in force yet. If the tables are dirty, it also writes the
// others.
func (n *Table) writeNew(wanted map[uint32]*natRule) error {
	var written []natSlot
	for slot, r := range wanted {
		inForce := n.rules[slot] == r
		if inForce && !n.dirty {
			continue
		}
		if !inForce {
			written = append(written, r.natSlot)
		}
		if err := n.write(r); err != nil {
			n.old = append(n.old, written...)
			return &datapath.RuleError{Rule: string(r.name), Err: err}
		}
	}
	return nil
}

func (n *Table) write(r *natRule) error {
	for i, index := range r.pools {
		if err := n.tables.NatPool.Put(index, r.pool[i]); err != nil {
			return kernel.TableError("prefixes", err)
		}
	}
	for i := range r.pairs {
		if err := n.tables.NatPair.Put(r.pairs[i], r.pairAddrs[i]); err != nil {
			return kernel.TableError("prefixes", err)
		}
	}
	record := r.record
	if !r.found {
		record.Flags |= kernel.NATReplaced // lookups by id must not find it before it is in force
	}
	return kernel.TableError("rules", n.tables.NatRule.Put(r.slot, record))
}

// remove deletes the entries of a rule from the tables.
func (n *Table) remove(s natSlot) error {
	var record kernel.NatRule
	there, err := n.tables.NatRule.Find(s.slot, &record)
	if there && record.Flags&kernel.NATReplaced == 0 {
		record.Flags |= kernel.NATReplaced
		err = n.tables.NatRule.Replace(s.slot, record)
	}
	if err != nil {
		return err
	}
	for _, index := range s.pools {
		err = errors.Join(err, n.tables.NatPool.Delete(index))
	}
	for i := range s.pairs {
		err = errors.Join(err, n.tables.NatPair.Delete(s.pairs[i]))
	}
	if err != nil {
		return err
	}
	return n.tables.NatRule.Delete(s.slot) // last: its fields refer to the others
}

// dropOld removes the slots of earlier rules once no program can read them.
func (n *Table) dropOld() error {
	if len(n.old) == 0 {
		return nil
	}
	kernel.Synchronize()
	for len(n.old) > 0 {
		if err := n.remove(n.old[0]); err != nil {
			return err
		}
		n.old = n.old[1:]
	}
	return nil
}
