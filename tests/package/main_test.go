// SPDX-License-Identifier: Apache-2.0

// Package pkg tests the Debian package in a machine of its own, with systemd as its
// first process: make test-package boots such machines and runs this in them.
// Everywhere else it is skipped.
package pkg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testnet"
)

// share is the directory with packages and programs that the host shares with the machine.
const share = "/mnt"

// machineVariable is set in the environment of machines for these tests.
const machineVariable = "LOXILIGHT_MACHINE"

const (
	pinDir   = "/sys/fs/bpf/loxilight"
	socket   = "/run/loxilight/control.sock"
	conffile = "/etc/loxilight/loxilightd.yaml"
	unit     = "loxilightd.service"
)

// The packages: three versions that differ only in their version, and in a comment in the
// configuration.
const (
	older = "older.deb"
	deb   = "this.deb"
	newer = "newer.deb"
)

// number returns a number that is configured for the tests of this machine; slow machines have
// smaller numbers.
func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("LOXILIGHT_" + name)); err == nil {
		return n
	}
	return otherwise
}

// patience is how long the machine may take for anything.
func patience() time.Duration { return time.Duration(number("PATIENCE_S", 60)) * time.Second }

// fresh skips a test outside such a machine, and ensures that the package is not installed before
// it and after it.
func fresh(t *testing.T) {
	t.Helper()
	if os.Getenv(machineVariable) == "" {
		t.Skip("needs a machine of its own: make test-package")
	}
	purge(t)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := try("journalctl", "--no-pager", "-o", "cat", "-u", unit, "-n", "40")
			t.Logf("journal of %s:\n%s", unit, out)
		}
		purge(t)
	})
}

// try runs a program, for at most twice the patience, and returns its output.
func try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "SYSTEMD_PAGER=")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run is like try, for commands that must succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs a command that must fail and returns its output.
func refused(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err == nil {
		t.Fatalf("%s %s succeeded:\n%s", name, strings.Join(args, " "), out)
	}
	return out
}

// install installs a version of the package, as apt does non-interactively.
func install(t *testing.T, version string) string {
	t.Helper()
	return run(t, "dpkg", "--install", "--force-confdef", "--force-confold", filepath.Join(share, version))
}

// purge removes the package with everything that it brought, if it is installed.
func purge(t *testing.T) {
	t.Helper()
	if out, err := try("dpkg", "--purge", "loxilight"); err != nil {
		t.Fatalf("purge: %v\n%s", err, out)
	}
}

// start starts the daemon, and returns when the daemon is ready.
func start(t *testing.T) {
	t.Helper()
	run(t, "systemctl", "start", unit)
}

// active reports whether systemd considers the daemon running.
func active() bool {
	out, _ := try("systemctl", "is-active", unit)
	return strings.TrimSpace(out) == "active"
}

// property returns a property of the unit.
func property(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "systemctl", "show", "--property", name, "--value", unit))
}

// mainPID returns the daemon's PID; 0: it is not running.
func mainPID(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "MainPID"))
	if err != nil {
		t.Fatalf("MainPID: %v", err)
	}
	return pid
}

// status asks the daemon for its status; the error means that the daemon does not answer.
func status(t *testing.T) (*api.StatusResult, error) {
	t.Helper()
	c, err := client.New(client.Options{Socket: socket, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Status(t.Context())
}

// ready waits until the daemon answers and all objects are Ready.
func ready(t *testing.T) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("last seen: %s", last)
		}
	}()
	testnet.Eventually(t, patience(), "the daemon answers, and all objects are Ready", func() bool {
		s, err := status(t)
		if err == nil {
			last = fmt.Sprintf("%+v", s.NotReady)
		} else {
			last = err.Error()
		}
		return err == nil && len(s.NotReady) == 0
	})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
