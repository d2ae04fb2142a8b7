// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// terms are the distinct peers in the rules of programs. A number is not used again before compact.
type terms struct {
	all []term
	ids map[string]int // of terms with users, by their text
	// prefixes is set if a term of prefixes has its first user, or has lost its last one.
	prefixes bool
}

type term struct {
	peer  Peer
	text  string
	users int // programs
}

// take returns the number of a peer, for one more user.
func (t *terms) take(p *Peer) int {
	text := fmt.Sprint(p.Prefixes, p.Except)
	if s := p.Entities; s != nil {
		text = fmt.Sprintf("%q %q", s.Set, s.Labels) // quotes each word
		if s.Namespaces != nil {
			text += fmt.Sprintf(" %q", *s.Namespaces)
		}
	}
	id, known := t.ids[text]
	if !known {
		t.prefixes = t.prefixes || p.Entities == nil
		id = len(t.all)
		t.all, t.ids[text] = append(t.all, term{peer: *p, text: text}), id
	}
	t.all[id].users++
	return id
}

func (t *terms) drop(ids []int) {
	for _, id := range ids {
		if t.all[id].users--; t.all[id].users == 0 {
			t.prefixes = t.prefixes || t.all[id].peer.Entities == nil
			delete(t.ids, t.all[id].text)
		}
	}
}

// bits is a set of terms. The last word is not 0.
type bits []uint64

func (b bits) has(n int) bool { return n/64 < len(b) && b[n/64]>>(n%64)&1 != 0 }

func (b bits) with(n int) bits {
	for len(b) <= n/64 {
		b = append(b, 0)
	}
	b[n/64] |= 1 << (n % 64)
	return b
}

// classInfo is what the addresses of a class have in common.
type classInfo struct {
	terms bits        // that match them
	ports []NamedPort // with a name in an egress rule, sorted
	node  bool        // this node itself
}

func (i classInfo) has(term int) bool { return i.terms.has(term) }

func (i classInfo) key() string { return fmt.Sprint(i.terms, i.node) + keyOf(i.ports) }

// keyOf returns a text that differs for different ports.
func keyOf(ports []NamedPort) (key string) {
	for _, p := range ports {
		key += fmt.Sprintf(" %q/%d/%d", p.Name, p.Protocol, p.Number)
	}
	return key
}

// entity is an Entity with its classes.
type entity struct {
	of      *Entity
	terms   bits // of selectors
	ports   []NamedPort
	classes map[netip.Addr]Class
}

func (c *Compiler) takeClass(info classInfo) Class {
	id, isNew := c.classes.take(info.key(), info)
	if isNew {
		c.newClasses = append(c.newClasses, Class(id))
	}
	return Class(id)
}

func (c *Compiler) dropClass(id Class) {
	if c.classes.drop(int(id)) {
		c.lostClasses = append(c.lostClasses, id)
	}
}

// applyEntities gives the addresses of Entities their classes. Terms before known are not new.
func (c *Compiler) applyEntities(d *differences, known int) {
	hasNewPrefixes := slices.ContainsFunc(c.terms.all[known:], func(t term) bool { return t.peer.Entities == nil })
	var lost []netip.Addr
	for name, x := range c.entities {
		if e := c.state.Entities[name]; e == nil || e.Here {
			for addr, class := range x.classes {
				lost = append(lost, addr)
				c.lose(x, addr, class)
			}
			delete(c.entities, name)
		}
	}
	node := classInfo{node: true}
	for name, e := range c.state.Entities {
		x := c.entities[name]
		if e.Here {
			node.terms, node.ports = c.addSelectorTerms(nil, e, 0), c.portsOf(e)
			continue
		}
		isKnown := x != nil && x.of == e && !d.namespaces[e.Namespace]
		if isKnown && known == len(c.terms.all) && !c.newNames {
			continue
		}
		y := &entity{of: e, ports: c.portsOf(e), classes: make(map[netip.Addr]Class, len(e.Addrs))}
		if isKnown {
			y.terms = c.addSelectorTerms(x.terms, e, known)
		} else {
			y.terms = c.addSelectorTerms(nil, e, 0)
		}
		if isKnown && !hasNewPrefixes && slices.Equal(x.terms, y.terms) && slices.Equal(x.ports, y.ports) {
			continue
		}
		lost = append(lost, c.replaceEntity(name, x, y)...)
	}
	was := c.node
	c.node = c.takeClass(node)
	c.noteMove(was, c.node)
	c.dropClass(was)
	for _, addr := range lost {
		if _, moved := c.change.Addrs[addr]; !moved {
			c.change.LostAddrs = append(c.change.LostAddrs, addr)
		}
	}
}

