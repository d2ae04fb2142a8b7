// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// decodeForTest decodes the specs of these tests: "FRONTEND... COUNT", a Service with COUNT
// backends, or "dev NAME", an Interface.
func decodeForTest(kind string, spec []byte) (Value, error) {
	words := strings.Fields(string(spec))
	if kind == KindInterface && len(words) == 2 {
		return &Interface{datapath.Port{Device: words[1]}}, nil
	}
	if kind != KindService || len(words) == 0 {
		return nil, errors.New("not understood")
	}
	s := &Service{}
	for _, w := range words[:len(words)-1] {
		s.Frontends = append(s.Frontends, datapath.Frontend{Addr: netip.MustParseAddrPort(w), Protocol: datapath.TCP})
	}
	var count int
	if _, err := fmt.Sscan(words[len(words)-1], &count); err != nil {
		return nil, err
	}
	for i := range count {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)
		s.Backends = append(s.Backends, datapath.Backend{Addr: addr, Weight: 1})
	}
	return s, nil
}

func object(t testing.TB, owner, key, spec string) *Object {
	t.Helper()
	kind, name, _ := strings.Cut(key, "/")
	v, err := decodeForTest(kind, []byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	return &Object{Key: Key{kind, name}, Owner: owner, Spec: spec, Value: v}
}

func service(t testing.TB, name, spec string) *Object {
	t.Helper()
	return object(t, "cli", "Service/"+name, spec)
}

func testConfig(dir string) Config {
	return Config{Dir: dir, Tables: datapath.DefaultTables(), Decode: decodeForTest}
}

func open(t testing.TB, cfg Config) (*Store, *Report) {
	t.Helper()
	s, report, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, report
}

func commit(t testing.TB, s *Store, tr *Transaction) *Result {
	t.Helper()
	r, err := s.Commit(tr)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// breakDisk makes every access to the disk fail until mend is called.
func breakDisk(t *testing.T, s *Store) (mend func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), fileName)
	if err := create(path, 0, nil); err != nil {
		t.Fatal(err)
	}
	closed, _, err := openFile(path, decodeForTest)
	if err == nil {
		err = closed.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	working := s.disk
	s.disk = closed
	return func() { s.disk = working }
}

// dump formats the objects of a store, one per line.
func dump(s *Snapshot) string {
	var b strings.Builder
	for o := range s.All() {
		fmt.Fprintf(&b, "%s %s %v %q @%d\n", o.Key, o.Owner, o.Labels, o.Spec, o.Revision)
	}
	return b.String()
}

// wantRefusal checks the reason, object, field and part of the message, and that the store is
// unchanged.
func wantRefusal(t *testing.T, s *Store, tr *Transaction, reason Reason, key, field, text string) {
	t.Helper()
	revision, before := s.Snapshot().Revision, dump(s.Snapshot())
	_, err := s.Commit(tr)
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		t.Fatalf("commit: %v, want a refusal", err)
	}
	if r.Key == (Key{}) && key != "" || r.Key != (Key{}) && r.Key.String() != key || r.Reason != reason || r.Field != field || !strings.Contains(r.Message, text) {
		t.Errorf("refused with reason %d at %s %q: %s\nwant reason %d at %s %q: …%s…", r.Reason, r.Key, r.Field, r.Message, reason, key, field, text)
	}
	if after := dump(s.Snapshot()); s.Snapshot().Revision != revision || after != before {
		t.Errorf("a refused transaction changed the store from\n%sto\n%s", before, after)
	}
}
