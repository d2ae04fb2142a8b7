// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"sync"
	"time"
)

// seldom lets a log line through now and then, and counts those that it holds
// back. The zero value is ready, and safe for concurrent use.
type seldom struct {
	mu   sync.Mutex
	last time.Time
	held int
}

// seldomEvery is the least time between two lines.
const seldomEvery = 10 * time.Second

// do calls log with the number of lines held back since the last time, or holds it back.
func (s *seldom) do(log func(held int)) {
	s.mu.Lock()
	if !s.last.IsZero() && time.Since(s.last) < seldomEvery {
		s.held++
		s.mu.Unlock()
		return
	}
	held := s.held
	s.last, s.held = time.Now(), 0
	s.mu.Unlock()
	log(held)
}
