// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
)

// settings is how the kernel forwards packets, as last read.
type settings struct {
	version atomic.Uint64 // raised by each message about it, by lost messages and by scans

	mu   sync.Mutex
	read uint64 // 1 + the version as of which it was read; 0: never
	is   datapath.Forwarding
}

// Forwarding implements [route.Devices].
func (v *Devices) Forwarding(read func() datapath.Forwarding) datapath.Forwarding {
	s := &v.settings
	s.mu.Lock()
	defer s.mu.Unlock()
	// The version from before reading: a change in between raises it.
	if version := 1 + s.version.Load(); version != s.read {
		s.is, s.read = read(), version
	}
	return s.is
}
