// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"
)

// TestNarrowedRanges: source ranges apply to new connections only. An existing connection continues
// if its client is no longer in any range, also after a restart.
func TestNarrowedRanges(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(3)))
	c, udp := n.dial("198.51.100.10:80"), n.asker("198.51.100.10:80")
	before := n.datagram(udp)
	narrowed := web(3)
	narrowed.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for _, when := range []string{"narrowed", "restarted"} {
		n.ok(n.d.Services().Update(context.Background(), "web", narrowed))
		c.echo(t, when)
		if got := n.datagram(udp); got != before || got == "" {
			t.Errorf("%s: %q answers, before %q", when, got, before)
		}
		if got := n.datagram(n.asker("198.51.100.10:80")); got != "" {
			t.Errorf("%s: a new client is served by %s", when, got)
		}
		n.restart("")
	}
}
