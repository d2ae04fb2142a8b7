// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testnet"
)

// asDaemon in the environment makes this test binary run as loxilightd.
const asDaemon = "LL_TEST_AS_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		if use := os.Getenv(provenHooks); use != "" {
			os.Exit(examineProven(use))
		}
		main()
		return
	}
	os.Exit(m.Run())
}

// site contains the directories of one instance, and the daemon that uses them.
type site struct {
	t   *testing.T
	dir string
	*client.Client

	wrapper []string    // command that runs the daemon; empty: it is run directly
	ns      *testnet.NS // network namespace of the daemon; nil: the test's
}

// newSite creates the directories and a configuration with the fake data plane, unless more
// configures a different one.
func newSite(t *testing.T, more ...string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	s.configure(append([]string{"datapath: {backend: fake}"}, more...)...)
	if err := os.Mkdir(s.path("conf.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.Client, err = client.New(client.Options{Socket: s.path("run/control.sock")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Client.Close() }) // the client has no unsent data
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) configure(lines ...string) {
	text := strings.Join(lines, "\n") + "\n"
	for key, dir := range map[string]string{"runDir": "run", "stateDir": "state", "objectDir": "conf.d", "pinDir": "pins"} {
		if !strings.Contains(text, key) {
			text += key + ": " + s.path(dir) + "\n"
		}
	}
	s.write("loxilightd.yaml", text)
}

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// process is one run of the daemon.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  lockedBuffer
	done chan struct{}
}

// start starts the daemon without waiting for anything.
func (s *site) start(env ...string) *process {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	args := append(slices.Clone(s.wrapper), self, "--config", s.path("loxilightd.yaml"))
	p := &process{t: s.t, cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), asDaemon+"=1"), env...)
	p.cmd.Stderr = &p.log
	if s.ns != nil {
		s.ns.Do(s.t, p.cmd.Start)
	} else if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { defer close(p.done); _ = p.cmd.Wait() }() // the result is stored in ProcessState
	s.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // harmless if the process has already ended
		<-p.done
		if s.t.Failed() {
			s.t.Logf("log of the daemon:\n%s", p.log.String())
		}
	})
	return p
}

// run starts the daemon and waits until it answers.
func (s *site) run(env ...string) *process {
	s.t.Helper()
	p := s.start(env...)
	eventually(s.t, func() bool {
		select {
		case <-p.done:
			s.t.Fatalf("the daemon ended at once:\n%s", p.log.String())
		default:
		}
		return s.Call(s.t.Context(), api.MethodVersion, nil, nil) == nil
	})
	return p
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// ends waits until the process ends and returns its exit code.
func (p *process) ends() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		p.t.Fatalf("the daemon does not end:\n%s", p.log.String())
		return -1
	}
}

func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.ends(); code != 0 {
		p.t.Fatalf("exit code %d after SIGTERM:\n%s", code, p.log.String())
	}
}

// wantLog waits until the log, which arrives through a pipe, contains all of want.
func (p *process) wantLog(want ...string) {
	p.t.Helper()
	for _, w := range want {
		eventually(p.t, func() bool { return strings.Contains(p.log.String(), w) })
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	testnet.Eventually(t, 20*time.Second, "what this line waits for", ok)
}

func serviceObject(name string, id int, backends ...string) api.Object {
	list := `"` + strings.Join(backends, `"},{"address":"`) + `"`
	return api.Object{Kind: api.KindService, Name: name, Spec: fmt.Appendf(nil,
		`{"frontends":["10.96.%d.%d:80/tcp"],"backends":[{"address":%s}]}`, id>>8, id&255, list)}
}

// get returns an object; it returns false if the object does not exist.
func (s *site) get(kind, name string) (o api.Object, ok bool) {
	s.t.Helper()
	err := s.Call(s.t.Context(), api.MethodGet, api.GetParams{Kind: kind, Name: name}, &o)
	refused, isRefused := errors.AsType[*api.Error](err)
	if isRefused && refused.Reason() == api.ReasonNotFound {
		return o, false
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return o, true
}

func (s *site) apply(objects ...api.Object) {
	s.t.Helper()
	wait := api.Change{Wait: api.Duration(10 * time.Second)}
	if _, err := s.Apply(s.t.Context(), api.ApplyParams{Objects: objects, Change: wait}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) status() (r api.StatusResult) {
	s.t.Helper()
	if err := s.Call(s.t.Context(), api.MethodStatus, nil, &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// notifySocket is the service manager's end of sd_notify.
type notifySocket struct {
	t    *testing.T
	conn *net.UnixConn
	env  string
}

func newNotifySocket(t *testing.T) *notifySocket {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it was only read
	return &notifySocket{t, conn, "NOTIFY_SOCKET=" + path}
}

// await reads messages until one begins with want.
func (n *notifySocket) await(want string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := n.conn.SetReadDeadline(deadline); err != nil {
		n.t.Fatal(err)
	}
	var seen []string
	buf := make([]byte, 4096)
	for {
		size, err := n.conn.Read(buf)
		if err != nil {
			n.t.Fatalf("no %s, only %q: %v", want, seen, err)
		}
		seen = append(seen, string(buf[:size]))
		if strings.HasPrefix(seen[len(seen)-1], want) {
			return
		}
	}
}
