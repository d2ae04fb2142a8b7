// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/rep"
	_ "go.nanomsg.org/mangos/v3/transport/ipc"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
)

// socketIn returns a path that is short enough for a Unix socket.
func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ll")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	return filepath.Join(dir, "control.sock")
}

// daemon answers each request with the result of handle, using unmodified mangos. The returned
// function stops it before the end of the test.
func daemon(t *testing.T, path string, handle func(request []byte) []byte) (stop func()) {
	t.Helper()
	sock, err := rep.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := sock.Listen("ipc://" + path); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			request, err := sock.Recv()
			if err != nil {
				return
			}
			if reply := handle(request); reply != nil {
				_ = sock.Send(reply) // the test notices a missing reply
			}
		}
	}()
	stop = func() {
		if err := sock.Close(); err == nil || errors.Is(err, mangos.ErrClosed) {
			<-done
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestCall(t *testing.T) {
	path := socketIn(t)
	daemon(t, path, func([]byte) []byte {
		return []byte(`{"jsonrpc":"2.0","id":1,"result":{"version":"1.2","api":[1],"build":"b"}}`)
	})
	c, err := Dial(t.Context(), Options{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		var v api.VersionResult
		if err := c.Call(t.Context(), api.MethodVersion, nil, &v); err != nil || v.Version != "1.2" {
			t.Fatalf("version = %+v, %v; want 1.2", v, err)
		}
	}
}

func TestNotRunning(t *testing.T) {
	path := socketIn(t)
	begin := time.Now()
	_, err := Dial(t.Context(), Options{Socket: path})
	if !errors.Is(err, ErrNotRunning) {
		t.Errorf("error = %v, want ErrNotRunning", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("took %s to find out", took)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := dialUnix(late, path); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error = %v without time to connect, want ErrNotRunning", err)
	}
}

func TestTimeout(t *testing.T) {
	path := socketIn(t)
	daemon(t, path, func([]byte) []byte { return nil })
	c, err := New(Options{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = c.Call(ctx, api.MethodStatus, nil, nil)
	if !errors.Is(err, ErrNotAnswering) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("error = %v, want ErrNotAnswering alone", err)
	}
}

// TestStarting: if a daemon holds the lock but has no socket yet, the error reports that the daemon
// is starting, and is of the same kind as for a daemon that is not running.
func TestStarting(t *testing.T) {
	path := socketIn(t)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program := filepath.Join(filepath.Dir(path), "loxilightd") // becomes the name of the process
	if err := os.Symlink(sleep, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // Wait always fails: the process was killed
	killed := exec.Command(program, "60")                       // until it is waited for, the process remains as a zombie
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = killed.Wait() }) // always fails: the process was killed
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, killed.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(filepath.Dir(path), "loxilightd.lock")
	for pid, starting := range map[int]bool{cmd.Process.Pid: true, killed.Process.Pid: false, os.Getpid(): false} {
		if err := os.WriteFile(lock, []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Dial(t.Context(), Options{Socket: path})
		if !errors.Is(err, ErrNotRunning) || strings.Contains(err.Error(), "is starting") != starting {
			t.Errorf("process %d: %v; starting: %v", pid, err, starting)
		}
	}
}
