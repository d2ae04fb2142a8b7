// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state/timeline"
)

// fakeClock contains both clocks of a machine, which a test advances.
type fakeClock struct {
	now  time.Time
	boot string
	up   time.Duration
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), boot: "first", up: time.Hour}
}

func (c *fakeClock) clock() Clock {
	return Clock{Now: func() time.Time { return c.now }, Boot: func() (string, time.Duration) { return c.boot, c.up }}
}

// pass advances the time.
func (c *fakeClock) pass(d time.Duration) { c.now, c.up = c.now.Add(d), c.up+d }

// reboot simulates a reboot of the machine.
func (c *fakeClock) reboot() { c.boot, c.up = c.boot+"'", 5*time.Second }

func clockConfig(t *testing.T) (Config, *fakeClock) {
	cfg, c := testConfig(t.TempDir()), newFakeClock()
	cfg.Clock = c.clock()
	return cfg, c
}

// change commits a base state, and then a change that waits one minute for confirmation.
func change(t *testing.T, s *Store) (before string) {
	t.Helper()
	commit(t, s, &Transaction{By: root, Put: []*Object{
		service(t, "kept", "192.0.2.1:80 1"), service(t, "changed", "192.0.2.2:80 1"), service(t, "deleted", "192.0.2.3:80 1"),
		object(t, "k8s", "Service/pod", "192.0.2.4:80 1"), object(t, "team", "Service/theirs", "192.0.2.5:80 1"),
	}})
	before = wanted(s, false)
	r := commit(t, s, &Transaction{By: root, Confirm: time.Minute, Put: []*Object{
		service(t, "changed", "192.0.2.2:80 2"), service(t, "created", "192.0.2.6:80 1"),
	}, Delete: []Key{{KindService, "deleted"}}})
	if r.Pending == nil || r.Pending.Revision != 2 || r.Pending.Within != time.Minute {
		t.Fatalf("the change waits as %+v", r.Pending)
	}
	return before
}

func expire(t *testing.T, s *Store) *Result {
	t.Helper()
	_, r, err := s.Expire()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func confirmation(s *Store, revision uint64) Confirmation {
	i, ok := timeline.Find(s.History(), revision)
	if !ok {
		return NotAsked
	}
	return s.History()[i].Confirmation
}

// TestUnconfirmed: the change is in force until its deadline, and is then rolled back.
func TestUnconfirmed(t *testing.T) {
	for name, over := range map[string]func(c *fakeClock, restart func()){
		"while the daemon runs":    func(c *fakeClock, _ func()) { c.pass(time.Minute) },
		"while it does not":        func(c *fakeClock, restart func()) { c.pass(time.Minute); restart() },
		"after a restart":          func(c *fakeClock, restart func()) { c.pass(59 * time.Second); restart(); c.pass(time.Second) },
		"while the machine is off": func(c *fakeClock, restart func()) { c.now = c.now.Add(time.Minute); c.reboot(); restart() },
		"the date jumps on":        func(c *fakeClock, _ func()) { c.now = c.now.Add(time.Hour) },
		"the date jumps back":      func(c *fakeClock, _ func()) { c.pass(time.Minute); c.now = c.now.Add(-time.Hour) },
		"the date jumps back over a restart": func(c *fakeClock, restart func()) {
			c.now = c.now.Add(-40 * time.Second)
			c.up += time.Minute
			restart()
		},
		"the date is lost over a reboot":  func(c *fakeClock, restart func()) { c.now = time.Unix(0, 0); c.reboot(); restart() },
		"nothing is known of the machine": func(c *fakeClock, restart func()) { c.boot = ""; c.now = c.now.Add(-time.Second); restart() },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, c := clockConfig(t)
			s, _, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			before := change(t, s)
			during := wanted(s, false)
			if r := expire(t, s); r != nil || wanted(s, false) != during {
				t.Fatalf("rolled back too early: %+v", r)
			}
			over(c, func() { s, _ = reopen(t, s, cfg) })
			if p, left := s.Pending(); p == nil || left != 0 || wanted(s, false) != during {
				t.Errorf("before it is rolled back: %+v, %s left", p, left)
			}
			if err := s.Confirm(2); err == nil || !strings.Contains(err.Error(), "too late") {
				t.Errorf("confirmed too late: %v", err)
			}
			r := expire(t, s)
			if r == nil || r.Revision != 3 || wanted(s, false) != before || confirmation(s, 2) != RolledBack {
				t.Errorf("rolled back as %+v, %s, to\n%swant\n%s", r, confirmation(s, 2), wanted(s, false), before)
			}
			s, _ = reopen(t, s, cfg)
			closed(t, s)
			if e := s.History()[2]; e.Method != MethodExpire || e.Restored != 1 || wanted(s, false) != before {
				t.Errorf("after a restart the history ends with %+v", e)
			}
			if p, _ := s.Pending(); p != nil || expire(t, s) != nil {
				t.Errorf("it still waits: %+v", p)
			}
			wantRefusalText(t, s.Confirm(2), "was rolled back")
		})
	}
}

