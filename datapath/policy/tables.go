// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Numbers in the tables. A number is given to another value only after [Compiler.Settle].
type (
	// Class numbers addresses: no policy of an Endpoint of this node distinguishes addresses of one
	// class, and few classes are distinguished by no policy. Class 0 is the class of addresses that no
	// policy mentions.
	Class   int
	TableID int
	RowID   int
	CellID  int
)

// NoTable is the table of a subject without policies in a direction: all traffic is allowed.
const NoTable TableID = -1

// Subject is an Endpoint of this node.
type Subject struct {
	Endpoint string
	Tables   [2]TableID // by Direction
	Network  string     // in which the names in its rules are learnt; empty: in none
}

// Address is the class and the Endpoint of an address of an Entity.
type Address struct {
	Class    Class
	Endpoint string // of this node; empty: none
}

// Row contains the cells of a class. Two equal rows are one.
type Row struct {
	Ranges []Range // of TCP, UDP and SCTP, by protocol and first port; each protocol begins with port 0
	Other  CellID  // for other protocols
}

// Range are the ports of a protocol from First to the port before the next range.
type Range struct {
	Protocol Protocol
	First    uint16
	Cell     CellID
}

// Cell contains the verdicts on traffic with others, and on traffic of the subject with itself: from
// one of its addresses to another, or through a Service. The first of Names that has the peer's address
// comes before them.
type Cell struct {
	Others, Self Verdicts
	Names        []NameRule
}

// NameRule is a rule for peers with some names.
type NameRule struct {
	Names   []string
	Verdict Verdict
	// Decides is set where the verdict counts: for others and for itself, in force and as if staged
	// policies were in force.
	Decides [2][2]bool
}

// Verdicts returns the verdicts on traffic with a peer whose address some names have; self: the peer is
// the subject itself.
func (c *Cell) Verdicts(self bool, names []string) Verdicts {
	v, of := c.Others, 0
	if self {
		v, of = c.Self, 1
	}
	for staged, to := range []*Verdict{&v.Enforced, &v.Staged} {
		for i := range c.Names {
			if r := &c.Names[i]; r.Decides[of][staged] && haveCommon(r.Names, names) {
				*to = r.Verdict
				break
			}
		}
	}
	return v
}

// Verdicts are the verdict in force, and the verdict as if staged policies were in force too.
type Verdicts struct{ Enforced, Staged Verdict }

// TableRow is the row of a class in a table.
type TableRow struct {
	Table TableID
	Class Class
	Row   RowID
}

// Change lists the changes of the tables. New cells, rows and rows of tables are written first. The
// rest must take effect for readers at one moment.
type Change struct {
	Cells     map[CellID]Cell
	Rows      map[RowID]Row
	TableRows []TableRow

	Addrs       map[netip.Addr]Address
	LostAddrs   []netip.Addr
	Prefixes    prefixClasses // all of them, if HasPrefixes is set
	Subjects    map[string]Subject
	LostNames   []string // of subjects
	Node        Class    // of this node's own traffic
	HasPrefixes bool

	// Released are the addresses that Entities without Endpoint have lost, though another Entity may
	// have them now.
	Released []netip.Addr

	// Concerned are the Endpoints some of whose verdicts differ.
	Concerned map[string]bool
	Policies  map[string]bool // that are new, changed or deleted, in force or not
}

// CellOf returns the cell of traffic.
func (r *Row) CellOf(t Traffic) (cell CellID) {
	if !t.Protocol.HasPorts() {
		return r.Other
	}
	for _, x := range r.Ranges {
		if x.Protocol == t.Protocol && x.First <= t.Port {
			cell = x.Cell
		}
	}
	return cell
}

func (r *Row) key() string {
	key := binary.AppendUvarint(nil, uint64(r.Other))
	for _, x := range r.Ranges {
		key = binary.AppendUvarint(append(key, byte(x.Protocol), byte(x.First>>8), byte(x.First)), uint64(x.Cell))
	}
	return string(key)
}

