// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// build builds the demonstration and the programs that it runs into a directory.
func build(t *testing.T) string {
	t.Helper()
	testnet.RequireRoot(t)
	dir := t.TempDir()
	if _, err := testdaemon.Build(dir); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", dir+"/", ".").CombinedOutput(); err != nil {
		t.Fatalf("build the demonstration: %v\n%s", err, out)
	}
	return dir
}

// start starts the demonstration with its own directory for temporary files.
func start(t *testing.T, dir string) (cmd *exec.Cmd, output *strings.Builder, tmp string) {
	t.Helper()
	cmd, output, tmp = exec.Command(filepath.Join(dir, "demo"), "-bin", dir), new(strings.Builder), t.TempDir()
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	return cmd, output, tmp
}

// expectNothingLeft looks for namespaces, mounts, processes and files of a run.
func expectNothingLeft(t *testing.T, pid int, dir, tmp string) {
	t.Helper()
	mine := fmt.Sprintf("llt-%d-", pid)
	for _, pattern := range []string{"/run/netns/" + mine + "*", "/run/" + mine + "*", tmp + "/*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 { // the pattern is valid
			t.Errorf("left behind: %v", left)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), mine) {
		t.Errorf("mounts are left behind, %v:\n%s", err, mounts)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		if line, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(line), dir) {
			t.Errorf("left running: %q", line)
		}
	}
}

func TestDemo(t *testing.T) {
	dir := build(t)
	cmd, output, tmp := start(t, dir)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	expectNothingLeft(t, cmd.Process.Pid, dir, tmp)
	for _, want := range []string{"300 requests to http://198.51.100.10/", "300 requests to http://[2001:db8:100::10]/",
		"requests, 0 lost", "llcli connections", "llcli counters", "nothing is left"} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, output)
		}
	}
}

// TestReaderGoes: the reader of the output ends early, as in make demo | head.
func TestReaderGoes(t *testing.T) {
	dir := build(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	cmd := exec.Command(filepath.Join(dir, "demo"), "-bin", dir)
	cmd.Stdout, cmd.Env = w, append(os.Environ(), "TMPDIR="+tmp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	w.Close()
	if _, err := r.Read(make([]byte, 100)); err != nil {
		t.Error(err)
	}
	r.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("it reports success although its output had no reader")
	}
	expectNothingLeft(t, cmd.Process.Pid, dir, tmp)
}

// TestInterrupted: whenever the demonstration is interrupted, it removes everything it has built.
func TestInterrupted(t *testing.T) {
	dir := build(t)
	for i, after := range []time.Duration{10, 50, 100, 200, 400, 800, 1600, 3000} {
		cmd, output, tmp := start(t, dir)
		time.Sleep(after * time.Millisecond) // any moment will do
		if err := cmd.Process.Signal([]os.Signal{os.Interrupt, syscall.SIGTERM}[i%2]); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		err := cmd.Wait()
		// Before it can catch a signal, it has built and printed nothing.
		if code := cmd.ProcessState.ExitCode(); code != 130 && output.Len() > 0 {
			t.Errorf("interrupted after %d ms: exit code %d, %v\n%s", after, code, err, output)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("interrupted after %d ms: ended only after %s", after, took)
		}
		expectNothingLeft(t, cmd.Process.Pid, dir, tmp)
	}
}
