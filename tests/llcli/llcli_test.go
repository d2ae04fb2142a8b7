// SPDX-License-Identifier: Apache-2.0

// Package llcli tests the command against the real daemon: from the user's command line to the
// packet and back. The exact output of llcli is tested in its own package; this package tests that
// the two understand each other.
package llcli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loxilight-llcli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) // harmless: a directory in /tmp
	if os.Geteuid() == 0 {
		if programs, err = testdaemon.Build(filepath.Join(dir, "bin")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// site is a node with the daemon, a client and a server.
//
//	client 192.0.2.17 ── 192.0.2.1 in0 [node] p1 10.0.1.1 ── 10.0.1.2 server
type site struct {
	t                    *testing.T
	client, node, server *testnet.NS
	*testdaemon.Daemon
}

func newSite(t *testing.T) *site {
	t.Helper()
	testnet.RequireRoot(t)
	s := &site{t: t, client: testnet.New(t, "client"), node: testnet.New(t, "node"), server: testnet.New(t, "server")}
	testnet.Veth(t, testnet.Port{NS: s.client, Name: "eth0", Addrs: []string{"192.0.2.17/24"}},
		testnet.Port{NS: s.node, Name: "in0", Addrs: []string{"192.0.2.1/24"}})
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "p1", Addrs: []string{"10.0.1.1/24"}},
		testnet.Port{NS: s.server, Name: "eth0", Addrs: []string{"10.0.1.2/24"}})
	s.client.Route(t, "default", "192.0.2.1")
	s.server.Route(t, "default", "10.0.1.1")
	s.node.Forward(t)
	s.Daemon = testdaemon.New(t, s.node, programs, "tables: {connections: 4096, services: 64, backends: 256}")
	s.Start()
	return s
}

// expect runs llcli, which must print all of words.
func (s *site) expect(command string, words ...string) string {
	s.t.Helper()
	out := s.LLCLI(strings.Fields(command)...)
	for _, word := range words {
		if !strings.Contains(out, word) {
			s.t.Errorf("llcli %s: no %q in\n%s", command, word, out)
		}
	}
	return out
}

// refuse runs llcli, which must fail with an exit code and print all of words.
func (s *site) refuse(code int, command string, words ...string) {
	s.t.Helper()
	out, got, err := s.TryLLCLI(strings.Fields(command)...)
	if got != code {
		s.t.Errorf("llcli %s: exit code %d, want %d: %v\n%s", command, got, code, err, out)
	}
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			s.t.Errorf("llcli %s: no %q in %v", command, word, err)
		}
	}
}

// decode runs llcli, and decodes the JSON that it prints.
func decode[T any](s *site, command string) (v T) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.LLCLI(strings.Fields(command)...)), &v); err != nil {
		s.t.Fatalf("llcli %s: %v", command, err)
	}
	return v
}

