// SPDX-License-Identifier: Apache-2.0

package policies

//go:generate go tool bpf2go -cc clang-19 -go-package policies -target bpfel -tags linux -no-global-types -type test_query -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" looker ../../../../ebpf-src/policy_test.bpf.c

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpolicy"
)

var (
	from  = flag.Uint64("from", 0, "seed of the first random states")
	cases = flag.Int("cases", 100_000, "random verdicts to compare")
)

// looker looks verdicts up in the kernel, many at once.
type looker struct {
	t        testing.TB
	maps     map[string]*ebpf.Map
	program  *ebpf.Program
	raised   map[kernel.PolicyPortID]bool
	gone     map[string]bool // Endpoints without a port
	inUse    bool
	ledger   *ledger
	released []netip.Addr // addresses whose connections are to end
	domains  *names
	learned  map[uint32]bool // numbers of names whose addresses are inserted
	all      map[string]*ebpf.Program
}

func newLooker(t testing.TB) *looker {
	t.Helper()
	testnet.RequireRoot(t)
	spec, err := loadLooker()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	c, err := ebpf.NewCollection(spec)
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		t.Fatalf("%+v", refused)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &looker{t, c.Maps, c.Programs["test_policy"], map[kernel.PolicyPortID]bool{}, map[string]bool{}, false, nil, nil, nil, map[uint32]bool{}, c.Programs}
}

// adopt returns policies that take over the maps.
func (l *looker) adopt() *Policies {
	l.t.Helper()
	p, err := Adopt(Options{
		Tables: kernel.TablesOf(l.maps), Maps: l.maps,
		Raise: func(ports []kernel.PolicyPortID) error {
			for _, port := range ports {
				l.raised[port] = true
			}
			return nil
		},
		Released: func(addrs []netip.Addr) { l.released = append(l.released, addrs...) },
		SetInUse: func(inUse bool) error {
			return kernel.Step("policies in use", func() error {
				l.inUse = inUse
				return nil
			})
		},
	})
	l.ok(err)
	l.ledger, l.domains = p.ledger, p.domains
	if l.inUse != (p.word != 0) {
		l.t.Errorf("policies are in use: %t; the word is %#x", l.inUse, p.word)
	}
	return p
}

// attach reports the ports of the Endpoints of a state, except the ports that are gone.
func (l *looker) attach(p *Policies, s *policy.State) {
	l.t.Helper()
	for _, e := range s.Entities {
		if e.Endpoint == "" || e.Here { // its port always exists
			continue
		}
		port, exists := l.portOf(e.Endpoint)
		if exists && p.image == nil && p.adopted == nil {
			p.Keep(datapath.EndpointName(e.Endpoint), port)
		} else if exists {
			l.ok(p.Attach(datapath.EndpointName(e.Endpoint), port))
		} else {
			l.ok(p.Detach(datapath.EndpointName(e.Endpoint)))
		}
	}
}

func (l *looker) ok(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// portOf returns the port of an Endpoint with the name that [testpolicy.EndpointIf] gives to Entity
// eN or nN/M.
func (l *looker) portOf(endpoint string) (kernel.PolicyPortID, bool) {
	if endpoint == policy.Here {
		return kernel.PolicyPortHere, true
	}
	var n, m uint32
	name := strings.TrimPrefix(endpoint, "port of ")
	if _, err := fmt.Sscanf(name, "n%d/%d", &n, &m); err != nil {
		_, err = fmt.Sscanf(name, "e%d", &n)
		l.ok(err)
	}
	return kernel.PolicyPortOf(7+100*n+m, n%2), !l.gone[endpoint]
}

// query returns the question about traffic of an Entity.
func (l *looker) query(e *policy.Entity, d policy.Direction, t policy.Traffic) (q lookerTestQuery) {
	port, _ := l.portOf(e.Endpoint)
	q.Query.Peer.Word = kernel.AddrOf(t.Peer).Word
	q.Query.Port, q.Query.Proto, q.Query.Direction = kernel.Swap16(t.Port), uint8(t.Protocol), uint8(d)
	q.Query.Endpoint, q.Query.Family = uint32(port), 4
	if t.Peer.Is6() {
		q.Query.Family = 6
	}
	if t.Node {
		q.Query.Node = 1
	}
	return q
}

// ask returns the answers to queries, and the time taken.
func (l *looker) ask(queries []lookerTestQuery) ([]lookerTestQuery, time.Duration) {
	l.t.Helper()
	ids := make([]uint32, len(queries))
	for i := range ids {
		ids[i] = uint32(i)
	}
	_, err := l.maps["test_queries"].BatchUpdate(ids, queries, nil)
	l.ok(err)
	var ctx [44]uint32 // struct __sk_buff
	ctx[2] = uint32(len(queries))
	begin := time.Now()
	_, err = l.program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: ctx[:]})
	took := time.Since(begin)
	l.ok(err)
	answers := make([]lookerTestQuery, len(queries))
	var cursor ebpf.MapBatchCursor
	if _, err := l.maps["test_queries"].BatchLookup(&cursor, ids, answers, nil); !errors.Is(err, ebpf.ErrKeyNotExist) {
		l.ok(err)
	}
	return answers, took
}

