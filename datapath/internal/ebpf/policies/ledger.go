// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// ledger numbers the rules that decide on packets, so that the programs can count and report their
// decisions. A rule keeps its number while its policy has it, also across restarts. It has a lock of its
// own, so that reports do not wait for a change that is being compiled.
type ledger struct {
	tables *kernel.Tables

	mu      sync.RWMutex
	numbers map[ruleID]uint32
	entries map[uint32]*entry
	byName  map[string][]uint32 // numbers, by policy
	last    uint32              // the highest number that was used
	adopted map[ruleID]uint32   // of an earlier run, until its policies are known
	full    bool                // rules are not counted
	ports   map[kernel.PolicyPortID]datapath.EndpointName
}

// ruleID identifies a rule of a policy.
type ruleID [16]byte

// entry is what a number stands for.
type entry struct {
	id      ruleID
	verdict policy.Verdict // on packets that the rule matches
	rule    string         // policy.Rule.ID; empty: isolation
	staged  bool
	since   time.Time
}

// ruleLogged is RULE_LOGGED.
const ruleLogged = 1 << 31

func newLedger(t *kernel.Tables) *ledger {
	return &ledger{
		tables: t, numbers: make(map[ruleID]uint32), entries: make(map[uint32]*entry), byName: make(map[string][]uint32),
		adopted: make(map[ruleID]uint32), ports: make(map[kernel.PolicyPortID]datapath.EndpointName),
	}
}

// adopt takes over the numbers of an earlier run.
func (l *ledger) adopt() error {
	return l.tables.PolicyRule.Batches(func(numbers []uint32, rules []kernel.PolicyRule) error {
		for i, n := range numbers {
			l.adopted[rules[i].Id] = n
			l.last = max(l.last, n)
			l.entries[n] = &entry{id: rules[i].Id, since: time.Unix(0, int64(rules[i].SinceNs))}
		}
		return nil
	})
}

// idOf returns the identity of the rule of a policy, or with an empty rule of its isolation.
func idOf(p *policy.Policy, v policy.Verdict, rule string) ruleID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %t %d %d %q", p.Name, p.Staged, v.Direction, v.Action, rule))
	return ruleID(sum[:16])
}

// number returns the number of the rule that decides a verdict of a state; 0: nothing decided, or
// there is no room to count it.
func (l *ledger) number(s *policy.State, v policy.Verdict) (uint32, error) {
	if v.Policy == "" {
		return 0, nil
	}
	p := s.Policies[v.Policy]
	rule := p.RuleID(v)
	id := idOf(p, v, rule)
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.numbers[id]
	if !known {
		var err error
		if n, err = l.enter(id); n == 0 || err != nil {
			return 0, err
		}
		e := l.entries[n]
		e.rule, e.staged = rule, p.Staged
		l.numbers[id], l.byName[p.Name] = n, append(l.byName[p.Name], n)
	}
	l.entries[n].verdict = v
	if p.Logs(v) {
		return n | ruleLogged, nil
	}
	return n, nil
}

// enter returns the number of a rule that is new in this run.
func (l *ledger) enter(id ruleID) (uint32, error) {
	if n, found := l.adopted[id]; found {
		delete(l.adopted, id)
		return n, l.start(n) // it was killed, perhaps, before it wrote them
	}
	n, now := l.last+1, time.Now()
	// Its identity first: counters are found by it.
	err := l.tables.PolicyRule.Put(n, kernel.PolicyRule{Id: id, SinceNs: uint64(now.UnixNano())})
	if err == nil {
		err = l.start(n)
	}
	if errors.Is(err, unix.E2BIG) {
		l.full = true
		return 0, l.forget(n)
	}
	if err != nil {
		return 0, fmt.Errorf("counters of the rules of policies: %w", err)
	}
	l.last = n
	l.entries[n] = &entry{id: id, since: now}
	return n, nil
}

// start creates the counters of a number, unless they exist.
func (l *ledger) start(n uint32) error {
	var hits []kernel.PolicyHits
	if found, err := l.tables.PolicyHits.Find(n, &hits); found || err != nil {
		return err
	}
	return l.tables.PolicyHits.Put(n, make([]kernel.PolicyHits, ebpf.MustPossibleCPU()))
}

