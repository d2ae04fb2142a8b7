// SPDX-License-Identifier: Apache-2.0

// Package rules publishes compiled rule sets, each by replacing one entry of a map, and maintains
// the table of the firewall's rules.
package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Firewall is the table of the firewall's rules, which has one row.
//
// Rules have ids, by which they are counted and reported. A rule keeps its id as long as a rule
// with that name exists, across changes and restarts.
type Firewall struct {
	tables     *kernel.Tables
	images     ruleImages
	raiseEpoch func() error // re-evaluates connections
	logger     *slog.Logger

	mu     sync.Mutex
	ids    map[datapath.RuleName]uint32
	whole  map[uint32]bool // ids with a name and counters
	lastID uint32
	named  map[string]bool // devices that rules name; nil: unknown

	asked sync.RWMutex
	byID  map[uint32]ruleInForce
}

// ruleImages holds the images of rules in force, as [Images] does.
type ruleImages interface {
	Publish(set kernel.RuleSet, image *classify.Image) (changed bool, err error)
	Settle(set kernel.RuleSet) error
	IsEmpty(set kernel.RuleSet) (bool, error)
	Verify(set kernel.RuleSet) (bool, error)
}

// ruleInForce is the data of a rule that is reported with packets that match it.
type ruleInForce struct {
	name   datapath.RuleName
	action datapath.FirewallAction
	log    bool
}

// Rule returns the rule with an id, and whether packets that match it are logged. A rule from an
// earlier run has only its name until the rule set is written again.
func (f *Firewall) Rule(id uint32) (name datapath.RuleName, action datapath.FirewallAction, logged bool) {
	f.asked.RLock()
	defer f.asked.RUnlock()
	r := f.byID[id]
	return r.name, r.action, r.log
}

// Name returns the name of the rule with an id, or "".
func (f *Firewall) Name(id uint32) datapath.RuleName {
	name, _, _ := f.Rule(id)
	return name
}

// ID returns the id of a rule, and false if no rule has that name.
func (f *Firewall) ID(name datapath.RuleName) (uint32, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, ok := f.ids[name]
	return id, ok
}

// know records the data of the rules in a set.
func (f *Firewall) know(set *datapath.FirewallSet) {
	f.asked.Lock()
	defer f.asked.Unlock()
	f.byID = make(map[uint32]ruleInForce, len(set.Rules))
	for name, r := range set.Rules {
		f.byID[f.ids[name]] = ruleInForce{name, r.Action, r.Log}
	}
}

var _ datapath.RuleTable[datapath.FirewallSet] = (*Firewall)(nil)

// Adopt takes over the ids that an earlier run assigned.
func Adopt(t *kernel.Tables, images ruleImages, raiseEpoch func() error, logger *slog.Logger) (*Firewall, error) {
	f := &Firewall{
		tables: t, images: images, raiseEpoch: raiseEpoch, logger: logger,
		ids: make(map[datapath.RuleName]uint32), whole: make(map[uint32]bool), byID: make(map[uint32]ruleInForce),
	}
	err := t.RuleName.Batches(func(ids []uint32, names []kernel.RuleName) error {
		for i, id := range ids {
			f.ids[names[i].Text()] = id
			f.byID[id] = ruleInForce{name: names[i].Text()}
			f.lastID = max(f.lastID, id)
		}
		return nil
	})
	for _, id := range f.ids {
		var hits []kernel.RuleHits
		ok, e := t.RuleHits.Find(id, &hits)
		err, f.whole[id] = errors.Join(err, e), ok // if not, it was killed before it wrote them
	}
	if err != nil {
		return nil, fmt.Errorf("take over the rules of an earlier run: %w", err)
	}
	return f, nil
}

// Update implements [datapath.Table].
func (f *Firewall) Update(_ context.Context, _ datapath.SetName, set datapath.FirewallSet) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	rules, err := f.order(&set)
	if err != nil {
		return err
	}
	begin := time.Now()
	image, err := classify.Compile(rules, set.Groups)
	if err != nil {
		return err
	}
	f.logger.Debug("rules compiled", "rules", len(rules), "bytes", len(image.Bytes()), "took", time.Since(begin))
	gone := func(name datapath.RuleName) bool { _, ok := set.Rules[name]; return !ok }
	if err := f.enter(set.Rules); errors.Is(err, unix.E2BIG) {
		// Deleted rules make room; they remain in force for a moment without being counted.
		err = errors.Join(f.remove(gone), f.enter(set.Rules))
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	f.named = devicesOf(&set)
	f.know(&set)
	if err := f.publish(image); err != nil {
		return err
	}
	return f.remove(gone)
}

// order returns the rules in the order in which they are evaluated, each with its id.
func (f *Firewall) order(set *datapath.FirewallSet) ([]classify.Rule, error) {
	var rules []classify.Rule
	for i := range set.Exempt {
		rules = append(rules, classify.Rule{
			Name: fmt.Sprintf("exemption %d", i+1), Hooks: datapath.HookAll, Match: &set.Exempt[i], Action: uint8(datapath.ActionAllow),
		})
	}
	names := slices.SortedFunc(maps.Keys(set.Rules), func(a, b datapath.RuleName) int {
		return cmp.Or(cmp.Compare(set.Rules[a].Priority, set.Rules[b].Priority), cmp.Compare(a, b))
	})
	for _, name := range names {
		r := set.Rules[name]
		if len(name) >= ruleNameMax {
			return nil, &datapath.RuleError{Rule: string(name), Err: fmt.Errorf("its name has more than %d bytes", ruleNameMax-1)}
		}
		id, ok := f.ids[name]
		if !ok {
			f.lastID++
			id = f.lastID
			f.ids[name] = id
		}
		k := classify.Rule{Name: string(name), ID: id, Hooks: r.Hooks, Match: &r.Match, Action: uint8(r.Action)}
		if r.Stateless {
			k.Flags |= kernel.RuleStateless
		}
		if r.Log {
			k.Flags |= kernel.RuleLog
		}
		rules = append(rules, k)
	}
	return rules, nil
}

