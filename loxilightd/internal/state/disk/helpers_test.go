// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"testing"

	"go.etcd.io/bbolt"
)

// create makes a store without objects.
func create(t *testing.T, path string) {
	t.Helper()
	if err := Create(path, 0, func(*bbolt.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// open opens a store without looking at its objects, and closes it at the end of the test.
func open(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path, func(*bbolt.Tx, Head) error { return nil })
	if err == nil {
		err = f.Initialize(func() error { return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// fill makes a store with count objects.
func fill(t *testing.T, path string, count int) {
	t.Helper()
	create(t, path)
	f := open(t, path)
	err := f.Commit(Reply{RequestID: "x", Answer: []byte("yes")}, func(tx *bbolt.Tx) (Head, error) {
		for i := range count {
			if err := Objects(tx).Put(fmt.Appendf(nil, "Service/s%04d", i), make([]byte, 50)); err != nil {
				return Head{}, err
			}
		}
		return Head{Revision: 1, Count: uint64(count)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
