// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEnough: the machine's free memory and each limit of a cgroup count, and a twentieth stays
// free.
func TestEnough(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("meminfo", "MemTotal:       2048000 kB\nMemFree: 5 kB\nMemAvailable:    1024000 kB\n") // 2000 and 1000 MiB
	write("limited/memory.max", "419430400\n")                                                   // 400 MiB
	write("limited/memory.current", "314572800\n")                                               // 300 MiB
	write("limited/memory.stat", "anon 7\ninactive_file 104857600\n")                            // 100 MiB
	write("limited/free/memory.max", "max\n")
	meminfo := filepath.Join(root, "meminfo")
	for _, c := range []struct {
		group   string
		mib     uint64
		refused string
	}{
		{"/", 899, ""},
		{"/", 901, "1000 of 2000 MiB of the machine"},
		{"/limited/free", 179, ""},
		{"/limited/free", 181, "200 of 400 MiB of " + filepath.Join(root, "limited", "memory.max")},
		{"/none", 899, ""},
	} {
		err := enough(c.mib<<20, meminfo, GroupsIn("12:cpu:/x\n0::"+c.group+"\n", root))
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%d MiB in %s: %v, want %q", c.mib, c.group, err, c.refused)
		}
	}
	for _, c := range []struct {
		group      string
		used, size uint64 // MiB
	}{
		{"/none", 1000, 2000}, // only the machine limits it
		{"/limited", 200, 400},
		{"/limited/free", 200, 400},
	} {
		used, size := usage(meminfo, GroupsIn("0::"+c.group+"\n", root))
		if used>>20 != c.used || size>>20 != c.size {
			t.Errorf("%s: %d of %d MiB, want %d of %d", c.group, used>>20, size>>20, c.used, c.size)
		}
	}
	if err := enough(1<<60, filepath.Join(root, "none"), nil); err != nil {
		t.Errorf("nothing is known of the memory, but: %v", err)
	}
	if Machine() < 64<<20 || Enough(1<<50) == nil {
		t.Errorf("the machine has %d bytes, and a petabyte is free", Machine())
	}
}
