// SPDX-License-Identifier: Apache-2.0

// Package testdaemon runs the real loxilightd in a test's network namespace, with its own
// directories, and uses it through the real llcli and the client library. Nothing is left behind
// when the test ends.
package testdaemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testnet"
)

// Programs are the paths of the programs under test.
type Programs struct{ Daemon, CLI, CNI string }

// Agent returns the path of the agent, which is beside the daemon; it is built if it does not exist.
func (p Programs) Agent() (string, error) {
	path := filepath.Join(filepath.Dir(p.Daemon), "loxilight-agent")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	out, err := exec.Command("go", "build", "-o", path, "github.com/loxilight/loxilight/loxilight-agent").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return path, nil
}

// Build builds the programs into dir. If LOXILIGHT_BIN names a directory, that directory already
// contains them: not every machine that runs tests can build.
func Build(dir string) (Programs, error) {
	if built := os.Getenv("LOXILIGHT_BIN"); built != "" {
		return In(built), nil
	}
	const module = "github.com/loxilight/loxilight/"
	out, err := exec.Command("go", "build", "-o", dir+"/", module+"loxilightd", module+"llcli", module+"loxilight-cni").CombinedOutput()
	if err != nil {
		return Programs{}, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return In(dir), nil
}

// In returns the programs that have already been built into dir.
func In(dir string) Programs {
	return Programs{Daemon: filepath.Join(dir, "loxilightd"), CLI: filepath.Join(dir, "llcli"), CNI: filepath.Join(dir, "loxilight-cni")}
}

// startTimeout limits how long a start may take on a busy machine.
const startTimeout = time.Minute

// Daemon is one instance of loxilightd. It may be started, killed and started again: its
// directories and pins last as long as the test.
type Daemon struct {
	Client *client.Client // a client of the daemon, across its restarts
	Socket string         // the control socket
	PinDir string

	t        testnet.T // fails if a call fails
	owner    testnet.T // the daemon and its files last as long as this test
	ns       *testnet.NS
	programs Programs
	dir      string
	*runs
}

// runs is the part that the copies of a Daemon for several tests share.
type runs struct {
	process *testnet.Process
	files   int

	fresh    bool   // does not use a spare, and does not become one: its sizes have changed
	sizes    string // the configured sizes of the tables
	launched string // sizes when the daemon was launched for the first time
	kept     []io.Closer
}

// New makes the directories and the configuration of a daemon that runs in ns; more contains
// additional configuration lines. The daemon is not started yet.
func New(t testnet.T, ns *testnet.NS, programs Programs, more ...string) *Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "loxilight-")
	if err != nil {
		t.Fatalf("folder of the daemon: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("folder of the daemon: %v", err)
		}
	})
	d := &Daemon{
		t: t, owner: t, ns: ns, programs: programs, dir: dir, runs: &runs{},
		Socket: filepath.Join(dir, "run", "control.sock"), PinDir: filepath.Join(testnet.BPFFS(t), "loxilight"),
	}
	if err := os.Mkdir(d.path("conf.d"), 0o755); err != nil {
		t.Fatalf("folder of the daemon: %v", err)
	}
	d.Configure(more...)
	t.Cleanup(d.leave)
	if d.Client, err = client.New(client.Options{Socket: d.Socket}); err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(func() { _ = d.Client.Close() }) // no call is in progress
	return d
}

// For returns the same daemon for a sub-test, which fails if a call fails. The daemon outlives the
// sub-test.
func (d *Daemon) For(t testnet.T) *Daemon {
	other := *d
	other.t = t
	return &other
}

// StateDir is the daemon's state directory.
func (d *Daemon) StateDir() string { return d.path("state") }

func (d *Daemon) path(name string) string { return filepath.Join(d.dir, name) }

// Configure writes a new configuration, for the next start or reload: the directories, and the
// lines in more, for example one that begins with "tables:".
func (d *Daemon) Configure(more ...string) {
	d.t.Helper()
	lines := append([]string{
		"instance: test",
		"runDir: " + d.path("run"), "stateDir: " + d.path("state"), "objectDir: " + d.path("conf.d"),
		"pinDir: " + d.PinDir,
	}, more...)
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "switch:") }) {
		lines = append(lines, "switch: {namespace: host}")
	}
	d.sizes = sizesOf(more)
	d.write(d.path("loxilightd.yaml"), strings.Join(lines, "\n")+"\n")
}

func (d *Daemon) write(path, content string) {
	d.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		d.t.Fatalf("%v", err)
	}
}

// ObjectFile writes a file in objectDir; empty content removes it.
func (d *Daemon) ObjectFile(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.path("conf.d"), name)
	if content != "" {
		d.write(path, content)
	} else if err := os.Remove(path); err != nil {
		d.t.Fatalf("%v", err)
	}
}