// actions returns the verdict in force, and the verdict as if staged policies were in force.
func actions(a *lookerTestQuery) (enforced, staged policy.Action) {
	if a.Result == 0 {
		return policy.Allow, policy.Allow
	}
	return policy.Action(a.Query.Cell.Action[a.Query.Self&1]), policy.Action(a.Query.Cell.Staged[a.Query.Self&1])
}

// numbersOf returns what the numbers in an answer stand for: the rule that decides, and the rule of a
// staged policy that would decide.
func (l *looker) numbersOf(a *lookerTestQuery) string {
	if a.Result == 0 {
		return "[none none]"
	}
	var texts [2]string
	for i, n := range []uint32{a.Query.Cell.Rule[a.Query.Self&1], a.Query.Cell.StagedRule[a.Query.Self&1]} {
		texts[i] = "none"
		if e := l.ledger.entries[n&^ruleLogged]; n != 0 && e != nil {
			texts[i] = fmt.Sprintf("%x, logged: %t", e.id, n&ruleLogged != 0)
		} else if n != 0 {
			texts[i] = fmt.Sprint("unknown number ", n)
		}
	}
	return fmt.Sprint(texts)
}

// rulesOf returns what numbersOf returns for these verdicts of a state.
func rulesOf(s *policy.State, enforced, staged policy.Verdict) string {
	texts := [2]string{"none", "none"}
	for i, v := range []policy.Verdict{enforced, staged} {
		if p := s.Policies[v.Policy]; p != nil && (i == 0 || p.Staged) {
			texts[i] = fmt.Sprintf("%x, logged: %t", idOf(p, v, p.RuleID(v)), p.Logs(v))
		}
	}
	return fmt.Sprint(texts)
}

// compare asks about random traffic of the local Entities of a state, and compares the answers with
// the definition.
func (l *looker) compare(when string, g testpolicy.Generator, s *policy.State, of int) (compared, denied int) {
	l.t.Helper()
	var queries []lookerTestQuery
	var wants [][2]policy.Action
	var texts, rules []string
	for range of {
		t := g.Traffic()
		for _, e := range s.Entities {
			if e.Endpoint == "" || l.gone[e.Endpoint] {
				continue
			}
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				t.Names = learnedNames(e, t.Peer)
				queries = append(queries, l.query(e, d, t))
				is, would := s.Evaluate(e, d, t, false), s.Evaluate(e, d, t, true)
				wants = append(wants, [2]policy.Action{is.Action, would.Action})
				rules = append(rules, rulesOf(s, is, would))
				texts = append(texts, fmt.Sprintf("%s of %+v, %+v", d, e, t))
			}
		}
	}
	if len(queries) == 0 {
		return 0, 0
	}
	l.learn()
	answers, _ := l.ask(queries)
	for i := range answers {
		enforced, staged := actions(&answers[i])
		if answers[i].Result < 0 || [2]policy.Action{enforced, staged} != wants[i] {
			l.t.Fatalf("%s: %s: %s, staged %s (result %d, %+v), want %s", when, texts[i], enforced, staged, answers[i].Result, answers[i].Query, wants[i])
		}
		if got := l.numbersOf(&answers[i]); got != rules[i] {
			l.t.Fatalf("%s: %s: decided by %s, want %s", when, texts[i], got, rules[i])
		}
		if enforced != policy.Allow {
			denied++
		}
	}
	return len(answers), denied
}

