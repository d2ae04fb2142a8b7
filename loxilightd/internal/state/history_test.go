// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

var root = Author{UID: 0, User: "root", Method: "apply"}

// wanted formats the objects of all owners except "file", or of owner "file" only, without their
// revisions.
func wanted(s *Store, files bool) string {
	var b strings.Builder
	for o := range s.Snapshot().All() {
		if (o.Owner == OwnerFile) == files {
			fmt.Fprintf(&b, "%s %s %v %q\n", o.Key, o.Owner, o.Labels, o.Spec)
		}
	}
	return b.String()
}

// mess generates random transactions by four owners with few names.
type mess struct {
	t      *testing.T
	random *rand.Rand
}

func (m *mess) object() *Object {
	n := m.random.IntN(12)
	spec := fmt.Sprintf("10.0.0.%d:80 %d", n, m.random.IntN(4))
	o := object(m.t, []string{"cli", "k8s", OwnerFile, "team"}[m.random.IntN(4)], fmt.Sprint("Service/s", n), spec)
	if m.random.IntN(3) == 0 {
		o.Labels = map[string]string{"turn": fmt.Sprint(m.random.IntN(3))}
	}
	return o
}

func (m *mess) transaction() *Transaction {
	t := &Transaction{By: root}
	seen := map[Key]bool{}
	for range 1 + m.random.IntN(4) {
		o := m.object()
		switch {
		case seen[o.Key]:
		case m.random.IntN(3) == 0:
			t.Delete, t.Owner = append(t.Delete, o.Key), o.Owner
		default:
			t.Put = append(t.Put, o)
		}
		seen[o.Key] = true
	}
	return t
}

// TestRollbackAnywhere compares the state after rollbacks with the state recorded at each
// revision, across restarts.
func TestRollbackAnywhere(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &mess{t, rand.New(rand.NewPCG(seed, 5))}
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	at := map[uint64]string{0: ""}
	all := map[uint64]string{0: ""}
	rolled, refused := 0, 0
	for range 400 {
		switch m.random.IntN(10) {
		case 0:
			s, _ = reopen(t, s, cfg)
		case 1, 2:
			to := slices.Sorted(maps.Keys(at))[m.random.IntN(len(at))]
			files := wanted(s, true)
			_, err := s.Rollback(&Rollback{Revision: to, By: root})
			if r, ok := errors.AsType[*Refusal](err); ok {
				if refused++; r.Reason != Conflict || r.Key == (Key{}) {
					t.Fatalf("rollback to %d: %v", to, err)
				}
				break
			}
			rolled++
			if got := wanted(s, false); err != nil || got != at[to] || wanted(s, true) != files {
				t.Fatalf("after the rollback to %d (%v) there is\n%swas\n%s", to, err, got, at[to])
			}
		default:
			_, _ = s.Commit(m.transaction()) // may be rejected
		}
		revision := s.Snapshot().Revision
		at[revision] = wanted(s, false)
		all[revision] = at[revision] + wanted(s, true)
	}
	closed(t, s)
	if rolled < 20 || refused == 0 {
		t.Errorf("%d rollbacks and %d refused ones are no good test", rolled, refused)
	}
	wantDiffs(t, s, all)
}

// wantDiffs checks that each revision's diffs lead from the previous state to the next.
func wantDiffs(t *testing.T, s *Store, all map[uint64]string) {
	t.Helper()
	lines := func(text string) map[string]bool {
		m := map[string]bool{}
		for line := range strings.Lines(text) {
			m[line] = true
		}
		return m
	}
	line := func(o *Object) string { return fmt.Sprintf("%s %s %v %q\n", o.Key, o.Owner, o.Labels, o.Spec) }
	for _, e := range s.History() {
		now := lines(all[e.Previous])
		var diffs []Diff
		err := s.Diffs(e.Revision, "", func(d Diff) bool { diffs = append(diffs, d); return true })
		for _, d := range diffs {
			if d.Before != nil {
				if !now[line(d.Before)] {
					t.Errorf("revision %d: %s did not exist before", e.Revision, line(d.Before))
				}
				delete(now, line(d.Before))
			}
			if d.After != nil {
				now[line(d.After)] = true
			}
			if o, err := s.At(e.Revision, d.Key); err != nil || (o == nil) != (d.After == nil) || o != nil && line(o) != line(d.After) {
				t.Errorf("%s at revision %d: %v, %v, want %v", d.Key, e.Revision, o, err, d.After)
			}
		}
		if err != nil || !maps.Equal(now, lines(all[e.Revision])) || len(diffs) != e.Created+e.Updated+e.Deleted {
			t.Errorf("revision %d: %v; %d diffs of %+v lead to\n%v\nwant\n%v", e.Revision, err, len(diffs), e, now, lines(all[e.Revision]))
		}
	}
}

