// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// spread opens connections, one after the other, and counts the answers of each server.
func (n *network) spread(times int) map[string]int {
	n.t.Helper()
	seen := make(map[string]int)
	for range times {
		name, err := n.ask("198.51.100.10:80")
		n.ok(err)
		seen[name]++
	}
	return seen
}

// all returns web(3) with all backends in this state, and with these weights.
func all(state datapath.BackendState, weights ...uint16) datapath.Service {
	s := web(3)
	for i := range s.Backends {
		s.Backends[i].State, s.Backends[i].Weight = state, weights[i]
	}
	return s
}

// TestAffinityInTheFallback: a client stays with its backend as long as draining backends, or
// backends of weight 0, get new connections because no other exists.
func TestAffinityInTheFallback(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	for name, s := range map[string]datapath.Service{
		"draining": all(datapath.BackendDraining, 1, 1, 1), "weight 0": all(datapath.BackendActive, 0, 0, 0),
	} {
		s.Algorithm, s.Affinity = datapath.RoundRobin, time.Hour
		ctx := context.Background()
		n.ok(n.d.Services().Update(ctx, "web", s))
		first, err := n.ask("198.51.100.10:80")
		n.ok(err)
		if got := n.spread(6); got[first] != 6 {
			t.Errorf("%s: a client of %s then got %v", name, first, got)
		}
		if ok, err := n.d.Services().Verify(ctx, "web"); !ok || err != nil {
			t.Errorf("%s: verified: %t, %v", name, ok, err)
		}

		// The backend is down: from then on the client stays with another usable backend.
		i := int(first[len(first)-1] - '0')
		was := s.Backends[i]
		s.Backends[i].State = datapath.BackendDown
		n.ok(n.d.Services().Update(ctx, "web", s))
		second, err := n.ask("198.51.100.10:80")
		n.ok(err)
		if got := n.spread(6); second == first || got[second] != 6 {
			t.Errorf("%s: without %s the client got %s, then %v", name, first, second, got)
		}

		// One backend is active: all clients move to it.
		s.Backends[i] = was
		s.Backends[i].State, s.Backends[i].Weight = datapath.BackendActive, 1
		n.ok(n.d.Services().Update(ctx, "web", s))
		if got := n.spread(6); got[first] != 6 {
			t.Errorf("%s: with %s alone active the client got %v", name, first, got)
		}
		n.ok(n.d.Services().Delete(ctx, "web"))
	}
}

// TestLeastConnectionsInTheFallback: backends of weight 0 share new connections by load if no other
// backend exists.
func TestLeastConnectionsInTheFallback(t *testing.T) {
	for name, tt := range map[string]struct {
		service datapath.Service
		want    map[string]int
	}{
		"draining": {all(datapath.BackendDraining, 0, 0, 2), map[string]int{"tcp-0": 3, "tcp-1": 3, "tcp-2": 6}},
		"active":   {all(datapath.BackendActive, 0, 0, 0), map[string]int{"tcp-0": 4, "tcp-1": 4, "tcp-2": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.serve()
			tt.service.Algorithm = datapath.LeastConnections
			n.ok(n.d.Services().Update(context.Background(), "web", tt.service))
			if got := n.spread(12); !maps.Equal(got, tt.want) {
				t.Errorf("the backends got %v, want %v", got, tt.want)
			}
		})
	}
}
