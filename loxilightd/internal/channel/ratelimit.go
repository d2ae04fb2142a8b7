// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"cmp"
	"sync"
	"time"
)

// logLimit limits the rate of a log message, and counts the suppressed lines. The zero value is
// ready for use, and safe for concurrent use.
type logLimit struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int

	every time.Duration // minimum time between two lines; 0: [logLimitInterval]
}

// logLimitInterval is the default minimum time between two lines.
const logLimitInterval = 10 * time.Second

// logLimitByUser allows one log line per user per minute. The zero value is ready for use, and safe
// for concurrent use.
type logLimitByUser struct {
	mu    sync.Mutex
	users map[int]*logLimit
}

// do is like [logLimit.do], for a message that a user caused.
func (s *logLimitByUser) do(uid int, log func(suppressed int)) {
	const most = 1024 // maximum number of users with an entry
	s.mu.Lock()
	if s.users == nil || len(s.users) == most {
		s.users = map[int]*logLimit{}
	}
	u := s.users[uid]
	if u == nil {
		u = &logLimit{every: time.Minute}
		s.users[uid] = u
	}
	s.mu.Unlock()
	u.do(log)
}

// do calls log with the number of lines suppressed since the last call, or suppresses this line.
func (s *logLimit) do(log func(suppressed int)) {
	s.mu.Lock()
	if !s.last.IsZero() && time.Since(s.last) < cmp.Or(s.every, logLimitInterval) {
		s.suppressed++
		s.mu.Unlock()
		return
	}
	suppressed := s.suppressed
	s.last, s.suppressed = time.Now(), 0
	s.mu.Unlock()
	log(suppressed)
}
