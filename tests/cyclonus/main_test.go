// SPDX-License-Identifier: Apache-2.0

package cyclonus

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/loxilight/loxilight/internal/testdaemon"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cyclonus-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if err := build(dir); err == nil {
		code = testdaemon.Main(m, "cyclonus", &programs)
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir) // the next run makes another
	os.Exit(code)
}

// build builds the programs, in their module, unless LOXILIGHT_BIN contains them.
func build(dir string) error {
	if os.Getenv("LOXILIGHT_BIN") != "" {
		return nil
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./loxilightd", "./llcli", "./loxilight-cni", "./loxilight-agent")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return os.Setenv("LOXILIGHT_BIN", dir)
}

const nodeCount = 3
