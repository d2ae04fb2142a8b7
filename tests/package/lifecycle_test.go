// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestNothingHappensByItself: installing the package and starting the daemon without objects has
// no effect on any packet. Neither have the later steps: stop, detach, remove; and nothing at all
// is left of the package after a purge.
func TestNothingHappensByItself(t *testing.T) {
	fresh(t)
	s := newSite(t)
	s.expectServed(t, "before", "node")
	before, beforeFiles := network(t), files(t)
	out := install(t, deb)
	if strings.Contains(strings.ToLower(out), "warning") || strings.Contains(out, "rror") {
		t.Errorf("dpkg --install warns:\n%s", out)
	}
	expectSame(t, "after the installation", before, network(t))
	start(t)
	ready(t)
	if out := run(t, "systemctl", "is-active", unit); out != "active\n" {
		t.Errorf("is-active: %q", out)
	}
	if out := run(t, "llcli", "status"); !regexp.MustCompile(`Health +ok`).MatchString(out) {
		t.Errorf("llcli status:\n%s", out)
	}
	expectSame(t, "after the start", before, network(t))
	s.expectServed(t, "after the start", "node")
	run(t, "systemctl", "reload", unit)
	run(t, "systemctl", "restart", unit)
	ready(t)
	run(t, "systemctl", "stop", unit)
	expectSame(t, "after the stop", before, network(t))
	run(t, "dpkg", "--remove", "loxilight")
	if _, err := os.Stat(pinDir); err == nil {
		t.Errorf("%s exists after the removal", pinDir)
	}
	run(t, "dpkg", "--purge", "loxilight")
	expectSame(t, "after the purge", before, network(t))
	expectSame(t, "files after the purge", beforeFiles, files(t))
	s.expectServed(t, "after the purge", "node")
}

// TestPurgeInService: a purge while the service is in use removes everything; afterwards the
// package can be installed again, and starts from scratch.
func TestPurgeInService(t *testing.T) {
	fresh(t)
	s := newSite(t)
	const conflist = "/etc/cni/net.d/10-loxilight.conflist"
	run(t, "mkdir", "-p", filepath.Dir(conflist))
	before, beforeFiles := network(t), files(t)
	for range 2 {
		install(t, deb)
		apply(t)
		run(t, "cp", "/usr/share/loxilight/10-loxilight.conflist", conflist) // as llcli cni install does, once pods can be attached
		s.expectServed(t, "with the service", "b1", "b2")
		if len(diff(before, network(t))) == 0 {
			t.Error("a daemon in service is not to be seen: this test sees nothing")
		}
		if len(objectsOfOurs(t)) == 0 {
			t.Error("the kernel has no BPF object of a daemon in service: this test sees nothing")
		}
		run(t, "usermod", "--append", "--groups", "loxilight", "nobody")
		run(t, "dpkg", "--purge", "loxilight")
		expectSame(t, "after the purge", before, network(t))
		if _, err := os.Stat(conflist); err == nil {
			t.Errorf("%s exists after the purge: runtimes call a plugin that is gone", conflist)
		}
		expectSame(t, "files after the purge", beforeFiles, files(t))
		s.expectServed(t, "after the purge", "node")
		if _, err := try("systemd-detect-virt", "--container"); err == nil {
			continue // the kernel has other machines' objects, too
		}
		testnet.Eventually(t, patience(), "the kernel has freed what was the daemon's", func() bool {
			return len(objectsOfOurs(t)) == 0
		})
	}
}

// TestStopLeavesForwarding: the data plane keeps forwarding while the daemon is stopped, until
// llcli detach, and is restored by the next start.
func TestStopLeavesForwarding(t *testing.T) {
	s := balanced(t, deb)
	run(t, "systemctl", "stop", unit)
	s.expectServed(t, "stopped", "b1", "b2")
	start(t)
	ready(t)
	out := refused(t, "llcli", "detach")
	if !strings.Contains(out, "systemctl stop loxilightd") {
		t.Errorf("llcli detach beside a running daemon does not say what to do:\n%s", out)
	}
	s.expectServed(t, "after a detach that was refused", "b1", "b2")
	run(t, "systemctl", "stop", unit)
	run(t, "llcli", "detach")
	run(t, "llcli", "detach") // not an error the second time
	s.expectServed(t, "detached", "node")
	start(t)
	ready(t)
	s.expectServed(t, "started again", "b1", "b2")
	run(t, "systemctl", "stop", unit)
	run(t, "dpkg", "--remove", "loxilight")
	s.expectServed(t, "removed", "node")
	install(t, deb) // after remove, without purge: configuration and state still exist
	start(t)
	ready(t)
	s.expectServed(t, "installed again", "b1", "b2")
}

