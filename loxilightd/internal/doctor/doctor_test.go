// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// rig is an instance with its own directories on a machine without faults, except the faults that a
// test creates.
type rig struct {
	t        *testing.T
	dir      string
	o        Options
	commands map[string]string // output, by the beginning of the command line
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), commands: map[string]string{}}
	cfg := config.Default("default")
	cfg.RunDir, cfg.StateDir, cfg.PinDir, cfg.ObjectDir = r.path("run"), r.path("state"), r.path("pins"), r.path("loxilight/conf.d")
	cfg.Backend, cfg.SwitchNamespace = "fake", "host"
	r.o = Options{Config: cfg, ConfigFile: r.path("loxilight/loxilightd.yaml"), Version: "1.2.3", Root: r.path("root"), Run: r.run}
	r.mkdir("run", 0o750)
	r.mkdir("state", 0o700)
	r.mkdir("loxilight/conf.d", 0o755)
	r.write("loxilight/loxilightd.yaml", "")
	r.machine("/proc/sys/kernel/osrelease", "6.12.1-test")
	r.mkdir("root/run/systemd/system", 0o755)
	r.commands["systemctl show loxilightd.service"] = "LoadState=not-found\n"
	r.machine("/sys/kernel/btf/vmlinux", "")
	r.machine("/proc/sys/net/core/bpf_jit_enable", "1")
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) mkdir(name string, mode os.FileMode) {
	r.t.Helper()
	r.ok(os.MkdirAll(r.path(name), 0o755))
	r.ok(os.Chmod(r.path(name), mode))
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	r.ok(os.MkdirAll(filepath.Dir(r.path(name)), 0o755))
	r.ok(os.WriteFile(r.path(name), []byte(text), 0o644))
}

// machine writes one of the machine's files, such as a sysctl.
func (r *rig) machine(name, text string) {
	r.t.Helper()
	r.write("root"+name, text+"\n")
}

func (r *rig) run(_ context.Context, name string, args ...string) (string, error) {
	line := name + " " + strings.Join(args, " ")
	for prefix, out := range r.commands {
		if strings.HasPrefix(line, prefix) {
			return out, nil
		}
	}
	return "", errors.New("not found")
}

// examine returns the findings, keyed by ID and object.
func (r *rig) examine(fix bool) map[string]api.Finding {
	r.t.Helper()
	o := r.o
	o.Fix = fix
	found := make(map[string]api.Finding)
	for _, f := range Run(r.t.Context(), o).Findings {
		key := f.ID + " " + strings.TrimPrefix(f.Object, r.dir+"/")
		if _, twice := found[key]; twice {
			r.t.Errorf("%s is found twice", key)
		}
		found[key] = f
		if f.What == "" || f.Why == "" || f.Do == "" || rank(f.Severity) < 0 {
			r.t.Errorf("finding %+v says too little", f)
		}
	}
	return found
}

// expect fails the test unless there is a finding with the given ID and object and its text
// contains word.
func (r *rig) expect(found map[string]api.Finding, severity, key, word string) {
	r.t.Helper()
	f, ok := found[key]
	if !ok {
		r.t.Errorf("no finding %s among %v", key, keys(found))
	} else if f.Severity != severity || !strings.Contains(f.What, word) {
		r.t.Errorf("finding %s is %s %q, want %s %q", key, f.Severity, f.What, severity, word)
	}
}

func keys(found map[string]api.Finding) (k []string) {
	for key := range found {
		k = append(k, key)
	}
	return k
}

// repaired checks that a finding is reported without fix, is reported as repaired with fix, and
// does not occur afterwards.
func (r *rig) repaired(severity, key, word, did string) {
	r.t.Helper()
	r.expect(r.examine(false), severity, key, word)
	fixed := r.examine(true)
	if f := fixed[key]; !strings.Contains(f.Fixed, did) || f.FixError != "" {
		r.t.Errorf("%s: --fix did %q, %q; want %q", key, f.Fixed, f.FixError, did)
	}
	if f, still := r.examine(false)[key]; still {
		r.t.Errorf("%s is found after it was repaired: %s", key, f.What)
	}
}

// TestNothingWrong: the only findings are the stopped daemon, and groups that the test machine
// may lack.
func TestNothingWrong(t *testing.T) {
	r := newRig(t)
	for key, f := range r.examine(true) {
		if !strings.HasPrefix(key, "groups.") && key != "daemon.stopped loxilightd" && f.ID != "files.group" {
			t.Errorf("found %s: %s", key, f.What)
		}
	}
}

