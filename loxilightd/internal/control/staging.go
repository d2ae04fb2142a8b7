// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// Limits on the staged transactions of all users together.
const (
	maxStages       = 32
	maxStagedObject = 1 << 18
	maxStagedMemory = 256 << 20 // bytes, as budgets count them
	stageTimeout    = 30 * time.Second
)

// stageID identifies a transaction of several requests. Each user has a separate set of ids.
type stageID struct {
	uid  int
	name string
}

// staging collects transactions that consist of several requests. It is safe for concurrent use.
type staging struct {
	mu     sync.Mutex
	byID   map[stageID]*stage
	count  int // objects of all transactions
	memory int // bytes of all transactions
}

// stage is what one transaction contains so far. Its lock is held while a request is added.
type stage struct {
	mu      sync.Mutex
	request *request
	objects int
	used    decode.Amount // budget that its requests have used
	closed  bool          // dropped, or committed
	expiry  *time.Timer
}

// add adds a request. parse checks its objects; size is their number. An error ends the
// transaction.
func (g *staging) add(id stageID, r *request, size int, parse func(base int) *api.Error) (staged int, err *api.Error) {
	st, err := g.open(id, r, size)
	if err != nil {
		return 0, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		g.release(size)
		return 0, forgotten(id)
	}
	st.objects += size
	r.budget.DeductPrefixes(st.used.Prefixes)
	err = parse(st.objects - size)
	if err == nil {
		err = st.join(r)
	}
	if err == nil {
		err = g.remember(st, r.budget.Used())
	}
	if err != nil {
		g.drop(id, st)
		return 0, err
	}
	st.expiry.Reset(stageTimeout)
	return st.objects, nil
}

// open returns the stage for id, and reserves room in it for size further objects.
func (g *staging) open(id stageID, r *request, size int) (*stage, *api.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st, ok := g.byID[id]
	if !ok && len(g.byID) == maxStages {
		return nil, api.Errorf(api.ReasonUnavailable, "%d transactions are being collected, and there is no room for another: try again later", maxStages)
	}
	if g.count+size > maxStagedObject {
		return nil, api.Errorf(api.ReasonUnavailable, "%d objects of transactions are being collected, and there is no room for %d more: try again later", g.count, size)
	}
	g.count += size
	if ok {
		return st, nil
	}
	st = &stage{request: &request{method: r.method}}
	st.expiry = time.AfterFunc(stageTimeout, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		g.drop(id, st)
	})
	if g.byID == nil {
		g.byID = map[stageID]*stage{}
	}
	g.byID[id] = st
	return st, nil
}

// join adds r to the staged request.
func (st *stage) join(r *request) *api.Error {
	all := st.request
	switch {
	case r.method != all.method:
		return invalid("transaction", "began as %s and cannot continue as %s", all.method, r.method)
	case all.scope == nil:
		all.scope = r.scope
	case all.scope.Owner != r.scope.Owner || !slices.Equal(kindsOf(all.scope), kindsOf(r.scope)):
		return invalid("transaction", "began with owner %s and kinds %v, and cannot continue with %s and %v",
			all.scope.Owner, all.scope.Kinds, r.scope.Owner, r.scope.Kinds)
	}
	all.puts = append(all.puts, r.puts...)
	all.deletes = append(all.deletes, r.deletes...)
	return nil
}

// take ends a transaction: it inserts the staged requests before r. Without a transaction, it only
// checks r.
func (g *staging) take(id stageID, r *request, parse func(base int) *api.Error) *api.Error {
	if id.name == "" {
		return parse(0)
	}
	g.mu.Lock()
	st := g.byID[id]
	g.mu.Unlock()
	if st == nil {
		return forgotten(id)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return forgotten(id)
	}
	defer g.drop(id, st)
	r.budget.DeductPrefixes(st.used.Prefixes)
	if err := parse(st.objects); err != nil {
		return err
	}
	if err := st.join(r); err != nil {
		return err
	}
	r.puts, r.deletes, r.scope = st.request.puts, st.request.deletes, st.request.scope
	return nil
}

// forget ends a transaction if it exists.
func (g *staging) forget(id stageID) {
	g.mu.Lock()
	st := g.byID[id]
	g.mu.Unlock()
	if st == nil {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	g.drop(id, st)
}

// drop removes st. The caller holds st.mu.
func (g *staging) drop(id stageID, st *stage) {
	if st.closed {
		return
	}
	st.closed = true
	st.expiry.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, id)
	g.count -= st.objects
	g.memory -= st.used.Memory
}

// remember adds to st the budget that a request has used.
func (g *staging) remember(st *stage, used decode.Amount) *api.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.memory+used.Memory > maxStagedMemory {
		return api.Errorf(api.ReasonUnavailable, "transactions of %d MiB are being collected, and there is no room for this request: try again later, or make the transaction smaller",
			g.memory>>20)
	}
	g.memory += used.Memory
	st.used.Memory += used.Memory
	st.used.Prefixes += used.Prefixes
	return nil
}

func (g *staging) release(size int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count -= size
}

func forgotten(id stageID) *api.Error {
	return api.Errorf(api.ReasonConflict, "transaction %q is not known: it was committed, refused, or not continued for %s; begin again",
		decode.Shorten(id.name), stageTimeout).At("", "transaction")
}
