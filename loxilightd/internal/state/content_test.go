// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

func reopen(t *testing.T, s *Store, cfg Config) (*Store, *Report) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, report, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, report
}

// closed closes s at the end of the test if the test opens it itself.
func closed(t *testing.T, s *Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestDurable(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), "made", "here"))
	s, report, err := Open(cfg)
	if err != nil || report.Damage != nil {
		t.Fatal(report, err)
	}
	labelled := service(t, "web", "192.0.2.7:80 3")
	labelled.Labels = map[string]string{"tier": "front", "": "empty", "zone": ""}
	commit(t, s, &Transaction{Put: []*Object{labelled, object(t, "cli", "Interface/eth0", "dev eth0")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "dns", "192.0.2.8:53 2")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "dns", "192.0.2.8:53 4")}, Delete: []Key{{KindInterface, "eth0"}}, Force: true})
	before, cost := dump(s.Snapshot()), s.Snapshot().Cost()
	s, report = reopen(t, s, cfg)
	closed(t, s)
	if after := dump(s.Snapshot()); after != before || s.Snapshot().Revision != 3 || s.Snapshot().Cost() != cost {
		t.Errorf("read revision %d, cost %+v\n%swant 3, %+v\n%s", s.Snapshot().Revision, s.Snapshot().Cost(), after, cost, before)
	}
	if report.Damage != nil || report.Unreadable != nil {
		t.Errorf("a sound store is reported as %+v", report)
	}
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "x", "192.0.2.8:53 1")}}, Conflict, "Service/x", "spec.frontends[0]", "Service/dns")
}

func TestLocked(t *testing.T) {
	cfg := testConfig(t.TempDir())
	open(t, cfg)
	if _, _, err := Open(cfg); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("a second opening: %v, want ErrLocked", err)
	}
}

func TestRequestIDIsCarriedOutOnce(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	first := &Transaction{
		Put: []*Object{service(t, "a", "192.0.2.1:80 1")}, RequestID: "7", Answer: func(r *Result) []byte { return fmt.Appendf(nil, "at %d", r.Revision) },
	}
	commit(t, s, first)
	commit(t, s, &Transaction{Delete: []Key{{KindService, "a"}}})
	for range 2 {
		if r := commit(t, s, first); string(r.Answer) != "at 1" || s.Snapshot().Len() != 0 {
			t.Errorf("a repetition is answered %q and leaves %d objects; want \"at 1\" and 0", r.Answer, s.Snapshot().Len())
		}
		s, _ = reopen(t, s, cfg)
	}
	closed(t, s)
	// The answer to a rejected transaction is not stored, but the answer to a transaction that
	// changes nothing is.
	bad := &Transaction{Put: []*Object{object(t, "k8s", "Service/b", "192.0.2.2:80 1")}, IfRevision: new(uint64), RequestID: "8", Answer: first.Answer}
	wantRefusal(t, s, bad, Conflict, "", "", "revision")
	bad.IfRevision = nil
	if r := commit(t, s, bad); r.Answer != nil || r.Revision != 3 {
		t.Errorf("after a refusal: %+v, want to be carried out as revision 3", r)
	}
	same := &Transaction{Put: bad.Put, RequestID: "9", Answer: first.Answer}
	if r := commit(t, s, same); r.Answer != nil || r.Revision != 3 {
		t.Errorf("%+v, want revision 3 as before", r)
	}
	if r := commit(t, s, same); string(r.Answer) != "at 3" {
		t.Errorf("answered %q, want \"at 3\"", r.Answer)
	}
	same.RequestID, same.DryRun = "10", true
	commit(t, s, same)
	if r := commit(t, s, same); r.Answer != nil {
		t.Errorf("a dry run is remembered as %q", r.Answer)
	}
}

