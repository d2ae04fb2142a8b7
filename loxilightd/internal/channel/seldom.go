// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"cmp"
	"sync"
	"time"
)

// seldom lets a log line through now and then, and counts those that it holds
// back. The zero value is ready, and safe for concurrent use.
type seldom struct {
	mu   sync.Mutex
	last time.Time
	held int

	every time.Duration // the least time between two lines; 0: [seldomEvery]
}

// seldomEvery is the least time between two lines, where nothing else is said.
const seldomEvery = 10 * time.Second

// seldomByUser lets a log line about each user through once a minute. The zero value is
// ready, and safe for concurrent use.
type seldomByUser struct {
	mu    sync.Mutex
	users map[int]*seldom
}

// do is [seldom.do] for what a user caused.
func (s *seldomByUser) do(uid int, log func(held int)) {
	const most = 1024 // users that are remembered
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

// do calls log with the number of lines held back since the last time, or holds it back.
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
