// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
)

// policyChange is one kind of change of a state of policies.
type policyChange struct {
	what         string
	count        int
	object       func(i int) api.Object // of the i-th change
	median, most float64                // goals for the median and for 99 %, in ms; 0: none
}

// policyChanges returns the measured changes.
func (s *policyScale) policyChanges() []policyChange {
	return []policyChange{
		{"label of one pod", 200, func(i int) api.Object {
			return s.entity(i*7919%s.pods, fmt.Sprint("t", i%policyTeams))
		}, 2, 10},
		{fmt.Sprintf("label of a namespace of %s pods", grouped(s.pods/policySpaces)), 20, func(i int) api.Object {
			return s.space(0, []string{"gold", "other"}[i%2])
		}, 150, 0},
		{fmt.Sprintf("a policy for all %d pods of the node", s.local+2), 20, func(i int) api.Object {
			return onAll(2000 + i%2)
		}, 50, 0},
	}
}

// changesOfPolicies measures how long changes of a state take.
func (b *bench) changesOfPolicies(ctx context.Context) error {
	scale := &b.policyScale
	s := b.report.section("Changes of network policies",
		fmt.Sprintf("%s policies and %s pods, %d of them on the node. Duration in ms of a change from the\n"+
			"request on the control channel until it is in force for packets and the reply has arrived,\n"+
			"which includes the durable record of it on disk; whole state: from an empty one. Memory is\n"+
			"the daemon's own.", grouped(scale.policies), grouped(scale.pods), scale.local),
		"change", "half within", "99 % within", "longest", "memory")
	return b.withRigs(ctx, lineup{paths: []string{pathFree}, direct: true, pods: true}, 0, func(rigs []*rig) error {
		r := rigs[0]
		d, ok := r.balancer.(*loxilight)
		if !ok {
			return fmt.Errorf("%s: no daemon of ours", r.name)
		}
		if err := r.addPods(ctx, d, scale.local); err != nil {
			return err
		}
		objects := scale.objects()
		begin := time.Now()
		if err := d.apply(ctx, objects); err != nil {
			return err
		}
		all := time.Since(begin)
		resident, err := d.resident()
		if err != nil {
			return err
		}
		ms := func(t time.Duration) string { return fmt.Sprintf("%.1f", float64(t.Microseconds())/1e3) }
		s.row("whole state", ms(all), "–", "–", fmt.Sprintf("%d MB", resident/1e6))
		what := fmt.Sprintf("%s policies and %s pods: ", grouped(scale.policies), grouped(scale.pods))
		b.report.atMost(what+"whole state", all.Seconds(), 3, "s")
		for _, change := range scale.policyChanges() {
			var took []time.Duration
			for i := range change.count {
				begin := time.Now()
				if err := d.apply(ctx, []api.Object{change.object(i)}); err != nil {
					return fmt.Errorf("%s: %w", change.what, err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			half, most := took[len(took)/2], took[len(took)*99/100]
			if resident, err = d.resident(); err != nil {
				return err
			}
			s.row(change.what, ms(half), ms(most), ms(took[len(took)-1]), fmt.Sprintf("%d MB", resident/1e6))
			b.report.atMost(what+change.what, float64(half.Microseconds())/1e3, change.median, "ms")
			if change.most != 0 {
				b.report.atMost(what+change.what+", 99 %", float64(most.Microseconds())/1e3, change.most, "ms")
			}
		}
		b.report.atMost(what+"memory of the daemon", float64(resident)/1e6, 150, "MB")
		return nil
	})
}
