// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestOtherServices: other services that manage networks are restarted while
// the daemon is in service. Neither our objects nor the handling of packets changes.
func TestOtherServices(t *testing.T) {
	s := balanced(t, deb)
	// Without the package's drop-in, systemd-networkd deletes state that it has not created itself.
	for _, what := range []string{"rule add from 203.0.113.77 lookup 4242 pref 4242", "-6 rule add from 2001:db8:77::1 lookup 4242 pref 4242",
		"route add 203.0.113.0/24 via 10.0.1.2 proto 77"} {
		run(t, "ip", strings.Fields(what)...)
	}
	t.Cleanup(func() {
		run(t, "ip", "rule", "del", "pref", "4242")
		run(t, "ip", "-6", "rule", "del", "pref", "4242")
	})
	b := s.startBurden(t)
	before := network(t)
	for _, command := range []string{
		"systemctl restart systemd-networkd", "systemctl restart systemd-sysctl", "systemctl restart systemd-udevd",
		"udevadm trigger --action=change", "udevadm settle --timeout=20", "nft flush ruleset",
		"networkctl reload", "systemctl restart systemd-networkd", "systemctl daemon-reexec",
	} {
		args := strings.Fields(command)
		if out, err := try(args[0], args[1:]...); err != nil {
			// There is no udevd in a container: it cannot write to /sys.
			if !strings.Contains(command, "udev") {
				t.Errorf("%s: %v\n%s", command, err, out)
			}
			continue
		}
		expectSame(t, "after "+command, before, network(t))
	}
	_, _ = try("systemctl", "stop", "systemd-networkd.socket", "systemd-networkd")
	ready(t)
	b.expectUnharmed(t, "networkd, sysctl, udevd and nftables")
	run(t, "ip", "link", "set", "p1", "down")
	run(t, "ip", "link", "set", "p1", "up")
	testnet.Eventually(t, patience(), "all backends serve again after a link was down", func() bool {
		seen := make(map[string]bool)
		for range 20 {
			name, err := testtraffic.TalkTCP(s.client, "", frontends[0], nil)
			seen[name] = err == nil
		}
		return len(seen) == 2 && seen["b1"] && seen["b2"]
	})
}

// TestNoBPFFileSystem: if nothing is mounted on /sys/fs/bpf, starting the daemon mounts one,
// and its pins are visible in a login shell and to the next daemon.
func TestNoBPFFileSystem(t *testing.T) {
	fresh(t)
	s := newSite(t)
	for unix.Unmount("/sys/fs/bpf", 0) == nil { // until none is mounted
	}
	t.Cleanup(func() {
		if exec.Command("mountpoint", "--quiet", "/sys/fs/bpf").Run() != nil {
			run(t, "mount", "-t", "bpf", "-o", "mode=700", "bpf", "/sys/fs/bpf")
		}
	})
	install(t, deb)
	apply(t)
	s.expectServed(t, "with the service", "b1", "b2")
	pins := func() []string {
		found, _ := filepath.Glob(pinDir + "/*") // the pattern is valid
		return found
	}
	if len(pins()) == 0 {
		t.Fatalf("no pin of the daemon in %s", pinDir)
	}
	run(t, "systemctl", "stop", unit)
	s.expectServed(t, "stopped", "b1", "b2")
	if len(pins()) == 0 {
		t.Errorf("what was pinned is gone from %s", pinDir)
	}
	start(t)
	ready(t)
	s.expectServed(t, "started again", "b1", "b2")
}

// TestSandbox: the unit is as tight as possible, and the installed files have the documented
// modes.
func TestSandbox(t *testing.T) {
	fresh(t)
	install(t, deb)
	start(t)
	run(t, "systemd-analyze", "security", "--threshold=30", "--no-pager", unit)
	for path, want := range map[string]os.FileMode{
		"/run/loxilight": 0o750, "/var/lib/loxilight": 0o700, "/etc/loxilight": 0o755, "/usr/sbin/loxilightd": 0o755, "/usr/bin/llcli": 0o755,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
	}
	for _, group := range []string{"loxilight", "loxilight-admin"} {
		run(t, "getent", "group", group)
	}
}
