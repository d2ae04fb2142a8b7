// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// gate bounds how many requests are carried out at the same time. Where they wait, users
// take turns. Safe for concurrent use.
type gate struct {
	mu      sync.Mutex
	free    int
	waiting map[int][]chan struct{} // by user, the oldest first
	turns   []int                   // the users of waiting, the next first
}

func newGate(slots int) *gate { return &gate{free: slots, waiting: map[int][]chan struct{}{}} }

// enter waits for a slot, which leave gives back. It reports false if ctx ends first.
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
	if i < 0 { // admitted meanwhile
		g.leave()
	}
	return false
}

// remove takes request i of a user off the list. The caller holds mu.
func (g *gate) remove(uid, i int) {
	g.waiting[uid] = slices.Delete(g.waiting[uid], i, i+1)
	if len(g.waiting[uid]) == 0 {
		delete(g.waiting, uid)
		g.turns = slices.DeleteFunc(g.turns, func(u int) bool { return u == uid })
	}
}

// leave gives a slot back, to the next user if one waits.
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

// readers are the gates of users who may only read. Their requests must not keep the
// processors from what admins ask for, and their dry runs, which can be large, not the
// memory.
type readers struct {
	all *gate // every request
	dry *gate // changes, which are dry runs, and requests that are long
}

// longRequest is how long a request is that passes the gate for large ones, in bytes.
const longRequest = 16 << 10

func newReaders() readers {
	return readers{all: newGate(max(1, runtime.GOMAXPROCS(0)/2)), dry: newGate(1)}
}

// enter waits until a reader's request may be carried out. leave is to be called then.
func (r *readers) enter(ctx context.Context, uid int, long bool) (leave func(), ok bool) {
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
