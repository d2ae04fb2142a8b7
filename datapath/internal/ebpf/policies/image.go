// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/policy"
)

// block is a part of the memory.
type block struct{ at, size int }

// tableBlock is a table: the offsets of the rows of classes.
type tableBlock struct {
	block
	rows []policy.RowID // by class; -1: unknown
}

// image writes the tables of a compiler to memory. Replaced blocks stay until settle, since packets may
// still use them.
type image struct {
	*memory
	rows   map[policy.RowID]block
	cells  map[policy.CellID]block // size 0: of takeCell
	tables map[policy.TableID]*tableBlock
	tries  [2][2]block // of prefixes, by side and family; size 0: a leaf
	old    []block     // free after settle
	// numberOf returns the number of the rule of a verdict, for its counters. staged: the verdict is as if
	// staged policies were in force; 0 if the rule is not one of theirs.
	numberOf func(v policy.Verdict, staged bool) (uint32, error)
	nameOf   func(name string) uint32 // returns the number of a name
}

func newImage(m *memory) *image {
	return &image{
		memory: m, rows: make(map[policy.RowID]block), cells: make(map[policy.CellID]block), tables: make(map[policy.TableID]*tableBlock),
	}
}

// write adds the cells, rows and rows of tables of a change.
func (m *image) write(c *policy.Change) error {
	for id, cell := range c.Cells {
		if err := m.writeCell(id, &cell); err != nil {
			return err
		}
	}
	for id, row := range c.Rows {
		at, err := m.writeRow(&row)
		if err != nil {
			return err
		}
		m.rows[id] = at
	}
	for _, x := range c.TableRows {
		if err := m.writeTableRow(x); err != nil {
			return err
		}
	}
	return nil
}

// writeCell writes a cell, and after it the names that come before its verdicts.
func (m *image) writeCell(id policy.CellID, cell *policy.Cell) (err error) {
	var is block
	names := 0
	for i := range cell.Names {
		names += len(cell.Names[i].Names)
	}
	if names == 0 {
		is.at, err = m.takeCell()
	} else {
		is.size = cellSize + 4 + nameSize*names
		is.at, err = m.take(is.size)
	}
	if err != nil {
		return err
	}
	m.cells[id] = is
	for i, v := range []policy.Verdict{cell.Others.Enforced, cell.Self.Enforced, cell.Others.Staged, cell.Self.Staged} {
		number, err := m.numberOf(v, i >= 2)
		if err != nil {
			return err
		}
		m.b[is.at+i] = actionOf(v)
		m.put32(is.at+cellRules+4*i, number)
	}
	if names == 0 {
		return nil
	}
	m.b[is.at] |= hasNames
	m.put32(is.at+cellSize, uint32(names))
	at := is.at + cellSize + 4
	for i := range cell.Names {
		r := &cell.Names[i]
		number, err := m.numberOf(r.Verdict, false)
		if err != nil {
			return err
		}
		flags := uint32(0)
		for self, staged := range r.Decides {
			for i, decides := range staged {
				if decides {
					flags |= 1 << (2*i + self) // NAME_DECIDES, NAME_DECIDES_STAGED
				}
			}
		}
		if only, err := m.numberOf(r.Verdict, true); err != nil {
			return err
		} else if only != 0 {
			flags |= nameOfStaged
		}
		for _, name := range r.Names {
			m.put32(at, m.nameOf(name))
			m.put32(at+4, number)
			m.put32(at+8, flags)
			at += nameSize
		}
	}
	return nil
}

const (
	nameSize     = 12   // struct policy_name
	hasNames     = 0x80 // POLICY_HAS_NAMES
	nameOfStaged = 0x10 // NAME_OF_STAGED
)

const cellRules = 4 // offset in struct policy_cell of rule, which staged_rule follows

const actionUnknown = 3 // ACTION_UNKNOWN

// actionOf returns what a verdict is called in a cell: ACTION_…
func actionOf(v policy.Verdict) byte {
	if v.Policy == policy.Unknown {
		return actionUnknown
	}
	return byte(v.Action) // ACTION_ALLOW, ACTION_DENY or ACTION_REJECT
}

const rowBytes = 16 // struct policy_row, which the tries of ports follow

