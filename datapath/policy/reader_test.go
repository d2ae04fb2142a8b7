// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath/policy"
)

// reader looks verdicts up in tables as changes write them, as programs of the kernel would: cells,
// rows and tables in place, the rest on one of two sides. A change writes the other side, which then
// is in force at once.
type reader struct {
	t      *testing.T
	cells  map[policy.CellID]policy.Cell
	rows   map[policy.RowID]policy.Row
	tables map[policy.TableID]map[policy.Class]policy.RowID
	sides  [2]side
	side   int // in force
}

type side struct {
	addrs    map[netip.Addr]policy.Address
	prefixes map[netip.Prefix]policy.Class
	subjects map[string]policy.Subject
	node     policy.Class
}

func newReader(t *testing.T) *reader {
	r := &reader{t: t, cells: map[policy.CellID]policy.Cell{}, rows: map[policy.RowID]policy.Row{}, tables: map[policy.TableID]map[policy.Class]policy.RowID{}}
	for i := range r.sides {
		r.sides[i] = side{map[netip.Addr]policy.Address{}, map[netip.Prefix]policy.Class{}, map[string]policy.Subject{}, 0}
	}
	return r
}

// write adds the new cells and rows of a change, and writes the other side.
func (r *reader) write(c *policy.Change) {
	maps.Copy(r.cells, c.Cells)
	maps.Copy(r.rows, c.Rows)
	for _, x := range c.TableRows {
		if r.tables[x.Table] == nil {
			r.tables[x.Table] = map[policy.Class]policy.RowID{}
		}
		r.tables[x.Table][x.Class] = x.Row
	}
	other := &r.sides[1-r.side]
	maps.Copy(other.addrs, c.Addrs)
	for _, addr := range c.LostAddrs {
		delete(other.addrs, addr)
	}
	maps.Copy(other.subjects, c.Subjects)
	for _, name := range c.LostNames {
		delete(other.subjects, name)
	}
	if c.HasPrefixes {
		other.prefixes = c.Prefixes
	}
	other.node = c.Node
}

// free deletes the values of freed numbers.
func (r *reader) free(f policy.Freed) {
	for _, id := range f.Tables {
		delete(r.tables, id)
	}
	for _, class := range f.Classes {
		for _, rows := range r.tables {
			delete(rows, class)
		}
	}
	for _, id := range f.Rows {
		delete(r.rows, id)
	}
	for _, id := range f.Cells {
		delete(r.cells, id)
	}
}

// put puts the other side in force, and makes both the same.
func (r *reader) put() {
	r.side = 1 - r.side
	s := &r.sides[r.side]
	r.sides[1-r.side] = side{maps.Clone(s.addrs), s.prefixes, maps.Clone(s.subjects), s.node}
}

func (s *side) classOf(t policy.Traffic) (class policy.Class) {
	if t.Node {
		return s.node
	}
	if addr, known := s.addrs[t.Peer]; known {
		return addr.Class
	}
	longest := -1
	for p, c := range s.prefixes {
		if p.Contains(t.Peer) && p.Bits() > longest {
			longest, class = p.Bits(), c
		}
	}
	return class
}

func (r *reader) verdicts(e *policy.Entity, d policy.Direction, t policy.Traffic) policy.Verdicts {
	s := &r.sides[r.side]
	subject, known := s.subjects[e.Name]
	if !known {
		r.t.Fatalf("%s is no subject", e.Name)
	}
	id := subject.Tables[d]
	if id == policy.NoTable {
		return policy.Verdicts{Enforced: allowed, Staged: allowed}
	}
	class := s.classOf(t)
	number, found := r.tables[id][class]
	if !found {
		r.t.Fatalf("%s of %s: table %d has no row for class %d", d, e.Name, id, class)
	}
	row, found := r.rows[number]
	if !found {
		r.t.Fatalf("there is no row %d", number)
	}
	cell, found := r.cells[row.CellOf(t)]
	if !found {
		r.t.Fatalf("row %d has no cell for %+v", number, t)
	}
	return cell.Verdicts(!t.Node && slices.Contains(e.Addrs, t.Peer), t.Names)
}

var allowed = policy.Verdict{Action: policy.Allow, Rule: -1}