func TestModes(t *testing.T) {
	for _, tt := range []struct {
		name           string
		mode           os.FileMode
		severity, want string
	}{
		{"loxilight", 0o777, "error", "has mode 0777, want 0755"},
		{"loxilight/conf.d", 0o757, "error", "has mode 0757, want 0755"},
		{"loxilight/conf.d/web.yaml", 0o666, "error", "has mode 0666, want 0644"},
		{"loxilight/loxilightd.yaml", 0o620, "error", "has mode 0620, want 0600"},
		{"state", 0o750, "warning", "has mode 0750, want 0700"},
		{"state/state.db", 0o644, "warning", "has mode 0644, want 0600"},
		{"run", 0o755, "warning", "has mode 0755, want 0750"},
		{"run", 0o700, "warning", "has mode 0700, want 0750"},
		{"pins", 0o705, "warning", "has mode 0705, want 0700"},
	} {
		t.Run(fmt.Sprintf("%s %o", filepath.Base(tt.name), tt.mode), func(t *testing.T) {
			r := newRig(t)
			if _, err := os.Stat(r.path(tt.name)); err != nil {
				if tt.name == "pins" {
					r.mkdir(tt.name, 0o700)
				} else {
					r.write(tt.name, "")
				}
			}
			r.ok(os.Chmod(r.path(tt.name), tt.mode))
			r.repaired(tt.severity, "files.mode "+tt.name, tt.want, "chmod ")
		})
	}
}

// TestLinkIsNotMended: a user with write access to the directory created a link in it, so that a
// repair would make another user's file accessible to everyone.
func TestLinkIsNotMended(t *testing.T) {
	r := newRig(t)
	r.write("secret", "x")
	r.ok(os.Chmod(r.path("secret"), 0o622))
	r.ok(os.Symlink(r.path("secret"), r.path("loxilight/conf.d/soft.yaml")))
	r.ok(os.Link(r.path("secret"), r.path("loxilight/conf.d/hard.yaml")))
	found := r.examine(true)
	for _, name := range []string{"soft", "hard"} {
		f := found["files.mode loxilight/conf.d/"+name+".yaml"]
		if f.Fixed != "" || !strings.Contains(f.FixError, "is a link") {
			t.Errorf("%s link: %+v", name, f)
		}
	}
	if info, err := os.Stat(r.path("secret")); err != nil || info.Mode().Perm() != 0o622 {
		t.Errorf("the file behind the links: %v, %v", info.Mode(), err)
	}
}

func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_CHOWN")
	}
	r := newRig(t)
	r.ok(os.Chown(r.path("loxilight/conf.d"), 65534, -1))
	r.repaired("error", "files.owner loxilight/conf.d", "belongs to the user nobody", "chown root ")
}

func TestGroups(t *testing.T) {
	r := newRig(t)
	r.machine("/etc/group", "loxilight:x:990:ann,bob\nloxilight-admin:x:991:bob,eve")
	r.machine("/etc/passwd", "ann:x:1000:1000::/:\ndan:x:1001:991::/:")
	found := r.examine(false)
	r.expect(found, "warning", "groups.half user eve", "is in the group loxilight-admin and not in loxilight")
	r.expect(found, "warning", "groups.half user dan", "is in the group loxilight-admin")
	if _, ok := found["groups.half user bob"]; ok {
		t.Error("bob is in both groups")
	}
}

func TestStaleSockets(t *testing.T) {
	r := newRig(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.path("run/control.sock"), Net: "unix"})
	r.ok(err)
	l.SetUnlinkOnClose(false)
	r.ok(l.Close())
	r.repaired("note", "sockets.stale run/control.sock", "of a daemon that no longer runs", "rm ")
}

// TestSocketMode: a socket cannot be opened like a file, but its mode is repaired in the same way.
func TestSocketMode(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("unix", r.path("run/events.sock"))
	r.ok(err)
	defer l.Close()
	r.ok(os.Chmod(r.path("run/events.sock"), 0o666))
	r.repaired("error", "files.mode run/events.sock", "has mode 0666, want 0660", "chmod 0660 ")
}

// TestHung: a process holds the lock and listens on the socket, but never answers.
func TestHung(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("unix", r.path("run/control.sock"))
	r.ok(err)
	defer l.Close()
	r.write("run/loxilightd.lock", "")
	f, err := os.Open(r.path("run/loxilightd.lock"))
	r.ok(err)
	defer f.Close()
	r.ok(unix.Flock(int(f.Fd()), unix.LOCK_EX))
	found := r.examine(true)
	r.expect(found, "error", fmt.Sprintf("daemon.hung loxilightd (process %d)", os.Getpid()), "does not answer")
	if _, ok := found["sockets.stale run/control.sock"]; ok {
		t.Error("the socket of a hung daemon is called stale")
	}
}

