// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVerify damages the structure of a store in ways that random damage (see TestDamage of package
// state) rarely produces: pages that refer to each other in a circle, or pages in use that count as
// free.
func TestVerify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	fill(t, path, 300)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var w walker
	if w.file, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	defer w.file.Close()
	if _, err := w.findMeta(); err != nil {
		t.Fatal(err)
	}
	branch := 0 // a page in use that refers to other pages
	w.used = make([]bool, w.next)
	if err := w.page(w.root, nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	for id := 2; id < int(w.next); id++ {
		if w.used[id] && native.Uint16(whole[id*4096+8:]) == pageBranch {
			branch = id
		}
	}
	if branch == 0 {
		t.Fatal("no branch page in the store: too few objects")
	}
	at := branch * 4096
	freelist := int(w.freelist) * 4096
	for _, tt := range []struct {
		name string
		harm func(b []byte)
		want string
	}{
		{"circle", func(b []byte) { native.PutUint64(b[at+headerLen+8:], uint64(branch)) }, "used twice"},
		{"page of two", func(b []byte) { copy(b[at+headerLen+elementLen+8:], b[at+headerLen+8:at+headerLen+16]) }, "used twice"},
		{"outside", func(b []byte) { native.PutUint64(b[at+headerLen+8:], 1<<40) }, "page 1099511627776 of"},
		{"wrong page", func(b []byte) { native.PutUint64(b[at:], 3) }, "has the id 3"},
		{"long page", func(b []byte) { native.PutUint32(b[at+12:], 1<<30) }, "pages long"},
		{"many elements", func(b []byte) { native.PutUint16(b[at+10:], 60000) }, "60000 elements"},
		{"element outside", func(b []byte) { native.PutUint32(b[at+headerLen+4:], 1<<20) }, "element 0 is outside"},
		{"order", func(b []byte) {
			key := b[at+headerLen+elementLen+int(native.Uint32(b[at+headerLen+elementLen:])):]
			key[0] = 'A'
		}, "out of order"},
		{"free and used", func(b []byte) {
			native.PutUint16(b[freelist+10:], 1)
			native.PutUint64(b[freelist+headerLen:], uint64(branch))
		}, "is both free and in use"},
		{"endless freelist", func(b []byte) {
			native.PutUint16(b[freelist+10:], 0xFFFF)
			native.PutUint64(b[freelist+headerLen:], 1<<40)
		}, "no list of 1099511627776"},
	} {
		text := slices.Clone(whole)
		tt.harm(text)
		harmed := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(harmed, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := verify(harmed); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want …%s…", tt.name, err, tt.want)
		}
	}
	if lost, err := verify(path); lost || err != nil {
		t.Errorf("a sound store: %v, %v", lost, err)
	}
}
