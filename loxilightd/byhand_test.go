// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// byHand sends a request as a user would type it, and returns the reply.
func (s *site) byHand(t *testing.T, program, request string) (r api.Reply) {
	t.Helper()
	args := []string{"--req", "--connect", "ipc://" + s.path("run/control.sock"), "--raw", "-D", request}
	if program == "nanocat" {
		args = append(args, "--recv-timeout", "15")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", program, request, err, out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%s %s: %v: %s", program, request, err, out)
	}
	return r
}

// TestByHand uses the whole daemon: it runs the commands of docs/api.md with the programs of
// other nanomsg implementations.
func TestByHand(t *testing.T) {
	for _, program := range []string{"nanocat", "nngcat"} {
		t.Run(program, func(t *testing.T) {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("%s is not installed (.ci/setup test installs it)", program)
			}
			s := newSite(t)
			s.run()
			for _, step := range []struct{ method, params, want string }{
				{"version", ``, `"api":\[1\]`},
				{"status", ``, `"instance":"default"`},
				{"apply", `{"wait":"10s","objects":[{"kind":"Service","name":"web","spec":{"frontends":["198.51.100.10:80/tcp"],"backends":[{"address":"10.0.1.2:8080"}]}}]}`,
					`"revision":1,"changes":\[{"kind":"Service","name":"web","action":"created"}\]`},
				{"get", `{"kind":"Service","name":"web"}`, `"status":{"state":"Ready"`},
				{"list", `{"kind":"Service"}`, `"revision":1,"items":\[{"kind":"Service","name":"web"`},
				{"apply", `{"objects":[{"kind":"Service","name":"other","spec":{"frontends":["198.51.100.10:80/tcp"]}}]}`,
					`"code":3,.*Service/web.*"reason":"conflict","object":"Service/other","field":"spec.frontends\[0\]"`},
				{"apply", `{"objects":[{"kind":"Service","name":"web","spec":{"frontend":"x"}}]}`, `"code":-?\d+,.*frontend.*"reason":"invalid"`},
				{"aply", `{}`, `"code":-32601`},
				{"changes", `{"since":0}`, `"changes":\[{"revision":1,"kind":"Service","name":"web","action":"created"}\]`},
				{"counters", `{"kind":"Service","name":"web"}`, `"packets":0`},
				{"connections.list", `{"filter":{"service":"web"}}`, `"items":\[`},
				{"connections.flush", `{"filter":{}}`, `"reason":"invalid"`},
				{"connections.flush", `{"filter":{"all":true}}`, `"flushed":0`},
				{"delete", `{"objects":[{"kind":"Service","name":"web"}]}`, `"action":"deleted"`},
				{"get", `{"kind":"Service","name":"web"}`, `"code":2`},
				{"reload", ``, `"files":\[\]`},
			} {
				request := fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q}`, step.method)
				if step.params != "" {
					request = fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q,"params":%s}`, step.method, step.params)
				}
				reply := s.byHand(t, program, request)
				text, err := json.Marshal(reply)
				if err != nil {
					t.Fatal(err)
				}
				if !regexp.MustCompile(step.want).Match(text) || string(reply.ID) != `"x"` {
					t.Errorf("%s %s: answered %s, want %s", step.method, step.params, text, step.want)
				}
			}
			if reply := s.byHand(t, program, `hello`); reply.Error == nil || reply.Error.Code != api.CodeParse {
				t.Errorf("a request that is not JSON was answered %+v", reply)
			}
		})
	}
}

// TestEventsByHand: a service is created, and nanocat prints its event.
func TestEventsByHand(t *testing.T) {
	if _, err := exec.LookPath("nanocat"); err != nil {
		t.Skip("nanocat is not installed (.ci/setup test installs it)")
	}
	s := newSite(t)
	s.run()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	cmd := exec.CommandContext(ctx, "nanocat", "--sub", "--connect", "ipc://"+s.path("run/events.sock"), "--ascii")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }() // nanocat never exits by itself
	lines := bufio.NewScanner(out)
	next := func(topic string) string {
		t.Helper()
		for lines.Scan() {
			if line := lines.Text(); strings.HasPrefix(line, topic+" ") {
				return line
			}
		}
		t.Fatalf("no event of %s: %v", topic, lines.Err())
		return ""
	}
	next(api.TopicHello)
	s.apply(serviceObject("web", 1, "10.0.1.2:8080"))
	if got, want := next(api.TopicChanges), `changes {"seq":1,"revision":1,"kind":"Service","name":"web","action":"created"}`; got != want {
		t.Errorf("event %s, want %s", got, want)
	}
	s.apply(serviceObject("web", 1, "10.0.1.3:8080"))
	if got, want := next(api.TopicChanges), `changes {"seq":2,"revision":2,"kind":"Service","name":"web","action":"updated"}`; got != want {
		t.Errorf("event %s, want %s", got, want)
	}
}

// TestDocumentedRequests sends all example parameters of docs/api.md: the daemon may reject their
// values, but must accept their form.
func TestDocumentedRequests(t *testing.T) {
	page, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string]string{
		"ApplyParams": "apply", "ReplaceParams": "replace", "DeleteParams": "delete", "GetParams": "get", "ListParams": "list",
		"ChangesParams": "changes", "ConnectionsListParams": "connections.list", "ConnectionsFlushParams": "connections.flush",
		"CountersParams": "counters", "NetworkListParams": "network.list", "HistoryParams": "history", "RollbackParams": "rollback",
		"ConfirmParams": "confirm", "CNIParams": "cni", "AddressesListParams": "addresses.list", "StatusParams": "status",
		"EventsListParams": "events.list", "CapacityParams": "capacity", "PoliciesCheckParams": "policies.check", "PoliciesForParams": "policies.for", "PoliciesUnusedParams": "policies.unused", "PoliciesCompareParams": "policies.compare",
	}
	s := newSite(t)
	s.run()
	sent := map[string]bool{}
	for _, m := range regexp.MustCompile("(?s)```json (\\w+Params)\n(.*?)```").FindAllSubmatch(page, -1) {
		method, ok := methods[string(m[1])]
		if !ok {
			t.Errorf("an example of %s, and no method for it here", m[1])
			continue
		}
		sent[method] = true
		err := s.Call(t.Context(), method, json.RawMessage(m[2]), nil)
		refused, isRefusal := errors.AsType[*api.Error](err)
		if err != nil && (!isRefusal || refused.Code < 0 || refused.Code == api.ReasonInvalid.Code()) {
			t.Errorf("%s %s: %v", method, m[2], err)
		}
	}
	for name, method := range methods {
		if !sent[method] {
			t.Errorf("no example of %s", name)
		}
	}
}
