// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// look is a row whose verification was requested.
type look[K comparable] struct {
	key  K
	done chan struct{}
}

// Look has a row verified before all others, and returns after that. If the row is not intact,
// its status is no longer Realised until it has been repaired. If ctx ends first, Look returns
// the error of ctx.
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

// lookStep verifies the requested rows, and reports whether there were any.
func (r *Reconciler[K, V]) lookStep(ctx context.Context) bool {
	r.mu.Lock()
	looks := r.looks
	r.looks = nil
	r.mu.Unlock()
	for _, l := range looks {
		r.verify(ctx, l.key)
		if ctx.Err() != nil {
			return true // the result is invalid; the callers' contexts end, too
		}
		close(l.done)
	}
	return len(looks) > 0
}
