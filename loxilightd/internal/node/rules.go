// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// rules is the part for objects that are applied as whole sets: firewall rules, NAT rules, and the
// address groups to which they refer.
type rules struct {
	report   func(state.Key, Status)
	firewall *ruleSet[datapath.FirewallSet]
	nat      *ruleSet[datapath.NATSet]
	absent   *hostPorts // NAT objects for addresses that this node does not have

	mu       sync.Mutex
	snapshot *state.Snapshot // snapshot from which the sets were last made

	reporting sync.Mutex // held while reporting, so that reports are in order
	reported  map[state.Key]reportedRule
}

// reportedRule is the last result that was reported for an object.
type reportedRule struct {
	Status
	firewall, nat version
}

// ruleKinds are the kinds whose objects form the sets.
var ruleKinds = []string{state.KindFirewallRule, state.KindNAT, state.KindAddressGroup}

func newRules(n *Node) *rules {
	r := &rules{report: n.report, absent: &n.hostPorts, reported: map[state.Key]reportedRule{}}
	r.firewall = newRuleSet(n, state.KindFirewallRule, n.opts.Plane.Firewall(), r.reportAll, buildFirewall(&n.exempt))
	outcome := func() {
		r.reportAll()
		n.derived.reportAll()
	}
	r.nat = newRuleSet(n, state.KindNAT, n.opts.Plane.NAT(), outcome, n.buildNAT)
	return r
}

// apply applies changes. roaming is set if the roaming pods have changed too.
func (r *rules) apply(s *state.Snapshot, changed []state.Key, roaming bool) {
	if roaming || hasPodRules(s, changed) {
		// NAT has derived rules too.
		changed = append(slices.Clip(changed), state.Key{Kind: state.KindNAT})
	}
	if !slices.ContainsFunc(changed, func(k state.Key) bool { return slices.Contains(ruleKinds, k.Kind) || k.Kind == state.KindEndpoint }) {
		return
	}
	r.firewall.apply(s, changed)
	r.nat.apply(s, changed)
	r.mu.Lock()
	r.snapshot = s
	r.mu.Unlock()
	r.reportAll()
}

// applyFirewall rebuilds the firewall set, because exempt packets or the node's addresses have
// changed.
func (r *rules) applyFirewall(s *state.Snapshot) {
	r.firewall.apply(s, []state.Key{{Kind: state.KindFirewallRule}})
}

// applyNAT rebuilds the NAT set, because devices or the node's addresses have changed.
func (r *rules) applyNAT(s *state.Snapshot) {
	r.nat.apply(s, []state.Key{{Kind: state.KindNAT}})
	r.reportAll()
}

func (r *rules) lastSnapshot() *state.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshot
}

func (r *rules) status(k state.Key) (Status, bool) {
	s := r.lastSnapshot()
	if s == nil {
		return Status{}, false
	}
	o, ok := s.Get(k)
	if !ok {
		return Status{}, false
	}
	return r.of(o, s.Revision), true
}

// of returns the status of an object as of revision. A group that no rule refers to is done.
func (r *rules) of(o *state.Object, revision uint64) Status {
	switch o.Kind {
	case state.KindFirewallRule:
		return r.firewall.of(o)
	case state.KindNAT:
		if s, absent := r.absent.of(o); absent {
			return s
		}
		return r.nat.of(o)
	}
	worst := Status{State: reconcile.Done, Revision: revision}
	if r.firewall.has(o.Name) {
		worst = r.firewall.of(o)
	}
	if r.nat.has(o.Name) {
		if s := r.nat.of(o); worst.State == reconcile.Done || s.State == reconcile.Failed && worst.State == reconcile.Pending {
			worst = s
		}
	}
	return worst
}