func wantRefusalText(t *testing.T, err error, text string) {
	t.Helper()
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Reason != Conflict || !strings.Contains(r.Error(), text) {
		t.Errorf("%v, want a conflict …%s…", err, text)
	}
}

func TestConfirmed(t *testing.T) {
	cfg, c := clockConfig(t)
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	wantRefusalText(t, s.Confirm(1), "no change is pending")
	change(t, s)
	during := dump(s.Snapshot())
	wantRefusalText(t, s.Confirm(1), "the pending change has revision 2, not 1")
	c.pass(59 * time.Second)
	s, _ = reopen(t, s, cfg)
	if _, left := s.Pending(); left != time.Second {
		t.Errorf("%s left, want 1s", left)
	}
	for range 2 { // confirming again is not an error
		if err := s.Confirm(2); err != nil {
			t.Fatal(err)
		}
		s, _ = reopen(t, s, cfg)
	}
	closed(t, s)
	c.pass(time.Hour)
	if p, _ := s.Pending(); p != nil || expire(t, s) != nil || dump(s.Snapshot()) != during || confirmation(s, 2) != Confirmed {
		t.Errorf("confirmed, but %+v waits; %s", p, confirmation(s, 2))
	}
	commit(t, s, &Transaction{By: root, Delete: []Key{{KindService, "kept"}}})
}

// TestPendingChangeReserves: no other change can prevent the rollback, or change the same objects.
func TestPendingChangeReserves(t *testing.T) {
	cfg, c := clockConfig(t)
	cfg.History.Revisions = 2 // nevertheless, the waiting revision is kept
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}

	before := change(t, s)
	file := func(name, spec string) *Transaction {
		return &Transaction{Put: []*Object{object(t, OwnerFile, "Service/"+name, spec)}, Owner: OwnerFile}
	}
	for range 2 {
		for _, x := range []struct {
			t    *Transaction
			key  string
			text string
		}{
			{&Transaction{Put: []*Object{service(t, "kept", "192.0.2.1:80 2")}}, "Service/kept", "is pending until 2026-03-04T05:07:07Z (for 1m0s)"},
			{&Transaction{Put: []*Object{service(t, "kept", "192.0.2.1:80 2")}, DryRun: true}, "Service/kept", "has the same owner (cli)"},
			{&Transaction{Put: []*Object{service(t, "new", "192.0.2.9:80 2")}}, "Service/new", "llcli rollback --last"},
			{&Transaction{Delete: []Key{{KindService, "kept"}}}, "Service/kept", "llcli confirm"},
			{&Transaction{Delete: []Key{{KindService, "created"}}}, "Service/created", "was changed by it"},
			{&Transaction{Replace: &Scope{Owner: "cli", Kinds: []string{KindService}}}, "Service/changed", "was changed by it"},
			{file("deleted", "192.0.2.30:80 1"), "Service/deleted", "was changed by it"},
			{file("grabs", "192.0.2.3:80 1"), "Service/grabs", "after the rollback: 192.0.2.3:80/tcp belongs to Service/deleted"},
			{&Transaction{Put: []*Object{object(t, "k8s", "Service/grabs", "192.0.2.3:80 1")}}, "Service/grabs", "after the rollback: 192.0.2.3:80/tcp belongs to Service/deleted"},
		} {
			field := ""
			if x.key == "Service/grabs" {
				field = "spec.frontends[0]"
			}
			wantRefusal(t, s, x.t, Conflict, x.key, field, x.text)
		}
		s, _ = reopen(t, s, cfg)
	}
	closed(t, s)
	commit(t, s, file("file", "192.0.2.50:80 1"))
	commit(t, s, &Transaction{By: root, Put: []*Object{object(t, "k8s", "Service/pod", "192.0.2.4:80 3")}})
	commit(t, s, &Transaction{By: root, Delete: []Key{{KindService, "theirs"}}})
	if _, err := s.Rollback(&Rollback{Revision: 3, By: root}); err != nil { // this rolls back only later changes
		t.Errorf("back to while it waited: %v", err)
	}
	if p, _ := s.Pending(); p == nil || confirmation(s, 2) != Waiting {
		t.Fatalf("%+v waits", p)
	}
	c.pass(time.Minute)
	expire(t, s)
	if got := wanted(s, false); got != before || !strings.Contains(wanted(s, true), "192.0.2.50") {
		t.Errorf("rolled back to\n%swant\n%sand what came in between of others:\n%s", got, before, wanted(s, true))
	}
}

