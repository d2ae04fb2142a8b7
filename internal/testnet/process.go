// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// Process is a program that runs in a namespace. It outlives neither the test nor the test process,
// even if the test process is killed.
type Process struct {
	cmd  *exec.Cmd
	out  output
	done chan struct{}
	err  error

	killed bool
}

// output collects the output of a program. It is safe for concurrent use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Start starts a program in the namespace. The program sees the test's mounts: unlike under ip
// netns exec, /sys/fs/bpf is the machine's. The test log shows its output if the test fails.
func (ns *NS) Start(t T, name string, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	// The kernel sends the signal when the parent thread ends, so the thread must live as long as
	// the program.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		_ = onThread(func() error {
			if err := netns.Set(ns.handle); err != nil {
				started <- err
				return nil
			}
			err := p.cmd.Start()
			started <- err
			if err == nil {
				p.err = p.cmd.Wait()
				close(p.done)
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		t.Fatalf("in %s: %s: %v", ns.name, name, err)
	}
	t.Cleanup(func() {
		lines := 60
		if p.killed {
			lines = 3 // deliberately killed by the test
		}
		p.Kill()
		if t.Failed() {
			t.Logf("%s %s (pid %d) wrote:\n%s", name, strings.Join(args, " "), p.PID(), tail(p.Output(), lines))
		}
	})
	return p
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output returns the output that the program has written so far.
func (p *Process) Output() string { return p.out.String() }

// Signal sends a signal; it has no effect on a program that has ended.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Stop suspends the program, as [Stop] does.
func (p *Process) Stop(t T) {
	t.Helper()
	Stop(t, p.cmd.Process.Pid)
}

// Stop sends a process SIGSTOP and waits until none of its threads is running: the kernel stops the
// threads one by one, on a busy machine with some delay.
func Stop(t T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatalf("stop process %d: %v", pid, err)
	}
	Eventually(t, 20*time.Second, fmt.Sprintf("process %d has stopped", pid), func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(file string) bool {
			stat, err := os.ReadFile(file)
			_, state, _ := bytes.Cut(stat, []byte(") "))
			return err != nil || !bytes.HasPrefix(state, []byte("T"))
		})
	})
}

// Kill kills the program as kill -9 does and waits until it has ended.
func (p *Process) Kill() {
	p.killed = true
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the program to end and returns its exit code.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(timeout):
		return 0, fmt.Errorf("%s (pid %d) still runs after %s", p.cmd.Path, p.PID(), timeout)
	}
}

// Run runs a program in the namespace and returns its standard output; the test fails if the
// program fails, or runs for more than 30 s.
func (ns *NS) Run(t T, name string, args ...string) string {
	t.Helper()
	out, err := ns.TryRun(name, args...)
	if err != nil {
		t.Fatalf("in %s: %s %s: %v\n%s", ns.name, name, strings.Join(args, " "), err, out)
	}
	return out
}

// TryRun is Run for callers that need the error, which contains the program's standard error.
func (ns *NS) TryRun(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err := ns.Try(func() error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), err
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Eventually waits until ok returns true, and fails the test if that takes longer than timeout, or
// than [OnThisMachine] makes of it. Half of the time at most is spent in ok.
func Eventually(t T, timeout time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); ; {
		begin := time.Now()
		if ok() {
			return
		}
		t.Helper() // here, a program that implements T notices an interruption
		time.Sleep(min(max(10*time.Millisecond, time.Since(begin)), 100*time.Millisecond))
		if time.Now().Before(end) {
			continue
		}
		if limit := OnThisMachine(timeout); time.Now().After(end.Add(limit - timeout)) {
			t.Fatalf("not so after %s: %s", limit, what)
		}
	}
}
