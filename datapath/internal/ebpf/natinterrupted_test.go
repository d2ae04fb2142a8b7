// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestNATsInterrupted stops a change of SNAT and DNAT rules at each step of publishing. The next
// attempt puts all rules in force, also after a restart, and the previous images are deleted.
func TestNATsInterrupted(t *testing.T) {
	base := newRig(t)
	f := families[0]
	first := map[datapath.NATName]datapath.NAT{"in": destinationTypes(f)["port"].nat, "away": masquerade("out0")}
	second := map[datapath.NATName]datapath.NAT{"in": destinationTypes(f)["address"].nat, "pool": sourceTypes["pool"].nat("out0")}
	stop := errors.New("stop")
	ctx := context.Background()
	for _, restarts := range []bool{false, true} {
		steps := 0
		for {
			r := base.fresh(t)
			n := r.translate(first)
			at := 0
			kernel.AtStep = func(string) error {
				if at++; at == steps+1 {
					return stop
				}
				return nil
			}
			err := n.Update(ctx, datapath.NodeSet, datapath.NATSet{Rules: second})
			kernel.AtStep = func(string) error { return nil }
			if err == nil {
				break
			}
			if !errors.Is(err, stop) {
				t.Fatalf("step %d: %v", steps, err)
			}
			if ok, err := n.Verify(ctx, datapath.NodeSet); ok || err != nil {
				t.Errorf("step %d: the check misses that it was interrupted: %v", steps, err)
			}
			if restarts {
				n = r.adoptNAT(slog.DiscardHandler, datapath.PortRange{First: 61000, Last: 65535})
			}
			r.ok(n.Update(ctx, datapath.NodeSet, datapath.NATSet{Rules: second}))
			if ok, err := n.Verify(ctx, datapath.NodeSet); !ok || err != nil || r.natRulesInForce() != 2 {
				t.Errorf("step %d: %d rules in force, verified %t %v", steps, r.natRulesInForce(), ok, err)
			}
			r.ok(n.Delete(ctx, datapath.NodeSet))
			for _, name := range imageMaps {
				if held, err := countKeys(r.maps[name]); err != nil || held != 0 {
					t.Errorf("step %d: %d images are left in %s: %v", steps, held, name, err)
				}
			}
			steps++
		}
		if steps < 4 {
			t.Errorf("only %d steps", steps)
		}
	}
}

// natRulesInForce returns the number of NAT rules that look-ups by id find.
func (r *rig) natRulesInForce() (n int) {
	r.t.Helper()
	r.ok(r.tables.NatRule.Batches(func(_ []uint32, rules []kernel.NatRule) error {
		for i := range rules {
			if rules[i].Flags&kernel.NATReplaced == 0 {
				n++
			}
		}
		return nil
	}))
	return n
}
