// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"testing"
)

// TestGateTurns: if a second user sends a request while many requests from a first user wait, the
// second user's request is the next but one to be admitted.
func TestGateTurns(t *testing.T) {
	g := newGate(1)
	ctx, cancel := context.WithCancel(t.Context())
	if !g.enter(ctx, 1) {
		t.Fatal("the first request waits")
	}
	order := make(chan int, 16)
	wait := func(uid int) {
		before := g.queued()
		go func() {
			if g.enter(ctx, uid) {
				order <- uid
			} else {
				order <- -uid
			}
		}()
		for g.queued() == before {
		}
	}
	for range 5 {
		wait(1)
	}
	wait(2)
	for i, want := range []int{1, 2, 1} {
		g.leave()
		if got := <-order; got != want {
			t.Errorf("request %d is of user %d, want %d", i, got, want)
		}
	}
	cancel()
	for range 3 {
		if got := <-order; got != -1 {
			t.Errorf("user %d, want -1: the request ended while it waited", got)
		}
	}
	g.leave()
	if g.free != 1 || g.queued() != 0 || len(g.turns) != 0 {
		t.Errorf("%d free, %d wait, turns %v", g.free, g.queued(), g.turns)
	}
}

func (g *gate) queued() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.waiting {
		n += len(w)
	}
	return n
}
