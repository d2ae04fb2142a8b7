// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Compiler keeps the tables of a state.
type Compiler struct {
	state    *State
	change   *Change // that is being made
	subjects map[string]*subject
	entities map[string]*entity
	prefixes prefixClasses
	node     Class
	terms    terms
	spare    int            // terms without users that are never worth new numbers
	names    map[string]int // users of names of ports in egress rules
	classes  *pool[classInfo]
	tables   *pool[*table]
	rows     *pool[Row]
	cells    *pool[Cell]

	// Of the change that is being made.
	newTables, lostTables   []TableID
	newClasses, lostClasses []Class
	newNames                bool
	before                  map[netip.Addr]Class   // of addresses that Entities had, if it changes
	moved                   map[[2]Class]bool      // addresses have moved from the first class to the second
	cellKeys                map[[2]Verdicts]string // see cellKey
}

// subject is an Endpoint of this node, with what its tables depend on.
type subject struct {
	Subject
	of      *Entity
	applied []*Policy // by tier, in the order in which they are evaluated
}

// table is shared by the subjects with the same policies in one direction.
type table struct {
	program *program
	rows    []RowID // by class; -1: none
}

// NewCompiler returns a compiler of the empty state.
func NewCompiler() *Compiler {
	c := &Compiler{
		state:    &State{},
		subjects: make(map[string]*subject), entities: make(map[string]*entity), prefixes: make(prefixClasses),
		terms: terms{ids: make(map[string]int)}, spare: 64, names: make(map[string]int),
		classes: newPool[classInfo](), tables: newPool[*table](), rows: newPool[Row](), cells: newPool[Cell](),
	}
	c.classes.take(classInfo{}.key(), classInfo{})
	node, _ := c.classes.take(classInfo{node: true}.key(), classInfo{node: true})
	c.node = Class(node)
	return c
}

// Apply compiles the next state, and returns the changes of the tables. An object that the previous
// state has too is evaluated again only if another changed object concerns it.
func (c *Compiler) Apply(next *State) *Change {
	before := c.state
	c.state = next
	c.change = &Change{
		Cells: make(map[CellID]Cell), Rows: make(map[RowID]Row),
		Addrs: make(map[netip.Addr]Address), Subjects: make(map[string]Subject), Concerned: make(map[string]bool),
	}
	c.newTables, c.lostTables, c.newClasses, c.lostClasses, c.newNames = nil, nil, nil, nil, false
	c.before, c.moved, c.cellKeys = make(map[netip.Addr]Class), make(map[[2]Class]bool), make(map[[2]Verdicts]string)
	known := len(c.terms.all)
	d := differencesOf(before, next)
	c.change.Policies = d.policies
	c.applySubjects(d)
	c.applyEntities(d, known)
	prefixes := c.prefixes
	c.applyPrefixes()
	c.noteAddrs(prefixes)
	c.fillRows()
	c.findConcerned()
	c.dropLost()
	c.change.Node = c.node
	return c.change
}

// Settle frees the numbers that no table uses any more. It is called when all readers use the tables
// of the last change. A freed class has no row in any table, a freed table has no row.
func (c *Compiler) Settle() Freed {
	f := Freed{settle[Class](c.classes), settle[TableID](c.tables), settle[RowID](c.rows), settle[CellID](c.cells)}
	c.compact()
	return f
}

// Freed are numbers that no table uses any more.
type Freed struct {
	Classes []Class
	Tables  []TableID
	Rows    []RowID
	Cells   []CellID
}

// differences are the names of what differs between two states.
type differences struct {
	tiers      bool
	policies   map[string]bool
	namespaces map[string]bool
}

func differencesOf(before, next *State) *differences {
	return &differences{
		tiers:    !slices.Equal(before.Tiers, next.Tiers),
		policies: changed(before.Policies, next.Policies), namespaces: changed(before.Namespaces, next.Namespaces),
	}
}

// changed returns the keys whose values differ.
func changed[V comparable](before, next map[string]V) map[string]bool {
	all := make(map[string]bool)
	for name, v := range next {
		if was, found := before[name]; !found || was != v {
			all[name] = true
		}
	}
	for name := range before {
		if _, found := next[name]; !found {
			all[name] = true
		}
	}
	return all
}

