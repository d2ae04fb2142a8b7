// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"cmp"
	"sync"
	"time"
)

// seldom limits the rate of a log message, and counts the suppressed ones. The zero value is
// ready, and safe for concurrent use.
type seldom struct {
	mu   sync.Mutex
	last time.Time
	held int

	every time.Duration // the least time between two lines; 0: [seldomEvery]
}

// seldomEvery is the default least time between two lines.
const seldomEvery = 10 * time.Second

// seldomByUser allows one log line per user and minute. The zero value is ready, and safe for
// concurrent use.
type seldomByUser struct {
	mu    sync.Mutex
	users map[int]*seldom
}

// do is [seldom.do] for a message caused by a user.
func (s *seldomByUser) do(uid int, log func(held int)) {
	const most = 1024 // users with an entry
	s.mu.Lock()
	if s.users == nil || len(s.users) == most {
		s.users = map[int]*seldom{}
	}
	u := s.users[uid]
	if u == nil {
		u = &seldom{every: time.Minute}
		s.users[uid] = u
	}
	s.mu.Unlock()
	u.do(log)
}

// do calls log with the number of lines suppressed since the last call, or suppresses this line.
func (s *seldom) do(log func(held int)) {
	s.mu.Lock()
	if !s.last.IsZero() && time.Since(s.last) < cmp.Or(s.every, seldomEvery) {
		s.held++
		s.mu.Unlock()
		return
	}
	held := s.held
	s.last, s.held = time.Now(), 0
	s.mu.Unlock()
	log(held)
}