// ruleNameMax is RULE_NAME_MAX.
const ruleNameMax = len(kernel.RuleName{}.Name)

// enter creates the missing names and counters of rules.
func (f *Firewall) enter(rules map[datapath.RuleName]datapath.FirewallRule) error {
	known := make(map[uint32]bool, len(f.ids))
	err := f.tables.RuleName.Batches(func(ids []uint32, _ []kernel.RuleName) error {
		for _, id := range ids {
			known[id] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	none := make([]kernel.RuleHits, ebpf.MustPossibleCPU())
	for name := range rules {
		id := f.ids[name]
		if known[id] && f.whole[id] {
			continue
		}
		var k kernel.RuleName
		copy(k.Name[:], name)
		// The name first: the counters are found by the name.
		if err := f.tables.RuleName.Put(id, k); err != nil {
			return fmt.Errorf("name of rule %s: %w", name, err)
		}
		if err := f.tables.RuleHits.Put(id, none); err != nil {
			return fmt.Errorf("counters of rule %s: %w", name, err)
		}
		f.whole[id] = true
	}
	return nil
}

// publish makes a compiled rule set take effect, then causes connections that an earlier rule set
// allowed to be evaluated again.
func (f *Firewall) publish(image *classify.Image) error {
	changed, err := f.images.Publish(kernel.RulesFirewall, image)
	if changed {
		err = errors.Join(err, kernel.Step("raise epoch", f.raiseEpoch))
	}
	if err != nil {
		return err
	}
	return f.images.Settle(kernel.RulesFirewall)
}

// remove deletes the entries of rules that are not in force.
func (f *Firewall) remove(gone func(datapath.RuleName) bool) (err error) {
	for name, id := range f.ids {
		if !gone(name) {
			continue
		}
		delete(f.whole, id)
		e := f.tables.RuleHits.Delete(id)
		if e == nil {
			e = f.tables.RuleName.Delete(id) // last: the counters are found by the name
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("rule %s: %w", name, e))
			continue
		}
		delete(f.ids, name)
	}
	return err
}

// Delete implements [datapath.Table].
func (f *Firewall) Delete(context.Context, datapath.SetName) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named = map[string]bool{}
	if err := f.publish(nil); err != nil {
		return err
	}
	return f.remove(func(datapath.RuleName) bool { return true })
}

// Keys implements [datapath.Table].
func (f *Firewall) Keys(context.Context) iter.Seq2[datapath.SetName, error] {
	f.mu.Lock()
	left := len(f.ids) > 0 // of an incomplete deletion
	f.mu.Unlock()
	return func(yield func(datapath.SetName, error) bool) {
		if empty, err := f.images.IsEmpty(kernel.RulesFirewall); err != nil || !empty || left {
			yield(datapath.NodeSet, err)
		}
	}
}

// Rules implements [datapath.RuleTable].
func (f *Firewall) Rules() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, 0, len(f.ids))
	for name := range f.ids {
		names = append(names, string(name))
	}
	return names
}

// Verify implements [datapath.Table].
func (f *Firewall) Verify(context.Context, datapath.SetName) (bool, error) {
	return f.images.Verify(kernel.RulesFirewall)
}

// Counters returns the counters of a rule, and false if no rule has that name.
func (f *Firewall) Counters(name datapath.RuleName) (c datapath.RuleCounters, found bool, err error) {
	f.mu.Lock()
	id, ok := f.ids[name]
	f.mu.Unlock()
	if !ok {
		return c, false, nil
	}
	var hits []kernel.RuleHits
	if err := f.tables.RuleHits.Lookup(id, &hits); errors.Is(err, ebpf.ErrKeyNotExist) {
		return c, false, nil
	} else if err != nil {
		return c, false, fmt.Errorf("counters of rule %s: %w", name, err)
	}
	for _, h := range hits {
		c.Packets += h.PacketCount
		c.Bytes += h.ByteCount
		c.Connections += h.ConnectionCount
	}
	return c, true, nil
}

// devicesOf returns the devices that rules name.
func devicesOf(set *datapath.FirewallSet) map[string]bool {
	named := make(map[string]bool)
	for _, r := range set.Rules {
		for _, name := range slices.Concat(r.Match.In, r.Match.Out) {
			named[name] = true
		}
	}
	return named
}

// DevicesChanged causes connections to be evaluated again if a device that a rule names has a new
// ifindex or is gone. The rules themselves contain names of devices, so they need no change.
func (f *Firewall) DevicesChanged(names []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(names) == 0 || f.named != nil && !slices.ContainsFunc(names, func(name string) bool { return f.named[name] }) {
		return nil
	}
	if empty, err := f.images.IsEmpty(kernel.RulesFirewall); err != nil || empty {
		return err
	}
	return f.raiseEpoch()
}