// learnedNames returns the names for which an address is learnt in the network of an Entity, in these
// tests.
func learnedNames(e *policy.Entity, addr netip.Addr) (list []string) {
	for i, name := range testpolicy.Names {
		if e.Network != "" && (int(addr.As16()[15])+i+len(e.Network)+int(e.Network[0]))%3 == 0 {
			list = append(list, name)
		}
	}
	return list
}

// learn inserts the addresses of all names: those that have expired too.
func (l *looker) learn() {
	l.t.Helper()
	for name, id := range l.domains.numbers {
		if l.learned[id] {
			continue
		}
		l.learned[id] = true
		for _, network := range []string{"net", "far"} {
			for i := range 64 {
				addr := netip.AddrFrom4([4]byte{10, 0, byte(i / 8 % 2), byte(i % 8)})
				if i >= 32 {
					addr = netip.AddrFrom16([16]byte{0x20, 1, 13, 0xb8, 14: byte(i / 8 % 2), 15: byte(i % 8)})
				}
				v := kernel.Learned{ExpiryTick: kernel.NowTick() + 1<<20}
				if !slices.Contains(learnedNames(&policy.Entity{Network: network}, addr), name) {
					v.ExpiryTick = kernel.NowTick() - 5
				}
				l.ok(l.ledger.tables.Learned.Put(kernel.LearnedKey{Addr: kernel.AddrOf(addr), Name: id, Network: networkNumber(network)}, v))
			}
		}
	}
}

// counted compares the rules that are counted with the rules of the policies of a state.
func (l *looker) counted(when string, s *policy.State) {
	l.t.Helper()
	for name, numbers := range l.ledger.byName {
		for _, n := range numbers {
			if p := s.Policies[name]; p == nil || !has(p, l.ledger.entries[n]) {
				l.t.Fatalf("%s: a rule of policy %s is counted, which does not have it", when, name)
			}
		}
	}
	kept := 0
	l.ok(l.ledger.tables.PolicyRule.Batches(func(numbers []uint32, _ []kernel.PolicyRule) error {
		kept += len(numbers)
		return nil
	}))
	if known := len(l.ledger.entries); kept != known || len(l.ledger.numbers) != known {
		l.t.Fatalf("%s: %d rules are in the kernel, %d are known, %d have a number", when, kept, known, len(l.ledger.numbers))
	}
}

