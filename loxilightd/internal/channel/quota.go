// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound what peers can take. Zero fields have the defaults below. A user
// other than root gets a quarter of each number at most, and all of them together
// three quarters, so that they cannot keep root out.
type Limits struct {
	Connections int // on each socket; default 512, or a quarter of the file descriptors that the process may have
	Requests    int // being carried out; default 256
	Bytes       int // of requests being read or carried out; default 32 MiB
	PerPeer     int // requests of one connection that are not answered yet; default 8

	HandshakeTimeout time.Duration // default 2s
	FrameTimeout     time.Duration // from a request's first byte to its last; default 5s
	WriteTimeout     time.Duration // of a reply, or an event; default 2s
	StopGrace        time.Duration // for requests being carried out when the daemon stops; default 3s
}

func (l *Limits) setDefaults() {
	ints := map[*int]int{&l.Connections: connectionsFor(), &l.Requests: 256, &l.Bytes: 32 << 20, &l.PerPeer: 8}
	for p, d := range ints {
		if *p == 0 {
			*p = d
		}
	}
	times := map[*time.Duration]time.Duration{
		&l.HandshakeTimeout: 2 * time.Second, &l.FrameTimeout: 5 * time.Second,
		&l.WriteTimeout: 2 * time.Second, &l.StopGrace: 3 * time.Second,
	}
	for p, d := range times {
		if *p == 0 {
			*p = d
		}
	}
}

// connectionsFor leaves file descriptors for everything else: the two sockets
// together take half of them at most.
func connectionsFor() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 512 // whatever it is, accepting copes with it
	}
	return int(max(8, min(512, limit.Cur/4)))
}

// userShare is the part of each limit that one user other than root can take.
const userShare = 4

// others is the part of a limit that all users other than root can take together.
func others(limit int) int { return limit - limit/userShare }

// quota counts requests and their bytes, over all and by user.
type quota struct {
	limits Limits

	mu    sync.Mutex
	total usage
	users map[int]usage
	freed chan struct{} // closed and replaced at each release
}

type usage struct{ requests, bytes int }

func newQuota(l Limits) *quota {
	return &quota{limits: l, users: map[int]usage{}, freed: make(chan struct{})}
}

// acquire waits until peer may have one more request of so many bytes. It returns
// false if ctx ends first.
func (q *quota) acquire(ctx context.Context, peer Peer, bytes int) bool {
	for {
		q.mu.Lock()
		if q.fits(peer, bytes) {
			q.add(peer, 1, bytes)
			q.mu.Unlock()
			return true
		}
		freed := q.freed
		q.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (q *quota) release(peer Peer, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(peer, -1, -bytes)
	close(q.freed)
	q.freed = make(chan struct{})
}

// fits is true also for the first request of all, however large.
func (q *quota) fits(peer Peer, bytes int) bool {
	within := func(u usage, requests, size int) bool {
		return u.requests == 0 || u.requests < requests && u.bytes+bytes <= size
	}
	l := q.limits
	if peer.UID == 0 {
		return within(q.total, l.Requests, l.Bytes)
	}
	return within(q.total, others(l.Requests), others(l.Bytes)) &&
		within(q.users[peer.UID], l.Requests/userShare, l.Bytes/userShare)
}

func (q *quota) add(peer Peer, requests, bytes int) {
	q.total.requests += requests
	q.total.bytes += bytes
	u := q.users[peer.UID]
	u.requests += requests
	u.bytes += bytes
	if u.requests == 0 {
		delete(q.users, peer.UID)
		return
	}
	q.users[peer.UID] = u
}
