// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// waiter waits for rows to be done.
type waiter[K comparable] struct {
	left  map[K]struct{}
	done  chan struct{}
	tried bool // an attempt is enough
}

// WaitDone returns once every row whose last change is from revision or earlier is done, or has
// been deleted if it was to be deleted. If keys are given, only these rows matter, at any revision;
// the caller must already have called Apply. If a row is changed again during the wait, the later
// change matters. If ctx ends first, WaitDone returns the remaining keys and the error from ctx.
func (r *Reconciler[K, V]) WaitDone(ctx context.Context, revision uint64, keys ...K) ([]K, error) {
	w := &waiter[K]{left: make(map[K]struct{}), done: make(chan struct{})}
	r.mu.Lock()
	if len(keys) == 0 {
		for key, row := range r.rows {
			if row.revision <= revision && row.status.State != Done {
				w.left[key] = struct{}{}
			}
		}
	}
	for _, key := range keys {
		if row, ok := r.rows[key]; ok && row.status.State != Done {
			w.left[key] = struct{}{}
		}
	}
	return r.await(ctx, w)
}

// WaitTried returns once each of the rows has been tried since its last change, successfully or
// not, or does not exist. If ctx ends first, it returns the error from ctx.
func (r *Reconciler[K, V]) WaitTried(ctx context.Context, keys ...K) error {
	w := &waiter[K]{left: make(map[K]struct{}), done: make(chan struct{}), tried: true}
	r.mu.Lock()
	for _, key := range keys {
		if row, ok := r.rows[key]; ok && row.untried {
			w.left[key] = struct{}{}
		}
	}
	_, err := r.await(ctx, w)
	return err
}

// await waits for w, with the results of [Reconciler.WaitDone]. It is called with r.mu held,
// and unlocks it.
func (r *Reconciler[K, V]) await(ctx context.Context, w *waiter[K]) ([]K, error) {
	if len(w.left) == 0 {
		r.mu.Unlock()
		return nil, nil
	}
	r.waiters[w] = struct{}{}
	r.mu.Unlock()

	select {
	case <-w.done:
		return nil, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiters, w)
	left := make([]K, 0, len(w.left))
	for key := range w.left {
		left = append(left, key)
	}
	if len(left) == 0 {
		return nil, nil // done in the meantime
	}
	return left, ctx.Err()
}

// release notifies waiters that a row was tried, and whether it is done. The caller holds r.mu.
func (r *Reconciler[K, V]) release(key K, done bool) {
	for w := range r.waiters {
		if _, ok := w.left[key]; !ok || !done && !w.tried {
			continue
		}
		delete(w.left, key)
		if len(w.left) == 0 {
			delete(r.waiters, w)
			close(w.done)
		}
	}
}
