// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Rules implements [datapath.RuleTable].
func (n *Table) Rules() []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	names := make([]string, 0, len(n.ids))
	for name := range n.ids {
		names = append(names, string(name))
	}
	return names
}

// targetPorts returns the ports to which the rules lead: all ports, if a rule keeps the port and its
// match names none.
func (n *Table) targetPorts() *[1 << 16]bool {
	var ports [1 << 16]bool
	mark := func(first, last uint16) {
		for port := int(first); port <= int(last); port++ {
			ports[port] = true
		}
	}
	for _, r := range n.rules {
		switch {
		case r.set != kernel.RulesDNAT:
		case r.record.PortCount > 0:
			mark(r.record.RangeFirst[0], r.record.RangeFirst[0]+uint16(r.record.PortCount-1))
		case len(r.match.Ports) > 0:
			for _, match := range r.match.Ports {
				mark(match.First, match.Last)
			}
		default:
			mark(0, 1<<16-1)
		}
	}
	return &ports
}

// sortedNATs returns the names in the order of precedence.
func sortedNATs(rules map[datapath.NATName]datapath.NAT) []datapath.NATName {
	return slices.SortedFunc(maps.Keys(rules), func(a, b datapath.NATName) int {
		return cmp.Or(cmp.Compare(rules[a].Priority, rules[b].Priority), cmp.Compare(a, b))
	})
}

// adoptNames takes over the ids of an earlier run. If it was killed while it replaced a rule with
// one of the same name, the name has two ids: the id in force stays.
func (n *Table) adoptNames() error {
	used := make(map[uint16]bool)
	for slot := range n.rules {
		used[uint16(slot>>2)] = true
	}
	err := n.tables.NatName.Batches(func(ids []uint32, names []kernel.NatName) error {
		for i, k := range ids {
			id, name := uint16(k), names[i].Text()
			n.names[id] = name
			n.lastID = max(n.lastID, id)
			if other := n.ids[name]; other != 0 && used[other] {
				n.dead[id] = true
				continue
			} else if other != 0 {
				n.dead[other] = true
			}
			n.ids[name] = id
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name, id := range n.ids {
		var each []kernel.NatStats
		if ok, err := n.tables.NatStats.Find(uint32(id), &each); err != nil {
			return err
		} else if !ok { // the earlier run was killed before it wrote them
			if err := n.putStats(id); err != nil {
				return fmt.Errorf("counters of NAT %s: %w", name, err)
			}
		}
	}
	return nil
}

// nameAll assigns an id to each rule, to which its connections and counters refer.
func (n *Table) nameAll(rules map[datapath.NATName]datapath.NAT) error {
	for name := range rules {
		if n.ids[name] != 0 {
			continue
		}
		if len(name) >= len(kernel.NatName{}.Name) {
			return &datapath.RuleError{Rule: string(name), Err: fmt.Errorf("name longer than %d bytes: %w", len(kernel.NatName{}.Name)-1, datapath.ErrUnsupported)}
		}
		id, err := n.newID()
		if err != nil {
			return &datapath.RuleError{Rule: string(name), Err: err}
		}
		var k kernel.NatName
		for i := range len(name) {
			k.Name[i] = int8(name[i])
		}
		// The name first: a later run finds and removes entries that have a name.
		if err := n.tables.NatName.Put(uint32(id), k); err != nil {
			return &datapath.RuleError{Rule: string(name), Err: kernel.TableError("rules", err)}
		}
		n.names[id] = name
		if err := n.putStats(id); err != nil {
			n.dead[id] = true
			return &datapath.RuleError{Rule: string(name), Err: kernel.TableError("rules", err)}
		}
		n.ids[name] = id
	}
	return nil
}

func (n *Table) putStats(id uint16) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	return n.tables.NatStats.Put(uint32(id), make([]kernel.NatStats, cpus))
}

// newID returns the next free id after the last one assigned, so that ids are reused as late as
// possible.
func (n *Table) newID() (uint16, error) {
	for range math.MaxUint16 {
		n.lastID++
		if _, used := n.names[n.lastID]; n.lastID != 0 && !used {
			return n.lastID, nil
		}
	}
	return 0, fmt.Errorf("%d NAT objects: %w", len(n.names), datapath.ErrCapacity)
}

// forget removes the names and counters of NATs that are not in rules.
func (n *Table) forget(rules map[datapath.NATName]datapath.NAT) (err error) {
	for name, id := range n.ids {
		if _, ok := rules[name]; !ok {
			n.dead[id] = true
			delete(n.ids, name) // a new rule with this name gets a different id
		}
	}
	for id := range n.dead {
		e := errors.Join(n.tables.NatStats.Delete(uint32(id)), n.tables.NatTraffic.Delete(uint32(id)))
		if e == nil {
			e = n.tables.NatName.Delete(uint32(id)) // last: the other entries are found by the name
		}
		if err = errors.Join(err, e); e == nil {
			delete(n.dead, id)
			delete(n.names, id)
		}
	}
	return err
}

// Name returns the name of the rule with this id, or "".
func (n *Table) Name(id uint16) datapath.NATName {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.names[id]
}
