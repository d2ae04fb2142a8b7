// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTopFew: with at least as many counters as keys, all counts are exact.
func TestTopFew(t *testing.T) {
	top := NewTop[string](4)
	for key, n := range map[string]uint64{"a": 1, "b": 5, "c": 3, "d": 2} {
		for range n {
			top.Add(key, 1)
		}
	}
	top.Add("a", 6)
	want := []Count[string]{{"a", 7, true}, {"b", 5, true}, {"c", 3, true}}
	if got := top.Largest(3); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := NewTop[string](4).Largest(3); len(got) > 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestTopMany: among 200,000 keys that occur once, ten frequent ones are found; no count exceeds the
// real one.
func TestTopMany(t *testing.T) {
	const seldom, counters = 200_000, 1000
	var stream []int
	real := map[int]uint64{}
	for i := range seldom {
		stream = append(stream, i+100)
	}
	for i := range 10 {
		real[i] = uint64(1000 + 200*i)
		for range real[i] {
			stream = append(stream, i)
		}
	}
	later := stream[seldom/10:] // frequent keys come when all counters are in use
	rand.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
	top := NewTop[int](counters)
	for _, key := range stream {
		top.Add(key, 1)
	}
	found := top.Largest(10)
	for _, c := range found {
		if c.Least > max(real[c.Key], 1) || c.Exact && c.Least != max(real[c.Key], 1) {
			t.Errorf("key %d: %+v, it occurred %d times", c.Key, c, real[c.Key])
		}
		if c.Key < 10 {
			delete(real, c.Key)
		}
	}
	if len(real) > 0 {
		t.Errorf("not found: %v; found: %v", real, found)
	}
	if len(top.byKey) != counters || len(top.counters) != counters {
		t.Errorf("%d keys and %d counters, want %d", len(top.byKey), len(top.counters), counters)
	}
}