// TestUndoneByHand: a user rolls back the pending change, in each of four ways.
func TestUndoneByHand(t *testing.T) {
	for name, r := range map[string]*Rollback{
		"undo":           {Undo: 2},
		"to before":      {Revision: 1, Owner: "cli"},
		"further":        {Revision: 0},
		"and once again": {Revision: 1, Confirm: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, c := clockConfig(t)
			s, _ := open(t, cfg)
			before := change(t, s)
			if name == "further" {
				before = ""
			}
			r.By = root
			dry := *r
			dry.DryRun = true
			if _, err := s.Rollback(&dry); err != nil || confirmation(s, 2) != Waiting {
				t.Errorf("a dry run: %v, %s", err, confirmation(s, 2))
			}
			result, err := s.Rollback(r)
			if err != nil || wanted(s, false) != before || confirmation(s, 2) != RolledBack {
				t.Fatalf("%+v, %v, %s:\n%s", result, err, confirmation(s, 2), wanted(s, false))
			}
			p, _ := s.Pending()
			if (p != nil) != (r.Confirm > 0) {
				t.Fatalf("%+v waits", p)
			}
			if _, err := s.Rollback(&Rollback{Undo: 2, By: root}); err == nil {
				t.Error("undone twice")
			}
			c.pass(time.Hour)
			if again := expire(t, s); (again != nil) != (r.Confirm > 0) {
				t.Errorf("then: %+v", again)
			}
		})
	}
}

// TestRestoreUndecodable: if a version that cannot decode an object deletes or replaces it, the
// change can still be rolled back.
func TestRestoreUndecodable(t *testing.T) {
	cfg, c := clockConfig(t)
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"deleted", "configured"} {
		o := service(t, name, "192.0.2.1:80 1")
		o.Spec, o.Value = "192.0.2.1:80 many", &Service{}
		commit(t, s, &Transaction{By: root, Put: []*Object{o}})
	}
	s, _ = reopen(t, s, cfg)
	before := s.Snapshot().Revision
	commit(t, s, &Transaction{By: root, Confirm: time.Minute, Delete: []Key{{KindService, "deleted"}}, Put: []*Object{service(t, "configured", "192.0.2.1:80 1")}})
	c.pass(time.Hour)
	if r := expire(t, s); r == nil || s.Snapshot().Len() != 0 || s.Snapshot().table.count != 2 {
		t.Errorf("%+v, %d objects, %d with those not understood", r, s.Snapshot().Len(), s.Snapshot().table.count)
	}
	s, report := reopen(t, s, cfg)
	closed(t, s)
	if len(report.Unreadable) != 2 || report.Damage != nil {
		t.Errorf("after a restart: %+v", report)
	}
	if o, err := s.At(before, Key{KindService, "configured"}); err != nil || o == nil || o.Spec != "192.0.2.1:80 many" {
		t.Errorf("it was %+v, %v", o, err)
	}
}

// TestRestoresOverFullTables: smaller tables do not prevent a rollback.
func TestRestoresOverFullTables(t *testing.T) {
	cfg, c := clockConfig(t)
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "a", "192.0.2.1:80 1"), service(t, "b", "192.0.2.2:80 1")}})
	before := wanted(s, false)
	commit(t, s, &Transaction{By: root, Confirm: time.Minute, Delete: []Key{{KindService, "a"}, {KindService, "b"}}})
	cfg.Tables.Services = 1
	s, _ = reopen(t, s, cfg)
	closed(t, s)
	c.pass(time.Minute)
	if expire(t, s); wanted(s, false) != before {
		t.Errorf("rolled back to\n%s", wanted(s, false))
	}
}

// TestRequestIDOfRollback: a repeated request gets the same answer, and changes nothing.
func TestRequestIDOfRollback(t *testing.T) {
	cfg, _ := clockConfig(t)
	s, _ := open(t, cfg)
	change(t, s)
	r := &Rollback{Undo: 2, By: root, RequestID: "x", Answer: func(*Result) []byte { return []byte("done") }}
	for i := range 2 {
		result, err := s.Rollback(r)
		if err != nil || (string(result.Answer) == "done") != (i == 1) || s.Snapshot().Revision != 3 {
			t.Errorf("time %d: %+v, %v", i, result, err)
		}
	}
}

