// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"flag"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

var (
	from  = flag.Uint64("from", 0, "seed of the first random states")
	cases = flag.Int("cases", 200_000, "random verdicts to compare")
)

// TestTablesAgree changes random states, and compares what readers of the tables see with the
// definition: while a change is written, the state before it, and then the next one.
func TestTablesAgree(t *testing.T) {
	compared, seen := 0, map[Action]int{}
	for seed := *from; compared < *cases; seed++ {
		g, c, r := newGenerator(seed), NewCompiler(), newReader(t)
		c.spare = 4
		compare := func(when string, s *State) {
			for range 10 {
				traffic := g.traffic()
				for _, e := range s.Entities {
					if !e.isLocal() {
						continue
					}
					for _, d := range []Direction{Ingress, Egress} {
						compared++
						want := Verdicts{s.Evaluate(e, d, traffic, false), s.Evaluate(e, d, traffic, true)}
						seen[want.Enforced.Action]++
						if got := r.verdicts(e, d, traffic); got != want {
							t.Fatalf("seed %d, %s: %s of %s, %+v: %+v, want %+v\n%s", seed, when, d, e.Name, traffic, got, want, describe(s))
						}
					}
				}
			}
		}
		before, next := &State{}, g.state()
		for i := range 30 {
			change := c.Apply(next)
			r.write(change)
			unconcerned(t, g, change, before, next)
			compare(fmt.Sprintf("change %d is written", i), before)
			r.put()
			compare(fmt.Sprintf("after change %d", i), next)
			if g.chance(80) {
				r.free(c.Settle())
			}
			before, next = next, g.next(next)
		}
		r.write(c.Apply(&State{}))
		r.free(c.Settle())
		left := map[string]int{
			"classes": c.classes.used(), "tables": c.tables.used(), "rows": c.rows.used(), "cells": c.cells.used(),
			"terms": len(c.terms.ids), "names": len(c.names), "rows of the reader": len(r.rows), "cells of the reader": len(r.cells), "tables of the reader": len(r.tables),
		}
		for what, n := range left {
			if want := map[string]int{"classes": 2}[what]; n != want {
				t.Fatalf("seed %d: the empty state has %d %s, want %d", seed, n, what, want)
			}
		}
	}
	t.Logf("%d verdicts: %v", compared, seen)
	for _, a := range []Action{Allow, Deny, Reject} {
		if seen[a] < compared/50 {
			t.Errorf("only %d of %d verdicts are %s: the states test too little", seen[a], compared, a)
		}
	}
}

// unconcerned fails if a change does not name an Endpoint of which a verdict differs.
func unconcerned(t *testing.T, g generator, change *Change, before, next *State) {
	for range 30 {
		traffic := g.traffic()
		for name, e := range next.Entities {
			was := before.Entities[name]
			if !e.isLocal() || !was.isLocal() || change.Concerned[e.Endpoint] {
				continue
			}
			for _, d := range []Direction{Ingress, Egress} {
				if old, now := before.Evaluate(was, d, traffic, false), next.Evaluate(e, d, traffic, false); old != now {
					t.Fatalf("%s of %s, %+v: %+v, then %+v, and the change does not name it\n%s\n%s", d, name, traffic, old, now, describe(before), describe(next))
				}
			}
		}
	}
}

func describe(s *State) (text string) {
	for _, e := range s.Entities {
		text += fmt.Sprintf("%+v\n", *e)
	}
	for name, n := range s.Namespaces {
		text += fmt.Sprintf("namespace %s %+v\n", name, *n)
	}
	for _, x := range s.Tiers {
		text += fmt.Sprintf("%+v\n", *x)
	}
	for _, p := range s.Policies {
		text += fmt.Sprintf("%+v\n", *p)
	}
	return text
}

func app(name string) Requirements {
	return Requirements{{Key: "app", Operator: In, Values: []string{name}}}
}

