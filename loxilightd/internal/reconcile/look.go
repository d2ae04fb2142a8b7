// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// look is a row that somebody wants verified now.
type look[K comparable] struct {
	key  K
	done chan struct{}
}

// Look has a row verified before anything else, and returns when it was. One that is not as it
// was left has another status than Realised from then on, until it is mended. When ctx ends
// first Look returns the error of ctx.
func (r *Reconciler[K, V]) Look(ctx context.Context, key K) error {
	l := look[K]{key, make(chan struct{})}
	r.mu.Lock()
	r.looks = append(r.looks, l)
	r.mu.Unlock()
	r.signal()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lookStep verifies what somebody waits for, and reports whether there was anything.
func (r *Reconciler[K, V]) lookStep(ctx context.Context) bool {
	r.mu.Lock()
	looks := r.looks
	r.looks = nil
	r.mu.Unlock()
	for _, l := range looks {
		r.verify(ctx, l.key)
		if ctx.Err() != nil {
			return true // it says nothing: who waits ends with ctx, too
		}
		close(l.done)
	}
	return len(looks) > 0
}
