// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecondDaemon: a second daemon changes nothing.
func TestSecondDaemon(t *testing.T) {
	dir := filepath.Join(shared(t), "run")
	first := start(t, "daemon "+dir, nil)
	first.line(t)
	before, err := os.Stat(filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir, "")
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", first.Process.Pid)) {
		t.Errorf("lock of a second daemon: %v, want ErrRunning with the pid %d", err, first.Process.Pid)
	}
	if _, err := Listen(Options{RunDir: dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, ErrRunning) {
		t.Errorf("a daemon that did not ask for the lock: %v, want ErrRunning", err)
	}
	after, err := os.Stat(filepath.Join(dir, ControlSocket))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket was touched: %v", err)
	}
	if _, err := newClient(t, dir).Version(t.Context()); err != nil {
		t.Errorf("the first daemon: %v", err)
	}
}

// TestAfterKill reuses the run directory of a killed daemon.
func TestAfterKill(t *testing.T) {
	dir := filepath.Join(shared(t), "run")
	first := start(t, "daemon "+dir, nil)
	first.line(t)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // it was killed
	if _, err := os.Stat(filepath.Join(dir, ControlSocket)); err != nil {
		t.Fatalf("it left no socket, so the test shows nothing: %v", err)
	}
	serve(t, Options{RunDir: dir}, newMini().handle)
	if _, err := newClient(t, dir).Version(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	dir := runDir(t)
	path := filepath.Join(dir, ControlSocket)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Listen(Options{RunDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error = %v, want an error that names %s", err, path)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "mine" {
		t.Errorf("the file is now %q, %v", got, err)
	}
}

func TestLockRefusesADirectoryThatOthersCanWriteTo(t *testing.T) {
	dir := runDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir, ""); err == nil || !strings.Contains(err.Error(), "0750") {
		t.Errorf("error = %v, want what to do", err)
	}
}

func TestListenRefusesALongPath(t *testing.T) {
	dir := filepath.Join(runDir(t), strings.Repeat("x", 100))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Options{RunDir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "shorter runDir") {
		t.Errorf("error = %v, want what to do", err)
	}
}