func TestHistoryTellsWho(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Clock.Now = func() time.Time { return time.Unix(1700000000, 42) }
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{By: Author{UID: 1000, User: "ann", Method: "replace"}, Put: []*Object{
		service(t, "a", "192.0.2.1:80 1"), object(t, "team", "Service/b", "192.0.2.2:80 1"),
	}})
	commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "a", "192.0.2.1:80 1")}}) // changes nothing
	commit(t, s, &Transaction{By: root, Delete: []Key{{KindService, "b"}}})
	if _, err := s.Rollback(&Rollback{Revision: 1, By: Author{UID: 0, Method: "rollback"}}); err != nil {
		t.Fatal(err)
	}
	s, _ = reopen(t, s, cfg)
	closed(t, s)
	var got strings.Builder
	for _, e := range s.History() {
		fmt.Fprintln(&got, e.Revision, e.Previous, e.At.UnixNano(), e.UID, e.User, e.Method, e.Owners, e.Created, e.Updated, e.Deleted, e.Restored)
	}
	want := `1 0 1700000000000000042 1000 ann replace [cli team] 2 0 0 0
2 1 1700000000000000042 0 root apply [team] 0 0 1 0
3 2 1700000000000000042 0  rollback [team] 1 0 0 1
`
	if got.String() != want {
		t.Errorf("history:\n%swant\n%s", got.String(), want)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.History = HistoryLimits{Revisions: 5, Bytes: 20000}
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	first := func() uint64 { return s.History()[0].Revision }
	turn := 0
	put := func(size int) {
		t.Helper()
		turn++
		o := service(t, "a", fmt.Sprintf("192.0.2.1:80 %d", turn%5))
		o.Labels = map[string]string{"ballast": strings.Repeat("b", size)}
		commit(t, s, &Transaction{By: root, Put: []*Object{o}})
	}
	for range 8 {
		put(20)
	}
	if len(s.History()) != 5 || first() != 4 {
		t.Errorf("%d revisions from %d on are kept, want 5 from 4 on", len(s.History()), first())
	}
	_, err = s.Rollback(&Rollback{Revision: 2, By: root})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Reason != NotKept || !strings.Contains(r.Message, "2 is not kept: the daemon is at 8, and the oldest revision that is kept is 3") {
		t.Errorf("rollback to a revision that is not kept: %v", err)
	}
	put(9000)
	s, _ = reopen(t, s, cfg)
	put(9001) // this revision keeps 9000 bytes, and the next revision 9001
	put(3000)
	if first() != 7 {
		t.Errorf("revisions from %d on are kept, want from 7 on", first())
	}
	put(30000)
	if first() != 11 || len(s.History()) != 2 {
		t.Errorf("%d revisions from %d on are kept, want 2 from 11 on: there is no room for more bytes", len(s.History()), first())
	}
	put(1)
	if first() != 13 {
		t.Errorf("revisions from %d on are kept, want only 13, which is too large by itself", first())
	}
	if _, err := s.Rollback(&Rollback{Revision: 12, By: root}); err != nil {
		t.Errorf("rollback over the entry that is too large: %v", err)
	}
	s, report := reopen(t, s, cfg)
	closed(t, s)
	rows := 0
	tx, err := s.disk.Begin()
	if err != nil {
		t.Fatal(err)
	}
	err = disk.Read(tx, func() error {
		return tx.Bucket([]byte("history")).ForEach(func(k, _ []byte) error {
			if binary.BigEndian.Uint64(k) < first() {
				rows++
			}
			return nil
		})
	})
	if err != nil || rows > 0 || report.HistoryLost != "" {
		t.Errorf("%d rows of a revision that is not kept, %v, %+v", rows, err, report)
	}
}

