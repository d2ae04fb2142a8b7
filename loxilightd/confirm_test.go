// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// applyConfirm applies o in a change that is rolled back unless it is confirmed within the given
// time.
func (s *site) applyConfirm(within time.Duration, o api.Object) *api.ChangeResult {
	s.t.Helper()
	r, err := s.Apply(s.t.Context(), api.ApplyParams{Objects: []api.Object{o}, Change: api.Change{Confirm: api.Duration(within)}})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// TestKilledWhileToBeConfirmed kills the daemon at random moments around the deadline: an
// unconfirmed change is rolled back, a confirmed change stays.
func TestKilledWhileToBeConfirmed(t *testing.T) {
	s := newSite(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 7))
	p := s.run()
	want := serviceObject("web", 1, "10.1.2.3:80")
	s.apply(want)
	kept, _ := s.get(api.KindService, "web")
	for round := range 6 {
		changed := serviceObject("web", 1, "10.1.2.3:81", "10.1.2.3:82")
		changed.Labels = map[string]string{"round": time.Duration(round).String()}
		begun := time.Now()
		r := s.applyConfirm(time.Second, changed)
		// Sleep until a random moment, at the latest just after the deadline.
		time.Sleep(time.Duration(random.Int64N(int64(1100 * time.Millisecond))))
		confirmed := false
		if round%2 == 1 {
			_, err := s.Confirm(t.Context(), r.Revision)
			if confirmed = err == nil; !confirmed && time.Since(begun) < 900*time.Millisecond {
				t.Fatalf("confirmed in time, and refused: %v", err)
			}
		}
		if confirmed {
			kept, _ = s.get(api.KindService, "web")
		}
		p.signal(syscall.SIGKILL)
		p.ends()
		overdue := random.IntN(2) == 0
		if overdue {
			time.Sleep(time.Until(begun.Add(1100 * time.Millisecond)))
		}
		p = s.run()
		if o, _ := s.get(api.KindService, "web"); (overdue || confirmed) && string(o.Spec) != string(kept.Spec) {
			t.Fatalf("round %d: confirmed %v, overdue %v; the first answer of the next daemon is %s, want %s", round, confirmed, overdue, o.Spec, kept.Spec)
		}
		eventually(t, func() bool {
			o, _ := s.get(api.KindService, "web")
			return string(o.Spec) == string(kept.Spec) && s.status().Confirm == nil
		})
		if round%2 == 1 && confirmed && kept.Labels["round"] != changed.Labels["round"] {
			t.Errorf("round %d: confirmed, and it is %v", round, kept.Labels)
		}
	}
	p.stop()
}

// TestStoppedWhileToBeConfirmed: a change whose deadline passes while the daemon is stopped never
// reaches the data plane after a restart.
func TestStoppedWhileToBeConfirmed(t *testing.T) {
	s, _ := newKernelSite(t)
	in0 := s.node()
	p := s.run()
	s.apply(in0, serviceObject("web", 1, "10.1.2.3:80"))
	s.applyConfirm(time.Second, serviceObject("web", 1, "10.1.2.3:80", "10.1.2.4:80", "10.1.2.5:80"))
	eventually(t, func() bool { return s.status().Capacity["backends"].Used == 3 })
	p.stop()
	time.Sleep(1100 * time.Millisecond) // the deadline passes
	p = s.run()
	if r := s.status(); r.Revision != 3 || r.Confirm != nil {
		t.Errorf("the first status is of revision %d, and %+v waits", r.Revision, r.Confirm)
	}
	s.wantUsage(s.specs())
	if n := s.status().Capacity["backends"].Used; n != 1 {
		t.Errorf("%d backends, want 1", n)
	}
	p.wantLog("a change was not confirmed in time and was rolled back")
	p.stop()
}

