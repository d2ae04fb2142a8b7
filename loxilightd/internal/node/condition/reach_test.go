// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// TestSilentPeer: a Peer counts as silent once several reads over some time have shown sent but no
// received packets. It stops being silent with the first received packet, or some time after the
// last sent packet.
func TestSilentPeer(t *testing.T) {
	var w peerWatch
	now := time.Unix(1000, 0)
	check := func(sent, received uint64, after time.Duration) string {
		now = now.Add(after)
		w = w.next(datapath.PeerCounters{SentPackets: sent, ReceivedPackets: received}, now)
		is := w.note(now)
		if is.message != "" && (!is.ready || !is.quiet) {
			t.Errorf("%+v: silence alone must neither make a Peer Pending nor degrade the health", is)
		}
		return is.message
	}
	check(5, 5, 0)
	if !w.lastReceived.IsZero() {
		t.Error("received before any packet was counted")
	}
	for sent := uint64(6); sent < 21; sent++ {
		if p := check(sent, 5, time.Second); p != "" {
			t.Fatalf("after %d packets: %s", sent-5, p)
		}
	}
	if check(21, 5, time.Second) == "" {
		t.Error("silent for 15 s, and nothing is said")
	}
	if p := check(22, 6, time.Second); p != "" || w.lastReceived != now {
		t.Errorf("received at %v: %q", w.lastReceived, p)
	}
	for sent := uint64(23); sent < 43; sent++ {
		check(sent, 6, time.Second)
	}
	if is := w.note(now); is.message == "" {
		t.Error("silent again, and nothing is said")
	}
	if p := check(42, 6, time.Minute); p != "" {
		t.Errorf("nothing was sent for a minute: %s", p)
	}
}
