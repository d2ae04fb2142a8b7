// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"time"
)

// queue holds changed cluster objects that have not been translated yet: each object once, with the
// time of its first change.
type queue struct {
	mu     sync.Mutex
	items  map[item]time.Time
	oldest time.Time // when the first of the items was put
	wake   chan struct{}
}

// item is something to translate.
type item struct {
	kind itemKind
	key  string
}

type itemKind int

const (
	itemNode          itemKind = iota // by name
	itemService                       // by namespace/name
	itemAll                           // everything: this node has changed
	itemAnnounce                      // load-balancer addresses: the nodes that share them have changed
	itemPod                           // by namespace/name
	itemChecked                       // a check of a pod has succeeded: namespace/name and uid, separated by a blank
	itemNamespace                     // by name
	itemNetworkPolicy                 // by namespace/name
	itemClusterPolicy                 // by name
	itemResolvers                     // a Service or an EndpointSlice of DNS servers has changed
	itemReserved                      // node addresses or pod subnets have changed: no Service may have them
)

func newQueue() *queue { return &queue{items: map[item]time.Time{}, wake: make(chan struct{}, 1)} }

// put adds an item; since is when it changed, or zero if that is unknown.
func (q *queue) put(i item, since time.Time) {
	q.mu.Lock()
	if before, there := q.items[i]; !there || before.IsZero() || !since.IsZero() && since.Before(before) {
		q.items[i] = since
	}
	if q.oldest.IsZero() {
		q.oldest = time.Now()
	}
	q.mu.Unlock()
	q.poke()
}

// poke wakes the goroutine that waits for items.
func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns all items, and leaves none.
func (q *queue) take() map[item]time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items, q.oldest = map[item]time.Time{}, time.Time{}
	return items
}

// waiting returns how many items there are, and since when.
func (q *queue) waiting() (count int, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items), q.oldest
}
