// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// applyConfirm applies an object that is taken back after a time.
func (s *site) applyConfirm(within time.Duration, o api.Object) *api.ChangeResult {
	s.t.Helper()
	r, err := s.Apply(s.t.Context(), api.ApplyParams{Objects: []api.Object{o}, Change: api.Change{Confirm: api.Duration(within)}})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// TestKilledWhileToBeConfirmed kills the daemon at random moments around the
// deadline: the change goes unless it was confirmed, and stays if it was.
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
		time.Sleep(time.Duration(random.Int64N(int64(1100 * time.Millisecond)))) // at any point of what it does
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

// TestStoppedWhileToBeConfirmed: a deadline that passes while the daemon is stopped
// counts before anything of the change gets to the data plane.
func TestStoppedWhileToBeConfirmed(t *testing.T) {
	s, _ := newKernelSite(t)
	p := s.run()
	s.apply(serviceObject("web", 1, "10.1.2.3:80"))
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
	p.wantLog("a change was not confirmed in time and was taken back")
	p.stop()
}

// TestExemptionsOnReload: other exemptions are taken over while the daemon runs,
// and bad ones are not.
func TestExemptionsOnReload(t *testing.T) {
	s := newSite(t, "firewall: {exempt: [{in: eth0}]}")
	p := s.run()
	s.configure("datapath: {backend: fake}", "firewall: {exempt: [{in: eth0}, {source: 192.0.2.0/24, protocol: tcp, ports: 22}]}")
	p.signal(syscall.SIGHUP)
	p.wantLog("other exemptions from the firewall", "count=2")
	s.configure("datapath: {backend: fake}", "firewall: {exempt: [{inn: eth0}]}")
	p.signal(syscall.SIGHUP)
	p.wantLog("loxilightd.yaml:2: unknown key firewall.exempt[0].inn")
	p.stop()
}
