// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// request is a row for which a verification was requested.
type request[K comparable] struct {
	key  K
	done chan struct{}
}

// VerifyNow verifies a row before all others, and returns after the verification. If the row is not
// intact, its status is no longer Done until it has been repaired. If ctx ends first, VerifyNow
// returns the error from ctx.
func (r *Reconciler[K, V]) VerifyNow(ctx context.Context, key K) error {
	l := request[K]{key, make(chan struct{})}
	r.mu.Lock()
	r.requests = append(r.requests, l)
	r.mu.Unlock()
	r.signal()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verifyRequested verifies the requested rows, and reports whether there were any.
func (r *Reconciler[K, V]) verifyRequested(ctx context.Context) bool {
	r.mu.Lock()
	requests := r.requests
	r.requests = nil
	r.mu.Unlock()
	for _, l := range requests {
		r.verify(ctx, l.key)
		if ctx.Err() != nil {
			return true // the result is invalid; the callers' contexts end too
		}
		close(l.done)
	}
	return len(requests) > 0
}
