// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testpolicy"
)

var (
	from  = flag.Uint64("from", 0, "seed of the first random states")
	cases = flag.Int("cases", 200_000, "random verdicts to compare")
)

// TestTablesAgree changes random states, and compares what readers of the tables see with the
// definition: while a change is written, the state before it, and then the next one.
func TestTablesAgree(t *testing.T) {
	compared, seen := 0, map[policy.Action]int{}
	for seed := *from; compared < *cases; seed++ {
		g, c, r := testpolicy.New(seed), policy.NewCompiler(), newReader(t)
		c.SetSpare(4)
		compare := func(when string, s *policy.State) {
			for range 10 {
				traffic := g.Traffic()
				for _, e := range s.Entities {
					if e.Endpoint == "" {
						continue
					}
					for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
						compared++
						want := policy.Verdicts{Enforced: s.Evaluate(e, d, traffic, false), Staged: s.Evaluate(e, d, traffic, true)}
						seen[want.Enforced.Action]++
						if got := r.verdicts(e, d, traffic); got != want {
							t.Fatalf("seed %d, %s: %s of %s, %+v: %+v, want %+v\n%s", seed, when, d, e.Name, traffic, got, want, describe(s))
						}
					}
				}
			}
		}
		before, next := &policy.State{}, g.State()
		for i := range 30 {
			change := c.Apply(next)
			r.write(change)
			unconcerned(t, g, change, before, next)
			compare(fmt.Sprintf("change %d is written", i), before)
			r.put()
			compare(fmt.Sprintf("after change %d", i), next)
			if g.Chance(80) {
				r.free(c.Settle())
			}
			before, next = next, g.Next(next)
		}
		r.write(c.Apply(&policy.State{}))
		r.free(c.Settle())
		left := c.Uses()
		left["rows of the reader"], left["cells of the reader"], left["tables of the reader"] = len(r.rows), len(r.cells), len(r.tables)
		for what, n := range left {
			if want := map[string]int{"classes": 2}[what]; n != want {
				t.Fatalf("seed %d: the empty state has %d %s, want %d", seed, n, what, want)
			}
		}
	}
	t.Logf("%d verdicts: %v", compared, seen)
	for _, a := range []policy.Action{policy.Allow, policy.Deny, policy.Reject} {
		if seen[a] < compared/50 {
			t.Errorf("only %d of %d verdicts are %s: the states test too little", seen[a], compared, a)
		}
	}
}

// unconcerned fails if a change does not name an Endpoint of which a verdict differs.
func unconcerned(t *testing.T, g testpolicy.Generator, change *policy.Change, before, next *policy.State) {
	for range 30 {
		traffic := g.Traffic()
		for name, e := range next.Entities {
			was := before.Entities[name]
			if e.Endpoint == "" || was == nil || was.Endpoint == "" || change.Concerned[e.Endpoint] {
				continue
			}
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				if old, now := before.Evaluate(was, d, traffic, false), next.Evaluate(e, d, traffic, false); old != now {
					t.Fatalf("%s of %s, %+v: %+v, then %+v, and the change does not name it\n%s\n%s", d, name, traffic, old, now, describe(before), describe(next))
				}
			}
		}
	}
}

func describe(s *policy.State) (text string) {
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

// TestSharing: subjects with the same policies share their tables, addresses that no policy
// distinguishes share a class, and equal rows are one row.
func TestSharing(t *testing.T) {
	s := &policy.State{Namespaces: map[string]*policy.Namespace{"shop": {}}, Tiers: []*policy.Tier{{Name: "namespaces"}}, Entities: map[string]*policy.Entity{}}
	for i := range 100 {
		name := fmt.Sprint("e", i)
		s.Entities[name] = &policy.Entity{
			Name: name, Set: "pods", Namespace: "shop", Endpoint: testpolicy.EndpointIf(i < 20, name),
			Labels: map[string]string{"app": []string{"web", "db"}[i%2], "unique": name},
			Addrs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)})},
		}
	}
	s.Policies = map[string]*policy.Policy{"db": {
		Name: "db", Tier: "namespaces", AppliedTo: []policy.Selector{{Set: "pods", Labels: testpolicy.App("db")}}, Isolates: [2]bool{policy.Ingress: true},
		Rules: [2][]policy.Rule{policy.Ingress: {{
			Action: policy.Allow, Peers: []policy.Peer{{Entities: &policy.Selector{Set: "pods", Labels: testpolicy.App("web")}}}, Ports: []policy.Port{{Protocol: policy.TCP, First: 5432, Last: 5440}},
		}}},
	}}
	c := policy.NewCompiler().Apply(s)
	classes, tables := map[policy.Class]bool{}, map[policy.TableID]bool{}
	for _, class := range c.Addrs {
		classes[class.Class] = true
	}
	for _, x := range c.TableRows {
		tables[x.Table] = true
	}
	if len(tables) != 1 || len(classes) != 2 || len(c.Rows) != 2 || len(c.Cells) != 2 {
		t.Errorf("%d tables, %d classes of Entities, %d rows, %d cells; want 1, 2, 2, 2", len(tables), len(classes), len(c.Rows), len(c.Cells))
	}
	if c.Subjects["e0"].Tables != [2]policy.TableID{policy.NoTable, policy.NoTable} || c.Subjects["e1"].Tables != [2]policy.TableID{0, policy.NoTable} {
		t.Errorf("tables of subjects %v", c.Subjects)
	}
}

