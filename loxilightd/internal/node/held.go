// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// names is a set of rules, which have names.
type names interface{ Names() []string }

// held is the time in which a set that an earlier run left is kept whole, since the
// desired state was lost and not all of its rules may have been told again.
type held struct {
	// released is closed when the set may be replaced: each of its rules was told again,
	// or their owners have had their time.
	released chan struct{}
	until    time.Time

	// What was found at the last change; the mutex of the ruleSet guards it.
	missing []string               // rules in force that nobody has told again, in order
	there   map[state.Key]struct{} // objects of which all rules are in force, under the same names
}

// leftBehind says whether a table has a row, or cannot tell.
func leftBehind[V any](table datapath.RuleTable[V]) bool {
	for range table.Keys(context.Background()) {
		return true
	}
	return false
}

func (r *ruleSet[V]) isHeld() bool {
	select {
	case <-r.held.released:
		return false
	default:
		return true
	}
}

// hold sees which rules in force were told again, and lets the set be replaced once all
// were. Groups of Endpoints by their labels may lack some of these, and nobody can tell.
func (r *ruleSet[V]) hold(s *state.Snapshot) {
	set, _ := r.gather(s)
	wanted, inForce := map[string]bool{}, map[string]bool{}
	for _, name := range set.Names() {
		wanted[name] = true
	}
	var missing []string
	there := map[state.Key]struct{}{}
	for _, name := range r.Rules() {
		inForce[name] = true
		if wanted[name] {
			there[ownerOf(r.kind, name)] = struct{}{}
		} else {
			missing = append(missing, name)
		}
	}
	for name := range wanted {
		if !inForce[name] {
			delete(there, ownerOf(r.kind, name))
		}
	}
	slices.Sort(missing)
	r.mu.Lock()
	r.held.missing, r.held.there = missing, there
	whole := len(missing) == 0 && !r.labelled
	r.mu.Unlock()
	if whole {
		r.release(s)
	}
}

// release ends the time in which the set is kept.
func (r *ruleSet[V]) release(s *state.Snapshot) {
	if !r.isHeld() {
		return
	}
	if s != nil {
		r.make(s) // first: whoever waits for the release then waits for this
	}
	close(r.held.released)
}

// ofHeld returns what became of an object while the set of before is kept. Pods' networks
// are as wanted where that masquerades for them already: what else it may say of them
// does not keep pods from being attached.
func (r *ruleSet[V]) ofHeld(o *state.Object) Status {
	r.mu.Lock()
	_, there := r.held.there[o.Key]
	r.mu.Unlock()
	if there && o.Kind == state.KindPodNetwork {
		return Status{State: reconcile.Realised, Revision: o.Revision}
	}
	return Status{State: reconcile.Pending, Revision: o.Revision, Message: r.waitsFor(), Failures: 1}
}

// waitsFor says why the set of before is kept, and for whom.
func (r *ruleSet[V]) waitsFor() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := "groups may choose Endpoints by their labels that nobody has told again"
	if n := len(r.held.missing); n > 0 {
		rest = fmt.Sprintf("%s was not told again, and it is in force", ownerOf(r.kind, r.held.missing[0]))
		if n > 1 {
			rest += fmt.Sprintf(" as are %d more", n-1)
		}
	}
	return fmt.Sprintf("desired state was lost: the rules of %s that are in force stay until %s at the latest: %s", r.kind, r.held.until.Format(time.RFC3339), rest)
}