// row takes the row of a class in the table of a program.
func (c *Compiler) row(p *program, info *classInfo) RowID {
	rules := p.rulesFor(info)
	isStaged, exemptsSelf := rules.differ()
	var r Row
	var cells []int
	cell := func(protocol Protocol, port uint16) CellID {
		v := rules.cell(info, protocol, port, isStaged, exemptsSelf)
		id, isNew := c.cells.take(c.cellKey(&v), v)
		if cells = append(cells, id); isNew {
			c.change.Cells[CellID(id)] = v
		}
		return CellID(id)
	}
	for _, protocol := range []Protocol{TCP, UDP, SCTP} {
		for _, first := range rules.boundaries(protocol) {
			x := Range{protocol, first, cell(protocol, first)}
			if n := len(r.Ranges); n == 0 || r.Ranges[n-1].Protocol != protocol || r.Ranges[n-1].Cell != x.Cell {
				r.Ranges = append(r.Ranges, x)
			}
		}
	}
	r.Other = cell(0, 0)
	id, isNew := c.rows.take(r.key(), r)
	if isNew {
		c.change.Rows[RowID(id)] = r
		for _, x := range r.Ranges { // a row is the user of its cells
			c.cells.use(int(x.Cell))
		}
		c.cells.use(int(r.Other))
	}
	for _, used := range cells {
		c.cells.drop(used)
	}
	return RowID(id)
}

// cell returns the cell of a protocol and port, for the peers of a class; see differ.
func (l tierList) cell(info *classInfo, protocol Protocol, port uint16, isStaged, exemptsSelf bool) (v Cell) {
	var named map[int]*NameRule // by their places
	decide := func(of, staged int) Verdict {
		return l.decide(info, of == 1, protocol, port, staged == 1, func(r *compiledRule, is Verdict) {
			if named == nil {
				named = make(map[int]*NameRule)
			}
			if named[r.place] == nil {
				named[r.place] = &NameRule{Names: r.domains, Verdict: is}
			}
			decides := &named[r.place].Decides
			decides[of][staged] = true
			decides[of][1] = decides[of][1] || !isStaged
			if !exemptsSelf {
				decides[1] = decides[0]
			}
		})
	}
	verdicts := func(of int) (v Verdicts) {
		v.Enforced = decide(of, 0)
		if v.Staged = v.Enforced; isStaged {
			v.Staged = decide(of, 1)
		}
		return v
	}
	v.Others = verdicts(0)
	if v.Self = v.Others; exemptsSelf {
		v.Self = verdicts(1)
	}
	for _, place := range slices.Sorted(maps.Keys(named)) {
		v.Names = append(v.Names, *named[place])
	}
	return v
}

// cellKey returns a text that is the same for cells with the same verdicts of the same rules, which are
// counted and logged likewise. After a change, another rule may have the same place in its policy.
func (c *Compiler) cellKey(v *Cell) string {
	if len(v.Names) > 0 {
		return c.newCellKey(v)
	}
	verdicts := [2]Verdicts{v.Others, v.Self}
	key, known := c.cellKeys[verdicts]
	if !known {
		key = c.newCellKey(v)
		c.cellKeys[verdicts] = key
	}
	return key
}

func (c *Compiler) newCellKey(v *Cell) string {
	key := fmt.Appendf(nil, "%#v", *v) // quotes the names
	all := []Verdict{v.Others.Enforced, v.Others.Staged, v.Self.Enforced, v.Self.Staged}
	for i := range v.Names {
		all = append(all, v.Names[i].Verdict)
	}
	for _, is := range all {
		if p := c.state.Policies[is.Policy]; p != nil {
			key = fmt.Appendf(key, " %q %t %t", p.RuleID(is), p.Staged, p.Logs(is))
		}
	}
	return string(key)
}

func (c *Compiler) dropRow(id RowID) {
	r := c.rows.items[id]
	if !c.rows.drop(int(id)) {
		return
	}
	for _, x := range r.Ranges {
		c.cells.drop(int(x.Cell))
	}
	c.cells.drop(int(r.Other))
}

// ClassOf returns the class of the peer of traffic, if the peer is this node or no Entity has its
// address.
func (c *Compiler) ClassOf(t Traffic) Class {
	if t.Node {
		return c.node
	}
	return c.prefixes.of(netip.PrefixFrom(t.Peer, t.Peer.BitLen()))
}

// Lookup returns the verdict in force that a table gives for traffic with a peer of a class; self: the
// peer is the subject itself.
func (c *Compiler) Lookup(id TableID, class Class, self bool, t Traffic) Verdict {
	row := &c.rows.items[c.tables.items[id].rows[class]]
	return c.cells.items[row.CellOf(t)].Verdicts(self, t.Names).Enforced
}
