// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// doctor runs the doctor on the site in a separate process. It returns the findings by ID and
// object, and the exit code.
func (s *site) doctor(more ...string) (found map[string]api.Finding, code int) {
	s.t.Helper()
	return s.doctorWith(nil, more...)
}

// doctorWith is doctor with additional environment variables.
func (s *site) doctorWith(env []string, more ...string) (found map[string]api.Finding, code int) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"--config", s.path("loxilightd.yaml"), "--doctor", "--json"}, more...)...)
	cmd.Env = append(append(os.Environ(), asDaemon+"=1"), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if s.ns != nil {
		s.ns.Do(s.t, cmd.Start)
	} else if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	err = cmd.Wait()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		s.t.Fatal(err)
	}
	var report api.DoctorReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		s.t.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	found = make(map[string]api.Finding)
	for _, f := range report.Findings {
		found[f.ID+" "+strings.TrimPrefix(f.Object, s.dir+"/")] = f
	}
	return found, code
}

func wantFinding(t *testing.T, found map[string]api.Finding, key, word string) {
	t.Helper()
	if f, ok := found[key]; !ok || !strings.Contains(f.What+" "+f.Why+" "+f.Do, word) {
		t.Errorf("finding %s is %+v, want %q; all: %q", key, f, word, slices.Sorted(maps.Keys(found)))
	}
}

// TestDoctorReloads: an object file that the daemon has not read yet is reported, and --fix reloads
// it.
func TestDoctorReloads(t *testing.T) {
	s := newSite(t)
	s.run()
	if found, code := s.doctor(); code != 0 || found["daemon.stopped loxilightd"].ID != "" {
		t.Errorf("exit code %d of a daemon that is well: %v", code, found)
	}
	s.write("conf.d/web.yaml", "kind: Service\nname: web\nspec: {frontends: [\"198.51.100.10:80/tcp\"]}\n")
	found, code := s.doctor()
	wantFinding(t, found, "files.reload conf.d", "Service/web")
	if code != 0 {
		t.Errorf("exit code %d with warnings", code)
	}
	if found, _ = s.doctor("--fix"); found["files.reload conf.d"].Fixed != "llcli reload" {
		t.Errorf("not repaired: %+v", found["files.reload conf.d"])
	}
	if found, _ = s.doctor(); found["files.reload conf.d"].ID != "" {
		t.Errorf("found again: %+v", found["files.reload conf.d"])
	}
	if _, ok := s.get(api.KindService, "web"); !ok {
		t.Error("the daemon has not read the file")
	}
	s.write("conf.d/web.yaml", "kind: Service\nname: web\nspec: {frontends: [\"198.51.100.11:80/tcp\"]}\n")
	found, _ = s.doctor()
	wantFinding(t, found, "files.reload conf.d", "Service/web")
}

// TestDoctorOfAHungDaemon: a hung daemon is reported once its time to answer has expired.
func TestDoctorOfAHungDaemon(t *testing.T) {
	s := newSite(t)
	p := s.run()
	testnet.Stop(t, p.cmd.Process.Pid)
	defer p.signal(syscall.SIGCONT)
	began := time.Now()
	found, code := s.doctor("--fix")
	wantFinding(t, found, fmt.Sprintf("daemon.hung loxilightd (process %d)", p.cmd.Process.Pid), "does not answer")
	if took := time.Since(began); code != exitFailed || took > 20*time.Second {
		t.Errorf("exit code %d after %s", code, took)
	}
}

// TestDoctorOfAKilledDaemon: the daemon's desired state is read from its store, and its stale
// sockets are removed.
func TestDoctorOfAKilledDaemon(t *testing.T) {
	s := newSite(t)
	p := s.run()
	s.apply(serviceObject("web", 1, "10.0.1.2:8080"))
	p.signal(syscall.SIGKILL)
	p.ends()
	found, code := s.doctor("--fix")
	wantFinding(t, found, "daemon.stopped loxilightd", "does not run")
	for _, socket := range []string{"control.sock", "events.sock"} {
		wantFinding(t, found, "sockets.stale run/"+socket, "of a daemon that no longer runs")
		if _, err := os.Stat(s.path("run/" + socket)); err == nil {
			t.Errorf("%s still exists", socket)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.run() // the store is intact
	if _, ok := s.get(api.KindService, "web"); !ok {
		t.Error("the service is lost")
	}
}

// TestDoctorOfAWrongConfiguration: if the configuration is invalid and its path names no instance,
// the doctor does not examine the default instance instead.
func TestDoctorOfAWrongConfiguration(t *testing.T) {
	s := newSite(t, "tabels: {}")
	found, code := s.doctor()
	wantFinding(t, found, "config.invalid loxilightd.yaml", "unknown key tabels")
	if code != exitFailed || len(found) != 1 {
		t.Errorf("exit code %d, %v", code, found)
	}
}

// TestInstanceOf: only the paths at which the package expects configurations name an instance.
func TestInstanceOf(t *testing.T) {
	for path, want := range map[string]string{
		"/etc/loxilight/loxilightd.yaml": "default", "/etc/loxilight-lab/loxilightd.yaml": "lab",
		"/etc/loxilightlab/loxilightd.yaml": "", "/etc/loxilight-lab/other.yaml": "", "/etc/loxilight-Lab!/loxilightd.yaml": "",
		"/etc/loxilight-a/b/loxilightd.yaml": "", "/tmp/loxilightd.yaml": "",
	} {
		if got := instanceOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestDoctorOfNoInstance: without a configuration, the doctor examines nothing else, because
// everything else could belong to a different instance.
func TestDoctorOfNoInstance(t *testing.T) {
	s := newSite(t)
	if err := os.Remove(s.path("loxilightd.yaml")); err != nil {
		t.Fatal(err)
	}
	found, code := s.doctor("--fix")
	wantFinding(t, found, "config.missing loxilightd.yaml", "does not exist")
	if code != exitFailed || len(found) != 1 {
		t.Errorf("exit code %d, %v", code, found)
	}
}

// TestDoctorMounts has the doctor mount the BPF file system in a mount namespace that has none.
func TestDoctorMounts(t *testing.T) {
	testnet.RequireRoot(t)
	s := newSite(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.configure("pinDir: /sys/fs/bpf/"+testnet.UniqueName("doctor"), "switch: {namespace: host}")
	cmd := exec.Command("sh", "-c", "mount --make-rprivate / && { umount -l /sys/fs/bpf 2>/dev/null; grep -q ' /sys/fs/bpf bpf ' /proc/mounts && exit 9; "+
		`"$0" --config "$1" --doctor --fix; grep ' /sys/fs/bpf bpf ' /proc/mounts; }`, self, s.path("loxilightd.yaml"))
	cmd.Env = append(os.Environ(), asDaemon+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "did  mount -t bpf bpf /sys/fs/bpf") || !strings.Contains(string(out), "bpf /sys/fs/bpf bpf ") {
		t.Errorf("%v:\n%s", err, out)
	}
}
