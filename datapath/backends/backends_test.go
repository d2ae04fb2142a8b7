// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

func TestOpenByName(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	d, err := Open(Fake, datapath.Config{Tables: datapath.DefaultTables()}, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if d, err := Open("asic", datapath.Config{}, log); d != nil || err == nil || !strings.Contains(err.Error(), "asic") {
		t.Errorf("data plane asic: %v, %v", d, err)
	}
}

// TestMissingPrivileges opens the data plane as an ordinary user: the error must name the missing
// privileges, and nothing may have been created.
func TestMissingPrivileges(t *testing.T) {
	const asUser = "LL_TEST_AS_USER"
	if dir := os.Getenv(asUser); dir != "" {
		d, err := Open(EBPF, datapath.Config{PinDir: dir, SwitchNamespace: "host", Tables: datapath.DefaultTables()}, slog.New(slog.DiscardHandler))
		if d != nil || err == nil || !strings.Contains(err.Error(), "lacks CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN: run loxilightd as root") {
			t.Errorf("opened as an ordinary user: %v, %v", d, err)
		}
		if !errors.Is(err, datapath.ErrRefused) {
			t.Errorf("starting again would not help, which does not say: %v", err)
		}
		pins := t.TempDir()
		if err := Detach(EBPF, datapath.Config{PinDir: pins}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "lacks CAP_BPF") {
			t.Errorf("detached as an ordinary user: %v", err)
		}
		if err := Detach(EBPF, datapath.Config{PinDir: filepath.Join(pins, "none")}, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("detach of nothing: %v", err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SETUID")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestMissingPrivileges$", "-test.count=1")
	cmd.Env = append(os.Environ(), asUser+"=/sys/fs/bpf/ll-test-privileges")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat("/sys/fs/bpf/ll-test-privileges"); err == nil {
		t.Error("a pin directory was made")
	}
}
