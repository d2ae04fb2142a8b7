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

// rules is the part for objects that are applied as whole sets: the rules of the firewall and of
// NAT, and the address groups that both refer to.
type rules struct {
	tell     func(state.Key, Status)
	firewall *ruleSet[datapath.FirewallSet]
	nat      *ruleSet[datapath.NATSet]
	absent   *hostPorts // NAT objects without an address on this node

	mu       sync.Mutex
	snapshot *state.Snapshot // from which the sets were last made

	telling sync.Mutex // held while reporting, so that reports are in order
	told    map[state.Key]toldRule
}

// toldRule is the last reported outcome of an object.
type toldRule struct {
	Status
	firewall, nat version
}

// ruleKinds are the kinds whose objects form the sets.
var ruleKinds = []string{state.KindFirewallRule, state.KindNAT, state.KindAddressGroup}

func newRules(n *Node) *rules {
	r := &rules{tell: n.tell, absent: &n.hostPorts, told: map[state.Key]toldRule{}}
	r.firewall = newRuleSet(n, state.KindFirewallRule, n.opts.Plane.Firewall(), r.tellAll, buildFirewall(&n.exempt))
	outcome := func() {
		r.tellAll()
		n.derived.tellAll()
	}
	r.nat = newRuleSet(n, state.KindNAT, n.opts.Plane.NAT(), outcome, n.buildNAT)
	return r
}

// apply applies changes; guests: the guests among the Endpoints changed, too.
func (r *rules) apply(s *state.Snapshot, changed []state.Key, guests bool) {
	if guests || hasPodRules(s, changed) {
		// NAT has derived rules, too.
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
	r.tellAll()
}

// applyFirewall makes the firewall set again, because exempt packets or addresses of the node
// changed.
func (r *rules) applyFirewall(s *state.Snapshot) {
	r.firewall.apply(s, []state.Key{{Kind: state.KindFirewallRule}})
}

// applyNAT makes the NAT set again, because devices or addresses of the node changed.
func (r *rules) applyNAT(s *state.Snapshot) {
	r.nat.apply(s, []state.Key{{Kind: state.KindNAT}})
	r.tellAll()
}

func (r *rules) taken() *state.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshot
}

func (r *rules) status(k state.Key) (Status, bool) {
	s := r.taken()
	if s == nil {
		return Status{}, false
	}
	o, ok := s.Get(k)
	if !ok {
		return Status{}, false
	}
	return r.of(o, s.Revision), true
}

// of returns the status of an object as of revision. A group without references is realised.
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
	worst := Status{State: reconcile.Realised, Revision: revision}
	if r.firewall.has(o.Name) {
		worst = r.firewall.of(o)
	}
	if r.nat.has(o.Name) {
		if s := r.nat.of(o); worst.State == reconcile.Realised || s.State == reconcile.Failed && worst.State == reconcile.Pending {
			worst = s
		}
	}
	return worst
}

// tellAll reports every object whose status changed.
func (r *rules) tellAll() {
	r.telling.Lock()
	defer r.telling.Unlock()
	s := r.taken()
	if s == nil {
		return
	}
	for _, kind := range ruleKinds {
		for o := range s.After(kind, "") {
			firewall, nat := r.firewall.version(o), r.nat.version(o)
			now := toldRule{r.of(o, s.Revision), firewall, nat}
			if now.State == reconcile.Pending && now.Failures == 0 {
				continue // not tried yet
			}
			before, known := r.told[o.Key]
			same := before.firewall == firewall && before.nat == nat
			if known && same && before.State == now.State && before.Message == now.Message {
				continue
			}
			r.told[o.Key] = now
			r.tell(o.Key, now.Status)
		}
	}
	for k := range r.told {
		if _, ok := s.Get(k); !ok {
			delete(r.told, k)
			r.tell(k, Status{State: reconcile.Removed, Revision: s.Revision})
		}
	}
}

func (r *rules) notRealised(limit int) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	s := r.taken()
	if s == nil || r.asWanted() {
		return some, 0
	}
	for _, kind := range ruleKinds {
		for o := range s.After(kind, "") {
			now := r.of(o, s.Revision)
			if now.State == reconcile.Realised {
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

// asWanted reports whether both sets are realised.
func (r *rules) asWanted() bool {
	f, hasFirewall := r.firewall.Status(datapath.NodeSet)
	n, hasNAT := r.nat.Status(datapath.NodeSet)
	return (!hasFirewall || f.State == reconcile.Realised) && (!hasNAT || n.State == reconcile.Realised) && !r.firewall.isHeld() && !r.nat.isHeld() &&
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
		failed[state.KindFirewallRule] = r.firewall.waitRealised(ctx, revision)
	}
	if about(state.KindNAT, r.nat.has) {
		failed[state.KindNAT] = r.nat.waitRealised(ctx, revision)
		r.absent.wait(ctx, keys)
	}
	if ctx.Err() == nil {
		return nil
	}
	for _, k := range keys {
		s, there := r.status(k)
		if there && s.State != reconcile.Realised || !there && failed[k.Kind] {
			left = append(left, k)
		}
	}
	return left
}

// waitTried waits until the current desired sets were tried, or ctx ends.
func (r *rules) waitTried(ctx context.Context) {
	_ = r.firewall.WaitTried(ctx, datapath.NodeSet) // if it takes longer, ports do not wait
	_ = r.nat.WaitTried(ctx, datapath.NodeSet)
}

// waitNAT waits a short time until the current desired NAT rules were tried.
func (r *rules) waitNAT(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	_ = r.nat.WaitTried(ctx, datapath.NodeSet) // if it takes longer, ports do not wait
}

// problems reports faults that no object's status shows: a deleted object is still in force.
func (r *rules) problems() (list []string) {
	for _, text := range []string{r.firewall.trouble(), r.nat.trouble()} {
		if text != "" {
			list = append(list, text)
		}
	}
	return list
}

// Run works until ctx ends.
func (r *rules) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { r.firewall.Run(ctx) })
	both.Go(func() { r.nat.Run(ctx) })
	both.Wait()
}

// Kick has both sets verified.
func (r *rules) Kick() { r.firewall.Kick(); r.nat.Kick() }

// Complete allows sets of an earlier run to be replaced and removed.
func (r *rules) Complete() {
	s := r.taken()
	r.firewall.release(s)
	r.nat.release(s)
	r.firewall.Complete()
	r.nat.Complete()
}

// Repairs returns how often a set was repaired.
func (r *rules) Repairs() uint64 { return r.firewall.Repairs() + r.nat.Repairs() }

func (r *rules) settled() []<-chan struct{} {
	return []<-chan struct{}{r.firewall.Settled(), r.nat.Settled()}
}
