// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/timeline"
)

// join commits two changes, 20 and 30 seconds after the pending change of revision 2, which join
// that change. In between, it commits a change to another owner's object, which stays.
func join(t *testing.T, s *Store, c *fakeClock) {
	t.Helper()
	c.pass(20 * time.Second)
	r := commit(t, s, &Transaction{By: root, Confirm: time.Hour, Put: []*Object{
		service(t, "changed", "192.0.2.2:80 3"),       // changed by the pending change too
		service(t, "kept", "192.0.2.1:80 2"),          // belongs to the same owner
		service(t, "grabs", "192.0.2.3:80 1"),         // claims what the pending change released
		object(t, "k8s", "Service/x", "192.0.2.7:80"), // belongs to another owner
	}})
	if p := r.Pending; p == nil || p.Revision != 3 || !slices.Equal(p.Joined, []uint64{2}) || r.PendingLeft != 40*time.Second {
		t.Fatalf("the second change waits as %+v, for %s", p, r.PendingLeft)
	}
	commit(t, s, &Transaction{By: root, Put: []*Object{object(t, "k8s", "Service/pod", "192.0.2.4:80 9")}})
	c.pass(10 * time.Second)
	r = commit(t, s, &Transaction{By: root, Confirm: time.Second, Delete: []Key{{KindService, "created"}}, Put: []*Object{
		object(t, "k8s", "Service/pod", "192.0.2.4:80 10"), service(t, "changed", "192.0.2.2:80 4"),
	}})
	if p := r.Pending; p == nil || p.Revision != 5 || !slices.Equal(p.Joined, []uint64{2, 3}) || r.PendingLeft != 30*time.Second {
		t.Fatalf("the third change waits as %+v, for %s", p, r.PendingLeft)
	}
}

// joinedBefore returns the state that a rollback restores: the state before the pending change,
// with the change to the other owner's object.
func joinedBefore(t *testing.T) string {
	s, _ := open(t, testConfig(t.TempDir()))
	change(t, s)
	if _, err := s.Rollback(&Rollback{Undo: 2, By: root}); err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{By: root, Put: []*Object{object(t, "k8s", "Service/pod", "192.0.2.4:80 9")}})
	return wanted(s, false)
}

// TestJoined: changes that require confirmation and join a pending change end together with it, at
// its deadline.
func TestJoined(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(s *Store, c *fakeClock) error
		want Confirmation
	}{
		"confirmed": {func(s *Store, _ *fakeClock) error { return s.Confirm(5) }, Confirmed},
		"not confirmed": {func(s *Store, c *fakeClock) error {
			c.pass(30 * time.Second)
			_, _, err := s.Expire()
			return err
		}, RolledBack},
		"rolled back": {func(s *Store, _ *fakeClock) error {
			_, err := s.Rollback(&Rollback{Undo: 5, By: root})
			return err
		}, RolledBack},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %t", name, restarts), func(t *testing.T) {
				cfg, c := clockConfig(t)
				cfg.History.Revisions = 1 // nevertheless, all pending revisions are kept
				s, _, err := Open(cfg)
				if err != nil {
					t.Fatal(err)
				}
				change(t, s)
				join(t, s, c)
				during, back := wanted(s, false), joinedBefore(t)
				if restarts {
					s, _ = reopen(t, s, cfg)
				}
				defer func() { closed(t, s) }()
				if p, left := s.Pending(); p == nil || !slices.Equal(p.Revisions(), []uint64{2, 3, 5}) || left != 30*time.Second || p.Author != root {
					t.Fatalf("%+v waits, for %s", p, left)
				}
				if err := x.end(s, c); err != nil {
					t.Fatal(err)
				}
				want := during
				if x.want == RolledBack {
					want = back
				}
				if got := wanted(s, false); got != want {
					t.Errorf("%s:\n%swant\n%s", name, got, want)
				}
				if restarts {
					s, _ = reopen(t, s, cfg)
				}
				// A rollback adds a revision, but the history keeps only one.
				if got := confirmation(s, 5); x.want == Confirmed && got != Confirmed {
					t.Errorf("revision 5 is %s", got)
				}
				if p, _ := s.Pending(); p != nil {
					t.Errorf("%+v still waits", p)
				}
				commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "kept", "192.0.2.1:80 5")}})
			})
		}
	}
}

