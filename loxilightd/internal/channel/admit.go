// SPDX-License-Identifier: Apache-2.0

package channel

import "time"

// admit adds c. If there are too many connections, it closes another connection of the same user
// (for root: of any user). Incomplete handshakes have their own limit, so that they displace each
// other rather than completed connections. Otherwise, admit closes the connection whose last
// completed handshake, request or reply is oldest. It never closes a connection with a complete
// request.
func (e *endpoint) admit(c *conn) bool {
	uid := c.peer.UID
	limit := e.opts.limits.Connections
	e.mu.Lock()
	var victim *conn
	share, count, pending := limit, len(e.conns), e.pending
	full := count >= limit
	if uid != 0 {
		share = limit / userShare
		full = count >= others(limit) || e.users[uid] >= share
		pending = e.pendingOf(uid)
	}
	switch {
	case full:
		victim = e.stalest(uid, pending > share/pendingShare)
	case pending >= max(1, share/pendingShare):
		victim = e.stalest(uid, true)
	}
	if full && victim == nil {
		e.mu.Unlock()
		return false
	}
	if victim != nil {
		e.remove(victim)
	}
	e.conns[c] = false
	e.pending++
	e.users[uid]++
	e.mu.Unlock()
	if victim != nil {
		_ = victim.Close() // the peer is at fault
	}
	return true
}

// pendingShare is the divisor that determines how many of a user's connections may be in their
// handshake.
const pendingShare = 2

// pendingOf counts a user's incomplete handshakes. The caller holds mu.
func (e *endpoint) pendingOf(uid int) (n int) {
	for c, shaken := range e.conns {
		if !shaken && c.peer.UID == uid {
			n++
		}
	}
	return n
}

// stalest returns the connection of a user that has made no progress for the longest time. If
// pending is true, it prefers connections in their handshake, otherwise connections after their
// handshake. For root it considers the connections of all users, and prefers connections of other
// users. The caller holds mu.
func (e *endpoint) stalest(uid int, pending bool) *conn {
	var found *conn
	var foundSince time.Time
	foundRank := 0
	for c, shaken := range e.conns {
		since, stalled := c.stalledSince()
		if uid != 0 && c.peer.UID != uid || shaken && (!stalled || !e.opts.requests) {
			continue
		}
		rank := 1
		if shaken != pending {
			rank += 2
		}
		if c.peer.UID != 0 {
			rank++
		}
		if rank > foundRank || rank == foundRank && since.Before(foundSince) {
			found, foundSince, foundRank = c, since, rank
		}
	}
	return found
}
