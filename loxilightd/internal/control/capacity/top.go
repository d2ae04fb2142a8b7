// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"container/heap"
	"slices"
)

// Top finds the most frequent keys of a long sequence with a fixed number of counters: the
// algorithm Space-Saving of Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent and
// Top-k Elements in Data Streams (ICDT 2005). No count is wrong by more than the length of the
// sequence divided by the number of counters.
type Top[K comparable] struct {
	size     int
	byKey    map[K]*counter[K]
	counters minHeap[K]
}

// counter counts one key. The count may be too high by at most over, which is the count of the key
// that had this counter before.
type counter[K comparable] struct {
	key         K
	count, over uint64
	index       int // in the heap
}

// NewTop returns a Top with so many counters.
func NewTop[K comparable](counters int) *Top[K] {
	return &Top[K]{size: counters, byKey: make(map[K]*counter[K])}
}

// Add counts a key n times.
func (t *Top[K]) Add(key K, n uint64) {
	c := t.byKey[key]
	switch {
	case c != nil:
		c.count += n
		heap.Fix(&t.counters, c.index)
		return
	case len(t.counters) < t.size:
		c = &counter[K]{key: key, count: n}
		heap.Push(&t.counters, c)
	default:
		c = t.counters[0]
		delete(t.byKey, c.key)
		c.key, c.over = key, c.count
		c.count += n
		heap.Fix(&t.counters, 0)
	}
	t.byKey[key] = c
}

// Count is how often a key occurred.
type Count[K comparable] struct {
	Key   K
	Least uint64 // it occurred at least so often
	Exact bool   // and not more often
}

// Largest returns at most n keys, the most frequent ones first. Keys that may not have occurred are
// left out.
func (t *Top[K]) Largest(n int) []Count[K] {
	all := slices.Clone(t.counters)
	slices.SortFunc(all, func(a, b *counter[K]) int { return cmp.Compare(b.count-b.over, a.count-a.over) })
	var list []Count[K]
	for _, c := range all[:min(n, len(all))] {
		if least := c.count - c.over; least > 0 {
			list = append(list, Count[K]{c.key, least, c.over == 0})
		}
	}
	return list
}

// minHeap implements [heap.Interface]; the smallest count is first.
type minHeap[K comparable] []*counter[K]

func (h minHeap[K]) Len() int           { return len(h) }
func (h minHeap[K]) Less(i, j int) bool { return h[i].count < h[j].count }

func (h minHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *minHeap[K]) Push(x any) {
	c := x.(*counter[K])
	c.index = len(*h)
	*h = append(*h, c)
}

func (h *minHeap[K]) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