// TestKernelAgrees changes random states, and compares what programs see with the definition: while a
// change is written, after it, after a failure anywhere within it, and after a restart.
func TestKernelAgrees(t *testing.T) {
	l := newLooker(t)
	ctx, compared, denied, failed := context.Background(), 0, 0, 0
	for seed := *from; compared < *cases; seed++ {
		g, p := testpolicy.New(seed), l.adopt()
		l.gone = map[string]bool{}
		check := func(when string, s *policy.State) {
			n, d := l.compare(fmt.Sprintf("seed %d, %s", seed, when), g, s, 30)
			compared, denied = compared+n, denied+d
		}
		before, next := &policy.State{}, g.State()
		for i := range 20 {
			// After a restart, ports change only once the first change of the run is in force.
			if g.Chance(50) && (p.image != nil || p.word == 0) {
				l.gone = map[string]bool{testpolicy.EndpointIf(true, fmt.Sprint("e", g.IntN(12))): true}
				l.attach(p, before)
				if p.image != nil { // else the first change of this run comes first
					check(fmt.Sprintf("after changes of ports before change %d", i), before)
				}
			}
			l.attach(p, next)
			steps, fail := 0, -1
			if g.Chance(20) {
				fail = g.IntN(3)
			}
			kernel.AtStep = func(step string) error {
				now := before
				if strings.HasPrefix(step, "raise epoch") {
					now = next
				}
				check(fmt.Sprintf("before step %d of change %d, %s", steps, i, step), now)
				if steps++; steps-1 == fail {
					return errors.New("no")
				}
				return nil
			}
			err := p.Update(ctx, datapath.NodeSet, next)
			kernel.AtStep = func(string) error { return nil }
			if !l.inUse && p.word != 0 {
				t.Fatal("policies are in force, and older versions may take over")
			}
			if err != nil {
				failed++
				l.ok(p.Update(ctx, datapath.NodeSet, next))
			}
			check(fmt.Sprintf("after change %d", i), next)
			l.counted(fmt.Sprintf("seed %d, after change %d", seed, i), next)
			if ok, err := p.Verify(ctx, datapath.NodeSet); !ok || err != nil {
				t.Fatalf("the image that was written is not in force: %v", err)
			}
			if g.Chance(10) {
				p = l.adopt()
				l.attach(p, next)
				check("after a restart", next)
			}
			before, next = next, g.Next(next)
		}
		l.ok(p.Delete(ctx, datapath.NodeSet))
		if l.inUse {
			t.Fatal("no policy is in force, and older versions may not take over")
		}
		for range p.Keys(ctx) {
			t.Fatal("a deleted row still exists")
		}
		for name, m := range l.maps {
			var id ebpf.MapID
			switch key, err := m.NextKeyBytes(nil); {
			case strings.HasPrefix(name, "ll_policy") && (key != nil || err != nil):
				t.Fatalf("%s is not empty: %v, %v", name, key, err)
			case strings.HasPrefix(name, "ll_image") && (m.Lookup(uint32(3), &id) == nil || m.Lookup(uint32(4), &id) == nil):
				t.Fatalf("%s still has an image", name)
			}
		}
	}
	t.Logf("%d verdicts, %d of them denied; %d changes failed at first", compared, denied, failed)
	if denied < compared/10 || failed == 0 {
		t.Error("the states test too little")
	}
}

// TestAtScale logs what 10,000 policies and 10,000 Entities, 250 of them local, take in the kernel; a
// change of one label there; and a look-up, beside one in a small state.
func TestAtScale(t *testing.T) {
	namespaces := 100
	if testing.Short() {
		namespaces = 10
	}
	ctx := context.Background()
	lookUp := func(l *looker, s *policy.State) time.Duration {
		var queries []lookerTestQuery
		for _, e := range s.Entities {
			for _, peer := range s.Entities {
				if e.Endpoint != "" && len(queries) < 65536 {
					queries = append(queries, l.query(e, policy.Ingress, policy.Traffic{Peer: peer.Addrs[0], Protocol: policy.TCP, Port: 85}))
				}
			}
		}
		l.ask(queries)
		_, took := l.ask(queries)
		return took / time.Duration(len(queries))
	}
	small := newLooker(t)
	few := testpolicy.Large(1)
	p := small.adopt()
	small.attach(p, few)
	small.ok(p.Update(ctx, datapath.NodeSet, few))
	l := newLooker(t)
	s := testpolicy.Large(namespaces)
	p = l.adopt()
	l.attach(p, s)
	begin := time.Now()
	l.ok(p.Update(ctx, datapath.NodeSet, s))
	took := time.Since(begin)
	t.Logf("%d policies, %d Entities: written in %s; %d KiB of an image of %d, %d addresses, %d ports", len(s.Policies), len(s.Entities), took.Round(time.Millisecond),
		p.image.used>>10, sizes[p.image.number-1].bytes>>10, len(p.addrs), len(p.ports))
	t.Logf("a look-up: %s, in a state of %d policies and %d Entities %s", lookUp(l, s), len(few.Policies), len(few.Entities), lookUp(small, few))
	g := testpolicy.New(1)
	begin = time.Now()
	const changes = 20
	for i := range changes {
		name := "n1/" + fmt.Sprint(i)
		next := *s
		next.Entities = maps.Clone(s.Entities)
		e := *s.Entities[name]
		e.Labels = map[string]string{"app": fmt.Sprint(g.IntN(20))}
		next.Entities[name] = &e
		time.Sleep(kernel.Grace)
		l.ok(p.Update(ctx, datapath.NodeSet, &next))
		s = &next
	}
	t.Logf("a label: %s", (time.Since(begin)/changes - kernel.Grace).Round(10*time.Microsecond))
}

