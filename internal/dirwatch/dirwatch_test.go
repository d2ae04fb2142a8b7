// SPDX-License-Identifier: Apache-2.0

package dirwatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestChanges: creating, renaming and deleting a file in a directory is reported, and so is the
// deletion of the directory. Another watch can then begin in its place.
func TestChanges(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := filepath.Join(t.TempDir(), "watched")
	if err := w.Add(dir); err == nil {
		t.Error("a directory that does not exist is watched")
	}
	for range 2 {
		wait := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-w.Changed():
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: not reported", what)
			}
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second call changes nothing
			if err := w.Add(dir); err != nil {
				t.Fatal(err)
			}
		}
		old, name := filepath.Join(dir, "old"), filepath.Join(dir, "new")
		wait("create", os.WriteFile(old, nil, 0o600))
		wait("rename", os.Rename(old, name))
		wait("delete", os.Remove(name))
		wait("delete the directory", os.Remove(dir))
		select { // further messages about the deletion
		case <-w.Changed():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