// greet connects the client to the server through a frontend.
func (s *site) greet(frontend string) error {
	c, err := s.client.Dial("tcp", "", frontend, 3*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// TestFromCommandToPacket: a service is set up, used, listed, changed and deleted, with nothing
// but llcli.
func TestFromCommandToPacket(t *testing.T) {
	s := newSite(t)
	for _, port := range []string{"8080", "8081"} {
		s.server.ServeTCP(t, "10.0.1.2:"+port, port)
	}
	s.expect("interface add in0 --wait 60s", "Interface/in0 created", "revision 1")
	s.expect("interface add p1 --role port --wait 60s", "Interface/p1 created")
	s.expect("service add web --frontend 198.51.100.10:80/tcp --backend 10.0.1.2:8080 --labels team=a --wait 60s", "Service/web created")
	s.refuse(1, "service add web --frontend 198.51.100.10:81/tcp", "already exists with a different spec")
	s.refuse(1, "service add thief --frontend 198.51.100.10:80/tcp", "--frontend: 198.51.100.10:80/tcp", "Service/web")
	s.refuse(2, "service add wrong --frontend 198.51.100.11:80/tcp --algorithm fast", "--algorithm", "maglev")
	if err := s.greet("198.51.100.10:80"); err != nil {
		t.Fatal(err)
	}
	list := decode[[]api.Connection](s, "connections --service web --protocol tcp -o json")
	if len(list) != 1 || list[0].Backend != "10.0.1.2:8080" || list[0].Original.Destination != "198.51.100.10:80" {
		t.Errorf("connections: %+v", list)
	}
	if state := list[0].State; len(decode[[]api.Connection](s, "connections -o json --state "+state)) != 1 {
		t.Errorf("no connection is found by its state %q", state)
	}
	s.expect("connections -o wide", "192.0.2.17:", "10.0.1.2:8080", "web", "dnat")
	// Counters are as of the last sweep, which a busy machine delays.
	testnet.Eventually(t, time.Minute, "the connection and its packets are counted", func() bool {
		c := decode[api.CountersResult](s, "counters service web -o json")
		return c.Connections == 1 && c.Packets >= 3
	})
	s.expect("describe service web", "198.51.100.10:80/tcp", "1 connection,", "maglev", "team=a")
	s.expect("counters", "VERDICT")
	s.expect("status", "tcx-ingress", "in0", "2 Interfaces", "1 Service", "connections")
	s.expect("top web --count 1 --interval 100ms", "web", "PACKETS/S")

	s.expect("service backend add web 10.0.1.2:8081,weight=2 --wait 60s", "Service/web updated")
	s.expect("service drain web 10.0.1.2:8080 --wait 60s", "Service/web updated")
	s.expect("service show web", "draining")
	s.expect("connections flush --service web", "1 connection flushed")
	if err := s.greet("198.51.100.10:80"); err != nil {
		t.Fatal(err)
	}
	s.expect("connections --service web", "10.0.1.2:8081")
	s.expect("service backend remove web 10.0.1.2:8080 --wait 60s", "Service/web updated")
	s.expect("service set web --algorithm source-hash --idle-timeout tcp=10m --wait 60s", "updated")
	web := decode[api.Object](s, "get service web -o json")
	if want := `{"frontends":["198.51.100.10:80/tcp"],"backends":[{"address":"10.0.1.2:8081","weight":2}],"algorithm":"source-hash","idleTimeout":{"tcp":"10m0s"}}`; compact(t, web.Spec) != want {
		t.Errorf("spec %s, want %s", compact(t, web.Spec), want)
	}
	s.expect("delete service web", "Service/web deleted")
	s.expect("delete service web", "Service/web not found, nothing to delete")
	s.expect("changes --since 2", "3  created  Service/web", "deleted  Service/web")
	s.refuse(1, "get service web", "Service/web")
}

func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var spec api.ServiceSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFiles: the export equals the applied objects, and is restored by replace.
func TestFiles(t *testing.T) {
	s := newSite(t)
	const objects = `kind: Service
name: dns
spec:
  frontends: ["198.51.100.11:53/udp"]
  backends: [{address: "10.0.1.2:53"}]
---
kind: Service
name: web
labels: {team: a}
spec:
  frontends: ["198.51.100.10:80/tcp"]
  backends: [{address: "10.0.1.2:8080"}, {address: "10.0.1.2:8081", weight: 0}]
  health: {type: tcp, interval: 1s}
`
	file := s.File(objects)
	s.expect("apply -f "+file+" --dry-run", "2 would be created", "dry run")
	s.expect("apply -f "+file, "2 created")
	if out := s.LLCLI("diff", "-f", file, "--exit-code"); out != "" {
		t.Errorf("diff of what was just applied:\n%s", out)
	}
	backup := s.File(s.LLCLI("export"))
	s.expect("delete -f "+file, "2 deleted")
	s.expect("service add other --frontend 198.51.100.12:80/tcp", "created")
	s.expect("replace -f "+backup+" --dry-run", "2 would be created", "Service/other would be deleted")
	s.expect("replace -f "+backup, "2 created", "1 deleted")
	if out := s.LLCLI("diff", "-f", file); out != "" {
		t.Errorf("diff of what came back:\n%s", out)
	}
	bad := s.File(objects + "  spread: even\n")
	s.refuse(1, "apply -f "+bad, bad+":14: Service/web: spec.spread")

	s.ObjectFile("10-web.yaml", "kind: Service\nname: filed\nspec: {frontends: [\"198.51.100.30:80/tcp\"]}\n")
	s.expect("reload", "10-web.yaml", "Service/filed created")
	s.expect("get services --owner file", "filed")
	s.refuse(1, "service set filed --algorithm random", "edit that file")
	s.refuse(1, "delete service filed", "object files")
	s.ObjectFile("20-bad.yaml", "kind: Service\nname: bad\nspec:\n  frontends: 7\n")
	s.refuse(1, "reload", "20-bad.yaml:4")

	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("VISUAL", "")
	t.Setenv("EDITOR", "sed -i 's/weight: 0/weight: 5/'")
	s.expect("edit service web", "Service/web updated")
	s.expect("service show web", "10.0.1.2:8081       5")
	s.expect("__complete delete service w", "web\t198.51.100.10:80/tcp")
	s.expect("__complete service drain web 10", "10.0.1.2:8080", "10.0.1.2:8081")
}

// TestNotReady: an object waits for a missing device, which appears later.
func TestNotReady(t *testing.T) {
	s := newSite(t)
	s.refuse(4, "interface add late --wait 200ms", "Interface/late is Pending", "late")
	s.refuse(4, "wait interface late --for 200ms", "Interface/late is Pending")
	s.expect("get interfaces", "late", "Pending")
	s.refuse(1, "health")
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "late"}, testnet.Port{NS: s.server, Name: "other"})
	s.expect("wait interface late --for 10s")
	s.expect("get interfaces", "Ready")
}