// TestUnknownAddresses: without any prefix in policies, addresses that no Entity has are of class 0.
func TestUnknownAddresses(t *testing.T) {
	l, g := newLooker(t), rand.New(rand.NewPCG(1, 2))
	e := &policy.Entity{Name: "e1", Set: "pods", Endpoint: testpolicy.EndpointIf(true, "e1")}
	s := &policy.State{
		Entities: map[string]*policy.Entity{"e1": e}, Tiers: []*policy.Tier{{Name: "t", Always: policy.Always{Node: true, Self: true}}},
		Policies: map[string]*policy.Policy{"p": {Name: "p", Tier: "t", AppliedTo: []policy.Selector{{Set: "pods"}}, Isolates: [2]bool{true, true}}},
	}
	p := l.adopt()
	l.attach(p, s)
	for range 2 { // both sides
		l.ok(p.Update(context.Background(), datapath.NodeSet, s))
		var queries []lookerTestQuery
		for range 10_000 {
			a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, g.Uint32())))
			if g.IntN(2) == 0 {
				var b [16]byte
				binary.BigEndian.PutUint64(b[:], g.Uint64())
				binary.BigEndian.PutUint64(b[8:], g.Uint64())
				a = netip.AddrFrom16(b)
			}
			queries = append(queries, l.query(e, policy.Egress, policy.Traffic{Peer: a, Protocol: policy.TCP, Port: 80}))
		}
		answers, _ := l.ask(queries)
		for i := range answers {
			if enforced, _ := actions(&answers[i]); enforced != policy.Deny {
				t.Fatalf("%+v: %s", answers[i], enforced)
			}
		}
	}
}

// TestTablesChangedExternally: another program deletes or changes an address or a port in the tables, or
// adds one: the verification fails, and the next update repairs it.
func TestTablesChangedExternally(t *testing.T) {
	l, ctx := newLooker(t), context.Background()
	addr, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.99")
	e := &policy.Entity{Name: "e1", Set: "pods", Endpoint: testpolicy.EndpointIf(true, "e1"), Addrs: []netip.Addr{addr}}
	s := &policy.State{
		Entities: map[string]*policy.Entity{"e1": e}, Tiers: []*policy.Tier{{Name: "t", Always: policy.Always{Node: true, Self: true}}},
		Policies: map[string]*policy.Policy{"p": {
			Name: "p", Tier: "t", AppliedTo: []policy.Selector{{Set: "pods"}}, Isolates: [2]bool{true, true},
			Rules: [2][]policy.Rule{{{Action: policy.Allow, Peers: []policy.Peer{{Entities: &policy.Selector{Set: "pods"}}}}}},
		}},
	}
	p := l.adopt()
	l.attach(p, s)
	l.ok(p.Update(ctx, datapath.NodeSet, s))
	port, _ := l.portOf(e.Endpoint)
	tables := kernel.TablesOf(l.maps)
	verdicts := func(when string) {
		t.Helper()
		answers, _ := l.ask([]lookerTestQuery{
			l.query(e, policy.Ingress, policy.Traffic{Peer: stranger, Protocol: policy.TCP, Port: 80}),
			l.query(e, policy.Ingress, policy.Traffic{Peer: addr, Protocol: policy.TCP, Port: 80}),
		})
		for i, want := range []policy.Action{policy.Deny, policy.Allow} {
			if got, _ := actions(&answers[i]); got != want {
				t.Errorf("%s: query %d: %s, want %s", when, i, got, want)
			}
		}
	}
	verdicts("at first")
	for what, change := range map[string]func() error{
		"port deleted": func() error { return tables.PolicyPort.Delete(uint32(port)) },
		"port changed": func() error { return tables.PolicyPort.Put(uint32(port), kernel.PolicyPort{}) },
		"port added": func() error {
			return tables.PolicyPort.Put(12345, kernel.PolicyPort{Table: [2][2]uint32{{1, 1}, {1, 1}}})
		},
		"address deleted": func() error { return tables.PolicyAddr.Delete(kernel.AddrOf(addr)) },
		"address changed": func() error { return tables.PolicyAddr.Put(kernel.AddrOf(addr), noAddr) },
		"address added":   func() error { return tables.PolicyAddr.Put(kernel.AddrOf(stranger), p.addrs[addr]) },
	} {
		intact, err := p.Verify(ctx, datapath.NodeSet)
		if l.ok(err); !intact {
			t.Fatalf("before %s: the tables are not intact", what)
		}
		l.ok(change())
		intact, err = p.Verify(ctx, datapath.NodeSet)
		if l.ok(err); intact {
			t.Errorf("%s: not noticed", what)
		}
		l.ok(p.Update(ctx, datapath.NodeSet, s))
		verdicts(what)
	}
	l.ok(p.Delete(ctx, datapath.NodeSet))
	left := 0
	l.ok(tables.PolicyAddr.Batches(func(keys []kernel.Addr, _ []kernel.PolicyAddr) error { left += len(keys); return nil }))
	l.ok(tables.PolicyPort.Batches(func(keys []uint32, _ []kernel.PolicyPort) error { left += len(keys); return nil }))
	if left != 0 {
		t.Errorf("%d entries are left", left)
	}
}