// TestJoinedAndKilled: a correction of a pending change joins it. After kill -9, both changes are
// rolled back at the first change's deadline, or confirmed together.
func TestJoinedAndKilled(t *testing.T) {
	s := newSite(t)
	p := s.run()
	s.apply(serviceObject("web", 1, "10.1.2.3:80"))
	kept, _ := s.get(api.KindService, "web")
	for _, confirmed := range []bool{false, true} {
		first := s.applyConfirm(3*time.Second, serviceObject("web", 1, "10.1.2.3:81"))
		begun := time.Now()
		if _, err := s.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{serviceObject("web", 1, "10.1.2.3:82")}}); err == nil {
			t.Fatal("a change without confirmation is accepted")
		}
		r := s.applyConfirm(time.Hour, serviceObject("web", 1, "10.1.2.3:83"))
		if c := r.Confirm; c == nil || !slices.Equal(c.Joined, []uint64{first.Revision}) || c.Until != first.Confirm.Until || time.Duration(c.Left) > 3*time.Second {
			t.Fatalf("joined as %+v, to %+v", c, first.Confirm)
		}
		p.signal(syscall.SIGKILL)
		p.ends()
		p = s.run()
		if c := s.status().Confirm; c == nil || c.Revision != r.Revision || !slices.Equal(c.Joined, []uint64{first.Revision}) {
			t.Fatalf("after kill -9, %+v waits", c)
		}
		if _, err := s.Confirm(t.Context(), first.Revision); err == nil {
			t.Fatal("confirmed without the change that joined it")
		}
		if confirmed {
			if _, err := s.Confirm(t.Context(), r.Revision); err != nil {
				t.Fatal(err)
			}
			kept, _ = s.get(api.KindService, "web")
		}
		time.Sleep(time.Until(begun.Add(3 * time.Second)))
		eventually(t, func() bool {
			o, _ := s.get(api.KindService, "web")
			return string(o.Spec) == string(kept.Spec) && s.status().Confirm == nil
		})
	}
	p.stop()
}

// TestHistoryByClient uses the client to page through a restarted daemon's history, and to roll
// back over many revisions to an object that is larger than a page.
func TestHistoryByClient(t *testing.T) {
	s := newSite(t, "history: {revisions: 700}")
	p := s.run()
	backends := make([]string, 3000) // more than fit on one page
	for i := range backends {
		backends[i] = fmt.Sprintf("10.1.%d.%d:80", i>>8, i&255)
	}
	s.apply(serviceObject("web", 1, backends...))
	var large api.Object
	if err := s.Call(t.Context(), api.MethodGet, api.GetParams{Kind: api.KindService, Name: "web"}, &large); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		if _, err := s.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{serviceObject("web", 1, fmt.Sprintf("10.1.2.3:%d", i+1))}}); err != nil {
			t.Fatal(err)
		}
	}
	p.stop()
	p = s.run()
	next := uint64(601)
	for e, err := range s.History(t.Context()) {
		if err != nil || e.Revision != next || e.Previous != next-1 || e.Method != api.MethodApply {
			t.Fatalf("%+v, %v; want revision %d", e, err, next)
		}
		next--
	}
	if next != 0 {
		t.Errorf("the history ends before revision %d", next)
	}
	var then api.Object
	if err := s.Call(t.Context(), api.MethodGet, api.GetParams{Kind: api.KindService, Name: "web", Revision: 1}, &then); err != nil || string(then.Spec) != string(large.Spec) {
		t.Errorf("at revision 1: %d bytes of spec, %v; want %d", len(then.Spec), err, len(large.Spec))
	}
	one := uint64(1)
	r, err := s.Rollback(t.Context(), api.RollbackParams{Revision: &one, Change: api.Change{Wait: api.Duration(10 * time.Second)}})
	if err != nil || r.Revision != 602 {
		t.Fatalf("rollback: %+v, %v", r, err)
	}
	if o, _ := s.get(api.KindService, "web"); string(o.Spec) != string(large.Spec) {
		t.Errorf("after the rollback: %d bytes of spec", len(o.Spec))
	}
	p.stop()
}

// TestExemptionsOnReload: a running daemon applies changed exemptions, and rejects invalid ones.
func TestExemptionsOnReload(t *testing.T) {
	s := newSite(t, "firewall: {exempt: [{in: eth0}]}")
	p := s.run()
	s.configure("datapath: {backend: fake}", "firewall: {exempt: [{in: eth0}, {source: 192.0.2.0/24, protocol: tcp, ports: 22}]}")
	p.signal(syscall.SIGHUP)
	p.wantLog("exemptions from the firewall changed", "count=2")
	s.configure("datapath: {backend: fake}", "firewall: {exempt: [{inn: eth0}]}")
	p.signal(syscall.SIGHUP)
	p.wantLog("loxilightd.yaml:2: unknown key firewall.exempt[0].inn")
	p.stop()
}

// TestFailsafeOnReload: a running daemon applies a changed failsafe, and rejects an invalid one.
func TestFailsafeOnReload(t *testing.T) {
	s := newSite(t)
	p := s.run()
	s.configure("datapath: {backend: fake}", "policy: {failsafe: {in: [tcp/2222], out: []}}")
	p.signal(syscall.SIGHUP)
	p.wantLog("failsafe of policies changed", "in=1", "out=0")
	s.configure("datapath: {backend: fake}", "policy: {failsafe: {in: [tcp/ssh]}}")
	p.signal(syscall.SIGHUP)
	p.wantLog(`policy.failsafe.in: \"ssh\" is not a valid port`)
	p.stop()
}