// applySubjects gives subjects the tables of their policies.
func (c *Compiler) applySubjects(d *differences) {
	var lost []TableID // dropped last, so that others can take them
	for name, e := range c.state.Entities {
		s := c.subjects[name]
		if !e.isLocal() {
			continue
		}
		isNew := s == nil
		if isNew {
			s = &subject{Subject: Subject{Endpoint: e.Endpoint, Tables: [2]TableID{NoTable, NoTable}}}
			c.subjects[name] = s
		}
		applied := s.applied
		if isNew || s.of != e || d.tiers || d.namespaces[e.Namespace] {
			applied = c.appliedTo(e, maps.Values(c.state.Policies))
		} else if len(d.policies) > 0 {
			applied = c.reapplied(s, d.policies)
		}
		if !isNew && s.of == e && !d.tiers && slices.Equal(applied, s.applied) {
			continue
		}
		if !isNew && (s.Endpoint != e.Endpoint || !slices.Equal(s.of.Addrs, e.Addrs) || s.of.Network != e.Network) {
			c.change.Concerned[s.Endpoint], c.change.Concerned[e.Endpoint] = true, true
		}
		s.Endpoint = e.Endpoint
		before := s.Tables
		s.of, s.applied = e, applied
		lost = append(lost, s.Tables[:]...)
		for direction := range s.Tables {
			s.Tables[direction] = c.takeTable(s, Direction(direction))
		}
		s.Network = ""
		if id := s.Tables[Egress]; id != NoTable && c.tables.items[id].program.hasDomains {
			s.Network = e.Network
		}
		c.change.Subjects[name] = s.Subject
		if isNew || before != s.Tables {
			c.change.Concerned[s.Endpoint] = true
		}
	}
	for name, s := range c.subjects {
		if e := c.state.Entities[name]; e.isLocal() {
			continue
		}
		lost = append(lost, s.Tables[:]...)
		delete(c.subjects, name)
		c.change.Concerned[s.Endpoint] = true
		c.change.LostNames = append(c.change.LostNames, name)
	}
	for _, id := range lost {
		c.dropTable(id)
	}
}

// fillRows adds the rows of new tables, and of new classes in all tables.
func (c *Compiler) fillRows() {
	isNew := make(map[TableID]bool)
	for _, id := range c.newTables {
		isNew[id] = true
	}
	c.tables.each(func(id int, t **table) {
		for len((*t).rows) < len(c.classes.items) {
			(*t).rows = append((*t).rows, -1)
		}
		known := make(map[string]RowID) // by what the program sees of a class
		add := func(class Class) {
			seen := (*t).program.view(&c.classes.items[class])
			row, found := known[seen]
			if found {
				c.rows.use(int(row))
			} else {
				row = c.row((*t).program, &c.classes.items[class])
				known[seen] = row
			}
			(*t).rows[class] = row
			c.change.TableRows = append(c.change.TableRows, TableRow{TableID(id), class, row})
		}
		if isNew[TableID(id)] {
			c.classes.each(func(class int, _ *classInfo) { add(Class(class)) })
			return
		}
		for _, class := range c.newClasses {
			if c.classes.users[class] > 0 {
				add(class)
			}
		}
	})
}

// findConcerned finds the subjects whose verdicts on addresses of another class differ.
func (c *Compiler) findConcerned() {
	differs := make(map[TableID]bool)
	c.tables.each(func(id int, t **table) {
		for pair := range c.moved {
			if (*t).rows[pair[0]] != (*t).rows[pair[1]] {
				differs[TableID(id)] = true
				return
			}
		}
	})
	for _, s := range c.subjects {
		if differs[s.Tables[Ingress]] || differs[s.Tables[Egress]] {
			c.change.Concerned[s.Endpoint] = true
		}
	}
}

// dropLost drops the rows of tables and classes without users.
func (c *Compiler) dropLost() {
	drop := func(t *table, class Class) {
		if int(class) < len(t.rows) && t.rows[class] >= 0 {
			c.dropRow(t.rows[class])
			t.rows[class] = -1
		}
	}
	for _, id := range c.lostTables {
		t := c.tables.items[id]
		for class := range t.rows {
			drop(t, Class(class))
		}
	}
	for _, class := range c.lostClasses {
		c.tables.each(func(_ int, t **table) { drop(*t, class) })
	}
}