// TestRestartWritesNothing: a restart that finds the desired state in force writes nothing, and names
// the policies that drop packets; later changes, and changes of ports, take effect. A restart with
// another state, or whose tables another program has changed, writes them.
func TestRestartWritesNothing(t *testing.T) {
	ctx := context.Background()
	g := testpolicy.New(7)
	for _, with := range []string{"", "another label", "another port", "a changed table", "no time to record"} {
		t.Run(with, func(t *testing.T) {
			l := newLooker(t)
			s := g.State()
			for len(policy.NewCompiler().Apply(s).Cells) < 3 {
				s = g.State()
			}
			p := l.adopt()
			l.attach(p, s)
			l.ok(p.Update(ctx, datapath.NodeSet, s))
			l.ok(p.Update(ctx, datapath.NodeSet, s)) // the other side
			if with != "no time to record" {
				intact, err := p.Verify(ctx, datapath.NodeSet)
				if l.ok(err); !intact {
					t.Fatal("the tables are not intact")
				}
			}
			before := p.word
			again := *s // equal, and not the same
			switch with {
			case "":
				for name, m := range l.maps {
					if strings.HasPrefix(name, "ll_policy") || strings.HasPrefix(name, "ll_image") || name == "ll_rules" {
						l.ok(m.Freeze()) // writes fail
					}
				}
			case "another label":
				again.Entities = maps.Clone(s.Entities)
				for name, e := range s.Entities {
					other := *e
					other.Labels = map[string]string{"app": "other"}
					again.Entities[name] = &other
					break
				}
			case "a changed table":
				l.ok(kernel.TablesOf(l.maps).PolicyAddr.Put(kernel.AddrOf(netip.MustParseAddr("192.0.2.250")), kernel.PolicyAddr{}))
			}
			q := l.adopt()
			for name, port := range p.portOf {
				if with == "another port" {
					port++
				}
				q.Keep(datapath.EndpointName(name), port)
			}
			l.ok(q.Update(ctx, datapath.NodeSet, &again))
			if adopted := q.image == nil; adopted != (with == "") || adopted != (q.word == before) {
				t.Fatalf("the tables of the earlier run are adopted: %t, word %#x before and %#x now", adopted, before, q.word)
			}
			if with != "" {
				return
			}
			intact, err := q.Verify(ctx, datapath.NodeSet)
			if l.ok(err); !intact {
				t.Error("the tables are not intact after the restart")
			}
			l.ok(q.Update(ctx, datapath.NodeSet, s))
			l.compare("after a restart", g, &again, 200)
			for number, e := range p.ledger.entries {
				sample := kernel.Sample{}
				sample.PolicyRule[e.verdict.Direction] = number
				decided, _ := q.Decisions(&sample)
				if len(decided) != 1 || decided[0].Verdict != e.verdict {
					t.Errorf("rule %d: %+v, want %+v", number, decided, e.verdict)
				}
			}
			if len(p.ledger.entries) == 0 {
				t.Error("no rule is known")
			}
		})
	}
}

