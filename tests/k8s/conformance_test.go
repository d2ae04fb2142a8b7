// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// buildAgnhost builds agnhost with SCTP, and returns its path.
func buildAgnhost(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agnhost")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "./agnhost")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// TestConformance runs the conformance suite of ClusterNetworkPolicies, with all features. It takes a
// quarter of an hour. LOXILIGHT_CONFORMANCE is 1, or a file for the report.
func TestConformance(t *testing.T) {
	report := os.Getenv("LOXILIGHT_CONFORMANCE")
	if report == "" {
		t.Skip("it takes long: LOXILIGHT_CONFORMANCE=1")
	}
	s := need(t)
	program, err := s.Conformance(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	s.LoadAgnhost(t, buildAgnhost(t), testk8s.ConformanceImage)
	s.defineClusterPolicies(t)
	if report == "1" {
		report = filepath.Join(t.TempDir(), "report.yaml")
	}
	args := []string{
		"-test.run", "TestConformanceProfiles", "-test.v", "-test.timeout", "60m", "-conformance-profiles", "ClusterNetworkPolicy", "-all-features",
		"-organization", "loxilight", "-project", "loxilight", "-url", "https://github.com/loxilight/loxilight", "-version", "main", "-contact", "https://github.com/loxilight/loxilight/issues",
		"-additional-info", "https://github.com/loxilight/loxilight/tree/main/tests/k8s", "-report-output", report,
	}
	if run := os.Getenv("LOXILIGHT_CONFORMANCE_RUN"); run != "" {
		args[1] = "TestConformanceProfiles/" + run
	}
	var out bytes.Buffer
	err = s.Switch.Try(func() error {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(t, "conformance", "conformance", "system:masters"))
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd.Run()
	})
	results := regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): .*$`).FindAllString(out.String(), -1)
	t.Logf("%s", strings.Join(results, "\n"))
	if _, failed := errors.AsType[*exec.ExitError](err); failed || err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if len(results) < 20 && os.Getenv("LOXILIGHT_CONFORMANCE_RUN") == "" {
		t.Errorf("only %d results\n%s", len(results), out.String())
	}
}