// TestUnreadable: an object that this version cannot decode has no effect and is reported at
// every start; a version that can decode it finds it unchanged.
func TestUnreadable(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	undecodable := func(owner, name string) *Object {
		o := object(t, owner, "Service/"+name, "192.0.2.1:80 1")
		o.Spec, o.Value = "192.0.2.1:80 many", &Service{}
		return o
	}
	commit(t, s, &Transaction{Put: []*Object{
		undecodable("cli", "stays"), undecodable("cli", "configured"), undecodable("cli", "deleted"), undecodable("k8s", "pruned"), undecodable("k8s", "kept"), service(t, "even", "192.0.2.2:80 1"),
	}})
	check := func(want ...string) {
		t.Helper()
		var report *Report
		s, report = reopen(t, s, cfg)
		var got []string
		for _, u := range report.Unreadable {
			got = append(got, u.Key.Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) || report.Damage != nil || s.Snapshot().Len() != 1 {
			t.Errorf("%q are unreadable, want %q; damage %v, %d objects", got, want, report.Damage, s.Snapshot().Len())
		}
	}
	check("configured", "deleted", "kept", "pruned", "stays")
	commit(t, s, &Transaction{Put: []*Object{service(t, "even", "192.0.2.2:80 3")}})
	check("configured", "deleted", "kept", "pruned", "stays")
	wantRefusal(t, s, &Transaction{Put: []*Object{object(t, "k8s", "Service/configured", "192.0.2.7:80 1")}}, Conflict, "Service/configured", "owner", "not understood")
	r := commit(t, s, &Transaction{Put: []*Object{service(t, "configured", "192.0.2.7:80 1")}, Delete: []Key{{KindService, "deleted"}}})
	wantActions(t, r, 3, "Service/configured created", "Service/deleted deleted")
	commit(t, s, &Transaction{Delete: []Key{{KindService, "configured"}}})
	kept := object(t, "k8s", "Service/kept", "192.0.2.8:80 1")
	r = commit(t, s, &Transaction{Put: []*Object{kept}, Replace: &Scope{Owner: "k8s", Kinds: []string{KindService}}})
	wantActions(t, r, 5, "Service/kept created", "Service/pruned deleted")
	commit(t, s, &Transaction{Delete: []Key{{KindService, "kept"}}})
	check("stays")
	cfg.Decode = func(kind string, spec []byte) (Value, error) {
		return decodeForTest(kind, []byte(strings.Replace(string(spec), "many", "9", 1)))
	}
	s, report := reopen(t, s, cfg)
	closed(t, s)
	if o, ok := s.Snapshot().Get(Key{KindService, "stays"}); !ok || o.Revision != 1 || s.Snapshot().Cost().Backends != 12 || report.Unreadable != nil {
		t.Errorf("understood again: %+v, %+v", o, report)
	}
}

func fill(t *testing.T, cfg Config, count int) {
	t.Helper()
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var put []*Object
	for i := range count {
		put = append(put, service(t, fmt.Sprintf("s%04d", i), fmt.Sprintf("10.96.%d.%d:80 2", i>>8, i&255)))
	}
	commit(t, s, &Transaction{Put: put, RequestID: "x", Answer: func(*Result) []byte { return []byte("yes") }})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDamage damages the store in many ways. The daemon must always start: with the same content if
// unused bytes are damaged, otherwise with the state before the last commit, or with an empty store
// and the damaged store set aside. It must neither crash nor accept a partial store or wrong
// content.
func TestDamage(t *testing.T) {
	const count = 300
	cfg := testConfig(t.TempDir())
	fill(t, cfg, count)
	whole, err := os.ReadFile(filepath.Join(cfg.Dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := open(t, cfg)
	want := dump(s.Snapshot())
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	aside, kept, back := 0, 0, 0
	for i := range 400 {
		text, how := harm(r, i, whole)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, report, err := Open(testConfig(dir))
		if err != nil {
			t.Fatalf("%s: does not open: %v", how, err)
		}
		switch {
		case report.RolledBack:
			back++
			if n := s.Snapshot().Len(); n != 0 && n != count || s.Snapshot().Revision < 1<<40 {
				t.Errorf("%s: rolled back to %d objects at revision %d", how, n, s.Snapshot().Revision)
			}
		case report.Damage == nil:
			kept++
			if got := dump(s.Snapshot()); got != want {
				t.Errorf("%s: taken for sound, but holds %d objects, not the %d that were there", how, s.Snapshot().Len(), count)
			}
		default:
			aside++
			checkAside(t, how, s, report, text)
		}
		commit(t, s, &Transaction{Put: []*Object{service(t, "new", "192.0.2.1:80 1")}})
		if err := s.Close(); err != nil {
			t.Fatalf("%s: close: %v", how, err)
		}
	}
	if aside < 50 || kept == 0 || back < 2 {
		t.Errorf("%d stores were set aside, %d kept, %d rolled back: the harm is no good test", aside, kept, back)
	}
}

func harm(r *rand.Rand, i int, whole []byte) ([]byte, string) {
	text := append([]byte(nil), whole...)
	switch {
	case i == 0:
		return []byte{}, "empty file"
	case i == 1:
		return []byte("this is no store\n"), "some text"
	case i == 2, i == 3:
		text[(i-2)*4096+16+20] ^= 4
		return text, fmt.Sprintf("meta page %d changed", i-2)
	case i%4 == 1:
		n := r.IntN(len(text))
		return text[:n], fmt.Sprintf("cut off at %d", n)
	case i%4 == 2:
		page := r.IntN(len(text)/4096) * 4096
		clear(text[page : page+4096])
		return text, fmt.Sprintf("page at %d zeroed", page)
	case i%4 == 3:
		at := r.IntN(len(text) - 64)
		for j := range 64 {
			text[at+j] = byte(r.Uint32())
		}
		return text, fmt.Sprintf("64 random bytes at %d", at)
	default:
		at, bit := r.IntN(len(text)), r.IntN(8)
		text[at] ^= 1 << bit
		return text, fmt.Sprintf("bit %d of byte %d turned", bit, at)
	}
}

func checkAside(t *testing.T, how string, s *Store, report *Report, text []byte) {
	t.Helper()
	if s.Snapshot().Len() != 0 || s.Snapshot().Revision < 1<<40 {
		t.Errorf("%s: the new store has %d objects at revision %d", how, s.Snapshot().Len(), s.Snapshot().Revision)
	}
	if saved, err := os.ReadFile(report.Damage.File); err != nil || string(saved) != string(text) && len(text) > 0 || report.Damage.Cause == "" {
		t.Errorf("%s: set aside with cause %q: %v, %d bytes", how, report.Damage.Cause, err, len(saved))
	}
}

func TestDamageIsReportedAgain(t *testing.T) {
	cfg := testConfig(t.TempDir())
	if err := os.Mkdir(filepath.Join(cfg.Dir, fileName), 0o700); err != nil {
		t.Fatal(err)
	}
	s, first, err := Open(cfg)
	if err != nil || first.Damage == nil {
		t.Fatalf("a directory in place of the store: %+v, %v", first, err)
	}
	s, second := reopen(t, s, cfg)
	closed(t, s)
	if second.Damage == nil || second.Damage.File != first.Damage.File || second.Damage.Cause != first.Damage.Cause {
		t.Errorf("the next start reports %+v, want %+v", second.Damage, first.Damage)
	}
}

// TestWriteFails: a change that cannot be made durable is not made.
func TestWriteFails(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 1")}})
	mend := breakDisk(t, s)
	tr := &Transaction{Put: []*Object{service(t, "a", "192.0.2.9:80 1"), service(t, "b", "192.0.2.2:80 1")}}
	wantRefusal(t, s, tr, Unavailable, "", "", "the store is closed")
	mend()
	wantActions(t, commit(t, s, tr), 2, "Service/a updated", "Service/b created")
}

// TestConfirmFails: a confirmation that cannot be made durable is not made, and Problem reports it
// until a later one succeeds.
func TestConfirmFails(t *testing.T) {
	cfg, _ := clockConfig(t)
	s, _ := open(t, cfg)
	change(t, s)
	mend := breakDisk(t, s)
	if err := s.Confirm(2); err == nil || !strings.Contains(err.Error(), "could not be made durable") || s.Problem() == "" {
		t.Errorf("%v, problem %q", err, s.Problem())
	}
	mend()
	if err := s.Confirm(2); err != nil || s.Problem() != "" {
		t.Errorf("the second time: %v, problem %q", err, s.Problem())
	}
}
