// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// firstHealth limits how long the first round after a start waits for the health of backends that
// are in use or new: a backend may have failed while no daemon was running.
const firstHealth = 1200 * time.Millisecond

// follow applies changes in the store until ctx ends.
func (n *Node) follow(ctx context.Context) {
	first := true
	grace := time.NewTimer(time.Until(n.opts.PruneNotBefore))
	defer grace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.watch.C():
			snapshot, changed := n.watch.Take()
			n.noteApplying(snapshot)
			n.setChecks(snapshot, changed)
			if first {
				first = false
				latestFirst(snapshot, changed)
				changed = n.applyUnchecked(ctx, snapshot, changed)
				n.awaitHealth(ctx)
			}
			n.apply(ctx, snapshot, changed)
			n.noteApplied(snapshot)
		case <-n.pending:
			// The store may have changed in the meantime; its watch will report that.
			n.apply(ctx, n.snapshot(), n.takeChangedHealth())
		case <-n.world:
			if !first {
				n.applyWorld(ctx, n.snapshot())
			}
		case <-n.exempted:
			if !first { // otherwise, the first round applies the world
				n.firewall.make(n.snapshot())
				n.policies.replace(n.snapshot())
				n.policies.report()
			}
		case <-grace.C:
		}
		if !first && !time.Now().Before(n.opts.PruneNotBefore) {
			n.markInitialized()
		}
	}
}

// applyWorld updates everything that depends on devices, if devices have changed.
func (n *Node) applyWorld(ctx context.Context, s *state.Snapshot) {
	changed := n.uplinksChanged(s)
	if changed || n.omittedChanged(s) || n.nat.localAddrsChanged() {
		n.nat.make(s)
	}
	if changed {
		n.waitNAT(ctx) // before rules match a port by a different name
		n.ports.Trigger()
	}
	if n.firewall.localAddrsChanged() {
		n.firewall.make(s)
	}
	if n.policies.isLeaving() {
		n.policies.apply(s, nil)
	}
	if peers := n.pathMTUsChanged(s); changed || len(peers) > 0 || n.podMTUChanged() {
		n.apply(ctx, s, peers)
	}
}

// applyUnchecked applies the objects without health checks, and returns the others.
func (n *Node) applyUnchecked(ctx context.Context, s *state.Snapshot, changed []state.Key) (checked []state.Key) {
	var unchecked []state.Key
	for _, k := range changed {
		if o, ok := s.Get(k); ok && hasChecks(o) {
			checked = append(checked, k)
		} else {
			unchecked = append(unchecked, k)
		}
	}
	n.apply(ctx, s, unchecked)
	return checked
}

// latestFirst orders keys by the revisions of their objects, latest first. After startup,
// therefore, changes made while the daemon was down are applied before objects that the data plane
// already has.
func latestFirst(s *state.Snapshot, keys []state.Key) {
	revision := func(k state.Key) uint64 {
		if o, ok := s.Get(k); ok {
			return o.Revision
		}
		return 0
	}
	slices.SortFunc(keys, func(a, b state.Key) int { return cmp.Compare(revision(b), revision(a)) })
}

func hasChecks(o *state.Object) bool {
	v, ok := o.Value.(*state.Service)
	return ok && v.Health != nil
}

func (n *Node) awaitHealth(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstHealth)
	defer cancel()
	n.checker.WaitKnown(ctx)
}

// setChecks passes the backends of changed services to the checker.
func (n *Node) setChecks(s *state.Snapshot, changed []state.Key) {
	for _, k := range changed {
		if k.Kind != state.KindService {
			continue
		}
		var check health.Check
		var backends []netip.AddrPort
		left := n.left[k.Name]
		delete(n.left, k.Name)
		if o, ok := s.Get(k); ok && hasChecks(o) {
			v := o.Value.(*state.Service)
			check = checkOf(v.Health)
			for _, b := range v.Backends {
				if b.State != datapath.BackendDown {
					backends = append(backends, b.Addr)
				}
				if b.State != datapath.BackendActive {
					delete(left, b.Addr) // it is out of use because of its spec, not its health
				}
			}
		}
		n.checker.Set(k.Name, check, backends, left)
	}
}

