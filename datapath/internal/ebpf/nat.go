// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
)

// nats is the table of translation, which has at most one row. Records of rules are written under
// slots that no rule in force uses, then the images that refer to them are published. Unused slots
// are removed a moment later.
type nats struct {
	tables    *tables
	images    *images
	host      natHost
	announcer addrAnnouncer
	logger    *slog.Logger

	mu       sync.RWMutex
	ids      map[datapath.NATName]uint16
	names    map[uint16]datapath.NATName
	lastPool uint32
	lastID   uint16
	inForce  bool
	rules    map[uint32]*natRule       // by slot, as in force
	old      []natSlot                 // to be removed
	log      map[uint16]bool           // ids whose mappings are reported
	told     map[translated]bool       // reported as begun and not as ended
	live     map[uint32]*backendTotals // traffic of connections as of the last pass, by id
	mappings uint64                    // entries as of the last pass
	blocks   uint64
}

// natHost is the node whose packets are translated, as [DataPlane] is.
type natHost interface {
	defaultPorts() ([]datapath.PortRange, error) // source ports for rules that name none
	setUplinkNames(names []string)
	soonOnLoopback()              // the programs on the loopback may have to be attached
	openNamespaces() []*namespace // of the switch and of the host
}

// natSlot is the entries of one rule in the tables.
type natSlot struct {
	slot  uint32
	pools []uint32
	pairs []kernelNatPairKey
}

// natRule is one rule of one set: its match and its translation.
type natRule struct {
	natSlot
	set       ruleSet
	name      datapath.NATName
	match     datapath.Match
	record    kernelNatRule
	pool      []kernelNatPrefix // IPv4 first
	pairAddrs []kernelNatPrefix // by pairs
}

// The rule sets of translation, in the order in which they are published.
var natSets = [2]ruleSet{rulesDNAT, rulesSNAT}

// adoptNATs takes over the translation that an earlier run wrote.
func adoptNATs(t *tables, images *images, host natHost, a addrAnnouncer, logger *slog.Logger) (*nats, error) {
	n := &nats{
		tables: t, images: images, host: host, announcer: a, logger: logger,
		ids: make(map[datapath.NATName]uint16), names: make(map[uint16]datapath.NATName),
		rules: make(map[uint32]*natRule), log: make(map[uint16]bool),
	}
	if err := n.adopt(); err != nil {
		return nil, fmt.Errorf("take over the translation of an earlier run: %w", err)
	}
	return n, nil
}

