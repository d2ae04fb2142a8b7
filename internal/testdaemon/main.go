// SPDX-License-Identifier: Apache-2.0

package testdaemon

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Main runs the tests of package name, which need the programs, and returns the exit code
// for os.Exit. It builds the programs into *programs, unless the tests are short or not run
// by root, and fails if the tests leave anything behind.
func Main(m *testing.M, name string, programs *Programs) int {
	dir, err := os.MkdirTemp("", "loxilight-"+name+"-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)  // harmless: a folder of /tmp
	os.Setenv("TMPDIR", dir) // of this process
	if flag.Parse(); os.Geteuid() == 0 && !testing.Short() {
		if *programs, err = Build(filepath.Join(dir, "bin")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	if left := leftovers(dir); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "the tests left behind:\n%s\n", strings.Join(left, "\n"))
		code = 1
	}
	return code
}
