// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/rep"
	_ "go.nanomsg.org/mangos/v3/transport/ipc"

	"github.com/loxilight/loxilight/llcli/internal/cli"
)

// TestMain runs the test binary as llcli if a test requests it.
func TestMain(m *testing.M) {
	if os.Getenv("LLCLI_TEST_RUN") == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("LLCLI_TEST_NOBODY") != "" {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			panic(err)
		}
	}
	main()
}

// llcli is one run of the command.
type llcli struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	begin     time.Time
}

func start(t *testing.T, env []string, args ...string) *llcli {
	t.Helper()
	l := &llcli{begin: time.Now()}
	l.cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	l.cmd.Env = append(append(os.Environ(), "LLCLI_TEST_RUN=1"), env...)
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.errs
	l.cmd.Stdin = strings.NewReader(`{"kind":"Service","name":"web","spec":{"frontends":["198.51.100.10:80/tcp"]}}`)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return l
}

// check waits at most 5 s for llcli to end, and checks the exit code, and that standard error
// contains all of words.
func (l *llcli) check(t *testing.T, code int, words ...string) {
	t.Helper()
	if err := l.cmd.Wait(); err != nil && l.cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := l.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	for _, want := range words {
		if !strings.Contains(l.errs.String(), want) {
			t.Errorf("no %q on the standard error:\n%s", want, l.errs.String())
		}
	}
	if took := time.Since(l.begin); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

// socketPath returns a path that is short enough for a Unix socket, in a directory of its own.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "llcli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	return filepath.Join(dir, "control.sock")
}

// listen answers requests with the result of handle; nil: no answer.
func listen(t *testing.T, handle func(sock mangos.Socket, request map[string]any) any) string {
	t.Helper()
	path := socketPath(t)
	sock, err := rep.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := sock.Listen("ipc://" + path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() }) // some tests close it earlier
	go func() {
		for {
			raw, err := sock.Recv()
			if err != nil {
				return
			}
			var request map[string]any
			_ = json.Unmarshal(raw, &request) // the test notices an error
			answer := handle(sock, request)
			if answer == nil {
				continue
			}
			reply, _ := json.Marshal(answer)
			_ = sock.Send(reply)
		}
	}()
	return path
}

func TestNoDaemon(t *testing.T) {
	path := socketPath(t)
	start(t, nil, "status", "--socket", path).check(t, cli.ExitUnreachable, "loxilightd is not running", path, "name another socket")
	start(t, []string{"LOXILIGHT_SOCKET=" + path}, "apply", "-f", "-").check(t, cli.ExitUnreachable, "loxilightd is not running", path)
	start(t, nil, "events", "--socket", path).check(t, cli.ExitUnreachable, "loxilightd is not running")
	start(t, nil, "get", "services", "--watch", "--socket", path).check(t, cli.ExitUnreachable, "loxilightd is not running")
	start(t, nil, "top", "--socket", path).check(t, cli.ExitUnreachable, "loxilightd is not running")
}

func TestNoPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SETUID")
	}
	path := listen(t, nil)
	start(t, []string{"LLCLI_TEST_NOBODY=1"}, "status", "--socket", path).
		check(t, cli.ExitUnreachable, "permission denied", path, "group loxilight to read", "loxilight-admin to make changes")
}

func TestDenied(t *testing.T) {
	path := listen(t, func(_ mangos.Socket, request map[string]any) any {
		return map[string]any{"jsonrpc": "2.0", "id": request["id"], "error": map[string]any{
			"code": 5, "message": "user 1000 may read and not change", "data": map[string]any{"reason": "denied"}}}
	})
	start(t, nil, "apply", "-f", "-", "--socket", path).check(t, cli.ExitFailed, "llcli: user 1000 may read and not change\n")
}

// TestHungDaemon: the connection is not accepted, as if the daemon had received SIGSTOP.
func TestHungDaemon(t *testing.T) {
	path := socketPath(t)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	start(t, nil, "status", "--socket", path, "--timeout", "300ms").check(t, cli.ExitUnreachable, "loxilightd is not answering", path)
	start(t, nil, "apply", "-f", "-", "--socket", path, "--timeout", "300ms").check(t, cli.ExitUnreachable, "loxilightd is not answering")
}

// TestNoAnswer: the request arrives, but is not answered.
func TestNoAnswer(t *testing.T) {
	path := listen(t, func(mangos.Socket, map[string]any) any { return nil })
	start(t, nil, "status", "--socket", path, "--timeout", "300ms").check(t, cli.ExitUnreachable, "loxilightd is not answering")
	start(t, nil, "apply", "-f", "-", "--socket", path, "--timeout", "300ms", "--request-id", "mine-1").
		check(t, cli.ExitUnreachable, "outcome unknown", "no answer in time", "may or may not have been made", "--request-id mine-1")
}

// TestDaemonDies: the daemon receives a change, and terminates before it answers.
func TestDaemonDies(t *testing.T) {
	ids := make(chan string, 1)
	path := listen(t, func(sock mangos.Socket, request map[string]any) any {
		params, _ := request["params"].(map[string]any)
		id, _ := params["requestID"].(string)
		ids <- id
		_ = sock.Close() // the connection ends without an answer
		return nil
	})
	l := start(t, nil, "apply", "-f", "-", "--socket", path)
	id := <-ids
	if id == "" {
		t.Error("the change has no request id")
	}
	l.check(t, cli.ExitUnreachable, "outcome unknown", "--request-id "+id)
}

// TestInterrupt: after an interrupted change, llcli reports that the change may have been made.
func TestInterrupt(t *testing.T) {
	arrived := make(chan bool, 1)
	path := listen(t, func(mangos.Socket, map[string]any) any {
		arrived <- true
		return nil
	})
	l := start(t, nil, "apply", "-f", "-", "--socket", path)
	<-arrived
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	l.check(t, cli.ExitUnreachable, "outcome unknown", "interrupted")
}

func TestFullDisk(t *testing.T) {
	l := &llcli{begin: time.Now()}
	l.cmd = exec.CommandContext(t.Context(), os.Args[0], "completion", "bash")
	l.cmd.Env = append(os.Environ(), "LLCLI_TEST_RUN=1")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	l.cmd.Stdout, l.cmd.Stderr = full, &l.errs
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.check(t, cli.ExitFailed, "no space left on device")
}