func checkOf(h *state.HealthCheck) health.Check {
	return health.Check{
		Type: health.Type(h.Type), Path: h.Path, Port: h.Port,
		Interval: h.Interval, Timeout: h.Timeout, Healthy: h.Healthy, Unhealthy: h.Unhealthy,
	}
}

// orderTimeout limits how long one table waits for another table that must be applied first.
const orderTimeout = 2 * time.Second

// policyTimeout is how long new ports wait for Policies. They are compiled within seconds; if that
// fails, the data plane attaches no Endpoint.
const policyTimeout = 30 * time.Second

// apply passes changed objects to the tables. It deletes last, so that a resource that moves between
// objects is never unowned. Objects on which others depend are created first and deleted last.
func (n *Node) apply(ctx context.Context, s *state.Snapshot, changed []state.Key) {
	untilStop := ctx
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	n.maintenance.objectsChanged()
	changed = n.peerRoutes.take(s, changed)
	roaming := n.roaming.take(s, changed)
	n.services.apply(s, changed, false)
	n.services.apply(s, changed, true)
	if changed == nil || isDerivedFrom(changed) {
		n.derive(s)
		defer n.rowsChanged(n.bridges) // a PodNetwork may be changed without its rows
		defer signal(n.world)          // a port's MTU is known once our programs are attached
	} else if slices.ContainsFunc(changed, func(k state.Key) bool { return k.Kind == state.KindEndpoint }) {
		defer signal(n.world) // once no pod is left, the MTU may change
	}
	n.applyRules(s, changed, roaming)

	for _, t := range n.order {
		with := changed
		switch t {
		case ordered(n.ports):
			if slices.ContainsFunc(changed, needsRules) {
				// No packet on a new port may bypass the rules in the same transaction.
				n.waitRules(ctx)
				n.waitPolicies(untilStop)
			}
		case ordered(n.endpoints):
			with = n.withEndpoints(s, changed)
		case ordered(n.mirrors):
			if with = n.withMirrors(s, changed); len(with) > 0 {
				n.waitSources(ctx, s, with)
			}
		}
		t.applyAndWait(ctx, s, with, false)
	}
	for _, t := range slices.Backward(n.order) {
		t.applyAndWait(ctx, s, changed, true)
	}
	if n.policies.isLeaving() {
		n.policies.apply(s, nil) // once their ports are detached
	}
	n.conditions.Trigger()
}

// service returns the desired state of a service, without its unhealthy backends.
func (n *Node) service(name string, v *state.Service) datapath.Service {
	s := v.Service
	if v.Health == nil {
		return s
	}
	s.Backends = append([]datapath.Backend(nil), s.Backends...)
	for i := range s.Backends {
		b := &s.Backends[i]
		if n.checker.Result(name, b.Addr).State == health.Unhealthy {
			b.State = datapath.BackendDown
		}
	}
	return s
}

// markInitialized allows the deletion of rows that are not desired.
func (n *Node) markInitialized() {
	n.mu.Lock()
	before := n.initialized
	n.initialized = true
	n.mu.Unlock()
	n.left = nil
	if !before {
		for _, t := range n.tables {
			t.MarkInitialized()
		}
	}
}

// healthChanged is called by the health checker.
func (n *Node) healthChanged(t health.Target, r health.Result) {
	n.conditions.Trigger()
	n.mu.Lock()
	n.changedHealth[t.Service] = struct{}{}
	n.mu.Unlock()
	signal(n.pending)
	if n.opts.HealthChanged != nil {
		n.opts.HealthChanged(t, r)
	}
}

func (n *Node) takeChangedHealth() []state.Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	keys := make([]state.Key, 0, len(n.changedHealth))
	for name := range n.changedHealth {
		keys = append(keys, state.Key{Kind: state.KindService, Name: name})
	}
	clear(n.changedHealth)
	return keys
}
