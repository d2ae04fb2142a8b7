// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// verifierBudget is how many instructions the verifier processes before it gives up.
const verifierBudget = 1_000_000

// TestPreflight: the package's daemon loads every program on this kernel, within half of the
// verifier's budget, and uses the best available attach mode.
func TestPreflight(t *testing.T) {
	fresh(t)
	install(t, deb)
	run(t, "systemctl", "stop", unit)
	var report datapath.Preflight
	if err := json.Unmarshal([]byte(run(t, "loxilightd", "--preflight", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	t.Logf("COUNT kernel %s, attached by %s", report.Kernel, report.Hooks.Use)
	if len(report.Programs) < 4 || !report.OK {
		t.Errorf("preflight: %+v", report)
	}
	for _, p := range report.Programs {
		t.Logf("COUNT %s in netns %s: %d instructions, the verifier processed %d, %d bytes of stack", p.Program, p.Netns, p.Instructions, p.Processed, p.StackBytes)
		if !p.OK || p.Processed == 0 || p.Processed > verifierBudget/2 {
			t.Errorf("%s: processed %d instructions, want at most %d", p.Program, p.Processed, verifierBudget/2)
		}
	}
	if want := hookOf(report.Kernel); report.Hooks.Use != want {
		t.Errorf("attached by %s, want %s", report.Hooks.Use, want)
	}
}

// hookOf returns the expected attach mode: tcx since Linux 6.6.
func hookOf(release string) string {
	version := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(release)
	major, _ := strconv.Atoi(version[1]) // digits
	minor, _ := strconv.Atoi(version[2])
	if major > 6 || major == 6 && minor >= 6 {
		return "tcx"
	}
	return "tc"
}

// TestLoadBalancing is the end-to-end test of paths with the daemon and the llcli that
// the package installed.
func TestLoadBalancing(t *testing.T) {
	fresh(t)
	install(t, deb)
	run(t, "systemctl", "stop", unit)
	programs := t.TempDir()
	for name, path := range map[string]string{"loxilightd": "/usr/sbin/loxilightd", "llcli": "/usr/bin/llcli"} {
		if err := os.Symlink(path, filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LOXILIGHT_BIN", programs)
	t.Log(run(t, filepath.Join(share, "e2e.test"), "-test.v", "-test.run", "^(TestPaths|TestTwoFrontendsOnePort)$"))
}