// TestChangesAfterAdoption: after a restart that has written nothing, changes of the state and of ports
// take effect.
func TestChangesAfterAdoption(t *testing.T) {
	ctx := context.Background()
	l, g := newLooker(t), testpolicy.New(11)
	s := g.State()
	for i := range 12 {
		p := l.adopt()
		l.attach(p, s)
		l.ok(p.Update(ctx, datapath.NodeSet, s))
		_, err := p.Verify(ctx, datapath.NodeSet)
		l.ok(err)
		q := l.adopt()
		for name, port := range p.portOf {
			q.Keep(datapath.EndpointName(name), port)
		}
		same := *s
		l.ok(q.Update(ctx, datapath.NodeSet, &same))
		if q.adopted == nil && q.word != 0 {
			t.Fatalf("round %d: the tables of the earlier run are not adopted", i)
		}
		switch i % 3 {
		case 0:
			s = g.Next(s)
			l.attach(q, s)
			l.ok(q.Update(ctx, datapath.NodeSet, s))
		case 1: // a port goes, and comes back
			l.gone = map[string]bool{testpolicy.EndpointIf(true, fmt.Sprint("e", i)): true}
			l.attach(q, s)
		}
		l.compare(fmt.Sprint("round ", i), g, s, 200)
		l.gone = map[string]bool{}
	}
}

// TestRulesKeepTheirNumbers: after a change of a policy, a cell has the number of the rule that now
// decides, although another rule decided likewise at the same place before; and the policy logs as it
// says now.
func TestRulesKeepTheirNumbers(t *testing.T) {
	l, ctx := newLooker(t), context.Background()
	rule := func(port uint16) policy.Rule {
		return policy.Rule{ID: fmt.Sprint(port), Action: policy.Allow, Ports: []policy.Port{{Protocol: policy.TCP, First: port, Last: port}}}
	}
	e := &policy.Entity{Name: "e1", Set: "pods", Endpoint: testpolicy.EndpointIf(true, "e1")}
	state := func(logs bool, rules ...policy.Rule) *policy.State {
		return &policy.State{
			Tiers: []*policy.Tier{{Name: "main"}}, Entities: map[string]*policy.Entity{"e1": e},
			Policies: map[string]*policy.Policy{"p": {Name: "p", Tier: "main", AppliedTo: []policy.Selector{{Set: "pods"}}, LogsAllow: logs, Rules: [2][]policy.Rule{policy.Ingress: rules}}},
		}
	}
	p := l.adopt()
	for i, s := range []*policy.State{state(false, rule(80)), state(false, rule(81), rule(80)), state(true, rule(81), rule(80)), state(false, rule(80), rule(81))} {
		l.attach(p, s)
		l.ok(p.Update(ctx, datapath.NodeSet, s))
		for _, port := range []uint16{80, 81, 82} {
			traffic := policy.Traffic{Peer: netip.MustParseAddr("192.0.2.1"), Protocol: policy.TCP, Port: port}
			answers, _ := l.ask([]lookerTestQuery{l.query(e, policy.Ingress, traffic)})
			is := s.Evaluate(e, policy.Ingress, traffic, false)
			if got, want := l.numbersOf(&answers[0]), rulesOf(s, is, is); got != want {
				t.Errorf("change %d, port %d: %s, want %s", i, port, got, want)
			}
		}
	}
}

