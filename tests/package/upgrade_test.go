// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestUnderTraffic: with the package, restarts, kills at random
// moments of the startup, upgrades and a downgrade harm no packet that the service allows, and let
// none pass that it denies.
func TestUnderTraffic(t *testing.T) {
	s := balanced(t, older)
	want := pins(t)
	for _, phase := range []struct {
		name string
		do   func(t *testing.T)
	}{{"restarts", restarts}, {"kills", kills}, {"upgrades", upgrades}} {
		t.Run(phase.name, func(t *testing.T) {
			b := s.startBurden(t)
			phase.do(t)
			ready(t)
			b.expectUnharmed(t, phase.name)
			expectWhole(t, want)
		})
	}
}

// pins returns the pins, by path.
func pins(t *testing.T) state {
	t.Helper()
	s := make(state)
	s.tree(pinDir, func(string, fs.FileInfo) string { return "pinned" })
	if len(s) == 0 {
		t.Fatalf("nothing is pinned in %s", pinDir)
	}
	return s
}

// expectWhole fails the test if the pins are not as expected, or if llcli doctor finds a problem:
// a hook without our program, or with two.
func expectWhole(t *testing.T, want state) {
	t.Helper()
	if lines := diff(want, pins(t)); len(lines) > 0 {
		t.Errorf("pins:\n%s", strings.Join(lines, "\n"))
	}
	if out, err := try("llcli", "doctor"); err != nil {
		t.Errorf("llcli doctor: %v\n%s", err, out)
	}
}

// TestConfigurationUnderTraffic: different table sizes, and the other attach mode
// and back, take effect with a restart, which copies the entries.
func TestConfigurationUnderTraffic(t *testing.T) {
	s := balanced(t, deb)
	plain := read(t, conffile)
	b := s.startBurden(t)
	for _, change := range []struct{ from, to string }{
		{"  connections: auto", "  connections: 100000"}, {"  connections: auto", "  connections: 50000"},
		{`  attach: ""`, "  attach: tc"}, {`  attach: ""`, `  attach: ""`},
	} {
		if !strings.Contains(plain, change.from) {
			t.Fatalf("no line %q in %s:\n%s", change.from, conffile, plain)
		}
		write(t, conffile, strings.Replace(plain, change.from, change.to, 1))
		run(t, "systemctl", "restart", unit)
		ready(t)
	}
	b.expectUnharmed(t, "other tables, other hooks")
	expectWhole(t, pins(t))
}

// TestDamagedState: a daemon with a damaged store sets it aside and starts with the object
// files; the data plane keeps forwarding.
func TestDamagedState(t *testing.T) {
	s := balanced(t, deb)
	b := s.startBurden(t)
	run(t, "systemctl", "stop", unit)
	if err := os.Truncate("/var/lib/loxilight/state.db", 100); err != nil {
		t.Fatal(err)
	}
	start(t)
	ready(t)
	if found, _ := filepath.Glob("/var/lib/loxilight/state.db.damaged-*"); len(found) != 1 { // the pattern is valid
		t.Errorf("the damaged store was not set aside: %v", found)
	}
	b.expectUnharmed(t, "a damaged store")
}

func restarts(t *testing.T) {
	n := number("RESTARTS", 20)
	for range n {
		run(t, "systemctl", "restart", unit)
	}
	t.Logf("COUNT restarts: %d", n)
}

// kills sends kill -9 to the daemon at random moments of its startup. systemd starts it again each
// time.
func kills(t *testing.T) {
	begin := time.Now()
	run(t, "systemctl", "restart", unit)
	whole := time.Since(begin)
	n, last := number("KILLS", 20), 0
	for range n {
		var pid int
		testnet.Eventually(t, patience(), "systemd starts the daemon again", func() bool {
			pid = mainPID(t)
			return pid != 0 && pid != last
		})
		last = pid
		time.Sleep(time.Duration(rand.Int64N(int64(whole)))) // a random moment is the point
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatalf("daemon %d ended by itself: %v", pid, err)
		}
	}
	testnet.Eventually(t, patience(), "the last daemon is ready", func() bool { return mainPID(t) != last && active() })
	t.Logf("COUNT kills: %d at random moments of a start that takes %s; starts that systemd counts: %s", n, whole.Round(time.Millisecond), property(t, "NRestarts"))
}

// upgrades does two upgrades, with a downgrade in between.
func upgrades(t *testing.T) {
	for _, version := range []string{deb, older, newer} {
		was := mainPID(t)
		install(t, version)
		want := strings.TrimSpace(run(t, "dpkg-deb", "--field", filepath.Join(share, version), "Version"))
		if is := strings.TrimSpace(run(t, "dpkg-query", "--show", "--showformat", "${Version} ${db:Status-Abbrev}", "loxilight")); is != want+" ii" {
			t.Errorf("installed is %q, want version %s", is, want)
		}
		if !active() || mainPID(t) == was {
			t.Errorf("after the installation of %s, the previous daemon %d runs, or none", want, was)
		}
		t.Logf("COUNT upgrades: to %s", want)
	}
}

// TestRefusedUpgrade: a new version that cannot take over the pins is not installed, and the old
// one keeps running. Here, the incompatible pins look like pins of a later version with a different
// layout.
func TestRefusedUpgrade(t *testing.T) {
	s := balanced(t, older)
	foreign := filepath.Join(pinDir, "layout-99", "ll_of_the_future")
	if err := os.Mkdir(filepath.Dir(foreign), 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ll_future", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(foreign); err != nil {
		t.Fatal(err)
	}
	b := s.startBurden(t)
	pid := mainPID(t)
	out := refused(t, "dpkg", "--install", filepath.Join(share, newer))
	if !strings.Contains(out, "layout") {
		t.Errorf("dpkg does not show what was refused:\n%s", out)
	}
	want := strings.TrimSpace(run(t, "dpkg-deb", "--field", filepath.Join(share, older), "Version"))
	if is := strings.TrimSpace(run(t, "dpkg-query", "--show", "--showformat", "${Version} ${db:Status-Abbrev}", "loxilight")); is != want+" ii" {
		t.Errorf("after an upgrade that was refused %q is installed, want %s", is, want)
	}
	if now := mainPID(t); now != pid || !active() {
		t.Errorf("the existing daemon %d no longer runs; the main process is %d", pid, now)
	}
	b.expectUnharmed(t, "an upgrade that was refused")
	// A manual start is rejected as well, with the reason, and is not repeated forever.
	refused(t, "systemctl", "restart", unit)
	if status := property(t, "ExecMainStatus"); status != "70" {
		t.Errorf("the daemon ended with %s, want 70", status)
	}
	s.expectServed(t, "after a start that was refused", "b1", "b2")
	if err := os.RemoveAll(filepath.Dir(foreign)); err != nil {
		t.Fatal(err)
	}
	install(t, newer)
	ready(t)
	s.expectServed(t, "upgraded after all", "b1", "b2")
}