// TestChangesAtScale logs what 10,000 policies and 10,000 Entities, 250 of them local, take, and the
// change of one label. One label changes one address.
func TestChangesAtScale(t *testing.T) {
	namespaces := 100
	if testing.Short() {
		namespaces = 10
	}
	s, c := testpolicy.Large(namespaces), policy.NewCompiler()
	begin := time.Now()
	all := c.Apply(s)
	c.Settle()
	t.Logf("%d policies, %d Entities, %d subjects: %d rows of tables, %d classes, %d rows in %s",
		len(s.Policies), len(s.Entities), len(all.Subjects), len(all.TableRows), c.Uses()["classes"], len(all.Rows), time.Since(begin).Round(time.Millisecond))
	g := testpolicy.New(1)
	begin = time.Now()
	const changes = 20
	for i := range changes {
		name := "n1/" + fmt.Sprint(i)
		next := *s
		next.Entities = make(map[string]*policy.Entity, len(s.Entities))
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

// TestVerdictsDiffer: verdicts of tiers and policies whose names have the same text when joined are
// different cells.
func TestVerdictsDiffer(t *testing.T) {
	pod := func(name string, last byte) *policy.Entity {
		return &policy.Entity{Name: name, Set: "pods", Labels: map[string]string{"app": name}, Endpoint: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})}}
	}
	deny := func(tier, name, app string) *policy.Policy {
		return &policy.Policy{Name: name, Tier: tier, AppliedTo: []policy.Selector{{Set: "pods", Labels: policy.Requirements{{Key: "app", Operator: policy.In, Values: []string{app}}}}}, Rules: [2][]policy.Rule{{{Action: policy.Deny}}}}
	}
	s := &policy.State{
		Entities: map[string]*policy.Entity{"x": pod("x", 1), "y": pod("y", 2)}, Tiers: []*policy.Tier{{Name: "a b"}, {Name: "a"}},
		Policies: map[string]*policy.Policy{"c": deny("a b", "c", "x"), "b c": deny("a", "b c", "y")},
	}
	r := newReader(t)
	r.write(policy.NewCompiler().Apply(s))
	r.put()
	traffic := policy.Traffic{Peer: netip.AddrFrom4([4]byte{192, 0, 2, 7}), Protocol: policy.TCP, Port: 80}
	for name, want := range map[string]policy.Verdict{"x": {Action: policy.Deny, Tier: "a b", Policy: "c"}, "y": {Action: policy.Deny, Tier: "a", Policy: "b c"}} {
		if got := r.verdicts(s.Entities[name], policy.Ingress, traffic).Enforced; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// TestReleased: a change lists the addresses that Entities elsewhere have lost, also if another Entity
// with equal labels has them now, and not the addresses of Endpoints.
func TestReleased(t *testing.T) {
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }
	entity := func(name, endpoint string, addrs ...netip.Addr) *policy.Entity {
		return &policy.Entity{Name: name, Set: "pods", Endpoint: endpoint, Addrs: addrs}
	}
	c := policy.NewCompiler()
	for _, step := range []struct {
		entities []*policy.Entity
		want     []netip.Addr
	}{
		{[]*policy.Entity{entity("x", "", at(1), at(2)), entity("y", "y", at(3))}, nil},
		{[]*policy.Entity{entity("x", "", at(1)), entity("z", "", at(2)), entity("y", "y", at(4))}, []netip.Addr{at(2)}},
		{[]*policy.Entity{entity("x", "", at(1)), entity("z", "", at(2), at(5))}, nil},
		{[]*policy.Entity{entity("here", "here", at(1)), entity("z", "", at(2), at(5))}, []netip.Addr{at(1)}},
		{nil, []netip.Addr{at(2), at(5)}},
	} {
		s := &policy.State{Entities: map[string]*policy.Entity{}}
		for _, e := range step.entities {
			s.Entities[e.Name] = e
		}
		got := c.Apply(s).Released
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, step.want) {
			t.Errorf("with %v: released %v, want %v", step.entities, got, step.want)
		}
		c.Settle()
	}
}
