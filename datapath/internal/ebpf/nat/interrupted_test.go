// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"maps"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// change is a change from one set of rules to another.
type change struct {
	name       string
	from, to   map[datapath.NATName]datapath.NAT
	stepsAtAll int // at least as many changes to tables, and steps of publishing
}

// changes returns changes between sets that have all types of rules.
func changes() []change {
	dnat := func(to string, port uint16) datapath.NAT {
		v := datapath.NAT{Type: datapath.DNAT, Match: datapath.Match{Destination: prefixes("198.51.100.7/32")}, Addresses: prefixes(to)}
		if port != 0 {
			v.Ports = []datapath.PortRange{{First: port, Last: port}}
		}
		return v
	}
	pool := func(addresses ...string) datapath.NAT { return datapath.NAT{Addresses: prefixes(addresses...)} }
	pair := func(from, to string) datapath.NAT {
		return datapath.NAT{OneToOne: true, Match: datapath.Match{Source: prefixes(from)}, Addresses: prefixes(to)}
	}
	masquerade := datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{"out0"}}}
	blocks := masquerade
	blocks.BlockSize = 128
	first := map[datapath.NATName]datapath.NAT{
		"in": dnat("192.0.2.10/32", 9029), "away": masquerade, "pool": pool("203.0.113.64/28", "2001:db8:cb00:71::/64"),
		"pair": pair("10.0.1.0/24", "203.0.113.0/24"), "same": pool("203.0.113.96/28"),
	}
	second := map[datapath.NATName]datapath.NAT{
		"in": dnat("192.0.2.11/32", 0), "blocks": blocks, "pool": pool("203.0.113.80/28", "203.0.113.128/28"),
		"pair": pair("10.0.2.0/24", "203.0.113.0/24"), "same": pool("203.0.113.96/28"),
	}
	ordered := maps.Clone(first)
	other := ordered["pool"]
	other.Priority = 7
	ordered["pool"] = other
	return []change{
		{"first rules", nil, first, 20},
		{"other rules", first, second, 25},
		{"another order", first, ordered, 1},
		{"only DNAT", first, map[datapath.NATName]datapath.NAT{"in": first["in"]}, 15},
		{"no rules", second, nil, 20},
	}
}

// TestEachStepFails fails a change of rules at each of its steps: each change to a table, each step
// of publishing, and the announcement. Whether the daemon retries, or was killed at this step and
// starts again, a packet finds only complete rules at any time, and after the retry the tables are
// equivalent to the tables of an undisturbed run.
func TestEachStepFails(t *testing.T) {
	for _, c := range changes() {
		for _, kills := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed %t", c.name, kills), func(t *testing.T) {
				s, fresh := newNATSite(t, 1), newNATSite(t, 1)
				fresh.desired.Rules = c.to
				fresh.reconcile()
				want := fresh.meaning()
				n := 1
				for ; s.failsAt(c, n, kills); n++ {
					if kills {
						s.restart()
					}
					s.finish(n, want)
				}
				if s.finish(n, want); n <= c.stepsAtAll {
					t.Errorf("only %d steps, want at least %d", n-1, c.stepsAtAll)
				}
			})
		}
	}
}

// failsAt applies a change whose n-th step fails, and reports whether it has so many steps.
func (s *natSite) failsAt(c change, n int, kills bool) bool {
	s.t.Helper()
	s.desired.Rules = c.from
	s.reconcile()
	if err := s.Maintain(); err != nil {
		s.t.Fatal(err)
	}
	s.desired.Rules = c.to
	s.steps, s.failing, s.kills = 0, n, kills
	err := s.apply()
	if failed := s.steps >= n; failed != (err != nil) {
		s.t.Fatalf("step %d of %d: failed %t, error %v", n, s.steps, failed, err)
	}
	s.failing = 0
	if wrong := s.wrong(); s.broken != "" || wrong != "" {
		s.t.Fatalf("step %d: %s; %s", n, s.broken, wrong)
	}
	// verify, not Verify: the retry must write what is missing although nothing demands that everything is written.
	if ok, err := s.verify(); ok && s.images.interrupted || err != nil {
		s.t.Errorf("step %d: publishing was interrupted, and the check misses that: %v", n, err)
	}
	return err != nil
}

// finish applies the desired rules without faults, and compares the tables with their wanted
// meaning.
func (s *natSite) finish(n int, want map[string]string) {
	s.t.Helper()
	s.reconcile()
	if err := s.Maintain(); err != nil {
		s.t.Fatal(err)
	}
	have := s.meaning()
	for what, w := range want {
		if have[what] != w {
			s.t.Fatalf("step %d: %s:\nhave %s\nwant %s", n, what, have[what], w)
		}
	}
	if ok, err := s.Verify(s.t.Context(), datapath.NodeSet); len(s.desired.Rules) > 0 && !ok || err != nil {
		s.t.Fatalf("step %d: does not verify: %v", n, err)
	}
	if wrong := s.wrong(); s.broken != "" || wrong != "" {
		s.t.Fatalf("step %d: %s; %s", n, s.broken, wrong)
	}
}

// TestAdoptionFails kills the daemon at each step of a change of rules, and then fails each change
// to a table that the next run makes while it adopts the tables. The attempt after that succeeds,
// and leads to the same tables as an undisturbed run.
func TestAdoptionFails(t *testing.T) {
	all := 0
	for _, c := range changes() {
		s, fresh := newNATSite(t, 1), newNATSite(t, 1)
		fresh.desired.Rules = c.to
		fresh.reconcile()
		want := fresh.meaning()
		for n, killed := 1, true; killed; n++ {
			var failed int
			killed, failed = s.adoptionsFail(c, n, want)
			all += failed
		}
	}
	if t.Logf("%d adoptions failed", all); all < 20 {
		t.Error("too few failed adoptions")
	}
}

// adoptionsFail kills the daemon at the n-th step of a change, as often as the next run changes
// tables, and fails each of these changes in turn. It reports whether the change has so many steps,
// and how many adoptions failed.
func (s *natSite) adoptionsFail(c change, n int, want map[string]string) (killed bool, failed int) {
	s.t.Helper()
	for s.failsAt(c, n, true) {
		s.steps, s.failing = 0, failed+1
		err := s.adopt()
		if reached := s.steps > failed; reached != (err != nil) {
			s.t.Fatalf("%s, step %d: change %d of the adoption, error %v", c.name, n, s.steps, err)
		}
		s.restart()
		if s.finish(n, want); err == nil {
			return true, failed
		}
		failed++
	}
	return false, failed
}
