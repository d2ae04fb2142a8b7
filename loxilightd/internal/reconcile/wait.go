// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// waiter waits for rows to be tried.
type waiter[K comparable] struct {
	left map[K]struct{}
	done chan struct{}
}

// WaitTried returns once each of the rows has been tried since its last change, successfully or
// not, or does not exist. If ctx ends first, it returns the error from ctx.
func (r *Reconciler[K, V]) WaitTried(ctx context.Context, keys ...K) error {
	w := &waiter[K]{left: make(map[K]struct{}), done: make(chan struct{})}
	r.mu.Lock()
	for _, key := range keys {
		if row, ok := r.rows[key]; ok && row.untried {
			w.left[key] = struct{}{}
		}
	}
	if len(w.left) > 0 {
		r.waiters[w] = struct{}{}
	} else {
		close(w.done)
	}
	r.mu.Unlock()

	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiters, w)
	if len(w.left) == 0 {
		return nil // tried in the meantime
	}
	return ctx.Err()
}

// release notifies waiters that a row was tried. The caller holds r.mu.
func (r *Reconciler[K, V]) release(key K) {
	for w := range r.waiters {
		if _, ok := w.left[key]; !ok {
			continue
		}
		delete(w.left, key)
		if len(w.left) == 0 {
			delete(r.waiters, w)
			close(w.done)
		}
	}
}
