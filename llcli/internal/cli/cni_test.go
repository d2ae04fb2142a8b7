// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

func TestCNIInstall(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	dir := filepath.Join(t.TempDir(), "net.d")
	path := filepath.Join(dir, "10-loxilight.conflist")
	shipped, err := os.ReadFile("../../../configs/10-loxilight.conflist")
	if err != nil {
		t.Fatal(err)
	}
	content := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}

	s.daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonUnavailable, "PodNetwork/default: there is none")
	code, _, errs := s.run(t.Context(), "cni", "install", "--dir", dir, "--timeout", "50ms")
	if code != ExitFailed || !strings.Contains(errs, "not installed: PodNetwork/default") {
		t.Errorf("not ready: exit code %d: %s", code, errs)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it is installed although no pod can be attached")
	}
	delete(s.daemon.fail, api.MethodCNI)

	code, out, errs := s.run(t.Context(), "cni", "install", "--dir", dir)
	if code != ExitDone || out != path+"\n" || errs != "" || content() != string(shipped) {
		t.Errorf("exit code %d: %s%s; the file is\n%s, want that in configs", code, out, errs, content())
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("files %q, %v", left, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode of the file: %v, %v", info, err)
	}

	code, _, errs = s.run(t.Context(), "cni", "install", "--dir", dir, "--network", "blue")
	if code != ExitFailed || !strings.Contains(errs, "--force") || content() != string(shipped) {
		t.Errorf("over another: exit code %d: %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "05-other.conf"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.daemon.stateDir = "/var/lib/loxilight-two"
	code, _, errs = s.run(t.Context(), "cni", "install", "--dir", dir, "--network", "blue", "--force", "--instance", "two")
	if code != ExitDone || !strings.Contains(errs, "05-other.conf sorts before it") {
		t.Errorf("with force: exit code %d: %s", code, errs)
	}
	for _, want := range []string{`"network": "blue"`, `"socket": "/run/loxilight-two/control.sock"`, `"stateDir": "/var/lib/loxilight-two"`} {
		if !strings.Contains(content(), want) {
			t.Errorf("no %s in %s", want, content())
		}
	}
	if code, _, errs := s.run(t.Context(), "cni", "install", "--dir", dir, "--file", filepath.Join(dir, "05-other.conf")); code != ExitFailed || !strings.Contains(errs, "loxilight-cni") {
		t.Errorf("a file without the plugin: exit code %d: %s", code, errs)
	}

	if code, _, errs := s.run(t.Context(), "cni", "uninstall", "--dir", dir); code != ExitDone || !strings.Contains(content(), "no such file") {
		t.Errorf("uninstall: exit code %d: %s", code, errs)
	}
	if code, _, errs := s.run(t.Context(), "cni", "uninstall", "--dir", dir); code != ExitDone || !strings.Contains(errs, "does not exist") {
		t.Errorf("uninstall twice: exit code %d: %s", code, errs)
	}
	if err := os.WriteFile(path, []byte(`{"plugins":[{"type":"bridge"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.run(t.Context(), "cni", "uninstall", "--dir", dir); code != ExitFailed || !strings.Contains(errs, "another program") {
		t.Errorf("uninstall of another's: exit code %d: %s", code, errs)
	}
}

// TestCNIUninstallWithThePlugin: the plugin and the configuration are removed if they exist, and
// nothing else is.
func TestCNIUninstallWithThePlugin(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	conf, bin := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(conf, "10-loxilight.conflist"): `{"plugins":[{"type":"loxilight-cni"}]}`,
		filepath.Join(bin, "loxilight-cni"):          "plugin", filepath.Join(bin, "loopback"): "other",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"", filepath.Join(bin, "loxilight-cni") + " does not exist"} {
		code, out, errs := s.run(t.Context(), "cni", "uninstall", "--dir", conf, "--plugin-dir", bin)
		if code != ExitDone || out != "" || want == "" && errs != "" || !strings.Contains(errs, want) {
			t.Errorf("exit code %d: %s%s", code, out, errs)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(conf), "*", "*"))
		if err != nil || len(left) != 1 || filepath.Base(left[0]) != "loopback" {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}

// TestCNIInstallMakesNoTypingError: a directory whose parent does not exist is rejected, and not
// created.
func TestCNIInstallMakesNoTypingError(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	away := filepath.Join(t.TempDir(), "ect")
	file := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(file, []byte("plugin"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"install", "--dir", filepath.Join(away, "net.d")}, {"keep", "--dir", filepath.Join(away, "net.d") + "/"},
		{"install-plugin", "--from", file, "--to", filepath.Join(away, "bin")}, {"install", "--dir", filepath.Join(file, "net.d")},
	} {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		code, out, errs := s.run(ctx, append([]string{"cni"}, args...)...)
		stop()
		if code != ExitUsage || out != "" || !strings.Contains(errs, "directory "+filepath.Dir(filepath.Clean(args[len(args)-1]))+" does not exist") {
			t.Errorf("%q: exit code %d: %s%s", args, code, out, errs)
		}
	}
	if _, err := os.Stat(away); err == nil {
		t.Errorf("%s was made", away)
	}
}

// TestCNIInstallTellsTheStateDir: the plugin queues a DEL in the directory that the daemon reads,
// however that directory was configured.
func TestCNIInstallTellsTheStateDir(t *testing.T) {
	const guess, unknown = "the default of its instance", "set stateDir in"
	for _, tt := range []struct {
		name     string
		stateDir string // as the daemon reports it
		args     []string
		want     []string // in the file
		not      string
		note     string
	}{
		{"by its socket", "/srv/blue/state", []string{"--socket", "/srv/blue/control.sock"}, []string{`"socket": "/srv/blue/control.sock",`, `"stateDir": "/srv/blue/state",`}, "", ""},
		{"by a URL", "/srv/blue/state", []string{"--socket", "ipc:///srv/blue/control.sock"}, []string{`"socket": "/srv/blue/control.sock",`, `"stateDir": "/srv/blue/state",`}, "", ""},
		{"the usual socket", "/data/state", nil, []string{`"stateDir": "/data/state",`}, "socket", ""},
		{"another instance, elsewhere", "/data/two", []string{"--instance", "two"}, []string{`"socket": "/run/loxilight-two/control.sock",`, `"stateDir": "/data/two",`}, "", ""},
		{"the usual folder", "/var/lib/loxilight", []string{"--socket", "/srv/control.sock"}, []string{`"socket": "/srv/control.sock",`}, "stateDir", ""},
		{"an older daemon", "", []string{"--socket", "/srv/control.sock"}, []string{`"socket": "/srv/control.sock",`}, "stateDir", unknown},
		{"an older daemon of an instance", "", []string{"--instance", "two"}, []string{`"stateDir": "/var/lib/loxilight-two",`}, "", guess},
		{"an older daemon where all is usual", "", nil, nil, "stateDir", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
			s.daemon.stateDir = tt.stateDir
			dir := t.TempDir()
			code, _, errs := s.run(t.Context(), append([]string{"cni", "install", "--dir", dir}, tt.args...)...)
			text, err := os.ReadFile(filepath.Join(dir, "10-loxilight.conflist"))
			if code != ExitDone || err != nil {
				t.Fatalf("exit code %d: %s, %v", code, errs, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(text), want) {
					t.Errorf("no %s in %s", want, text)
				}
			}
			if tt.not != "" && strings.Contains(string(text), tt.not) {
				t.Errorf("%s in %s", tt.not, text)
			}
			if tt.note == "" && errs != "" || !strings.Contains(errs, tt.note) {
				t.Errorf("it says %q, want %q in it", errs, tt.note)
			}
		})
	}
}

// TestCNIInstallOfAFile: llcli warns if the file names the socket or the directory of another
// daemon.
func TestCNIInstallOfAFile(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	s.daemon.stateDir = "/srv/blue/state"
	file := filepath.Join(t.TempDir(), "mine.conflist")
	for text, want := range map[string]string{
		`{"plugins":[{"type":"loxilight-cni","socket":"/srv/blue/control.sock","stateDir":"/srv/blue/state"}]}`: "",
		`{"plugins":[{"type":"loxilight-cni","socket":"/srv/blue/control.sock"}]}`:                              `stateDir /var/lib/loxilight differs from the daemon's stateDir /srv/blue/state`,
		`{"plugins":[{"type":"loxilight-cni","stateDir":"/srv/blue/state"}]}`:                                   `socket /run/loxilight/control.sock differs from the daemon's socket /srv/blue/control.sock`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, errs := s.run(t.Context(), "cni", "install", "--dir", t.TempDir(), "--file", file, "--socket", "/srv/blue/control.sock")
		if code != ExitDone || want == "" && errs != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d: %q, want %q", text, code, errs, want)
		}
	}
}

// TestCNIKeep: the configuration is written once pods can be attached, is restored after a
// deletion, is updated if its source changes, and stays when llcli ends.
func TestCNIKeep(t *testing.T) {
	d := newTestDaemon(t)
	d.fail[api.MethodCNI] = api.Errorf(api.ReasonUnavailable, "PodNetwork/default: there is none")
	s := &session{daemon: d, env: map[string]string{}}
	dir, source := t.TempDir(), filepath.Join(t.TempDir(), "mine.conflist")
	path := filepath.Join(dir, "10-loxilight.conflist")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(source, `{"plugins":[{"type":"loxilight-cni"}]}`)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan string)
	go func() {
		code, out, errs := s.run(ctx, "cni", "keep", "--dir", dir, "--file", source, "--timeout", "10ms")
		done <- fmt.Sprint(code, out, errs)
	}()
	is := func(what, want string) {
		t.Helper()
		testnet.Eventually(t, 20*time.Second, what+": the file is "+want, func() bool {
			text, err := os.ReadFile(path)
			return err == nil && string(text) == want
		})
	}
	testnet.Eventually(t, 20*time.Second, "it asks again", func() bool { return d.called(api.MethodCNI) >= 3 })
	if _, err := os.Stat(path); err == nil {
		t.Error("it is installed although no pod can be attached")
	}
	d.mu.Lock()
	delete(d.fail, api.MethodCNI)
	d.mu.Unlock()
	is("ready", `{"plugins":[{"type":"loxilight-cni"}]}`)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	is("removed", `{"plugins":[{"type":"loxilight-cni"}]}`)
	write(source, `{"name":"other","plugins":[{"type":"loxilight-cni"}]}`)
	is("another source", `{"name":"other","plugins":[{"type":"loxilight-cni"}]}`)
	stop()
	if got := <-done; !strings.HasPrefix(got, "0") || strings.Count(got, "not installed yet: PodNetwork/default") != 1 || strings.Count(got, "installed "+path) != 3 {
		t.Errorf("it ended with %s", got)
	}
	is("ended", `{"name":"other","plugins":[{"type":"loxilight-cni"}]}`)
}

// TestCNIKeepOfAnotherDaemon: llcli warns if the source belongs to another daemon.
func TestCNIKeepOfAnotherDaemon(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	s.daemon.stateDir = "/srv/blue/state"
	dir, source := t.TempDir(), filepath.Join(t.TempDir(), "mine.conflist")
	if err := os.WriteFile(source, []byte(`{"plugins":[{"type":"loxilight-cni","socket":"/srv/blue/control.sock"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan string)
	go func() {
		_, _, errs := s.run(ctx, "cni", "keep", "--dir", dir, "--file", source, "--socket", "/srv/blue/control.sock")
		done <- errs
	}()
	testnet.Eventually(t, 20*time.Second, "it is installed", func() bool {
		_, err := os.Stat(filepath.Join(dir, "10-loxilight.conflist"))
		return err == nil
	})
	stop()
	if errs := <-done; !strings.Contains(errs, "mine.conflist: stateDir /var/lib/loxilight differs from the daemon's stateDir /srv/blue/state") {
		t.Errorf("it says %q", errs)
	}
}

func TestCNIInstallPlugin(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	from, to := filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "bin")
	if code, _, errs := s.run(t.Context(), "cni", "install-plugin", "--from", from, "--to", to); code != ExitFailed || !strings.Contains(errs, "--from") {
		t.Errorf("without a plugin: exit code %d: %s", code, errs)
	}
	for _, text := range []string{"one", "another"} {
		if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := s.run(t.Context(), "cni", "install-plugin", "--from", from, "--to", to)
		path := filepath.Join(to, "loxilight-cni")
		if code != ExitDone || out != path+"\n" {
			t.Errorf("exit code %d: %s%s", code, out, errs)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != text || info.Mode().Perm() != 0o755 {
			t.Errorf("%q, %v, %v, %v", got, err, statErr, info)
		}
	}
}
