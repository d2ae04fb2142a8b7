// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestModel(t *testing.T) {
	s := newSite(t)
	oneCPU(t)
	judged, scenarios := 0, 0
	defer func() {
		t.Logf("%d packets of %d configurations judged, %d by the fast path", judged, scenarios, s.daemon.Counters("", "").Verdicts["fast"])
		for reason, n := range s.daemon.Counters("", "").Drops {
			if n != 0 {
				t.Logf("dropped, %s: %d", reason, n)
			}
		}
	}()
	for begin := time.Now(); judged < *casesFlag && time.Since(begin) < *boundFlag; scenarios++ {
		seed := *seedFlag
		switch {
		case seed != 0:
		case *fromFlag != 0:
			seed = *fromFlag + uint64(scenarios)
		default:
			seed = rand.Uint64N(1 << 32)
		}
		sc := generate(seed, s.carries)
		n, story, err := s.play(sc)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		judged += n
		if story != "" {
			t.Fatalf("the node differs from the model. Again: go test ./tests/model -seed %d\n%s", seed, s.small(sc, story))
		}
		if t.Failed() {
			t.Fatalf("again: go test ./tests/model -seed %d", seed)
		}
		if *seedFlag != 0 {
			break
		}
	}
	if s.refused > 1+scenarios/5 {
		t.Errorf("%d of %d configurations were refused", s.refused, scenarios)
	}
}

// small removes objects and packets without which a scenario still differs from the model, as long
// as there is time, and returns the story of the rest.
func (s *site) small(sc *scenario, story string) string {
	end := time.Now().Add(*shrinkFlag)
	try := func(c *scenario) bool {
		if time.Now().After(end) {
			return false
		}
		_, told, err := s.play(c)
		if err != nil || told == "" {
			return false
		}
		sc, story = c, told
		return true
	}
	for size := len(sc.ops) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(sc.ops); {
			left := append(append([]op(nil), sc.ops[:i]...), sc.ops[i+size:]...)
			if !try(&scenario{sc.flows, left}) {
				i += size
			}
		}
	}
	for i := range sc.ops {
		for n := 0; sc.ops[i].config != nil; {
			less := sc.ops[i].config.without(n)
			if less == nil {
				break
			}
			ops := append([]op(nil), sc.ops...)
			ops[i].config = less
			if !try(&scenario{sc.flows, ops}) {
				n++
			}
		}
	}
	return story
}
