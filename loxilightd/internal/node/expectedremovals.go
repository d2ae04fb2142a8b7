// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// expectedRemovals are the Endpoints whose devices the daemon itself is deleting, so that a change
// to such a device does not count as external.
type expectedRemovals struct {
	mu    sync.Mutex
	count map[datapath.EndpointName]int
}

// ExpectRemoval announces, before the device of an Endpoint is set down, that the Endpoint will be
// deleted. The caller must call the returned function once the Endpoint has been deleted, or if it
// is kept.
func (n *Node) ExpectRemoval(name string) (done func()) {
	l, key := &n.expectedRemovals, datapath.EndpointName(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == nil {
		l.count = map[datapath.EndpointName]int{}
	}
	l.count[key]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.count[key]--; l.count[key] == 0 {
			delete(l.count, key)
		}
	}
}

func (l *expectedRemovals) has(name datapath.EndpointName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[name] > 0
}