// rule returns a firewall rule that belongs to owner and refers to groups.
func rule(owner, name string, groups ...datapath.GroupName) *Object {
	return &Object{Key: Key{KindFirewallRule, name}, Owner: owner, Spec: fmt.Sprint(groups), Value: &FirewallRule{
		datapath.FirewallRule{Hooks: datapath.HookAll, Match: datapath.Match{SourceGroups: groups}},
	}}
}

func group(owner, name string) *Object {
	return &Object{Key: Key{KindAddressGroup, name}, Owner: owner, Spec: name, Value: &AddressGroup{}}
}

// TestGroupsOfAPendingChange: an object whose group a rollback would delete is rejected; if it
// exists nevertheless, everything else is rolled back.
func TestGroupsOfAPendingChange(t *testing.T) {
	cfg, c := clockConfig(t)
	cfg.Decode = func(kind string, spec []byte) (Value, error) {
		if kind == KindAddressGroup {
			return &AddressGroup{}, nil
		}
		var groups []datapath.GroupName
		for _, g := range strings.Fields(strings.Trim(string(spec), "[]")) {
			groups = append(groups, datapath.GroupName(g))
		}
		return rule("", "", groups...).Value, nil
	}
	s, _ := open(t, cfg)
	commit(t, s, &Transaction{Put: []*Object{group("team", "old"), rule("cli", "r", "old"), rule("cli", "s")}})
	commit(t, s, &Transaction{Confirm: time.Minute, Put: []*Object{group("cli", "new"), rule("cli", "r", "new")}, Delete: []Key{{KindFirewallRule, "s"}}})
	wantRefusal(t, s, &Transaction{Put: []*Object{rule("team", "t", "new")}}, Conflict, "FirewallRule/t", "spec.match.source", "after the rollback: there is no AddressGroup/new")
	wantRefusal(t, s, &Transaction{Delete: []Key{{KindAddressGroup, "old"}}}, Conflict, "AddressGroup/old", "", "after the rollback: FirewallRule/r refers to it")
	w := s.waiting.Load()
	s.waiting.Store(nil)
	commit(t, s, &Transaction{Put: []*Object{rule("team", "t", "new")}}) // as if the check did not exist
	s.waiting.Store(w)
	c.pass(time.Minute)
	r := expire(t, s)
	if _, back := s.Snapshot().Get(Key{KindFirewallRule, "s"}); !back || len(r.Left) != 1 || r.Left[0].Name != "new" {
		t.Errorf("rolled back as %+v, s exists: %v", r, back)
	}
	if p, _ := s.Pending(); p != nil {
		t.Errorf("%+v still waits", p)
	}
}

// TestUndoneInPart: a rollback for one of two owners does not roll back the whole change.
func TestUndoneInPart(t *testing.T) {
	cfg, _ := clockConfig(t)
	s, _ := open(t, cfg)
	commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "mine", "192.0.2.1:80 1"), object(t, "k8s", "Service/theirs", "192.0.2.2:80 1")}})
	commit(t, s, &Transaction{By: root, Confirm: time.Minute, Delete: []Key{{KindService, "mine"}, {KindService, "theirs"}}})
	_, err := s.Rollback(&Rollback{Revision: 1, Owner: "cli", By: root})
	wantRefusalText(t, err, "was changed by it")
	if _, err := s.Rollback(&Rollback{Revision: 1, By: root}); err != nil || s.Snapshot().Len() != 2 {
		t.Errorf("for all owners: %v, %d objects", err, s.Snapshot().Len())
	}
}

// TestExpireIsTriedAgain: a change whose rollback cannot be made durable stays pending, and the
// rollback is tried again.
func TestExpireIsTriedAgain(t *testing.T) {
	cfg, c := clockConfig(t)
	s, _ := open(t, cfg)
	before := change(t, s)
	c.pass(time.Minute)
	mend := breakDisk(t, s)
	if p, r, err := s.Expire(); p == nil || r != nil || err == nil || wanted(s, false) == before {
		t.Errorf("%+v, %+v, %v", p, r, err)
	}
	wantRefusalText(t, s.Confirm(2), "too late")
	mend()
	if r := expire(t, s); r == nil || wanted(s, false) != before {
		t.Errorf("the second time: %+v", r)
	}
}
