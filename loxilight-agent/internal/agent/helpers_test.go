// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/controller"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
)

// loxilightd is the path of the daemon, built for these tests.
var loxilightd string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "loxilight-agent-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		kube.TameLibraries(slog.New(slog.DiscardHandler))
		if built := os.Getenv("LOXILIGHT_BIN"); built != "" {
			loxilightd = filepath.Join(built, "loxilightd")
			return m.Run()
		}
		loxilightd = filepath.Join(dir, "loxilightd")
		if out, err := exec.Command("go", "build", "-o", loxilightd, "github.com/loxilight/loxilight/loxilightd").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build loxilightd: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// patience is how long tests wait for something.
const patience = time.Minute // the machine may be busy

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testnet.Eventually(t, patience, what, holds)
}

// buffer collects the log of a process or an agent.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// daemon is a real loxilightd with a data plane that forwards nothing.
type daemon struct {
	*client.Client
	t   *testing.T
	dir string
	cmd *exec.Cmd
	log *buffer
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "ll") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, log: &buffer{}}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	lines := []string{"datapath: {backend: fake}", "log: {level: warn}", "switch: {namespace: host}"}
	for key, sub := range map[string]string{"runDir": "run", "stateDir": "state", "objectDir": "conf.d", "pinDir": "pins"} {
		lines = append(lines, key+": "+filepath.Join(dir, sub))
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "conf.d"), 0o755),
		os.WriteFile(filepath.Join(dir, "loxilightd.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if d.Client, err = client.New(client.Options{Socket: filepath.Join(dir, "run/control.sock")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.kill()
		_ = d.Close() // no call is in progress
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", d.log)
		}
	})
	d.start()
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.Command(loxilightd, "--config", filepath.Join(d.dir, "loxilightd.yaml"))
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, "loxilightd answers", func() bool {
		_, err := d.Status(d.t.Context())
		return err == nil
	})
}

// kill ends the daemon as kill -9 does.
func (d *daemon) kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill() // harmless if it has ended
		_ = d.cmd.Wait()         // killed
		d.cmd = nil
	}
}

// has returns our objects in the daemon, by Kind/name.
func (d *daemon) has() map[string]string {
	d.t.Helper()
	all := map[string]string{}
	for o, err := range d.List(context.Background(), api.ListParams{Owner: nodes.Owner}) {
		if err != nil {
			d.t.Fatalf("list: %v", err)
		}
		all[o.Kind+"/"+o.Name] = string(o.Spec)
	}
	return all
}

// kindNodes stands for the Entities of nodes, in the tests of nodes.
const kindNodes = api.KindEntity + "/node"

// names returns the names of our objects of a kind in the daemon. The Entities of nodes are a kind of
// their own.
func (d *daemon) names(kind string) string {
	d.t.Helper()
	var names []string
	for ref := range d.has() {
		if name, ok := strings.CutPrefix(ref, kind+"/"); ok && (kind == kindNodes || !strings.HasPrefix(ref, kindNodes)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// world is an API server, a daemon, and agents between them.
type world struct {
	t      *testing.T
	kube   *testkube.Server
	daemon *daemon
	config *config.Config
	log    *buffer
	name   string
	url    string        // of the API server, for agents; empty: its real one
	stay   time.Duration // how long agents remember departed endpoints; 0: the default
	marks  int           // Services that settled has made
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, kube: testkube.New(t), config: config.Default(), log: &buffer{}, name: "n1"}
	w.config.Masquerade.Enabled = false // a daemon that forwards nothing has no uplink
	w.config.Health.Listen, w.config.Metrics.Listen = "", ""
	w.daemon = newDaemon(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the agent:\n%s", w.log)
		}
	})
	w.kube.Set(node("n1", "192.0.2.1", "10.244.1.0/24"), node("n2", "192.0.2.2", "10.244.2.0/24"))
	apiServer(w.kube)
	return w
}

// agent starts an agent; the returned function stops it.
func (w *world) agent() (*Agent, func()) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a := New(Options{Config: w.config, NodeName: w.name, Kube: w.client(), Daemon: w.daemon.Client, Log: log, Version: "test"})
	if w.stay != 0 {
		a.departed.stay = w.stay
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(stop)
	return a, stop
}

// controller starts a process that assigns addresses; the returned function stops it.
func (w *world) controller(name string) func() {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg := *w.config // as it is now
	c, err := controller.New(controller.Options{Config: &cfg, Name: name, Kube: w.client(), Log: log})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(stop)
	return stop
}

// client returns a client for the API server.
func (w *world) client() *kube.Client {
	w.t.Helper()
	k, err := kube.New(kube.Options{Kubeconfig: w.kubeconfig(), UserAgent: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// kubeconfig writes a file with the address of the API server.
func (w *world) kubeconfig() string {
	w.t.Helper()
	path := filepath.Join(w.daemon.dir, "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`, cmp.Or(w.url, w.kube.URL))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// configFile writes a configuration for an agent that is a process of its own.
func (w *world) configFile() string {
	w.t.Helper()
	path := filepath.Join(w.daemon.dir, "agent.yaml")
	if err := os.WriteFile(path, []byte("health: {listen: \"\"}\nmetrics: {listen: \"\"}\nmasquerade: {enabled: false}\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// inStep waits until the daemon has exactly these objects of a kind.
func (w *world) inStep(kind, names string) {
	w.t.Helper()
	var got string
	defer func() {
		if got != names {
			w.t.Logf("%s: the daemon has %q", kind, got)
		}
	}()
	eventually(w.t, fmt.Sprintf("the daemon has %q of kind %s", names, kind), func() bool {
		got = w.daemon.names(kind)
		return got == names
	})
}

func node(name, address string, cidrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func raw(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
