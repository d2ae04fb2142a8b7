// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

func TestStartStopAndStartAgain(t *testing.T) {
	s := newSite(t, "instance: blue")
	p := s.run()
	s.apply(serviceObject("web", 1, "10.0.1.2:8080", "10.0.1.3:8081"))
	before := s.status()
	if before.Instance != "blue" || before.PID != p.cmd.Process.Pid || before.Objects[api.KindService] != 1 {
		t.Errorf("status %+v", before)
	}
	p.stop()
	if _, err := os.Stat(s.path("run/control.sock")); err == nil {
		t.Error("the socket is still there")
	}
	if err := s.Call(t.Context(), api.MethodVersion, nil, nil); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("a call to a stopped daemon: %v", err)
	}
	s.run()
	after := s.status()
	if after.Revision != before.Revision || after.PID == before.PID {
		t.Errorf("revision %d of process %d, want %d and another process", after.Revision, after.PID, before.Revision)
	}
	eventually(t, func() bool {
		o, ok := s.get(api.KindService, "web")
		var status api.ServiceStatus
		return ok && json.Unmarshal(o.Status, &status) == nil && status.State == api.StateReady && len(status.Backends) == 2
	})
}

// TestSecondDaemonKeepsOut: a second daemon does not touch the sockets of the first.
func TestSecondDaemonKeepsOut(t *testing.T) {
	s := newSite(t)
	s.run()
	info, err := os.Stat(s.path("run/control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s.apply(serviceObject("web", 1, "10.0.1.2:8080"))
	second := s.start()
	if code := second.ends(); code != exitFailed || !strings.Contains(second.log.String(), "already running") {
		t.Errorf("exit code %d, log %s", code, second.log.String())
	}
	now, err := os.Stat(s.path("run/control.sock"))
	if err != nil || !os.SameFile(info, now) {
		t.Errorf("the socket of the first daemon was touched: %v", err)
	}
	if _, ok := s.get(api.KindService, "web"); !ok {
		t.Error("the first daemon does not have its service any more")
	}
}

// TestSharedFolders: a second instance cannot use the state and the pins of the first.
func TestSharedFolders(t *testing.T) {
	for key, want := range map[string]string{"stateDir": "another process has the store open", "pinDir": "already running"} {
		a, b := newSite(t), newSite(t)
		shared := a.path("shared")
		if err := os.Mkdir(shared, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*site{a, b} {
			s.configure("datapath: {backend: fake}", "instance: i", key+": "+shared)
		}
		a.run()
		second := b.start()
		if code := second.ends(); code != exitFailed || !strings.Contains(second.log.String(), want) {
			t.Errorf("%s shared: exit code %d, log %s", key, code, second.log.String())
		}
		a.status()
	}
}

func TestInstancesSideBySide(t *testing.T) {
	a, b := newSite(t, "instance: a"), newSite(t, "instance: b")
	a.run()
	b.run()
	a.apply(serviceObject("web", 1, "10.0.1.2:8080"))
	if _, ok := b.get(api.KindService, "web"); ok {
		t.Error("an object of one instance is one of the other")
	}
	if a.status().Instance != "a" || b.status().Instance != "b" {
		t.Error("instances are mixed up")
	}
	if got := a.status().StateDir; got != a.path("state") {
		t.Errorf("the state directory is reported as %q", got)
	}
}

func TestKilledDaemonComesBack(t *testing.T) {
	s := newSite(t)
	p := s.run()
	s.apply(serviceObject("web", 1, "10.0.1.2:8080"))
	p.signal(syscall.SIGKILL)
	p.ends()
	if _, err := os.Stat(s.path("run/control.sock")); err != nil {
		t.Fatalf("the test wants a socket that was left behind: %v", err)
	}
	s.run()
	if _, ok := s.get(api.KindService, "web"); !ok {
		t.Error("an acknowledged change is lost")
	}
}

// TestChangeIsMadeOnce: the daemon is killed at a random point during a change, which is
// then repeated with the same id. The change is made exactly once.
func TestChangeIsMadeOnce(t *testing.T) {
	s := newSite(t)
	p := s.run()
	unknown := 0
	for round := range uint64(12) {
		params := api.ApplyParams{
			Objects: []api.Object{serviceObject(fmt.Sprint("s", round), int(round), "10.0.1.2:8080")},
			Change:  api.Change{RequestID: client.NewRequestID()},
		}
		first := make(chan error, 1)
		go func() { _, err := s.Apply(t.Context(), params); first <- err }()
		time.Sleep(rand.N(2 * time.Millisecond)) // at a random point during the change
		p.signal(syscall.SIGKILL)
		p.ends()
		if err := <-first; errors.Is(err, client.ErrOutcomeUnknown) {
			unknown++
		}
		p = s.run()
		result, err := s.Apply(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		if now := s.status().Revision; result.Revision != round+1 || now != round+1 || result.Changes[0].Action != api.ActionCreated {
			t.Fatalf("round %d: answer %+v, the daemon is at revision %d", round, result, now)
		}
	}
	t.Logf("%d outcomes were unknown", unknown)
}

const webFile = `kind: Service
name: web
spec:
  frontends: ["10.96.0.1:80/tcp"]
  backends: [{address: "10.0.1.2:8080"}]
`

// TestFilesWhileDown: files that changed while the daemon was down are applied when it starts.
func TestFilesWhileDown(t *testing.T) {
	s := newSite(t)
	s.write("conf.d/web.yaml", webFile)
	p := s.run()
	if o, ok := s.get(api.KindService, "web"); !ok || o.Owner != api.OwnerFile {
		t.Fatalf("object of the file: %+v, %v", o, ok)
	}
	p.stop()
	s.write("conf.d/web.yaml", strings.ReplaceAll(webFile, "8080", "9090"))
	s.write("conf.d/dns.yaml", strings.NewReplacer("web", "dns", "80/tcp", "53/udp").Replace(webFile))
	s.run()
	if o, _ := s.get(api.KindService, "web"); !strings.Contains(string(o.Spec), "9090") {
		t.Errorf("the file's old content holds: %s", o.Spec)
	}
	if _, ok := s.get(api.KindService, "dns"); !ok {
		t.Error("a new file was not read")
	}
}

// TestReloadOnSIGHUP: files and the log level are reloaded; an invalid file or configuration
// changes nothing, and its error is logged with the position.
func TestReloadOnSIGHUP(t *testing.T) {
	s := newSite(t)
	manager := newNotifySocket(t)
	p := s.run(manager.env)
	manager.await("READY=1")
	reload := func() {
		t.Helper()
		p.signal(syscall.SIGHUP)
		manager.await("RELOADING=1")
		manager.await("READY=1")
	}
	s.write("conf.d/web.yaml", webFile)
	reload()
	if _, ok := s.get(api.KindService, "web"); !ok {
		t.Fatal("the file was not read")
	}
	s.write("conf.d/web.yaml", webFile+"  algoritm: maglev\n")
	s.configure("datapath: {backend: fake}", "tabels: {}")
	reload()
	p.wantLog("web.yaml:6", "algoritm", "unknown key tabels")
	if o, ok := s.get(api.KindService, "web"); !ok || !strings.Contains(string(o.Spec), "8080") {
		t.Errorf("a file with an error changed something: %+v, %v", o, ok)
	}
	s.configure("datapath: {backend: fake}", "log: {level: debug}", "tables: {services: 7}")
	reload()
	p.wantLog("needs a restart", "tables.services")
}

// TestServiceManager: the service manager receives all notifications that it expects.
func TestServiceManager(t *testing.T) {
	s := newSite(t)
	manager := newNotifySocket(t)
	p := s.start(manager.env, "WATCHDOG_USEC=300000")
	manager.await("READY=1")
	for range 3 {
		manager.await("WATCHDOG=1")
	}
	p.signal(syscall.SIGTERM)
	manager.await("STOPPING=1")
	if code := p.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestBadConfiguration(t *testing.T) {
	s := newSite(t)
	s.configure("tables:", "  conections: 5")
	p := s.start()
	if code := p.ends(); code != exitConfig || !strings.Contains(p.log.String(), "loxilightd.yaml:2: unknown key tables.conections") {
		t.Errorf("exit code %d, log %s", code, p.log.String())
	}
	if _, err := os.Stat(s.path("state")); err == nil {
		t.Error("a state directory was made")
	}
}

func TestDamagedStoreDoesNotStopTheDaemon(t *testing.T) {
	s := newSite(t)
	if err := os.Mkdir(s.path("state"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("state/state.db", strings.Repeat("no database ", 4000))
	s.run()
	h := s.status().Health
	if h.State != "degraded" || !strings.Contains(strings.Join(h.Messages, " "), "lost") {
		t.Errorf("health %+v, want it to say that state was lost", h)
	}
	s.apply(serviceObject("web", 1, "10.0.1.2:8080"))
}