// TestSharing: subjects with the same policies share their tables, addresses that no policy
// distinguishes share a class, and equal rows are one row.
func TestSharing(t *testing.T) {
	s := &State{Namespaces: map[string]*Namespace{"shop": {}}, Tiers: []*Tier{{Name: "namespaces"}}, Entities: map[string]*Entity{}}
	for i := range 100 {
		name := fmt.Sprint("e", i)
		s.Entities[name] = &Entity{
			Name: name, Set: "pods", Namespace: "shop", Endpoint: endpointIf(i < 20, name),
			Labels: map[string]string{"app": []string{"web", "db"}[i%2], "unique": name},
			Addrs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)})},
		}
	}
	s.Policies = map[string]*Policy{"db": {
		Name: "db", Tier: "namespaces", AppliedTo: []Selector{{Set: "pods", Labels: app("db")}}, Isolates: [2]bool{Ingress: true},
		Rules: [2][]Rule{Ingress: {{
			Action: Allow, Peers: []Peer{{Entities: &Selector{Set: "pods", Labels: app("web")}}}, Ports: []Port{{Protocol: TCP, First: 5432, Last: 5440}},
		}}},
	}}
	c := NewCompiler().Apply(s)
	classes, tables := map[Class]bool{}, map[TableID]bool{}
	for _, class := range c.Addrs {
		classes[class.Class] = true
	}
	for _, x := range c.TableRows {
		tables[x.Table] = true
	}
	if len(tables) != 1 || len(classes) != 2 || len(c.Rows) != 2 || len(c.Cells) != 2 {
		t.Errorf("%d tables, %d classes of Entities, %d rows, %d cells; want 1, 2, 2, 2", len(tables), len(classes), len(c.Rows), len(c.Cells))
	}
	if c.Subjects["e0"].Tables != [2]TableID{NoTable, NoTable} || c.Subjects["e1"].Tables != [2]TableID{0, NoTable} {
		t.Errorf("tables of subjects %v", c.Subjects)
	}
}

// large returns a state of namespaces with 100 Entities and 100 policies each; of 10,000 Entities,
// 250 are local.
func large(namespaces int) *State {
	s := &State{Namespaces: map[string]*Namespace{}, Tiers: []*Tier{{Name: "namespaces"}}, Entities: map[string]*Entity{}, Policies: map[string]*Policy{}}
	for n := range namespaces {
		space := fmt.Sprint("n", n)
		s.Namespaces[space] = &Namespace{map[string]string{"team": fmt.Sprint(n % 10)}}
		for i := range 100 {
			name := fmt.Sprint(space, "/", i)
			s.Entities[name] = &Entity{
				Name: name, Set: "pods", Namespace: space, Endpoint: endpointIf((n*7+i)%40 == 0, name), Labels: map[string]string{"app": fmt.Sprint(i % 20)},
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n), byte(i), 2})},
			}
			team := Requirements{{Key: "team", Operator: In, Values: []string{fmt.Sprint(i % 10)}}}
			s.Policies[name] = &Policy{
				Name: name, Tier: "namespaces", Isolates: [2]bool{true, true},
				AppliedTo: []Selector{{Set: "pods", Namespaces: &NamespaceSelector{Names: []string{space}}, Labels: app(fmt.Sprint(i % 20))}},
				Rules: [2][]Rule{{{
					Action: Allow, Peers: []Peer{{Entities: &Selector{Set: "pods", Labels: app(fmt.Sprint((i + 1) % 20)), Namespaces: &NamespaceSelector{Labels: team}}}},
					Ports: []Port{{Protocol: TCP, First: 80, Last: 90}},
				}}, {{Action: Allow}}},
			}
		}
	}
	return s
}