// Launch starts the daemon without waiting for it.
func (d *Daemon) Launch() *testnet.Process {
	d.t.Helper()
	d.borrow()
	d.process = d.ns.Start(d.owner, d.programs.Daemon, "--config", d.path("loxilightd.yaml"))
	return d.process
}

// Start starts the daemon and waits until it answers.
func (d *Daemon) Start() {
	d.t.Helper()
	d.Launch()
	d.Await()
}

// StartAll starts several daemons at once.
func StartAll(daemons ...*Daemon) {
	for _, d := range daemons {
		d.t.Helper()
		d.Launch()
	}
	for _, d := range daemons {
		d.Await()
	}
}

// Await waits until the daemon, which has been launched, answers.
func (d *Daemon) Await() {
	d.t.Helper()
	p := d.process
	var err error
	testnet.Eventually(d.t, startTimeout, "loxilightd answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		select {
		case <-p.Done():
			d.t.Fatalf("loxilightd ended:\n%s", p.Output())
		default:
		}
		_, err = d.Client.Status(ctx)
		return err == nil
	})
}

// Process returns the most recently started process.
func (d *Daemon) Process() *testnet.Process { return d.process }

// Kill kills the daemon as kill -9 does.
func (d *Daemon) Kill() { d.process.Kill() }

// Stop stops the daemon and fails the test if it does not exit cleanly.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.process.Signal(syscall.SIGTERM)
	if code, err := d.process.Wait(startTimeout); err != nil || code != 0 {
		d.t.Fatalf("loxilightd asked to stop: exit code %d, %v\n%s", code, err, d.process.Output())
	}
}

// Detach removes the daemon's kernel state; the daemon must not be running.
func (d *Daemon) Detach() {
	d.t.Helper()
	d.ns.Run(d.t, d.programs.Daemon, "--detach", "--config", d.path("loxilightd.yaml"))
}

// LLCLI runs llcli and returns its output; the test fails if llcli fails.
func (d *Daemon) LLCLI(args ...string) string {
	d.t.Helper()
	out, code, err := d.TryLLCLI(args...)
	if code != 0 || err != nil {
		d.t.Fatalf("llcli %s: exit code %d: %v\n%s", strings.Join(args, " "), code, err, out)
	}
	return out
}

// TryLLCLI is LLCLI for callers that need the exit code; err contains the standard error.
func (d *Daemon) TryLLCLI(args ...string) (out string, code int, err error) {
	out, err = d.ns.TryRun(d.programs.CLI, append([]string{"--socket", d.Socket}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	return out, code, err
}

// Apply applies YAML objects with llcli and waits until they are Ready.
func (d *Daemon) Apply(objects string) {
	d.t.Helper()
	d.LLCLI("apply", "--wait", "1m", "-f", d.File(objects))
}

// Clear deletes all objects, waits until nothing of them is in force, and ends all connections.
func (d *Daemon) Clear() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all []api.ObjectRef
	for _, kind := range api.Kinds {
		for o, err := range d.Client.List(ctx, api.ListParams{Kind: kind}) {
			if err != nil {
				d.t.Fatalf("list of %s: %v", kind, err)
			}
			all = append(all, api.ObjectRef{Kind: o.Kind, Name: o.Name})
		}
	}
	change := api.Change{Wait: api.Duration(30 * time.Second), Force: true}
	if _, err := d.Client.Delete(ctx, api.DeleteParams{Objects: all, Change: change}); err != nil {
		d.t.Fatalf("delete all objects: %v", err)
	}
	if _, err := d.Client.Flush(ctx, api.ConnectionFilter{All: true}); err != nil {
		d.t.Fatalf("end all connections: %v", err)
	}
}

// File writes content to a file for llcli and returns its path.
func (d *Daemon) File(content string) string {
	d.t.Helper()
	d.files++
	path := d.path(fmt.Sprintf("objects-%d.yaml", d.files))
	d.write(path, content)
	return path
}

// Connections returns the tracked connections that match filter.
func (d *Daemon) Connections(filter api.ConnectionFilter) (all []api.Connection) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for c, err := range d.Client.Connections(ctx, api.ConnectionsListParams{Filter: filter}) {
		if err != nil {
			d.t.Fatalf("connections: %v", err)
		}
		all = append(all, c)
	}
	return all
}

// Counters returns the counters of an object, or of the node.
func (d *Daemon) Counters(kind, name string) *api.CountersResult {
	d.t.Helper()
	c, err := d.Client.Counters(context.Background(), kind, name)
	if err != nil {
		d.t.Fatalf("counters of %s %s: %v", kind, name, err)
	}
	return c
}

// Repairs returns how many external changes the daemon has repaired since its start.
func (d *Daemon) Repairs() uint64 {
	d.t.Helper()
	status, err := d.Client.Status(context.Background())
	if err != nil {
		d.t.Fatalf("status: %v", err)
	}
	return status.Repairs
}
