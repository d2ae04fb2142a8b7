// SPDX-License-Identifier: Apache-2.0

package local

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestPrepareConfDir: the user may create files in the directory, and owns the existing
// configuration, but nothing else in the directory.
func TestPrepareConfDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_CHOWN")
	}
	const user = 64253
	dir := t.TempDir()
	own := func(path string) [2]uint32 {
		t.Helper()
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		return [2]uint32{stat.Uid, stat.Gid}
	}
	config, other := filepath.Join(dir, "10-loxilight.conflist"), filepath.Join(dir, "20-other.conflist")
	for _, path := range []string{config, other} {
		if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time, as when the container starts again
		if err := prepareConfDir(dir, user); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&(fs.ModePerm|fs.ModeSticky) != 0o775|fs.ModeSticky || own(dir) != [2]uint32{0, user} {
		t.Errorf("the folder is %v of %v, %v", info.Mode(), own(dir), err)
	}
	if own(config) != [2]uint32{user, user} || own(other) != [2]uint32{0, 0} {
		t.Errorf("the configuration belongs to %v, the other one to %v", own(config), own(other))
	}
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(other, config); err != nil {
		t.Fatal(err)
	}
	if err := prepareConfDir(dir, user); err == nil || own(other) != [2]uint32{0, 0} {
		t.Errorf("a second name of another file: %v, and it belongs to %v", err, own(other))
	}
}
