// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

func TestRequestsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	create(t, path)
	f := open(t, path)
	big := make([]byte, maxRequestBytes/8)
	for i := range 20 {
		err := f.Commit(Reply{RequestID: fmt.Sprint(i), Answer: big}, func(*bbolt.Tx) (Head, error) { return f.Head(), nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		q := &f.requests
		if q.bytes > maxRequestBytes || len(q.order) != 7 || len(q.byID) != 7 {
			t.Errorf("%d requests, %d by id, of %d bytes are remembered", len(q.order), len(q.byID), q.bytes)
		}
		for i, known := range map[int]bool{12: false, 13: true, 19: true} {
			if answer, err := f.Answer(fmt.Sprint(i)); (answer != nil) != known || err != nil {
				t.Errorf("request %d remembered: %v, %v; want %v", i, answer != nil, err, known)
			}
		}
	}
	check()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = open(t, path)
	check()
}
