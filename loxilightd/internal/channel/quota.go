// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits limit the resources that peers use. Zero fields have the defaults below. Each non-root
// user may use up to a quarter of each limit, and all non-root users together three quarters, so
// that they cannot lock out root. A user with read permission only may use a sixteenth of the
// bytes, and all such users together an eighth.
type Limits struct {
	// Connections limits the connections on each socket; default 512, or a quarter of the
	// process's file descriptor limit.
	Connections int
	Requests    int // requests being carried out; default 256
	Bytes       int // bytes of requests being read or carried out, and of replies; default 32 MiB
	PerPeer     int // unanswered requests on one connection; default 8

	HandshakeTimeout time.Duration // default 2s
	FrameTimeout     time.Duration // from a request's first byte to its last; default 5s
	WriteTimeout     time.Duration // for a reply or an event; default 2s
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

// connectionsFor leaves file descriptors free for everything else: the two sockets together use at
// most half of them.
func connectionsFor() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 512 // any number works: accepting handles a shortage of descriptors
	}
	return int(max(8, min(512, limit.Cur/4)))
}

// userShare is the divisor that determines which part of each limit one non-root user may use.
const userShare = 4

// others returns the part of a limit that all non-root users together may use.
func others(limit int) int { return limit - limit/userShare }

// quota counts requests and their bytes, and bytes of unread replies, in total and by user.
type quota struct {
	limits Limits

	mu      sync.Mutex
	total   usage
	readers usage // usage of users with read permission only
	users   map[int]usage
	unread  map[int]int       // bytes of replies, by user
	waiting map[int][]*waiter // waiting requests by user, oldest first
	turns   []int             // the users with an entry in waiting, the next one first
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

// acquire waits until peer may have one more request of the given size. A user's requests wait in
// order, and users take turns. It returns false if ctx ends first.
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
	} else { // granted in the meantime
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

// grant gives free shares to waiting requests: one for each user in turn, until no waiting request
// fits. The caller holds mu.
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

// smallReply is the size, in bytes, up to which a reply may wait on each of a user's connections,
// whatever waits on the user's other connections.
const smallReply = 64 << 10

// reply records that a reply of the given size waits to be read. It returns false if too many bytes
// for this user are already waiting, unless the reply is small and the only one on its connection.
func (q *quota) reply(peer Peer, bytes int, only bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unread[peer.UID]+bytes > q.bytesOf(peer) && !(only && bytes <= smallReply) {
		return false
	}
	q.unread[peer.UID] += bytes
	return true
}

// replied records that replies of the given total size no longer wait.
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

// readerShare is the divisor that determines how many of the bytes one user with read permission
// only may use; all such users together may use twice as many.
const readerShare = 16

// fits reports whether a request is within all limits. A limit always admits a request if it is the
// only one, however large.
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
