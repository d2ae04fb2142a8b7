// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"slices"
	"testing"
	"time"
)

// TestUDPWithoutBackends: while no backend is up, a client that keeps its port stays with its
// backend, which may still answer; new clients are rejected. As soon as another backend is up, the
// client moves to it.
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
		c.leaves(s)
	})
}

// settles is the maximum time between the end of the first connection and the end of the last one,
// if there are few.
const settles = 500 * time.Millisecond

// TestDownKeepsTCP: a backend that is down keeps its TCP connections, while its UDP and all new
// connections go to a different one.
func TestDownKeepsTCP(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		front := vip + ":9000"
		fronts := []string{front + "/udp", front + "/tcp"}
		s.Apply(serviceYAML("web", fronts, backends))
		asker := s.asker(front)
		down := slices.Clone(backends)
		down[indexOf(t, asker.first)] += ",state: down"
		var conns []net.Conn
		of := map[string]int{}
		for range 30 {
			c, name := s.greeted(front)
			conns = append(conns, c)
			of[name]++
		}
		if of[asker.first] == 0 {
			t.Fatalf("connections %v, none to %s", of, asker.first)
		}
		s.LLCLI("apply", "--wait", "5s", "-f", s.File(serviceYAML("web", fronts, down)))
		asker.leaves(s)
		for range 30 {
			if got, err := talkTCP(s.client, "", front, nil); err != nil || got == asker.first {
				t.Fatalf("new connection while %s is down: %q, %v", asker.first, got, err)
			}
		}
		time.Sleep(settles)
		for _, c := range conns {
			if err := echo(c); err != nil {
				t.Errorf("an existing connection: %v", err)
			}
		}
	})
}
