// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits limit the resources of peers. Zero fields have the defaults below. Each non-root user may
// use up to a quarter of each number, all non-root users together three quarters, so that they
// cannot lock out root. A user with read permission only may use an eighth of the bytes, all such
// users together a quarter.
type Limits struct {
	// Connections limits the connections on each socket; default 512, or a quarter of the
	// process's file descriptor limit.
	Connections int
	Requests    int // being carried out; default 256
	Bytes       int // of requests being read or carried out, and of replies; default 32 MiB
	PerPeer     int // unanswered requests of one connection; default 8

	HandshakeTimeout time.Duration // default 2s
	FrameTimeout     time.Duration // from a request's first byte to its last; default 5s
	WriteTimeout     time.Duration // of a reply, or an event; default 2s
	StopGrace        time.Duration // for unfinished requests when the daemon stops; default 3s
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

// connectionsFor leaves file descriptors for everything else: the two sockets together use at
// most half of them.
func connectionsFor() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 512 // any number works: accepting handles a lack of descriptors
	}
	return int(max(8, min(512, limit.Cur/4)))
}

// userShare is the divisor for the part of each limit that one non-root user may use.
const userShare = 4

// others returns the part of a limit that all non-root users together may use.
func others(limit int) int { return limit - limit/userShare }

// quota counts requests and their bytes, and bytes of unread replies, in total and by user.
type quota struct {
	limits Limits

	mu      sync.Mutex
	total   usage
	readers usage // of users with read permission only
	users   map[int]usage
	unread  map[int]int       // bytes of replies, by user
	waiting map[int][]*waiter // by user, oldest first
	turns   []int             // the users in waiting, next one first
}

type usage struct{ requests, bytes int }

// waiter is a request that waits for its share.
type waiter struct {
	peer    Peer
	bytes   int
	granted chan struct{}
}

func newQuota(l Limits) *quota {
	return &quota{limits: l, users: map[int]usage{}, unread: map[int]int{}, waiting: map[int][]*waiter{}}
}

// acquire waits until peer may have one more request of that many bytes. The requests of a user
// wait in order, and users take turns. It returns false if ctx ends first.
func (q *quota) acquire(ctx context.Context, peer Peer, bytes int) bool {
	q.mu.Lock()
	if len(q.waiting[peer.UID]) == 0 {
		if q.fits(peer, bytes) {
			q.add(peer, 1, bytes)
			q.mu.Unlock()
			return true
		}
		q.turns = append(q.turns, peer.UID)
	}
	w := &waiter{peer, bytes, make(chan struct{})}
	q.waiting[peer.UID] = append(q.waiting[peer.UID], w)
	q.mu.Unlock()
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting[peer.UID], w); i >= 0 {
		q.forget(peer.UID, i)
	} else { // granted meanwhile
		q.add(peer, -1, -bytes)
	}
	q.grant()
	return false
}

// forget removes request i of a user from the list. The caller holds mu.
func (q *quota) forget(uid, i int) {
	q.waiting[uid] = slices.Delete(q.waiting[uid], i, i+1)
	if len(q.waiting[uid]) == 0 {
		delete(q.waiting, uid)
		q.turns = slices.DeleteFunc(q.turns, func(u int) bool { return u == uid })
	}
}

// grant gives free shares to waiting requests: one for each user in turn, until none fits. The
// caller holds mu.
func (q *quota) grant() {
	for given := true; given; {
		given = false
		for _, uid := range slices.Clone(q.turns) {
			w := q.waiting[uid][0]
			if !q.fits(w.peer, w.bytes) {
				continue
			}
			q.add(w.peer, 1, w.bytes)
			q.turns = append(slices.DeleteFunc(q.turns, func(u int) bool { return u == uid }), uid)
			q.forget(uid, 0)
			close(w.granted)
			given = true
		}
	}
}

// release releases the share of a request.
func (q *quota) release(peer Peer, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(peer, -1, -bytes)
	q.grant()
}

// smallReply is the largest reply, in bytes, that may wait on each connection of a user whatever
// waits on the user's other connections.
const smallReply = 64 << 10

// reply records that a reply of that many bytes waits to be read. It returns false if too many
// bytes of the user wait already, unless the reply is small and the only one on its connection.
func (q *quota) reply(peer Peer, bytes int, only bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unread[peer.UID]+bytes > q.bytesOf(peer) && !(only && bytes <= smallReply) {
		return false
	}
	q.unread[peer.UID] += bytes
	return true
}

// replied records that replies of that many bytes no longer wait.
func (q *quota) replied(peer Peer, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unread[peer.UID] -= bytes; q.unread[peer.UID] <= 0 {
		delete(q.unread, peer.UID)
	}
}

// bytesOf returns how many bytes one user may use.
func (q *quota) bytesOf(peer Peer) int {
	switch {
	case peer.UID == 0:
		return q.limits.Bytes
	case peer.Admin:
		return q.limits.Bytes / userShare
	}
	return q.limits.Bytes / readerShare
}

// readerShare is the divisor for the part of the bytes that one user with read permission only
// may use; all such users together may use twice as much.
const readerShare = 8

// fits reports whether a request fits all limits. A limit always admits its only request, however
// large.
func (q *quota) fits(peer Peer, bytes int) bool {
	within := func(u usage, requests, size int) bool {
		return u.requests == 0 || u.requests < requests && u.bytes+bytes <= size
	}
	l := q.limits
	switch {
	case peer.UID == 0:
		return within(q.total, l.Requests, l.Bytes)
	case !within(q.total, others(l.Requests), others(l.Bytes)):
		return false
	case peer.Admin:
		return within(q.users[peer.UID], l.Requests/userShare, q.bytesOf(peer))
	}
	return within(q.readers, others(l.Requests), 2*l.Bytes/readerShare) &&
		within(q.users[peer.UID], l.Requests/userShare, q.bytesOf(peer))
}

func (q *quota) add(peer Peer, requests, bytes int) {
	q.total.requests += requests
	q.total.bytes += bytes
	if !peer.Admin {
		q.readers.requests += requests
		q.readers.bytes += bytes
	}
	u := q.users[peer.UID]
	u.requests += requests
	u.bytes += bytes
	if u.requests == 0 {
		delete(q.users, peer.UID)
		return
	}
	q.users[peer.UID] = u
}