// TestJoinedConfirmations: all revisions of a pending change have the outcome of that change in the
// history.
func TestJoinedConfirmations(t *testing.T) {
	for _, want := range []Confirmation{Confirmed, RolledBack} {
		cfg, c := clockConfig(t)
		s, _ := open(t, cfg)
		change(t, s)
		join(t, s, c)
		var err error
		if want == Confirmed {
			err = s.Confirm(5)
		} else {
			_, err = s.Rollback(&Rollback{Undo: 5, By: root})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, revision := range []uint64{2, 3, 5} {
			if got := confirmation(s, revision); got != want {
				t.Errorf("revision %d is %q, want %q", revision, got, want)
			}
		}
	}
}

// TestJoinedReserves: the objects of a change stay reserved when other changes join it, and the
// objects of these changes are reserved as well.
func TestJoinedReserves(t *testing.T) {
	cfg, c := clockConfig(t)
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	change(t, s)
	join(t, s, c)
	k8s := func(name, spec string) *Transaction {
		return &Transaction{Put: []*Object{object(t, "k8s", "Service/"+name, spec)}}
	}
	for range 2 {
		for _, x := range []struct {
			t                *Transaction
			key, field, text string
		}{
			{&Transaction{Put: []*Object{service(t, "new", "192.0.2.9:80 2")}}, "Service/new", "", "has the same owner (cli)"},
			{&Transaction{Put: []*Object{service(t, "new", "192.0.2.9:80 2")}}, "Service/new", "", "a change with --confirm joins it"},
			{k8s("created", "192.0.2.9:80"), "Service/created", "", "was changed by it"}, // belongs to the first revision
			{k8s("pod", "192.0.2.4:80"), "Service/pod", "", "was changed by it"},         // belongs to the third revision
			{k8s("x", "192.0.2.8:80"), "Service/x", "", "was changed by it"},             // belongs to the second revision
			{k8s("theirs2", "192.0.2.6:80 1"), "", "", ""},                               // created by the first revision, deleted by the third
			{k8s("theirs2", "192.0.2.11:80 1"), "", "", ""},
			{k8s("theirs2", "192.0.2.3:80 1"), "Service/theirs2", "spec.frontends[0]", "192.0.2.3:80/tcp belongs to Service/grabs"},
		} {
			if x.key == "" {
				commit(t, s, x.t)
				continue
			}
			wantRefusal(t, s, x.t, Conflict, x.key, x.field, x.text)
		}
		wantRefusalText(t, s.Confirm(2), "later changes have joined the change of revision 2, and all end together: 3, 5 (the last one by root)")
		_, err := s.Rollback(&Rollback{Undo: 3, By: root})
		wantRefusalText(t, err, "later changes have joined the change of revision 3, and all end together: 5 (")
		s, _ = reopen(t, s, cfg)
	}
	closed(t, s)
	c.pass(30 * time.Second)
	wantRefusal(t, s, &Transaction{By: root, Confirm: time.Second, Put: []*Object{service(t, "new2", "192.0.2.10:80 2")}}, Conflict, "", "confirm", "is being rolled back")
}

// TestJoinedTooOften: the history must keep all revisions of a pending change, so their number is
// limited.
func TestJoinedTooOften(t *testing.T) {
	cfg, _ := clockConfig(t)
	s, _ := open(t, cfg)
	change(t, s)
	for i := range timeline.MaxJoined {
		commit(t, s, &Transaction{By: root, Confirm: time.Second, Put: []*Object{service(t, "kept", fmt.Sprintf("192.0.2.1:80 %d", i+2))}})
	}
	wantRefusal(t, s, &Transaction{By: root, Confirm: time.Second, Delete: []Key{{KindService, "kept"}}}, Capacity, "", "confirm", "101 changes are pending")
	commit(t, s, &Transaction{By: root, Confirm: time.Second, Delete: []Key{{KindService, "nothing"}}}) // changes nothing
	if p, _ := s.Pending(); len(p.Joined) != timeline.MaxJoined {
		t.Errorf("%d revisions", len(p.Joined))
	}
}
