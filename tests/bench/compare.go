// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
)

// comparison contains the results of the paths: one value each in every round.
type comparison struct {
	rounds []map[string]float64 // by name of the rig
}

// spread is a median with the middle half of the values around it.
type spread struct{ low, median, high float64 }

// String returns the median, and the quartiles in brackets.
func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.low, s.high) }

// spreadOf returns the quartiles of values, which must not be empty.
func spreadOf(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	at := func(share float64) float64 {
		position := share * float64(len(sorted)-1)
		below := int(position)
		above := min(below+1, len(sorted)-1)
		return sorted[below] + (position-float64(below))*(sorted[above]-sorted[below])
	}
	return spread{at(0.25), at(0.5), at(0.75)}
}

// compare measures every rig once per round, in a new order each time: a disturbance of the machine
// that lasts longer than a round affects all rigs alike. The first round warms up and does not
// count.
func compare(ctx context.Context, rigs []*rig, rounds int, measure func(*rig) (float64, error)) (comparison, error) {
	var c comparison
	for round := range rounds + 1 {
		figures := map[string]float64{}
		for _, i := range rand.Perm(len(rigs)) {
			if err := ctx.Err(); err != nil {
				return c, err
			}
			figure, err := measure(rigs[i])
			if err != nil {
				return c, fmt.Errorf("%s: %w", rigs[i].name, err)
			}
			figures[rigs[i].name] = figure
		}
		if round > 0 {
			c.rounds = append(c.rounds, figures)
		}
	}
	return c, nil
}

// of returns the results of one rig.
func (c comparison) of(name string) spread {
	var values []float64
	for _, figures := range c.rounds {
		values = append(values, figures[name])
	}
	return spreadOf(values)
}

// ratio returns the ratio of a to b, computed within each round; false if one was not measured.
func (c comparison) ratio(a, b string) (spread, bool) {
	var values []float64
	for _, figures := range c.rounds {
		if figures[a] == 0 || figures[b] == 0 {
			return spread{}, false
		}
		values = append(values, figures[a]/figures[b])
	}
	return spreadOf(values), true
}
