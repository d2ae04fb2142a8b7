// SPDX-License-Identifier: Apache-2.0

// Package gate limits concurrent requests.
package gate

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// gate limits how many requests are carried out concurrently. Waiting users take turns. It is safe
// for concurrent use.
type gate struct {
	mu      sync.Mutex
	free    int
	waiting map[int][]chan struct{} // waiting requests by user, oldest first
	turns   []int                   // the users with an entry in waiting, the next one first
}

func newGate(slots int) *gate { return &gate{free: slots, waiting: map[int][]chan struct{}{}} }

// enter waits for a slot, which the caller must release by calling leave. It returns false if ctx
// ends first.
func (g *gate) enter(ctx context.Context, uid int) bool {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return true
	}
	admitted := make(chan struct{})
	if len(g.waiting[uid]) == 0 {
		g.turns = append(g.turns, uid)
	}
	g.waiting[uid] = append(g.waiting[uid], admitted)
	g.mu.Unlock()
	select {
	case <-admitted:
		return true
	case <-ctx.Done():
	}
	g.mu.Lock()
	i := slices.Index(g.waiting[uid], admitted)
	if i >= 0 {
		g.remove(uid, i)
	}
	g.mu.Unlock()
	if i < 0 { // the request has been admitted in the meantime
		g.leave()
	}
	return false
}

// remove removes request i of a user from the list. The caller holds mu.
func (g *gate) remove(uid, i int) {
	g.waiting[uid] = slices.Delete(g.waiting[uid], i, i+1)
	if len(g.waiting[uid]) == 0 {
		delete(g.waiting, uid)
		g.turns = slices.DeleteFunc(g.turns, func(u int) bool { return u == uid })
	}
}

// leave releases a slot, or passes it to the next waiting user.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.turns) == 0 {
		g.free++
		return
	}
	uid := g.turns[0]
	admitted := g.waiting[uid][0]
	g.turns = append(g.turns[1:], uid) // remove drops uid if this was its last request
	g.remove(uid, 0)
	close(admitted)
}

// Readers contains the gates for users with read permission only. Their requests must not use all
// processors, since admins need some, and their dry runs, which can be large, must not use all
// memory.
type Readers struct {
	all *gate // every request
	dry *gate // dry runs of changes, and long requests
}

// LongRequest is the length, in bytes, above which a request must also pass through the gate for
// dry runs.
const LongRequest = 16 << 10

// mostReaders limits the concurrent requests of readers: each request may use several times as much
// memory as its reply.
const mostReaders = 4

func NewReaders() Readers {
	return Readers{all: newGate(max(1, min(mostReaders, runtime.GOMAXPROCS(0)/2))), dry: newGate(1)}
}

// Enter waits until a reader's request may be carried out. The caller must call leave afterwards.
func (r *Readers) Enter(ctx context.Context, uid int, long bool) (leave func(), ok bool) {
	if !long {
		return r.all.leave, r.all.enter(ctx, uid)
	}
	if !r.dry.enter(ctx, uid) {
		return nil, false
	}
	if !r.all.enter(ctx, uid) {
		r.dry.leave()
		return nil, false
	}
	return func() { r.all.leave(); r.dry.leave() }, true
}
