// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testnet"
)

// Some tests need a second process that has other credentials or limits, or that is stopped or
// killed. The test binary itself plays that role.

const roleVar = "LOXILIGHT_TEST_ROLE"

func TestMain(m *testing.M) {
	role, arg, _ := strings.Cut(os.Getenv(roleVar), " ")
	play := map[string]func(string) error{
		"":             func(string) error { os.Exit(m.Run()); return nil },
		"daemon":       playDaemon,
		"daemon-dying": playDyingDaemon,
		"daemon-fds":   playDaemonWithoutFiles,
		"client":       playClient,
	}[role]
	if err := play(arg); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// process is a separate process that plays a role.
type process struct {
	*exec.Cmd
	lines *bufio.Scanner
}

// start runs the test's binary in a role. The process is killed when the test ends.
func start(t *testing.T, role string, attr *syscall.SysProcAttr) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if attr != nil { // a different user may not have access to go test's directory
		copied := filepath.Join(shared(t), "test")
		binary, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(copied, binary, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		self = copied
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() }) // kills it if it is still running
	return &process{cmd, bufio.NewScanner(out)}
}

// line returns the next line that the process prints.
func (p *process) line(t *testing.T) string {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the process has ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// shared returns a temporary directory that every user can read.
func shared(t *testing.T) string {
	t.Helper()
	dir := filepath.Dir(runDir(t))
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func playDaemon(dir string) error { return play(dir, newMini().handle, Limits{}) }

func play(dir string, h Handler, l Limits) error {
	lock, err := Lock(dir, "")
	if err != nil {
		return err
	}
	c, err := Listen(Options{RunDir: dir, Log: slog.New(slog.DiscardHandler), Limits: l})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return errors.Join(c.Serve(context.Background(), h), lock.Close())
}

// playDyingDaemon is killed after carrying out a request and before answering it, if a file named
// die exists. Completed requests are durable.
func playDyingDaemon(dir string) error {
	m := newMini()
	if saved, err := os.ReadFile(filepath.Join(dir, "done")); err == nil {
		if err := json.Unmarshal(saved, &m.done); err != nil {
			return err
		}
		m.commits = len(m.done)
	}
	m.executed = func() {
		saved, err := json.Marshal(m.done)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "done"), saved, 0o600)
		}
		if err != nil {
			panic(err)
		}
		if os.Remove(filepath.Join(dir, "die")) == nil {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL) // does not return
		}
		_ = os.WriteFile(filepath.Join(dir, "commits"), []byte(strconv.Itoa(m.commits)), 0o600) // the test reads this file
	}
	return play(filepath.Join(dir, "run"), m.handle, Limits{})
}