// writeRow writes a row with its tries.
func (m *image) writeRow(row *policy.Row) (block, error) {
	n := 0
	build := func(at int) (tries []classify.Trie, err error) {
		n = rowBytes
		for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
			var runs []classify.PortRun
			for _, r := range row.Ranges {
				if r.Protocol == protocol {
					runs = append(runs, classify.PortRun{First: r.First, Value: uint32(m.cells[r.Cell].at / 4)})
				}
			}
			n = (n + 7) &^ 7
			trie, err := classify.PortTrie(at+n, runs)
			if err != nil {
				return nil, err
			}
			tries, n = append(tries, trie), n+len(trie.Data)
		}
		return tries, nil
	}
	if _, err := build(0); err != nil { // for its size
		return block{}, err
	}
	at, err := m.take(n)
	if err != nil {
		return block{}, err
	}
	tries, err := build(at)
	if err != nil {
		return block{}, err
	}
	m.put32(at, leaf|uint32(m.cells[row.Other].at/4))
	n = rowBytes
	for i, trie := range tries {
		m.put32(at+4*(i+1), trie.Entry)
		n = (n + 7) &^ 7
		n += copy(m.b[at+n:], trie.Data)
	}
	return block{at, n}, nil
}

// writeTableRow writes the row of a class in a table. If the table has no room for the class, it
// moves.
func (m *image) writeTableRow(x policy.TableRow) error {
	t := m.tables[x.Table]
	if t == nil {
		t = &tableBlock{}
		m.tables[x.Table] = t
	}
	for len(t.rows) <= int(x.Class) {
		t.rows = append(t.rows, -1)
	}
	t.rows[x.Class] = x.Row
	if 4*len(t.rows) <= t.size {
		m.put32(t.at+4*int(x.Class), uint32(m.rows[x.Row].at/4))
		return nil
	}
	size := sizeFor(max(4*len(t.rows)*5/4, line))
	at, err := m.take(size)
	if err != nil {
		return err
	}
	if t.size > 0 {
		m.old = append(m.old, t.block)
	}
	t.block = block{at, size}
	for class, row := range t.rows {
		if row >= 0 {
			m.put32(at+4*class, uint32(m.rows[row].at/4))
		}
	}
	return nil
}

// writeSide writes what the header contains for a side; from: the side in force.
func (m *image) writeSide(side, from int, c *policy.Change) error {
	m.put32(headerNode+4*side, uint32(c.Node))
	if !c.HasPrefixes {
		if side != from {
			for i, root := range []int{headerRoot4, headerRoot6} {
				copy(m.b[root+4*side:root+4*side+4], m.b[root+4*from:root+4*from+4])
				m.tries[side][i] = m.tries[from][i]
			}
		}
		return nil
	}
	classes := make(map[netip.Prefix]uint32, len(c.Prefixes))
	for p, class := range c.Prefixes {
		classes[p] = uint32(class)
	}
	for i, root := range []int{headerRoot4, headerRoot6} {
		trie, err := classify.PrefixTrie(0, i == 0, classes) // for its size
		if err != nil {
			return err
		}
		n, at := len(trie.Data), 0
		if n > 0 {
			if at, err = m.take(n); err != nil {
				return err
			}
			if trie, err = classify.PrefixTrie(at, i == 0, classes); err != nil {
				return err
			}
			copy(m.b[at:], trie.Data)
		}
		m.put32(root+4*side, trie.Entry)
		if was := m.tries[from][i]; was.size > 0 {
			m.old = append(m.old, was)
		}
		m.tries[side][i] = block{at, n}
	}
	return nil
}

// settle frees what no packet uses any more.
func (m *image) settle(f policy.Freed) {
	for _, b := range m.old {
		m.release(b.at, b.size)
	}
	m.old = nil
	for _, id := range f.Tables {
		if t := m.tables[id]; t != nil {
			m.release(t.at, t.size)
			delete(m.tables, id)
		}
	}
	for _, class := range f.Classes {
		for _, t := range m.tables {
			if int(class) < len(t.rows) {
				t.rows[class] = -1
			}
		}
	}
	for _, id := range f.Rows {
		m.release(m.rows[id].at, m.rows[id].size)
		delete(m.rows, id)
	}
	for _, id := range f.Cells {
		if is := m.cells[id]; is.size > 0 {
			m.release(is.at, is.size)
		} else {
			m.memory.cells = append(m.memory.cells, is.at)
		}
		delete(m.cells, id)
	}
}
