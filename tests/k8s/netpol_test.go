// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// netpolSpecs is how many tests of NetworkPolicies Kubernetes has; two more concern their API alone.
const netpolSpecs = 48

// TestNetpol runs Kubernetes' own tests of NetworkPolicies. It takes half an hour. LOXILIGHT_NETPOL is 1,
// or a regular expression that selects some.
func TestNetpol(t *testing.T) {
	focus := os.Getenv("LOXILIGHT_NETPOL")
	if focus == "" {
		t.Skip("it takes long: LOXILIGHT_NETPOL=1")
	}
	s := need(t)
	program, err := s.Netpol(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	s.LoadAgnhost(t, buildAgnhost(t), testk8s.NetpolImage)
	family := "ipv4"
	if s.Families[0] == testk8s.IPv6 {
		family = "ipv6"
	}
	args := []string{
		"-test.timeout", "2h", "-kubeconfig", s.Kubeconfig(t, "netpol", "netpol", "system:masters"), "-provider", "skeleton",
		"-disable-log-dump", "-ginkgo.no-color", "-ginkgo.timeout", "2h",
		"-ginkgo.focus", strings.Replace(focus, "1", "Netpol", 1), // without it, most are skipped
	}
	var out bytes.Buffer
	err = s.Switch.Try(func() error {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "IP_FAMILY="+family)
		cmd.Stdout = io.MultiWriter(&out, os.Stderr) // it takes long
		cmd.Stderr = cmd.Stdout
		return cmd.Run()
	})
	summary := regexp.MustCompile(`(?m)^(Ran|PASS|FAIL!|SUCCESS!).*$`).FindAllString(out.String(), -1)
	t.Logf("%s", strings.Join(summary, "\n"))
	if err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	ran := regexp.MustCompile(`Ran (\d+) of`).FindStringSubmatch(out.String())
	if ran == nil {
		t.Fatalf("no test ran\n%s", out.String())
	}
	if n, err := strconv.Atoi(ran[1]); err != nil || n < netpolSpecs && focus == "1" {
		t.Errorf("%d tests ran, want at least %d", n, netpolSpecs)
	}
}
