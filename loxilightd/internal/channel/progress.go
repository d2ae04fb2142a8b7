// SPDX-License-Identifier: Apache-2.0

package channel

import "time"

// replies records that a reply of the given length in bytes is about to be written. It returns
// false if the connection has been closed, or must be closed: its peer has not read previous
// replies, and the user has too many unread bytes.
func (c *conn) replies(reply int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken || !c.opts.quota.reply(c.peer, reply, c.unsent == 0) {
		return false
	}
	c.unsent += reply
	return true
}

// sent records that a reply was written.
func (c *conn) sent(reply int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	if c.taken || !c.opts.requests {
		return
	}
	c.unsent -= reply
	c.opts.quota.replied(c.peer, reply)
}

// completed records that a complete request has arrived.
func (c *conn) completed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	c.carried++
}

// completedHandshake records that the handshake is complete.
func (c *conn) completedHandshake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
}

// replying records that a request was carried out and its reply is being written.
func (c *conn) replying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	c.carried = max(0, c.carried-1) // an event is not a reply
}

// idleSince returns the time of the peer's last progress, and whether the connection has no
// unanswered request.
func (c *conn) idleSince() (since time.Time, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, len(c.slots) == 0
}

// stalledSince returns the time of the peer's last progress, and whether the peer has stalled: none
// of the peer's complete requests is waiting or being carried out.
func (c *conn) stalledSince() (since time.Time, stalled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.carried == 0
}
