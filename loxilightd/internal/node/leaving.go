// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// leaving are the Endpoints whose devices somebody of the daemon takes away: that those are
// not as they were left is no stranger's work.
type leaving struct {
	mu    sync.Mutex
	count map[datapath.EndpointName]int
}

// EndpointLeaves says, before the device of an Endpoint is shut, that the Endpoint is about to
// be deleted. The function says that it is, or that it stays.
func (n *Node) EndpointLeaves(name string) (done func()) {
	l, key := &n.leaving, datapath.EndpointName(name)
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

func (l *leaving) has(name datapath.EndpointName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[name] > 0
}
