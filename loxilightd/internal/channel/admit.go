// SPDX-License-Identifier: Apache-2.0

package channel

import "time"

// admit adds c, hanging up on another connection of the same user (for root: of
// anybody) where there are too many. Handshakes that do not complete have a share of
// their own, so that they displace each other and nobody who completed one. Otherwise
// the connection goes that completed nothing for longest: a handshake, a request, or
// reading a reply. Complete requests are never hung up on.
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

// pendingShare is the part of a user's connections that may be in their handshake.
const pendingShare = 2

// pendingOf counts the handshakes of a user. The caller holds mu.
func (e *endpoint) pendingOf(uid int) (n int) {
	for c, shaken := range e.conns {
		if !shaken && c.peer.UID == uid {
			n++
		}
	}
	return n
}

// stalest returns the connection of a user that completed nothing for longest: one in its
// handshake, if pending, or one that is through it, and otherwise any of the two. For root it
// may be anybody's, rather another user's. The caller holds mu.
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