// TestLargeRevision: each object in a revision whose history takes up many rows is found.
func TestLargeRevision(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _ := open(t, cfg)
	const count = 5000
	var put []*Object
	for i := range count {
		put = append(put, service(t, fmt.Sprintf("s%05d", i), fmt.Sprintf("10.9.%d.%d:80 3", i>>8, i&255)))
	}
	commit(t, s, &Transaction{By: root, Put: put})
	var keys []Key
	for _, o := range put {
		keys = append(keys, o.Key)
	}
	commit(t, s, &Transaction{By: root, Delete: keys})
	for _, i := range []int{0, 1, 777, count / 2, count - 1} {
		if o, err := s.At(1, keys[i]); err != nil || o == nil || o.Spec != put[i].Spec || o.Value == nil {
			t.Errorf("%s at revision 1: %v, %v", keys[i], o, err)
		}
		n := 0
		if err := s.Diffs(2, keys[i].String(), func(d Diff) bool { n++; return true }); err != nil || n != count-1-i {
			t.Errorf("%d diffs after %s, want %d: %v", n, keys[i], count-1-i, err)
		}
	}
	if o, err := s.At(1, Key{KindService, "s00000a"}); err != nil || o != nil {
		t.Errorf("what never was: %v, %v", o, err)
	}
	if _, err := s.Rollback(&Rollback{Revision: 1, By: root}); err != nil || s.Snapshot().Len() != count {
		t.Errorf("%d objects after the rollback, want %d: %v", s.Snapshot().Len(), count, err)
	}
}

// TestOlderVersionInBetween: a version without history changes the store, and a later version with
// history does not use the incomplete history.
func TestOlderVersionInBetween(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "a", "192.0.2.1:80 1")}})
	commit(t, s, &Transaction{By: root, Confirm: time.Hour, Put: []*Object{service(t, "b", "192.0.2.2:80 1")}})
	s, report := reopen(t, s, cfg)
	if p, _ := s.Pending(); report.HistoryLost != "" || len(s.History()) != 2 || p == nil {
		t.Fatalf("%+v, %d revisions, pending %v", report, len(s.History()), p)
	}
	o := service(t, "c", "192.0.2.3:80 1")
	o.Revision = 3
	if err := (&write{revision: 3, puts: []*Object{o}, count: 3}).commit(s.disk); err != nil { // this is all that the older version wrote
		t.Fatal(err)
	}
	s, report = reopen(t, s, cfg)
	if report.HistoryLost == "" || report.Unconfirmed == nil || report.Unconfirmed.Revision != 2 || len(s.History()) != 0 || s.Snapshot().Len() != 3 {
		t.Errorf("%+v, %d revisions, %d objects", report, len(s.History()), s.Snapshot().Len())
	}
	if p, _ := s.Pending(); p != nil {
		t.Errorf("%+v still waits", p)
	}
	commit(t, s, &Transaction{By: root, Delete: []Key{{KindService, "a"}}})
	s, report = reopen(t, s, cfg)
	closed(t, s)
	if report.HistoryLost != "" || report.Unconfirmed != nil || len(s.History()) != 1 {
		t.Errorf("the start after: %+v, %d revisions", report, len(s.History()))
	}
	if _, err := s.Rollback(&Rollback{Revision: 3, By: root}); err != nil || s.Snapshot().Len() != 3 {
		t.Errorf("back to where the history begins: %v, %d objects", err, s.Snapshot().Len())
	}
}

// TestDamagedHistory: damaged rows in the history destroy the history, but no objects.
func TestDamagedHistory(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "a", "192.0.2.1:80 1")}})
	commit(t, s, &Transaction{By: root, Put: []*Object{service(t, "a", "192.0.2.1:80 2")}})
	spoil := func(key []byte) {
		t.Helper()
		err := s.disk.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("history"))
			row := append([]byte{}, b.Get(key)...)
			row[len(row)-1] ^= 1
			return b.Put(key, row)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	spoil(append(record.NumberKey(2), "\x01Service/a"...)) // the row of former objects
	s, report := reopen(t, s, cfg)
	before := dump(s.Snapshot())
	_, err = s.Rollback(&Rollback{Revision: 1, By: root})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Reason != Unavailable || dump(s.Snapshot()) != before || report.HistoryLost != "" {
		t.Errorf("rollback by way of a damaged row: %v", err)
	}
	spoil(append(record.NumberKey(1), 0)) // the entry
	s, report = reopen(t, s, cfg)
	closed(t, s)
	if report.HistoryLost == "" || report.Damage != nil || dump(s.Snapshot()) != before || len(s.History()) != 0 {
		t.Errorf("a damaged entry: %+v, %d revisions", report, len(s.History()))
	}
}