// reportAll reports every object whose status has changed.
func (r *rules) reportAll() {
	r.reporting.Lock()
	defer r.reporting.Unlock()
	s := r.lastSnapshot()
	if s == nil {
		return
	}
	for _, kind := range ruleKinds {
		for o := range s.After(kind, "") {
			firewall, nat := r.firewall.version(o), r.nat.version(o)
			now := reportedRule{r.of(o, s.Revision), firewall, nat}
			if now.State == reconcile.Pending && now.Failures == 0 {
				continue // not tried yet
			}
			before, known := r.reported[o.Key]
			same := before.firewall == firewall && before.nat == nat
			if known && same && before.State == now.State && before.Message == now.Message {
				continue
			}
			r.reported[o.Key] = now
			r.report(o.Key, now.Status)
		}
	}
	for k := range r.reported {
		if _, ok := s.Get(k); !ok {
			delete(r.reported, k)
			r.report(k, Status{State: reconcile.Removed, Revision: s.Revision})
		}
	}
}

func (r *rules) notDone(limit int) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	s := r.lastSnapshot()
	if s == nil || r.asWanted() {
		return some, 0
	}
	for _, kind := range ruleKinds {
		for o := range s.After(kind, "") {
			now := r.of(o, s.Revision)
			if now.State == reconcile.Done {
				continue
			}
			count++
			if len(some) < limit {
				some[o.Key] = now
			}
		}
	}
	return some, count
}

// asWanted reports whether both sets are done.
func (r *rules) asWanted() bool {
	f, hasFirewall := r.firewall.Status(datapath.NodeSet)
	n, hasNAT := r.nat.Status(datapath.NodeSet)
	return (!hasFirewall || f.State == reconcile.Done) && (!hasNAT || n.State == reconcile.Done) && !r.firewall.isFrozen() && !r.nat.isFrozen() &&
		r.absent.none()
}

func (r *rules) wait(ctx context.Context, revision uint64, keys []state.Key) (left []state.Key) {
	about := func(set string, has func(string) bool) bool {
		return slices.ContainsFunc(keys, func(k state.Key) bool {
			return k.Kind == set || k.Kind == state.KindAddressGroup && has(k.Name)
		})
	}
	failed := map[string]bool{}
	if about(state.KindFirewallRule, r.firewall.has) {
		failed[state.KindFirewallRule] = r.firewall.waitDone(ctx, revision)
	}
	if about(state.KindNAT, r.nat.has) {
		failed[state.KindNAT] = r.nat.waitDone(ctx, revision)
		r.absent.wait(ctx, keys)
	}
	if ctx.Err() == nil {
		return nil
	}
	for _, k := range keys {
		s, there := r.status(k)
		if there && s.State != reconcile.Done || !there && failed[k.Kind] {
			left = append(left, k)
		}
	}
	return left
}

// waitTried waits until an attempt has been made to apply the current desired sets, or ctx ends.
func (r *rules) waitTried(ctx context.Context) {
	_ = r.firewall.WaitTried(ctx, datapath.NodeSet) // if this takes longer, ports do not wait
	_ = r.nat.WaitTried(ctx, datapath.NodeSet)
}

// waitNAT waits for a short time until an attempt has been made to apply the current desired NAT
// rules.
func (r *rules) waitNAT(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	_ = r.nat.WaitTried(ctx, datapath.NodeSet) // if this takes longer, ports do not wait
}

// problems returns faults that do not appear in any object's status, such as a deleted object that
// is still in force.
func (r *rules) problems() (list []string) {
	for _, text := range []string{r.firewall.trouble(), r.nat.trouble()} {
		if text != "" {
			list = append(list, text)
		}
	}
	return list
}

// Run runs both reconcilers until ctx ends.
func (r *rules) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { r.firewall.Run(ctx) })
	both.Go(func() { r.nat.Run(ctx) })
	both.Wait()
}

// Trigger starts a verification of both sets.
func (r *rules) Trigger() { r.firewall.Trigger(); r.nat.Trigger() }

// MarkInitialized allows sets from an earlier run to be replaced and removed.
func (r *rules) MarkInitialized() {
	s := r.lastSnapshot()
	r.firewall.unfreeze(s)
	r.nat.unfreeze(s)
	r.firewall.MarkInitialized()
	r.nat.MarkInitialized()
}

// Repairs returns how often a set has been repaired.
func (r *rules) Repairs() uint64 { return r.firewall.Repairs() + r.nat.Repairs() }

func (r *rules) synced() []<-chan struct{} {
	return []<-chan struct{}{r.firewall.Synced(), r.nat.Synced()}
}
