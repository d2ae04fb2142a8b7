// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// names is a set of named rules.
type names interface{ Names() []string }

// frozen is the period in which a rule set of an earlier run is kept unchanged, because the desired
// state was lost and not all rules may have been configured again.
type frozen struct {
	// released is closed when the set may be replaced: either all of its rules have been configured
	// again, or the owners' grace period has ended.
	released chan struct{}
	until    time.Time

	// The result of the last check, which is protected by the mutex of the ruleSet.
	missing  []string               // rules in force that have not been configured again, in order
	complete map[state.Key]struct{} // objects whose rules are all in force, under the same names
}

// hasRows reports whether a table has a row, or cannot be read.
func hasRows[V any](table datapath.RuleTable[V]) bool {
	for range table.Keys(context.Background()) {
		return true
	}
	return false
}

func (r *ruleSet[V]) isFrozen() bool {
	select {
	case <-r.frozen.released:
		return false
	default:
		return true
	}
}

// checkFrozen checks which of the rules in force have been configured again, and unfreezes the set
// once all have been, unless groups select Endpoints by labels: it is impossible to detect whether
// such a group still lacks Endpoints.
func (r *ruleSet[V]) checkFrozen(s *state.Snapshot) {
	set, _, g := r.gather(s)
	wanted, inForce := map[string]bool{}, map[string]bool{}
	for _, name := range set.Names() {
		wanted[name] = true
	}
	var missing []string
	complete := map[state.Key]struct{}{}
	for _, name := range r.Rules() {
		inForce[name] = true
		if wanted[name] {
			complete[ownerOf(r.kind, name)] = struct{}{}
		} else {
			missing = append(missing, name)
		}
	}
	for name := range wanted {
		if !inForce[name] {
			delete(complete, ownerOf(r.kind, name))
		}
	}
	slices.Sort(missing)
	r.mu.Lock()
	r.take(g)
	r.frozen.missing, r.frozen.complete = missing, complete
	r.mu.Unlock()
	if len(missing) == 0 && !g.isLabelled() {
		r.unfreeze(s)
	}
}

// unfreeze ends the period in which the set is kept.
func (r *ruleSet[V]) unfreeze(s *state.Snapshot) {
	if s != nil {
		r.replace(s) // before released is closed, so that waiters also wait for this set
	}
	close(r.frozen.released)
	r.changed()
}

// MarkInitialized allows a set from an earlier run to be replaced and removed.
func (r *ruleSet[V]) MarkInitialized() {
	if r.isFrozen() {
		r.unfreeze(r.snapshot)
	}
	r.Reconciler.MarkInitialized()
}

// IsSettled reports whether all objects are done.
func (r *ruleSet[V]) IsSettled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Reconciler.IsSettled() && !r.isFrozen() && !r.isKept() && len(r.groups.omitted) == 0
}

// isStillInForce reports whether the kept set already masquerades for a PodNetwork: other changes to
// the PodNetwork must not prevent pods from being attached. The caller holds r.mu.
func (r *ruleSet[V]) isStillInForce(o *state.Object) bool {
	_, complete := r.frozen.complete[o.Key]
	return complete && o.Kind == state.KindPodNetwork
}

// waitsFor returns why the old set is kept, and which owners must configure their objects. The caller
// holds r.mu.
func (r *ruleSet[V]) waitsFor() string {
	rest := "groups may select Endpoints by labels that have not been configured again"
	if n := len(r.frozen.missing); n > 0 {
		rest = fmt.Sprintf("%s is in force and was not configured again", ownerOf(r.kind, r.frozen.missing[0]))
		if n > 1 {
			rest += fmt.Sprintf(", and %d more were not", n-1)
		}
	}
	return fmt.Sprintf("desired state was lost: the rules of %s that are in force stay until %s at the latest: %s", r.kind, r.frozen.until.Format(time.RFC3339), rest)
}