func TestConfiguration(t *testing.T) {
	r := newRig(t)
	r.o.ConfigErr = errors.New("loxilightd.yaml:3: unknown key tabels")
	r.expect(r.examine(false), "error", "config.invalid loxilight/loxilightd.yaml", "unknown key tabels")
}

func TestObjectFiles(t *testing.T) {
	r := newRig(t)
	r.write("loxilight/conf.d/web.yaml", "kind: Service\nname: web\nspec: {frontend: x}\n")
	r.expect(r.examine(false), "error", "files.objects loxilight/conf.d", "frontend")
}

func TestStore(t *testing.T) {
	r := newRig(t)
	r.write("state/state.db.damaged-20260304T050607.000Z", "x")
	r.write("state/state.db", strings.Repeat("no store", 4096))
	r.ok(os.Chmod(r.path("state/state.db"), 0o600))
	found := r.examine(true)
	r.expect(found, "error", "state.damaged state/state.db", "no sound meta page")
	r.expect(found, "warning", "state.set_aside state/state.db.damaged-20260304T050607.000Z", "was damaged and set aside")
	if text, err := os.ReadFile(r.path("state/state.db")); err != nil || !strings.HasPrefix(string(text), "no store") {
		t.Errorf("the damaged store was touched: %v", err)
	}
}

func TestKernel(t *testing.T) {
	r := newRig(t)
	r.machine("/proc/sys/net/core/bpf_jit_enable", "0")
	r.machine("/proc/sys/net/core/bpf_jit_harden", "2")
	r.machine("/proc/sys/kernel/osrelease", "5.19.0-50-generic")
	r.ok(os.Remove(r.path("root/sys/kernel/btf/vmlinux")))
	found := r.examine(false)
	r.expect(found, "warning", "kernel.jit net.core.bpf_jit_enable", "interprets")
	r.expect(found, "note", "kernel.jit_harden net.core.bpf_jit_harden", "is 2")
	r.expect(found, "warning", "kernel.untested kernel 5.19.0-50-generic", "older than 6.1")
	r.expect(found, "note", "kernel.btf kernel 5.19.0-50-generic", "no type information")
	for _, release := range []string{"4.19.0-26-amd64", "5.15.0-91-generic", "5.16.0-6-amd64"} {
		r.machine("/proc/sys/kernel/osrelease", release)
		r.expect(r.examine(false), "error", "kernel.old kernel "+release, "older than 5.17")
	}
}

// TestNoBPFFS: the pins would be on an ordinary file system.
func TestNoBPFFS(t *testing.T) {
	r := newRig(t)
	r.o.Config.Backend = "ebpf"
	r.expect(r.examine(true), "warning", "bpffs.missing pins", "not on a BPF file system")
}

func TestUnit(t *testing.T) {
	for _, tt := range []struct{ props, severity, key, word string }{
		{"ActiveState=failed\nResult=exit-code\nExecMainStatus=70\nStateChangeTimestamp=Sat 2026-11-21 10:00:00 UTC", "error", "unit.failed", "this kernel refuses the programs"},
		{"ActiveState=failed\nResult=exit-code\nExecMainStatus=78", "error", "unit.failed", "wrong configuration"},
		{"ActiveState=active\nNRestarts=3", "warning", "unit.restarts", "restarted 3 times"},
		{"ActiveState=active\nNeedDaemonReload=yes", "warning", "unit.reload", "changed on disk"},
		{"ActiveState=active\nUnitFileState=disabled", "note", "unit.disabled", "not started at boot"},
		{"ActiveState=active\nWatchdogUSec=0", "note", "unit.watchdog", "no watchdog"},
		{"ActiveState=activating\nResult=watchdog\nWatchdogUSec=30s", "error", "unit.watchdog", "hung"},
	} {
		t.Run(tt.key, func(t *testing.T) {
			r := newRig(t)
			r.commands["systemctl show loxilightd.service"] = "LoadState=loaded\nExecStart={ argv[]=/usr/sbin/loxilightd --config " + r.o.ConfigFile + " }\n" + tt.props + "\n"
			r.expect(r.examine(false), tt.severity, tt.key+" loxilightd.service", tt.word)
			// A unit with a different configuration does not belong to this instance.
			r.commands["systemctl show loxilightd.service"] = "LoadState=loaded\nExecStart={ argv[]=/usr/sbin/loxilightd --config /etc/other.yaml }\n" + tt.props + "\n"
			if _, ok := r.examine(false)[tt.key+" loxilightd.service"]; ok {
				t.Error("the unit of another configuration is taken for ours")
			}
		})
	}
}
