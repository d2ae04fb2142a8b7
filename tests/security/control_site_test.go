// SPDX-License-Identifier: Apache-2.0

package security

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// The ids of the group loxilight in the daemon's /etc/group, and of two of its members.
const (
	readersGroup  = 65533
	reader        = 65534
	anotherReader = 65532
)

// controlSite is a daemon with a group loxilight, whose sockets the group's members reach:
//
//	root ── llcli, api/client ──┐
//	                            ├── control.sock ── loxilightd
//	uid 65534, group loxilight ─┘
type controlSite struct {
	*testdaemon.Daemon
	t      testing.TB
	script string // that starts the daemon
	groups string // file that is its /etc/group
}

func newControlSite(t testing.TB, more ...string) *controlSite {
	t.Helper()
	testnet.RequireRoot(t)
	ns := testnet.New(t, "control")
	dir := t.TempDir()
	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "group")
	if err := os.WriteFile(own, fmt.Appendf(groups, "loxilight:x:%d:\n", readersGroup), 0o644); err != nil {
		t.Fatal(err)
	}
	wrapped := programs
	wrapped.Daemon = filepath.Join(dir, "loxilightd")
	s := &controlSite{t: t, script: wrapped.Daemon, groups: own}
	s.limited("true")
	s.Daemon = testdaemon.New(t, ns, wrapped, more...)
	for at := filepath.Dir(filepath.Dir(s.Socket)); at != "/tmp" && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// limited runs a shell command before the next start of the daemon. The daemon finds the group in
// a mount namespace of its own.
func (s *controlSite) limited(command string) {
	s.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount --propagation private sh -c 'mount --bind %s /etc/group && %s && exec \"$0\" \"$@\"' %s \"$@\"\n",
		s.groups, command, programs.Daemon)
	if err := os.WriteFile(s.script, []byte(script), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// dialAs connects to the control socket as another user of the group loxilight, from a thread that
// temporarily has that user's ids, and performs the handshake.
func (s *controlSite) dialAs(uid int) (*peer, error) {
	c, err := dialAs(uid, s.Socket)
	if err != nil {
		return nil, err
	}
	p := &peer{Conn: c}
	if err := p.handshake(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return p, nil
}

func dialAs(uid int, path string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked if the ids cannot be restored
		groups := []uint32{readersGroup}
		_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups[0])), 0)
		_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), readersGroup, ^uintptr(0))
		_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		if e1 != 0 || e2 != 0 || e3 != 0 {
			err = fmt.Errorf("become user %d: %v, %v, %v", uid, e1, e2, e3)
			return
		}
		c, err = connect(path)
		_, _, e3 = unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0))
		_, _, e2 = unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), 0, ^uintptr(0))
		_, _, e1 = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		if e1 == 0 && e2 == 0 && e3 == 0 {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return c, err
}

// connect connects without leaving its thread, as net.Dial may.
func connect(path string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // FileConn has a copy
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return net.FileConn(f)
}

// peer is one connection that speaks the wire format by hand.
type peer struct{ net.Conn }

// patience bounds every wait of a peer on a busy machine.
const patience = 90 * time.Second

func (p *peer) handshake() error {
	_ = p.SetDeadline(time.Now().Add(patience))
	if _, err := p.Write([]byte{0, 'S', 'P', 0, 0, 0x30, 0, 0}); err != nil {
		return err
	}
	_, err := io.ReadFull(p, make([]byte, 8))
	return err
}

func (p *peer) send(body []byte) error {
	_ = p.SetDeadline(time.Now().Add(patience))
	head := make([]byte, 13, 13+len(body))
	head[0], head[9] = 1, 0x80
	binary.BigEndian.PutUint64(head[1:], uint64(4+len(body)))
	_, err := p.Write(append(head, body...))
	return err
}

// receive returns the next reply and its length.
func (p *peer) receive() (r api.Reply, size int, err error) {
	var head [13]byte
	if _, err := io.ReadFull(p, head[:]); err != nil {
		return r, 0, err
	}
	body := make([]byte, binary.BigEndian.Uint64(head[1:])-4)
	if _, err := io.ReadFull(p, body); err != nil {
		return r, 0, err
	}
	return r, len(body), json.Unmarshal(body, &r)
}

func (p *peer) call(body []byte) (r api.Reply, size int, err error) {
	if err := p.send(body); err != nil {
		return r, 0, err
	}
	return p.receive()
}

// dryRun returns an apply request for objects with dryRun.
func dryRun(objects string) []byte {
	return []byte(`{"jsonrpc":"2.0","id":1,"method":"apply","params":{"dryRun":true,"objects":[` + objects + `]}}`)
}

// memory returns VmRSS and VmHWM of the daemon, in bytes.
func (s *controlSite) memory() (now, peak int) {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process().PID()))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		for name, into := range map[string]*int{"VmRSS:": &now, "VmHWM:": &peak} {
			if value, ok := strings.CutPrefix(line, name); ok {
				kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
				if err != nil {
					s.t.Fatal(err)
				}
				*into = kb << 10
			}
		}
	}
	return now, peak
}

// forgetPeak resets the daemon's peak memory.
func (s *controlSite) forgetPeak() {
	s.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.Process().PID()), []byte("5"), 0); err != nil {
		s.t.Fatal(err)
	}
}

// commitsEnv names the control socket to a process that only commits.
const commitsEnv = "LOXILIGHT_COMMITS"

// commits changes an object until standard input ends, and writes how long each commit took, in ns.
// It is a process of its own, as an operator's llcli is: in the attackers' process it would also
// measure how long it waits for them.
func commits(socket string) (code int) {
	c, err := client.New(client.Options{Socket: socket, Timeout: patience})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close() // nothing is under way
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return 0
		case <-time.After(10 * time.Millisecond):
		}
		spec := fmt.Appendf(nil, `{"members":["192.0.2.%d"]}`, i%250)
		begin := time.Now()
		_, err := c.Apply(context.Background(), api.ApplyParams{Objects: []api.Object{{Kind: "AddressGroup", Name: "root", Spec: spec}}})
		fmt.Println(time.Since(begin).Nanoseconds())
		if err != nil {
			fmt.Fprintf(os.Stderr, "commit %d of root: %v\n", i, err)
			return 1
		}
	}
}

// beside runs attack while a root process commits, and returns how long the commits took.
func (s *controlSite) beside(attack func()) (took []time.Duration) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	root := exec.CommandContext(ctx, self)
	root.Env = append(os.Environ(), commitsEnv+"="+s.Socket)
	var out, errors bytes.Buffer
	root.Stdout, root.Stderr = &out, &errors
	stop, err := root.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := root.Start(); err != nil {
		s.t.Fatal(err)
	}
	attack()
	_ = stop.Close() // the commits end then
	if err := root.Wait(); err != nil {
		s.t.Errorf("commits of root: %v: %s", err, errors.String())
	}
	for line := range strings.Lines(out.String()) {
		ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		took = append(took, time.Duration(ns))
	}
	return took
}
