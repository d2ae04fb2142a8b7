// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestKilled kills a writer immediately after it has acknowledged some commits: all acknowledged
// commits exist, and no commit is incomplete.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("LOXILIGHT_TEST_WRITE_TO"); dir != "" {
		writeForEver(t, dir)
	}
	for round := range 5 {
		cfg := testConfig(t.TempDir())
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "LOXILIGHT_TEST_WRITE_TO="+cfg.Dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var acknowledged uint64
		for lines := bufio.NewScanner(out); acknowledged < uint64(20+round) && lines.Scan(); {
			_, _ = fmt.Sscan(lines.Text(), &acknowledged) // other lines are ignored
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // always fails: the process was killed
		s, report := open(t, cfg)
		if report.Damage != nil || report.RolledBack || acknowledged == 0 || s.Snapshot().Revision < acknowledged {
			t.Fatalf("%+v, at revision %d; %d were acknowledged", report, s.Snapshot().Revision, acknowledged)
		}
		for o := range s.Snapshot().All() {
			if o.Revision != s.Snapshot().Revision || s.Snapshot().Len() != 50 {
				t.Fatalf("%s is of revision %d, the store of %d objects at %d", o.Key, o.Revision, s.Snapshot().Len(), s.Snapshot().Revision)
			}
		}
	}
}

// writeForEver commits all objects repeatedly and prints the revisions.
func writeForEver(t *testing.T, dir string) {
	s, _, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	for turn := range 100000 {
		var put []*Object
		for i := range 50 {
			put = append(put, service(t, fmt.Sprint("s", i), fmt.Sprintf("10.96.0.%d:80 %d", i, turn%7+1)))
		}
		fmt.Println(commit(t, s, &Transaction{Put: put}).Revision)
	}
	os.Exit(1) // the process was not killed
}