// TestReload: systemctl reload takes over the object files, or rejects them and leaves everything
// unchanged.
func TestReload(t *testing.T) {
	s := balanced(t, deb)
	pid := mainPID(t)
	write(t, objectFile, strings.ReplaceAll(objects, `  - {address: "10.0.1.2:8080"}
`, ""))
	run(t, "systemctl", "reload", unit)
	testnet.Eventually(t, patience(), "reload takes a backend out", func() bool {
		return !strings.Contains(run(t, "llcli", "get", "service", "web", "-o", "yaml"), "10.0.1.2:8080")
	})
	write(t, objectFile, "kind: Sausage\n")
	_, _ = try("systemctl", "reload", unit) // the daemon logs the error to the journal
	s.expectServed(t, "with a file that is wrong", "b1", "b2")
	if now := mainPID(t); now != pid {
		t.Errorf("reload made process %d of %d", now, pid)
	}
}

// TestWatchdog: systemd restarts a daemon that hangs, and the data plane keeps forwarding;
// llcli reports that the daemon hangs.
func TestWatchdog(t *testing.T) {
	fresh(t)
	s := newSite(t)
	install(t, deb)
	if property(t, "WatchdogUSec") == "0" {
		t.Fatal("the unit has no watchdog")
	}
	// An administrator may set a shorter timeout than the package.
	dropIn := "/etc/systemd/system/loxilightd.service.d/test.conf"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(dropIn)); _, _ = try("systemctl", "daemon-reload") })
	write(t, dropIn, "[Service]\nWatchdogSec=3s\n")
	run(t, "systemctl", "daemon-reload")
	apply(t)
	pid := mainPID(t)
	testnet.Stop(t, pid)
	begin := time.Now()
	out := refused(t, "llcli", "--timeout", "500ms", "status")
	if took := time.Since(begin); took > 3*time.Second || !strings.Contains(out, "answer") {
		t.Errorf("llcli took %s and said %q", took, out)
	}
	s.expectServed(t, "while the daemon hangs", "b1", "b2")
	testnet.Eventually(t, patience(), "systemd starts another daemon", func() bool {
		now := mainPID(t)
		return now != 0 && now != pid && active()
	})
	ready(t)
	s.expectServed(t, "after the watchdog", "b1", "b2")
	if out := run(t, "journalctl", "--no-pager", "-u", unit); !strings.Contains(strings.ToLower(out), "watchdog") {
		t.Errorf("the journal does not mention the watchdog:\n%s", out)
	}
}

// TestWrongConfiguration: a daemon with an invalid configuration reports the location of the error,
// and is not restarted repeatedly; the data plane keeps forwarding.
func TestWrongConfiguration(t *testing.T) {
	s := balanced(t, deb)
	whole := read(t, conffile)
	write(t, conffile, whole+"\nsausage: 3\n")
	refused(t, "systemctl", "restart", unit)
	if state := property(t, "ActiveState"); state != "failed" {
		t.Errorf("with a wrong configuration the unit is %s, want failed", state)
	}
	if out := run(t, "journalctl", "--no-pager", "-o", "cat", "-u", unit); !strings.Contains(out, "sausage") {
		t.Errorf("the journal does not name the key:\n%s", out)
	}
	s.expectServed(t, "with a wrong configuration", "b1", "b2")
	write(t, conffile, whole)
	start(t)
	ready(t)
}

// TestConfigurationIsKept: the administrator's changes survive an upgrade; an unmodified file is
// replaced.
func TestConfigurationIsKept(t *testing.T) {
	fresh(t)
	install(t, deb)
	if before := read(t, conffile); strings.Contains(before, "newer") {
		t.Fatal("the packages do not differ in their configuration")
	}
	install(t, newer)
	if !strings.Contains(read(t, conffile), "newer") {
		t.Error("an upgrade does not replace an unmodified configuration")
	}
	purge(t)
	install(t, deb)
	mine := read(t, conffile) + "# mine\n"
	write(t, conffile, mine)
	write(t, objectFile, objects)
	for _, version := range []string{newer, deb} {
		install(t, version)
		if read(t, conffile) != mine || read(t, objectFile) != objects {
			t.Errorf("%s changed what the administrator wrote", version)
		}
	}
}