// TestStagedRulePasses: a staged policy that passes traffic on to an enforced rule of a later tier has no
// rule that would decide: the enforced rule is not counted for packets that it does not decide.
func TestStagedRulePasses(t *testing.T) {
	l := newLooker(t)
	e := &policy.Entity{Name: "e1", Set: "pods", Endpoint: testpolicy.EndpointIf(true, "e1")}
	s := &policy.State{Tiers: []*policy.Tier{{Name: "first"}, {Name: "last"}}, Entities: map[string]*policy.Entity{"e1": e}, Policies: map[string]*policy.Policy{}}
	for _, p := range []policy.Policy{
		{Name: "a", Tier: "first", Staged: true, Rules: [2][]policy.Rule{{{ID: "pass", Action: policy.Pass}}}},
		{Name: "b", Tier: "first", Rules: [2][]policy.Rule{{{ID: "deny", Action: policy.Deny}}}},
		{Name: "c", Tier: "last", Rules: [2][]policy.Rule{{{ID: "allow", Action: policy.Allow}}}},
	} {
		p.AppliedTo = []policy.Selector{{Set: "pods"}}
		s.Policies[p.Name] = &p
	}
	p := l.adopt()
	l.attach(p, s)
	l.ok(p.Update(context.Background(), datapath.NodeSet, s))
	traffic := policy.Traffic{Peer: netip.MustParseAddr("192.0.2.1"), Protocol: policy.TCP, Port: 80}
	answers, _ := l.ask([]lookerTestQuery{l.query(e, policy.Ingress, traffic)})
	deny := s.Evaluate(e, policy.Ingress, traffic, false)
	allow := s.Evaluate(e, policy.Ingress, traffic, true)
	if got, want := l.numbersOf(&answers[0]), rulesOf(s, deny, allow); got != want || allow.Policy != "c" {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestFits: what does not fit is refused with an error that says so, as Fits says before; the state
// before stays in force, and a smaller state can follow.
func TestFits(t *testing.T) {
	all := sizes
	sizes = sizes[:1]
	t.Cleanup(func() { sizes = all })
	l := newLooker(t)
	l.gone = map[string]bool{}
	ctx, p := context.Background(), l.adopt()
	state := func(rules int) *policy.State {
		s := &policy.State{
			Entities: map[string]*policy.Entity{"e1": {
				Name: "e1", Set: "pods", Endpoint: testpolicy.EndpointIf(true, "e1"), Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
			Tiers:    []*policy.Tier{{Name: "t"}},
			Policies: map[string]*policy.Policy{"p": {Name: "p", Tier: "t", AppliedTo: []policy.Selector{{Set: "pods"}}, Isolates: [2]bool{true, false}}},
		}
		p := s.Policies["p"]
		for i := range rules {
			p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], policy.Rule{
				ID: fmt.Sprint(i), Action: policy.Allow, Ports: []policy.Port{{Protocol: policy.TCP, First: uint16(2 * i), Last: uint16(2 * i)}},
				Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i)}), 24)}}},
			})
		}
		return s
	}
	small := state(3)
	l.attach(p, small)
	l.ok(p.Update(ctx, datapath.NodeSet, small))
	allows := func(when string, port int, want policy.Action) {
		t.Helper()
		peer := netip.AddrFrom4([4]byte{11, 0, byte(port / 2), 7})
		answers, _ := l.ask([]lookerTestQuery{l.query(small.Entities["e1"], policy.Ingress, policy.Traffic{Peer: peer, Protocol: policy.TCP, Port: uint16(port)})})
		if is, _ := actions(&answers[0]); is != want {
			t.Errorf("%s: port %d: %s, want %s", when, port, is, want)
		}
	}
	fit, refused := 0, 0
	for rules := 100; rules < 3000; rules = rules * 3 / 2 {
		s := state(rules)
		expected := p.Fits(s)
		err := p.Update(ctx, datapath.NodeSet, s)
		if err != nil {
			err = p.Update(ctx, datapath.NodeSet, s) // from nothing
		}
		if (err == nil) != (expected == nil) || errors.Is(err, datapath.ErrCapacity) != (err != nil) {
			t.Fatalf("%d rules: %v, although Fits said: %v", rules, err, expected)
		}
		if err == nil {
			fit++
			allows("a state that fits", 100, policy.Allow)
			l.ok(p.Update(ctx, datapath.NodeSet, small))
		} else {
			refused++
		}
		allows("afterwards", 2, policy.Allow)
		allows("afterwards", 100, policy.Deny)
	}
	if fit == 0 || refused == 0 {
		t.Errorf("%d states fit, %d were refused", fit, refused)
	}
	l.ok(p.Update(ctx, datapath.NodeSet, state(50)))
	allows("at last", 98, policy.Allow)
	l.ok(p.Delete(ctx, datapath.NodeSet))
}