// TestChangesAtScale logs what 10,000 policies and 10,000 Entities, 250 of them local, take, and the
// change of one label. One label changes one address.
func TestChangesAtScale(t *testing.T) {
	namespaces := 100
	if testing.Short() {
		namespaces = 10
	}
	s, c := large(namespaces), NewCompiler()
	begin := time.Now()
	all := c.Apply(s)
	c.Settle()
	t.Logf("%d policies, %d Entities, %d subjects: %d rows of tables, %d classes, %d rows in %s",
		len(s.Policies), len(s.Entities), len(all.Subjects), len(all.TableRows), len(c.classes.ids), len(all.Rows), time.Since(begin).Round(time.Millisecond))
	g := newGenerator(1)
	begin = time.Now()
	const changes = 20
	for i := range changes {
		name := "n1/" + fmt.Sprint(i)
		next := *s
		next.Entities = make(map[string]*Entity, len(s.Entities))
		for other, e := range s.Entities {
			next.Entities[other] = e
		}
		e := *s.Entities[name]
		e.Labels = map[string]string{"app": fmt.Sprint(g.IntN(20))}
		next.Entities[name] = &e
		if got := c.Apply(&next); len(got.Addrs) > 1 || len(got.Subjects) > 1 {
			t.Errorf("change %d of one label: %d addresses have another class, %d subjects other tables", i, len(got.Addrs), len(got.Subjects))
		}
		c.Settle()
		s = &next
	}
	t.Logf("a label: %s", (time.Since(begin) / changes).Round(time.Microsecond))
}

// used returns how many values have users.
func (p *pool[V]) used() (n int) {
	p.each(func(int, *V) { n++ })
	return n
}

// TestTermsDiffer: selectors that differ only in where their words begin and end are different terms.
func TestTermsDiffer(t *testing.T) {
	values := func(values ...string) Requirements {
		return Requirements{{Key: "app", Operator: NotIn, Values: values}}
	}
	var all []Peer
	for _, r := range []Requirements{values("a b"), values("a", "b"), values(""), values(), values(`a" "b`), values("]", "["), {}} {
		all = append(all, Peer{Entities: &Selector{Labels: r}},
			Peer{Entities: &Selector{Namespaces: &NamespaceSelector{Labels: r}}})
	}
	for _, names := range [][]string{{"a b"}, {"a", "b"}} {
		all = append(all, Peer{Entities: &Selector{Namespaces: &NamespaceSelector{Names: names}}})
	}
	list := terms{ids: map[string]int{}}
	for i := range all {
		if got := list.take(&all[i]); got != i {
			t.Errorf("peer %d is term %d", i, got)
		}
	}
}

// TestVerdictsDiffer: verdicts of tiers and policies whose names have the same text when joined are
// different cells.
func TestVerdictsDiffer(t *testing.T) {
	pod := func(name string, last byte) *Entity {
		return &Entity{Name: name, Set: "pods", Labels: map[string]string{"app": name}, Endpoint: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})}}
	}
	deny := func(tier, name, app string) *Policy {
		return &Policy{Name: name, Tier: tier, AppliedTo: []Selector{{Set: "pods", Labels: Requirements{{Key: "app", Operator: In, Values: []string{app}}}}}, Rules: [2][]Rule{{{Action: Deny}}}}
	}
	s := &State{
		Entities: map[string]*Entity{"x": pod("x", 1), "y": pod("y", 2)}, Tiers: []*Tier{{Name: "a b"}, {Name: "a"}},
		Policies: map[string]*Policy{"c": deny("a b", "c", "x"), "b c": deny("a", "b c", "y")},
	}
	r := newReader(t)
	r.write(NewCompiler().Apply(s))
	r.put()
	traffic := Traffic{Peer: netip.AddrFrom4([4]byte{192, 0, 2, 7}), Protocol: TCP, Port: 80}
	for name, want := range map[string]Verdict{"x": {Deny, "a b", "c", 0}, "y": {Deny, "a", "b c", 0}} {
		if got := r.verdicts(s.Entities[name], Ingress, traffic).Enforced; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// endpointIf returns the name of the Endpoint of an Entity, if it is local.
func endpointIf(local bool, name string) string {
	if !local {
		return ""
	}
	return "port of " + name
}
