// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// documentedCodes returns the exit codes of the table in docs/llcli.md.
func documentedCodes(t *testing.T) map[int]bool {
	t.Helper()
	page, err := os.ReadFile("../../../docs/llcli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| exit code | meaning | examples |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("docs/llcli.md has no table of exit codes")
	}
	codes := map[int]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(table, -1) {
		code, _ := strconv.Atoi(m[1]) // digits
		codes[code] = true
	}
	return codes
}

// TestExitCodes checks the exit codes of the table in docs/llcli.md, and that each code in the
// table occurs.
func TestExitCodes(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	s.daemon.quiet = true
	documented := documentedCodes(t)
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"web.yaml":   "{kind: Service, name: web, spec: {frontends: ['198.51.100.10:80/tcp']}}\n",
		"new.yaml":   "{kind: Service, name: new, spec: {frontends: ['198.51.100.12:80/tcp']}}\n",
		"bad.yaml":   "{kind: Service, name: bad, spec: {backends: [{address: 'bad:80'}]}}\n",
		"stuck.yaml": "{kind: Service, name: stuck, spec: {frontends: ['198.51.100.11:80/tcp']}}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int]bool{}
	check := func(want int, commands ...string) {
		t.Helper()
		for _, command := range commands {
			seen[want] = true
			if code, _, errs := s.run(t.Context(), strings.Fields(command)...); code != want {
				t.Errorf("llcli %s: exit code %d, want %d: %s", command, code, want, errs)
			}
		}
	}
	check(ExitDone, "apply -f web.yaml", "get services", "delete service nosuch", "wait service web", "explain interface.role", "diff -f web.yaml --exit-code")
	check(ExitFailed,
		// Objects that do not exist.
		"get service nosuch", "describe service nosuch", "service show nosuch", "service set nosuch --algorithm random", "service drain nosuch 10.0.0.1",
		"counters service nosuch", "wait service/nosuch --for 10s", "wait service nosuch web --for 10s", "edit service nosuch", "history 99",
		"diff --revision 99", "rollback 99", "service drain web 10.9.9.9", "apply -f nosuch.yaml",
		// Changes that are rejected, and differences.
		"apply -f bad.yaml", "service add web --frontend 198.51.100.11:80/tcp", "apply -f web.yaml --if-revision 7", "diff -f new.yaml --exit-code",
		"confirm 99")
	check(ExitUsage, "bogus", "get", "get bogus", "delete bogus x", "export bogus", "edit bogus x", "get services --bogus", "get services -o bogus",
		"status -o name", "delete service", "service delete", "delete service web -l a=b", "delete -f web.yaml -l a=b", "get podaddresses -o name",
		"firewall add x", "firewall add x --action deny --priority abc", "nat add x --masquerade --snat", "nat add x --dnat --to 10.0.0.1:99999",
		"service add x --frontend 198.51.100.13:80/tcp --backend bad:80", "service backend add web bad:80", "history abc", "rollback", "wait --for 0s",
		"explain nosuch", "kernel bogus", "completion csh", "apply")
	check(ExitNotReady, "apply -f stuck.yaml --wait 10ms", "wait service/stuck --for 10ms", "wait service/nosuch --created --for 10ms")
	for _, away := range []error{client.ErrNotRunning, client.ErrPermission, client.ErrNotAnswering} {
		s.daemon.away = away
		check(ExitUnreachable, "status", "get services", "wait", "apply -f web.yaml")
	}
	for code := range documented {
		if !seen[code] {
			t.Errorf("docs/llcli.md documents exit code %d, which no command has here", code)
		}
	}
	for code := range seen {
		if !documented[code] {
			t.Errorf("docs/llcli.md does not document exit code %d", code)
		}
	}
}

// TestErrorsAsJSON checks that -o json makes errors one line of JSON on standard error.
func TestErrorsAsJSON(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	report := func(command string) errorReport {
		t.Helper()
		code, out, errs := s.run(t.Context(), strings.Fields(command)...)
		var line struct{ Error errorReport }
		if err := json.Unmarshal([]byte(errs), &line); err != nil || strings.Count(errs, "\n") != 1 || out != "" {
			t.Fatalf("llcli %s: %v: %q, %q", command, err, out, errs)
		}
		if code == ExitDone || line.Error.Code != code || line.Error.Message == "" {
			t.Errorf("llcli %s: exit code %d, %+v", command, code, line.Error)
		}
		return line.Error
	}
	if r := report("get service nosuch -o json"); r.Code != ExitFailed || r.Reason != api.ReasonNotFound || r.Object != "Service/nosuch" {
		t.Errorf("%+v", r)
	}
	if r := report("get -o json"); r.Code != ExitUsage || r.Reason != "" {
		t.Errorf("%+v", r)
	}
	s.stdin = "{kind: Service, name: a, spec: {}}\n---\nkind: Service\nname: b\nspec: {}\n"
	refused := api.Errorf(api.ReasonInvalid, "wrong").At("Service/a", "spec")
	refused.Data.Others = []api.ObjectError{{Object: "Service/b", Field: "spec", Message: "wrong, too"}}
	s.daemon.fail[api.MethodApply] = refused
	r := report("apply -f - -o json")
	if r.Message != "standard input:1: Service/a: spec: wrong" || r.Field != "spec" || len(r.Others) != 1 || r.Others[0].Message != "standard input:5: wrong, too" {
		t.Errorf("%+v", r)
	}
	delete(s.daemon.fail, api.MethodApply)
	s.stdin = "{kind: Service, name: stuck, spec: {frontends: ['198.51.100.11:80/tcp']}}\n"
	if r := report("apply -f - --wait 10ms -o json"); r.Code != ExitNotReady || len(r.NotReady) != 1 || r.NotReady[0].Object != "Service/stuck" {
		t.Errorf("%+v", r)
	}
	s.daemon.away = client.ErrNotRunning
	if r := report("status -o json"); r.Code != ExitUnreachable {
		t.Errorf("%+v", r)
	}
}

// TestNames: -o name prints only the names of objects, in the form that delete accepts; delete also
// selects by label.
func TestNames(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	run := func(command, want string) {
		t.Helper()
		if code, out, errs := s.run(t.Context(), strings.Fields(command)...); code != ExitDone || out != want {
			t.Errorf("llcli %s: exit code %d: %s%s", command, code, out, errs)
		}
	}
	run("nat add a --masquerade --out eth0 -l team=web -o name", "NAT/a\n")
	run("nat add b --masquerade --out eth1 -l team=web -o name", "NAT/b\n")
	run("nat add c --masquerade --out eth1 -o name", "NAT/c\n")
	run("get nat -o name", "NAT/a\nNAT/b\nNAT/c\n")
	run("nat list -l team=web -o name", "NAT/a\nNAT/b\n")
	run("get nat c -o name", "NAT/c\n")
	run("get firewall -o name", "")
	run("delete nat -l team=web -o name", "NAT/a\nNAT/b\n")
	run("nat delete -l team=web", "")
	run("delete NAT/c", "NAT/c deleted\nrevision 45: 1 deleted\n")
}
