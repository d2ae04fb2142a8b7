// SPDX-License-Identifier: Apache-2.0

package channel

import "testing"

// TestUnreadReplies: all connections of a user share one limit for large unread replies. Small
// replies are limited by the number of connections.
func TestUnreadReplies(t *testing.T) {
	var limits Limits
	limits.setDefaults()
	q := newQuota(limits)
	const large = 1 << 20
	reader, other := Peer{UID: 1001}, Peer{UID: 1002}
	bytes := 0
	for range limits.Connections {
		if q.reply(reader, large, true) {
			bytes += large
		}
	}
	if most := limits.Bytes / readerShare; bytes != most {
		t.Errorf("%d bytes of large replies wait, want %d", bytes, most)
	}
	if !q.reply(reader, smallReply, true) {
		t.Error("a small reply, the only one of its connection, was refused")
	}
	if q.reply(reader, 1, false) {
		t.Error("a second reply of a connection was accepted")
	}
	if !q.reply(other, large, true) {
		t.Error("a reply of another user was refused")
	}
	q.replied(reader, bytes+smallReply)
	q.replied(other, large)
	if len(q.unread) != 0 || !q.reply(reader, large, false) {
		t.Errorf("after all were read: %v", q.unread)
	}
}
