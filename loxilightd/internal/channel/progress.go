// SPDX-License-Identifier: Apache-2.0

package channel

import "time"

// replies notes that a reply of so many bytes is to be written. It returns false if the
// connection has been closed, or is to be: its peer does not read the replies before this
// one, and the user has too many of such replies.
func (c *conn) replies(reply int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken || !c.opts.quota.reply(c.peer, reply, c.unsent == 0) {
		return false
	}
	c.unsent += reply
	return true
}

// sent notes that a reply was written.
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

// completed notes that a request has come whole.
func (c *conn) completed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	c.carried++
}

// completedHandshake notes that the connection can be used.
func (c *conn) completedHandshake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
}

// replying notes that a request is carried out, and its reply being written.
func (c *conn) replying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	c.carried = max(0, c.carried-1) // an event is no reply
}

// idleSince tells when the peer last completed something, and whether nothing is going on now.
func (c *conn) idleSince() (since time.Time, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, len(c.slots) == 0
}

// stalledSince tells when the peer last completed something, and whether it is the peer that
// nothing goes on: no complete request of it is waiting or being carried out.
func (c *conn) stalledSince() (since time.Time, stalled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.carried == 0
}
