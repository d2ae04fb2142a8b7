// SPDX-License-Identifier: Apache-2.0

package snat

import (
	"errors"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// TestTargets: a port is a target as long as a backend or a rule has it. The ports of an earlier run
// stay until this run has read its services.
func TestTargets(t *testing.T) {
	var failure error
	tables, _ := testtables.New(t, testtables.Small, &testmap.Faults{Fail: func() error { return failure }, Changed: func() {}})
	adopt := func() *Targets {
		targets, err := AdoptTargets(tables)
		if err != nil {
			t.Fatal(err)
		}
		return targets
	}
	want := func(when string, ports ...uint16) {
		t.Helper()
		var words [portWords]uint64
		for _, port := range ports {
			words[port/64] |= 1 << (port % 64)
		}
		for i := range words {
			var taken, word uint64
			if err := errors.Join(tables.PortTaken.Lookup(uint32(i), &taken), tables.PortTaken.Lookup(uint32(portWords+i), &word)); err != nil {
				t.Fatal(err)
			}
			if word != words[i] || taken != 0 {
				t.Errorf("%s: ports from %d: %#x, want %#x; taken %#x, want none", when, 64*i, word, words[i], taken)
			}
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	targets := adopt()
	ok(targets.Settle())
	ok(targets.Add(8080))
	ok(targets.Add(8080))
	ok(targets.Add(65535))
	want("three backends", 8080, 65535)
	targets.Remove(8080)
	want("two backends", 8080, 65535)
	rules := [1 << 16]bool{0: true, 8080: true, 8081: true}
	ok(targets.SetRules(&rules))
	targets.Remove(8080)
	want("one backend, and rules", 0, 8080, 8081, 65535)

	next := adopt()
	ok(next.Add(65535))
	want("the next run, before it has read all", 0, 8080, 8081, 65535)
	ok(next.Settle())
	want("the next run", 65535)

	failure = errors.New("cannot write")
	if err := next.Add(22); !errors.Is(err, failure) {
		t.Errorf("a failed write: %v, want %v", err, failure)
	}
	failure = nil
	ok(next.Add(22))
	want("after a failed write", 22, 65535)
}
