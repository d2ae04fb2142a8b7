// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

const unitFile = "../systemd/loxilightd.service"

// unitValue returns the value of a key that occurs once in the unit.
func unitValue(t *testing.T, key string) (value string) {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			value = v
			count++
		}
	}
	if count != 1 {
		t.Fatalf("%s stands %d times in the unit, want once", key, count)
	}
	return value
}

func TestUnit(t *testing.T) {
	if got, want := unitValue(t, "RestartPreventExitStatus"), fmt.Sprint(exitRefused, exitConfig); got != want {
		t.Errorf("RestartPreventExitStatus=%s, starting again does not help after %s", got, want)
	}
	if got := unitValue(t, "Type"); got != "notify" {
		t.Errorf("Type=%s, the daemon reports when it is ready", got)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze")
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	// The program is not installed on the machine that runs the test.
	there := strings.ReplaceAll(string(text), "/usr/sbin/loxilightd", "/bin/true")
	unit := filepath.Join(t.TempDir(), "loxilightd.service")
	if err := os.WriteFile(unit, []byte(there), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// The threshold is ten times the exposure level: the check fails if the level is above 3.0.
	if out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=30", unit).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// TestSwitchUnit: the unit that creates the switch's namespace is valid and is named by the
// daemon's unit. It must not have its own mount namespace, because the namespace's name would not
// be visible outside it.
func TestSwitchUnit(t *testing.T) {
	const file = "../systemd/loxilight-switch@.service"
	if got := unitValue(t, "Environment"); got != switchUnitKey+"=loxilight-switch@loxilight.service" {
		t.Errorf("Environment=%s does not name %s", got, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"Protect", "Private", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "RuntimeDirectory", "StateDirectory"} {
		if strings.Contains(string(text), "\n"+option) {
			t.Errorf("%s… makes a mount namespace", option)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze")
	}
	unit := filepath.Join(t.TempDir(), "loxilight-switch@.service")
	there := strings.ReplaceAll(string(text), "/usr/sbin/loxilightd", "/bin/true")
	if err := os.WriteFile(unit, []byte(there), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestCapabilitiesOfTheUnitSuffice runs the daemon with only the unit's capabilities, and
// without permission to lock memory: the daemon attaches to a device, and pings a backend.
func TestCapabilitiesOfTheUnitSuffice(t *testing.T) {
	s, _ := newKernelSite(t)
	s.ns = testnet.New(t, "caps")
	peer := testnet.New(t, "peer")
	testnet.Veth(t, testnet.Port{NS: s.ns, Name: "in0", Addrs: []string{"192.0.2.1/24"}}, testnet.Port{NS: peer, Name: "out0", Addrs: []string{"192.0.2.2/24"}})
	s.ns.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1") // the unit does not allow the daemon to write this sysctl
	set := "-all"
	for _, c := range strings.Fields(unitValue(t, "CapabilityBoundingSet")) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	s.wrapper = []string{"prlimit", "--memlock=0:0", "setpriv", "--bounding-set", set, "--no-new-privs"}
	s.run()
	web := serviceObject("web", 1, "192.0.2.2:8080")
	web.Spec = []byte(strings.TrimSuffix(string(web.Spec), "}") + `,"health":{"type":"ping","interval":"1s"}}`)
	s.apply(web, api.Object{Kind: api.KindInterface, Name: "in0", Spec: []byte(`{"device":"in0"}`)})
	if hooks := s.status().Datapath.Hooks; len(hooks) != 3 {
		t.Errorf("hooks %+v, want ingress and egress of in0, and egress of lo", hooks)
	}
	eventually(t, func() bool {
		o, _ := s.get(api.KindService, "web")
		var status api.ServiceStatus
		return json.Unmarshal(o.Status, &status) == nil && len(status.Backends) == 1 && status.Backends[0].Health == "healthy"
	})
}
