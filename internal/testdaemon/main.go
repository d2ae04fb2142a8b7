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

// Main runs a package's tests, which need the programs, and returns the exit code for os.Exit. name
// is the name of the package. Main builds the programs into *programs, except in short mode or
// without root privileges, and fails if the tests leave anything behind.
func Main(m *testing.M, name string, programs *Programs) int {
	dir, err := os.MkdirTemp("", "loxilight-"+name+"-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)  // a leftover below /tmp would be harmless
	os.Setenv("TMPDIR", dir) // applies to this process only
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
