// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"
	"testing"
)

func TestChanges(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 1"), service(t, "b", "192.0.2.2:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 2"), service(t, "b", "192.0.2.2:80 1")}})
	commit(t, s, &Transaction{Delete: []Key{{KindService, "b"}, {KindService, "none"}}})
	for since, want := range [][]string{
		{"1 Service/a created", "1 Service/b created", "2 Service/a updated", "3 Service/b deleted"},
		{"2 Service/a updated", "3 Service/b deleted"},
		{"3 Service/b deleted"},
		nil,
	} {
		changes, revision, ok := s.Changes(uint64(since))
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprintf("%d %s %s", c.Revision, c.Key, c.Action))
		}
		if !ok || revision != 3 || !slices.Equal(got, want) {
			t.Errorf("changes since %d = %q, %d, %v; want %q, 3, true", since, got, revision, ok, want)
		}
	}
	if _, _, ok := s.Changes(4); ok {
		t.Error("changes since a revision that never existed are reported")
	}
}

// TestChangesExpire: the log has a limit, drops whole revisions, and reports that they are missing.
func TestChangesExpire(t *testing.T) {
	var l changeLog
	for revision := uint64(1); revision <= 3*logSize/100; revision++ {
		batch := make([]Change, 100)
		for i := range batch {
			batch[i] = Change{Key: Key{KindService, fmt.Sprint(i)}, Revision: revision}
		}
		l.add(batch)
		if len(l.changes) > logSize+logSize/4 || len(l.changes)%100 != 0 {
			t.Fatalf("revision %d: %d changes remembered", revision, len(l.changes))
		}
		if l.changes[0].Revision != l.oldest+1 {
			t.Fatalf("oldest is %d, the first change of %d", l.oldest, l.changes[0].Revision)
		}
	}
	if l.oldest == 0 {
		t.Error("nothing was forgotten")
	}
	// A transaction larger than the log is dropped as a whole.
	l.add(make([]Change, 2*logSize))
	if len(l.changes) != 0 {
		t.Errorf("%d changes of a revision that does not fit are left", len(l.changes))
	}
}

func TestChangesDoNotReachBackBeforeTheStart(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 2")}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, cfg)
	if _, _, ok := s.Changes(1); ok {
		t.Error("changes of the earlier run are reported, which are unknown")
	}
	if c, revision, ok := s.Changes(2); !ok || revision != 2 || len(c) != 0 {
		t.Errorf("changes since the current revision = %v, %d, %v", c, revision, ok)
	}
}

func TestWatch(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 1"), service(t, "b", "192.0.2.2:80 1")}})
	w := s.Watch()
	take := func(revision uint64, want ...string) {
		t.Helper()
		select {
		case <-w.C():
		default:
			t.Fatalf("no signal for %q", want)
		}
		snapshot, keys := w.Take()
		var got []string
		for _, k := range keys {
			_, ok := snapshot.Get(k)
			got = append(got, fmt.Sprint(k.Name, ok))
		}
		if slices.Sort(got); snapshot.Revision != revision || !slices.Equal(got, want) {
			t.Errorf("took %q at %d, want %q at %d", got, snapshot.Revision, want, revision)
		}
	}
	take(1, "atrue", "btrue")
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 2")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 3")}, Delete: []Key{{KindService, "b"}}})
	take(3, "atrue", "bfalse")
	commit(t, s, &Transaction{Delete: []Key{{KindService, "b"}}})
	select {
	case <-w.C():
		t.Error("a signal without a change")
	default:
	}
	w.Close()
	commit(t, s, &Transaction{Delete: []Key{{KindService, "a"}}})
	select {
	case <-w.C():
		t.Error("a signal after Close")
	default:
	}
}