// forget deletes the counters of a number.
func (l *ledger) forget(n uint32) error {
	err := l.tables.PolicyHits.Delete(n)
	if err == nil {
		err = l.tables.PolicyRule.Delete(n) // last: the counters are found by it
	}
	if err != nil {
		return fmt.Errorf("counters of rule %d of policies: %w", n, err)
	}
	return nil
}

// addNames adds the names of all policies whose rules have numbers.
func (l *ledger) addNames(names map[string]bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for name := range l.byName {
		names[name] = true
	}
}

// retire deletes the counters of rules that policies, which are new, changed or deleted, do not have
// in s, which is in force.
func (l *ledger) retire(s *policy.State, names map[string]bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.adopted) > 0 {
		if err := l.settleAdopted(s); err != nil {
			return err
		}
	}
	for name := range names {
		p := s.Policies[name]
		var kept []uint32
		for _, n := range l.byName[name] {
			e := l.entries[n]
			if p != nil && e.staged == p.Staged && has(p, e) {
				kept = append(kept, n)
				continue
			}
			if err := l.forget(n); err != nil {
				return err
			}
			delete(l.entries, n)
			delete(l.numbers, e.id)
		}
		if l.byName[name] = kept; len(kept) == 0 {
			delete(l.byName, name)
		}
	}
	return nil
}

// retireAll deletes all counters.
func (l *ledger) retireAll() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, e := range l.entries {
		if err := l.forget(n); err != nil {
			return err
		}
		delete(l.entries, n)
		delete(l.numbers, e.id)
		delete(l.adopted, e.id)
	}
	clear(l.byName)
	l.full = false
	return nil
}

// Problems describes what of the policies is not as it should be.
func (p *Policies) Problems() []string {
	p.ledger.mu.RLock()
	defer p.ledger.mu.RUnlock()
	if p.ledger.full {
		return []string{fmt.Sprintf("some rules of Policies are not counted, because %d are: raise tables.rules in the daemon's configuration, then restart it", len(p.ledger.entries))}
	}
	return nil
}

// settleAdopted assigns the numbers of an earlier run to the rules of policies in s, and deletes the
// others.
func (l *ledger) settleAdopted(s *policy.State) error {
	for name, p := range s.Policies {
		for d := range p.Rules {
			for i := -1; i < len(p.Rules[d]); i++ {
				v := p.Isolation(policy.Direction(d))
				if i >= 0 {
					v.Rule, v.Action = i, p.Rules[d][i].Action
				}
				rule := p.RuleID(v)
				id := idOf(p, v, rule)
				n, found := l.adopted[id]
				if !found {
					continue
				}
				delete(l.adopted, id)
				if err := l.start(n); err != nil { // it was killed, perhaps, before it wrote them
					return err
				}
				e := l.entries[n]
				e.verdict, e.rule, e.staged = v, rule, p.Staged
				l.numbers[id], l.byName[name] = n, append(l.byName[name], n)
			}
		}
	}
	for id, n := range l.adopted {
		if err := l.forget(n); err != nil {
			return err
		}
		delete(l.entries, n)
		delete(l.adopted, id)
	}
	return nil
}

// has reports whether a policy has the rule, or the isolation, of an entry.
func has(p *policy.Policy, e *entry) bool {
	if e.rule == "" {
		return p.Isolates[e.verdict.Direction] && p.Isolation(e.verdict.Direction).Action == e.verdict.Action
	}
	return slices.ContainsFunc(p.Rules[e.verdict.Direction], func(r policy.Rule) bool { return r.ID == e.rule && r.Action == e.verdict.Action })
}

// move records the port of an Endpoint. before: its earlier port.
func (l *ledger) move(endpoint datapath.EndpointName, before, port kernel.PolicyPortID, attached bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ports[before] == endpoint {
		delete(l.ports, before)
	}
	if attached {
		l.ports[port] = endpoint
	}
}

// read returns the decisions counted under a number.
func (l *ledger) read(n uint32) (d datapath.PolicyDecisions, err error) {
	d.Since = l.entries[n].since
	var hits []kernel.PolicyHits
	found, err := l.tables.PolicyHits.Find(n, &hits)
	if err != nil || !found {
		return d, err
	}
	last := uint32(0)
	for _, h := range hits {
		d.Connections += h.ConnectionCount
		d.Packets += h.PacketCount
		d.Bytes += h.ByteCount
		if h.PacketCount > 0 {
			last = max(last, h.LastTick)
		}
	}
	if d.Packets > 0 {
		d.Last = time.Now().Add(-kernel.DurationOf(kernel.TicksBetween(last, kernel.NowTick())))
	}
	return d, nil
}