func (n *nats) adopt() error {
	err := n.tables.NatName.Batches(func(ids []uint32, names []kernelNatName) error {
		for i, id := range ids {
			name := names[i].name()
			n.ids[name], n.names[uint16(id)] = uint16(id), name
			n.lastID = max(n.lastID, uint16(id))
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = n.tables.NatRule.Batches(func(slots []uint32, rules []kernelNatRule) error {
		for i, slot := range slots {
			r := &natRule{natSlot: natSlot{slot: slot}, record: rules[i]}
			for f, first := range rules[i].PoolFirst {
				for j := range rules[i].PoolCount[f] {
					r.pools = append(r.pools, first+j)
				}
				n.lastPool = max(n.lastPool, first+rules[i].PoolCount[f])
			}
			n.rules[slot] = r
		}
		return nil
	})
	if err != nil {
		return err
	}
	var key kernelNatPairKey
	var value kernelNatPrefix
	pairs := n.tables.NatPair.Iterate()
	for pairs.Next(&key, &value) {
		if r := n.rules[key.Slot]; r != nil {
			r.pairs = append(r.pairs, key)
		}
	}
	if err := pairs.Err(); err != nil {
		return err
	}
	for slot, r := range n.rules {
		if r.record.Flags&natReplaced != 0 {
			n.old = append(n.old, r.natSlot)
			delete(n.rules, slot)
		}
	}
	for _, set := range natSets {
		image, err := n.images.inForce(set)
		if err != nil {
			return err
		}
		n.inForce = n.inForce || image != nil
	}
	if !n.inForce {
		n.host.setUplinkNames(nil)
	}
	return nil
}

// Update implements [datapath.Table].
func (n *nats) Update(_ context.Context, _ datapath.SetName, set datapath.NATSet) error {
	if err := n.update(set); err != nil {
		return err
	}
	n.host.soonOnLoopback()
	return nil
}

func (n *nats) update(set datapath.NATSet) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.dropOld(); err != nil {
		return err
	}
	if err := n.nameAll(set.Rules); err != nil {
		return err
	}
	free, err := n.host.defaultPorts()
	if err != nil {
		return err
	}
	var sets [2][]*natRule
	var errs error
	for _, name := range sortedNATs(set.Rules) {
		value := set.Rules[name]
		rules, err := compileNAT(name, n.ids[name], &value, free)
		if err != nil {
			errs = errors.Join(errs, &datapath.RuleError{Rule: string(name), Err: err})
			continue
		}
		for i := range sets {
			if rules[i] != nil {
				sets[i] = append(sets[i], rules[i])
			}
		}
	}
	if errs != nil {
		return errs
	}
	if err := n.put(sets, set.Groups); err != nil {
		return err
	}
	n.host.setUplinkNames(set.Uplinks)
	clear(n.log)
	for name, value := range set.Rules {
		n.log[n.ids[name]] = value.Log
	}
	if err := n.announcer.set(announcedByNAT, natAnnouncements(set.Rules, n.ids)); err != nil {
		return err
	}
	return n.forget(set.Rules)
}

// put writes the rules and puts them in force.
func (n *nats) put(sets [2][]*natRule, groups map[datapath.GroupName]datapath.AddressGroup) error {
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
	for i, set := range natSets {
		if _, err := n.images.publish(set, images[i]); err != nil {
			return err
		}
	}
	var err error
	for slot, r := range n.rules {
		if wanted[slot] == nil {
			n.old = append(n.old, r.natSlot)
			// Look-ups by id must not find it from now on.
			r.record.Flags |= natReplaced
			err = errors.Join(err, n.tables.NatRule.Replace(slot, r.record))
		}
	}
	n.rules, n.inForce = wanted, len(wanted) > 0
	return errors.Join(err, n.endUncovered(groups))
}

// choose gives r a slot that no rule in force has, or its present slot if r has not changed.
func (n *nats) choose(r *natRule) {
	for other := range uint32(2) {
		if have := n.rules[r.slot|other]; have != nil && have.same(r) {
			r.natSlot, r.record = have.natSlot, have.record
			n.rules[r.slot] = r
			return
		}
	}
	if n.rules[r.slot] != nil {
		r.slot |= 1
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

// same reports whether r and other translate equally.
func (r *natRule) same(other *natRule) bool {
	a, b := r.record, other.record
	a.PoolFirst, b.PoolFirst = [2]uint32{}, [2]uint32{}
	return a == b && slices.Equal(r.pool, other.pool) && slices.Equal(r.pairAddrs, other.pairAddrs) &&
		slices.EqualFunc(r.pairs, other.pairs, func(a, b kernelNatPairKey) bool {
			a.Slot, b.Slot = 0, 0
			return a == b
		})
}

// writeNew writes the rules that are not in force yet: all of them, or none.
func (n *nats) writeNew(wanted map[uint32]*natRule) error {
	var written []natSlot
	for slot, r := range wanted {
		if n.rules[slot] == r {
			continue
		}
		written = append(written, r.natSlot)
		if err := n.write(r); err != nil {
			for _, s := range written {
				err = errors.Join(err, n.remove(s))
			}
			return &datapath.RuleError{Rule: string(r.name), Err: err}
		}
	}
	return nil
}

func (n *nats) write(r *natRule) error {
	for i, index := range r.pools {
		if err := n.tables.NatPool.Put(index, r.pool[i]); err != nil {
			return tableError("prefixes", err)
		}
	}
	for i := range r.pairs {
		if err := n.tables.NatPair.Put(r.pairs[i], r.pairAddrs[i]); err != nil {
			return tableError("prefixes", err)
		}
	}
	return tableError("rules", n.tables.NatRule.Put(r.slot, r.record))
}

// remove deletes the entries of a rule from the tables.
func (n *nats) remove(s natSlot) error {
	err := n.tables.NatRule.Delete(s.slot)
	for _, index := range s.pools {
		err = errors.Join(err, n.tables.NatPool.Delete(index))
	}
	for i := range s.pairs {
		err = errors.Join(err, n.tables.NatPair.Delete(s.pairs[i]))
	}
	return err
}

// ifThere returns err, or nil if err means that the entry did not exist.
func ifThere(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// dropOld removes the slots of earlier rules after no program reads them any more.
func (n *nats) dropOld() error {
	if len(n.old) == 0 {
		return nil
	}
	synchronize()
	for len(n.old) > 0 {
		if n.rules[n.old[0].slot] == nil {
			if err := n.remove(n.old[0]); err != nil {
				return err
			}
		}
		n.old = n.old[1:]
	}
	return nil
}

// Delete implements [datapath.Table].
func (n *nats) Delete(context.Context, datapath.SetName) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.put([2][]*natRule{}, nil); err != nil {
		return err
	}
	n.host.setUplinkNames(nil)
	if err := n.dropOld(); err != nil {
		return err
	}
	if err := n.announcer.set(announcedByNAT, nil); err != nil {
		return err
	}
	return n.forget(nil)
}

// Keys implements [datapath.Table].
func (n *nats) Keys(context.Context) iter.Seq2[datapath.SetName, error] {
	n.mu.RLock()
	inForce := n.inForce
	n.mu.RUnlock()
	return func(yield func(datapath.SetName, error) bool) {
		if inForce {
			yield(datapath.NodeSet, nil)
		}
	}
}

// uses reports whether a set has rules.
func (n *nats) uses(set ruleSet) bool {
	for _, r := range n.rules {
		if r.set == set {
			return true
		}
	}
	return false
}

// Verify implements [datapath.Table].
func (n *nats) Verify(context.Context, datapath.SetName) (bool, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, set := range natSets {
		if !n.uses(set) {
			continue
		}
		if ok, err := n.images.verify(set); !ok || err != nil {
			return false, err
		}
	}
	for slot, r := range n.rules {
		var have kernelNatRule
		if ok, err := n.tables.NatRule.Find(slot, &have); !ok || err != nil || have != r.record {
			return false, err
		}
	}
	return true, nil
}

// maintain removes slots that are no longer in use.
func (n *nats) maintain() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dropOld()
}
