// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"
	"time"
)

// TestUDPWithoutBackends: while no backend is up, a client that keeps its port stays with
// the one that it has, which may answer still; new ones are refused. As soon as another
// one is up, it goes there.
func TestUDPWithoutBackends(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		front := vip + ":9000"
		s.Apply(serviceYAML("dns", []string{front + "/udp"}, backends))
		c := s.asker(front)
		first := c.first
		down := slices.Clone(backends)
		for i := range down {
			down[i] += ",state: down"
		}
		s.LLCLI("apply", "--wait", "5s", "-f", s.File(serviceYAML("dns", []string{front + "/udp"}, down)))
		if name, err := talkUDP(s.client, "", front, nil); err == nil {
			t.Errorf("a new client is served by %q", name)
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			if name, err := c.ask(); name != first || err != nil {
				t.Fatalf("with all backends down %q answers, %v; want %q", name, err, first)
			}
		}
		other := (indexOf(t, first) + 1) % len(backends)
		down[other] = backends[other]
		s.LLCLI("apply", "--wait", "5s", "-f", s.File(serviceYAML("dns", []string{front + "/udp"}, down)))
		c.leaves()
	})
}