// Counters returns the counters of a policy, and false if it is not in force.
func (p *Policies) Counters(name string) (c datapath.PolicyCounters, found bool, err error) {
	p.mu.Lock()
	inForce := p.inForce
	p.mu.Unlock()
	if inForce == nil || inForce.Policies[name] == nil {
		return c, false, nil
	}
	l := p.ledger
	l.mu.RLock()
	defer l.mu.RUnlock()
	for d := range c.Rules {
		c.Rules[d] = make(map[datapath.PolicyRule]datapath.PolicyDecisions)
	}
	for _, n := range l.byName[name] {
		e := l.entries[n]
		decisions, err := l.read(n)
		if err != nil {
			return c, false, fmt.Errorf("counters of policy %s: %w", name, err)
		}
		if d := e.verdict.Direction; e.rule == "" {
			c.Isolation[d] = decisions
		} else {
			c.Rules[d][datapath.PolicyRule{ID: e.rule, Action: e.verdict.Action}] = decisions
		}
	}
	return c, true, nil
}

// Decisions returns the known decisions of the policies of both ends about the packet of a sample:
// decided[0] of a dropped packet is why it was dropped. logged are the decisions of policies that log.
func (p *Policies) Decisions(s *kernel.Sample) (decided, logged []datapath.PolicyDecision) {
	l := p.ledger
	l.mu.RLock()
	defer l.mu.RUnlock()
	for d, rule := range s.PolicyRule {
		e := l.entries[rule&^ruleLogged]
		if e == nil || e.verdict.Policy == "" {
			continue
		}
		decision := datapath.PolicyDecision{Endpoint: l.ports[kernel.PolicyPortID(s.PolicyPort[d])], Verdict: e.verdict}
		if decision.Direction == policy.Egress && decision.Action != policy.Allow {
			decision.FormerNames = p.formerNames(decision.Endpoint, s.Daddr.Addr())
		}
		decided = append(decided, decision)
		if rule&ruleLogged != 0 {
			logged = append(logged, decision)
		}
	}
	return decided, logged
}

// Verdict returns the verdict in force on traffic of an Endpoint, as the tables give it; false: no
// policy applies, or this run has not put its policies in force yet.
func (p *Policies) Verdict(endpoint datapath.EndpointName, d policy.Direction, t policy.Traffic) (v policy.Verdict, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.adopted != nil {
		return p.verdictAdopted(endpoint, d, t)
	}
	if p.image == nil || p.failed {
		return v, false
	}
	class := p.compiler.ClassOf(t)
	if is, known := p.addrs[t.Peer]; known && !t.Node && is.Class[p.side()] != noClass {
		class = policy.Class(is.Class[p.side()])
	}
	return verdictIn(p.compiler, p.subjects, endpoint, class, p.names[t.Peer], d, t)
}

// compiled are the tables of a state that an earlier run has put in force. Its numbers may be others.
type compiled struct {
	*policy.Compiler
	*policy.Change
}

// verdictAdopted is Verdict for a state that an earlier run has put in force.
func (p *Policies) verdictAdopted(endpoint datapath.EndpointName, d policy.Direction, t policy.Traffic) (policy.Verdict, bool) {
	if p.compiled == nil {
		c := policy.NewCompiler()
		p.compiled = &compiled{c, c.Apply(p.adopted)}
	}
	class, of := p.compiled.ClassOf(t), ""
	if addr, known := p.compiled.Addrs[t.Peer]; known && !t.Node {
		class, of = addr.Class, addr.Endpoint
	}
	return verdictIn(p.compiled.Compiler, p.compiled.Subjects, endpoint, class, of, d, t)
}

// verdictIn looks a verdict up; of: the Endpoint that has the peer's address, empty: none.
func verdictIn(c *policy.Compiler, subjects map[string]policy.Subject, endpoint datapath.EndpointName, class policy.Class, of string, d policy.Direction, t policy.Traffic) (v policy.Verdict, found bool) {
	for _, s := range subjects {
		if s.Endpoint == string(endpoint) && s.Tables[d] != policy.NoTable {
			return c.Lookup(s.Tables[d], class, !t.Node && of == s.Endpoint, t), true
		}
	}
	return v, false
}
