// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"container/heap"
	"time"
)

// fifo is a queue that frees its memory when it is empty.
type fifo[K any] struct {
	items []K
	head  int
}

func (q *fifo[K]) push(k K) { q.items = append(q.items, k) }

func (q *fifo[K]) pop() (K, bool) {
	var zero K
	if q.head == len(q.items) {
		return zero, false
	}
	k := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = nil, 0
	}
	return k, true
}

func (q *fifo[K]) empty() bool { return q.head == len(q.items) }

// retryHeap orders failed rows by the time of their next attempt.
type retryHeap[K comparable, V any] []*row[K, V]

func (h *retryHeap[K, V]) add(w *row[K, V], at time.Time) {
	w.retryAt = at
	heap.Push(h, w)
}

// remove removes w if it is in the heap.
func (h *retryHeap[K, V]) remove(w *row[K, V]) {
	if w.heapIndex >= 0 {
		heap.Remove(h, w.heapIndex)
	}
}

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (h retryHeap[K, V]) Len() int           { return len(h) }
func (h retryHeap[K, V]) Less(i, j int) bool { return h[i].retryAt.Before(h[j].retryAt) }
func (h retryHeap[K, V]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}
func (h *retryHeap[K, V]) Push(x any) {
	w := x.(*row[K, V])
	w.heapIndex = len(*h)
	*h = append(*h, w)
}
func (h *retryHeap[K, V]) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.heapIndex = -1
	return w
}