// TestObjectTooLarge: one message names the object, its size and what to do, whether the object
// does not fit in a request, or its status does not fit in a reply. Nothing is changed.
func TestObjectTooLarge(t *testing.T) {
	s := newSite(t)
	for kind, object := range map[string]string{
		"AddressGroup": "spec: {members: [" + numbered("2001:db8::%x/128", 100_000) + "]}",
		"Service":      `spec: {frontends: ["198.51.100.10:80/tcp"], backends: [` + numbered(`{address: "[2001:db8::%x]:80"}`, 6_000) + "]}",
	} {
		path := s.File("kind: " + kind + "\nname: big\n" + object + "\n")
		s.refuse(1, "apply -f "+path, path+":3: "+kind+"/big: spec: the object takes", "at most 1046528 fit", "several "+kind+"s")
		s.refuse(1, "get "+strings.ToLower(kind)+" big", "no such object")
	}
}

// numbered returns a list of count copies of a format, each with its number.
func numbered(format string, count int) string {
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprintf(format, i+1)
	}
	return strings.Join(list, ", ")
}

// TestDaemonAwayAndBack: watches outlive the daemon; other commands report that it is down.
func TestDaemonAwayAndBack(t *testing.T) {
	s := newSite(t)
	watch := s.node.Start(t, programs.CLI, "--socket", s.Socket, "get", "services", "--watch", "-o", "json")
	events := s.node.Start(t, programs.CLI, "--socket", s.Socket, "events")
	testnet.Eventually(t, 10*time.Second, "a change is watched", func() bool {
		s.LLCLI("service", "add", "web", "--frontend", "198.51.100.10:80/tcp", "--overwrite", "--algorithm", "random")
		s.LLCLI("service", "set", "web", "--algorithm", "maglev")
		return strings.Contains(watch.Output(), `"web"`) && strings.Contains(events.Output(), "Service/web updated")
	})

	s.Process().Stop(t)
	s.refuse(3, "status --timeout 300ms", "loxilightd is not answering")
	s.refuse(3, "service add hung --frontend 198.51.100.13:80/tcp --timeout 300ms", "loxilightd is not answering")
	s.Process().Signal(syscall.SIGCONT)
	s.expect("get services", "web")

	s.Kill()
	s.refuse(3, "status", "loxilightd is not running")
	s.refuse(3, "apply -f "+s.File("{kind: Service, name: x}"), "loxilightd is not running")
	testnet.Eventually(t, 10*time.Second, "the watches tell that the daemon is away", func() bool {
		return strings.Contains(watch.Output(), "waiting for it") && strings.Contains(events.Output(), "waiting for it")
	})
	s.Start()
	testnet.Eventually(t, 20*time.Second, "the watches go on", func() bool {
		return strings.Contains(watch.Output(), "answers again") && strings.Contains(events.Output(), "answers again")
	})
	s.expect("service add back --frontend 198.51.100.14:80/tcp", "created")
	testnet.Eventually(t, 10*time.Second, "a change after the restart is watched", func() bool {
		return strings.Contains(watch.Output(), `"back"`) && strings.Contains(events.Output(), "Service/back created")
	})
	for _, p := range []*testnet.Process{watch, events} {
		p.Signal(os.Interrupt)
		if code, err := p.Wait(5 * time.Second); code != 0 || err != nil {
			t.Errorf("interrupted: exit code %d, %v", code, err)
		}
	}
}