// TestOutcomeUnknown: the daemon dies after carrying out a request and before answering it.
func TestOutcomeUnknown(t *testing.T) {
	dir := shared(t)
	if err := os.WriteFile(filepath.Join(dir, "die"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := start(t, "daemon-dying "+dir, nil)
	first.line(t)
	c := newClient(t, filepath.Join(dir, "run"))
	change := api.ApplyParams{Objects: services(1, 1)}
	change.RequestID = "mine"
	_, err := c.Apply(t.Context(), change)
	if !errors.Is(err, client.ErrOutcomeUnknown) || !errors.Is(err, client.ErrNotAnswering) {
		t.Fatalf("error = %v, want ErrOutcomeUnknown", err)
	}
	if e, ok := errors.AsType[*client.Error](err); !ok || e.RequestID != "mine" || !strings.Contains(err.Error(), "outcome unknown") || !strings.Contains(err.Error(), "mine") {
		t.Errorf("error = %v, want an error that names the request id", err)
	}
	_ = first.Wait() // it was killed

	second := start(t, "daemon-dying "+dir, nil)
	second.line(t)
	result, err := c.Apply(t.Context(), change)
	if err != nil || result.Revision != 1 {
		t.Errorf("the same request again = %+v, %v; want revision 1", result, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "commits")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the change was carried out twice")
	}
	change.RequestID = "another"
	if _, err := c.Apply(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	if commits, err := os.ReadFile(filepath.Join(dir, "commits")); err != nil || string(commits) != "2" {
		t.Errorf("%s commits after another change, %v; want 2", commits, err)
	}
}

// TestStoppedDaemon: the client of a daemon that does not respond.
func TestStoppedDaemon(t *testing.T) {
	dir := shared(t)
	d := start(t, "daemon "+filepath.Join(dir, "run"), nil)
	d.line(t)
	kept := newClient(t, filepath.Join(dir, "run"))
	if _, err := kept.Version(t.Context()); err != nil {
		t.Fatal(err)
	}
	testnet.Stop(t, d.Process.Pid)
	for name, c := range map[string]*client.Client{"kept connection": kept, "new connection": newClient(t, filepath.Join(dir, "run"))} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			begin := time.Now()
			_, err := c.Version(ctx)
			if !errors.Is(err, client.ErrNotAnswering) || !strings.Contains(err.Error(), "not answering") {
				t.Errorf("error = %v, want ErrNotAnswering", err)
			}
			if took := time.Since(begin); took > testnet.OnThisMachine(2*time.Second) {
				t.Errorf("gave up after %s, want the timeout of 300ms", took)
			}
		})
	}
	if err := d.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Version(t.Context()); err != nil {
		t.Errorf("after it continues: %v", err)
	}
}

// playDaemonWithoutFiles plays a daemon that may open 64 files, but is configured for more
// connections.
func playDaemonWithoutFiles(dir string) error {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	m := newMini()
	return play(dir, func(ctx context.Context, p Peer, r []byte) []byte {
		if string(r) == "wait" {
			<-ctx.Done()
		}
		return m.handle(ctx, p, r)
	}, Limits{HandshakeTimeout: time.Hour, Connections: 512})
}

func filesOf(t *testing.T, pid int) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// TestNoFiles: 200 connections to a daemon with 64 file descriptors. Idle connections are
// closed.
func TestNoFiles(t *testing.T) {
	dir := filepath.Join(shared(t), "run")
	d := start(t, "daemon-fds "+dir, nil)
	d.line(t)
	for range 200 {
		dialRaw(t, filepath.Join(dir, ControlSocket))
	}
	eventually(t, "it has no file descriptor left", func() bool { return filesOf(t, d.Process.Pid) >= 60 })
	if _, err := newClient(t, dir).Version(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNoFilesAndNoIdleClient: while all accepted connections wait for a reply, the daemon
// neither spins nor forgets the other connections.
func TestNoFilesAndNoIdleClient(t *testing.T) {
	dir := filepath.Join(shared(t), "run")
	d := start(t, "daemon-fds "+dir, nil)
	d.line(t)
	var waiting []*raw
	for range 2 { // the first round uses all descriptors, the second waits to be accepted
		for range 200 {
			r := dialRaw(t, filepath.Join(dir, ControlSocket))
			r.send([]byte{0, 'S', 'P', 0, 0, protoReq, 0, 0})
			r.send(requestFrame(1, "wait"))
			waiting = append(waiting, r)
		}
		eventually(t, "it has no file descriptor left", func() bool { return filesOf(t, d.Process.Pid) >= 62 })
	}
	before := cpu(t, d.Process.Pid)
	time.Sleep(2 * time.Second) // measure how much CPU time it uses while it waits
	if used := cpu(t, d.Process.Pid) - before; used > 100*time.Millisecond {
		t.Errorf("used %s of CPU in 2s, want less than 5 %%", used)
	}
	for _, r := range waiting {
		_ = r.Close() // the daemon has written at most the handshake
	}
	if _, err := newClient(t, dir).Version(t.Context()); err != nil {
		t.Errorf("did not recover: %v", err)
	}
}

// cpu returns the CPU time that a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest) // starts at the third field: utime and stime are the 14th and 15th
	total := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	return time.Duration(total) * 10 * time.Millisecond // a clock tick
}