// replaceEntity gives an Entity new classes, and returns the addresses that it has lost.
func (c *Compiler) replaceEntity(name string, x, y *entity) (lost []netip.Addr) {
	for _, addr := range y.of.Addrs {
		if _, twice := y.classes[addr]; twice {
			continue
		}
		own := classInfo{terms: c.addPrefixTerms(slices.Clone(y.terms), netip.PrefixFrom(addr, addr.BitLen())), ports: y.ports}
		y.classes[addr] = c.takeClass(own)
	}
	c.entities[name] = y
	var before map[netip.Addr]Class
	if x != nil {
		before = x.classes
	}
	for addr, class := range y.classes {
		was, had := before[addr]
		if !had || was != class || x.of.Endpoint != y.of.Endpoint {
			c.change.Addrs[addr] = Address{class, y.of.Endpoint}
		}
		if had {
			c.before[addr] = was
		}
	}
	for addr, class := range before {
		if _, has := y.classes[addr]; has {
			c.dropClass(class)
			continue
		}
		lost = append(lost, addr)
		c.lose(x, addr, class)
	}
	return lost
}

// lose drops the class of an address that an Entity no longer has.
func (c *Compiler) lose(x *entity, addr netip.Addr, class Class) {
	if x.of.Endpoint == "" {
		c.change.Released = append(c.change.Released, addr)
	}
	c.before[addr] = class
	c.dropClass(class)
}

// prefixClasses are the classes of addresses that no Entity has.
type prefixClasses map[netip.Prefix]Class

// of returns the class of the addresses of a prefix that are in no longer one.
func (m prefixClasses) of(p netip.Prefix) Class {
	for bits := p.Bits(); bits >= 0; bits-- {
		shorter, _ := p.Addr().Prefix(bits) // bits fit
		if class, known := m[shorter]; known {
			return class
		}
	}
	return 0
}

// addSelectorTerms adds the terms, beginning with number from, whose selectors match an Entity.
func (c *Compiler) addSelectorTerms(b bits, e *Entity, from int) bits {
	b = slices.Clone(b)
	for n := from; n < len(c.terms.all); n++ {
		if t := &c.terms.all[n]; t.users > 0 && t.peer.Entities != nil && c.state.Selects(t.peer.Entities, e) {
			b = b.with(n)
		}
	}
	return b
}

// addPrefixTerms adds the terms whose prefixes contain all of p. If p is the longest of all prefixes
// that contains an address, no other term contains the address.
func (c *Compiler) addPrefixTerms(b bits, p netip.Prefix) bits {
	contains := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(x netip.Prefix) bool { return x.Bits() <= p.Bits() && x.Contains(p.Addr()) })
	}
	for n := range c.terms.all {
		if t := &c.terms.all[n]; t.users > 0 && contains(t.peer.Prefixes) && !contains(t.peer.Except) {
			b = b.with(n)
		}
	}
	return b
}

// noteMove records that addresses have moved to another class.
func (c *Compiler) noteMove(from, to Class) {
	if from != to {
		c.moved[[2]Class{from, to}] = true
	}
}

// noteAddrs records the moves of the addresses of Entities; prefixes: as they were before. The moves
// of other addresses concern no table that stays: it has the same prefixes as before.
func (c *Compiler) noteAddrs(prefixes prefixClasses) {
	for addr, to := range c.change.Addrs {
		from, had := c.before[addr]
		if !had {
			from = prefixes.of(netip.PrefixFrom(addr, addr.BitLen()))
		}
		c.noteMove(from, to.Class)
	}
	for _, addr := range c.change.LostAddrs {
		c.noteMove(c.before[addr], c.prefixes.of(netip.PrefixFrom(addr, addr.BitLen())))
	}
}

// applyPrefixes gives the prefixes of terms their classes.
func (c *Compiler) applyPrefixes() {
	if !c.terms.prefixes {
		return
	}
	c.terms.prefixes = false
	next := make(prefixClasses)
	for _, t := range c.terms.all {
		if t.users == 0 {
			continue
		}
		for _, p := range slices.Concat(t.peer.Prefixes, t.peer.Except) {
			if _, known := next[p.Masked()]; !known {
				next[p.Masked()] = c.takeClass(classInfo{terms: c.addPrefixTerms(nil, p)})
			}
		}
	}
	for _, class := range c.prefixes {
		c.dropClass(class)
	}
	if !maps.Equal(next, c.prefixes) {
		c.change.Prefixes, c.change.HasPrefixes = next, true
	}
	c.prefixes = next
}

// portsOf returns the ports of an Entity that egress rules name.
func (c *Compiler) portsOf(e *Entity) (ports []NamedPort) {
	for _, p := range e.Ports {
		if c.names[p.Name] > 0 {
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, func(a, b NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
	})
	return slices.Compact(ports)
}

// compact numbers the terms anew if most of them have no users.
func (c *Compiler) compact() {
	if len(c.terms.all) < c.spare+2*len(c.terms.ids) {
		return
	}
	next := terms{ids: make(map[string]int)}
	number := make([]int, len(c.terms.all))
	for n, t := range c.terms.all {
		if t.users > 0 {
			number[n] = len(next.all)
			next.ids[t.text], next.all = len(next.all), append(next.all, t)
		}
	}
	renumber := func(b bits) (to bits) {
		for n, t := range c.terms.all {
			if t.users > 0 && b.has(n) {
				to = to.with(number[n])
			}
		}
		return to
	}
	c.classes.rekey(func(info *classInfo) string {
		info.terms = renumber(info.terms)
		return info.key()
	})
	for _, x := range c.entities {
		x.terms = renumber(x.terms)
	}
	c.tables.each(func(_ int, t **table) { (*t).program.renumber(number) })
	c.terms = next
}
