// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// clock is a wall clock and a boot clock that a test advances.
type clock struct{ passed atomic.Int64 }

func (c *clock) pass(d time.Duration) { c.passed.Add(int64(d)) }

// newClockHarness is a harness with a clock that the test advances.
func newClockHarness(t *testing.T) (*harness, *clock) {
	c := &clock{}
	h := newHarnessWith(t, state.Config{Dir: t.TempDir(), Tables: datapath.DefaultTables(), Clock: state.Clock{
		Now: func() time.Time {
			return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).Add(time.Duration(c.passed.Load()))
		},
		Boot: func() (string, time.Duration) { return "x", time.Duration(c.passed.Load()) },
	}})
	return h, c
}

const web = `{"kind":"Service","name":"web","spec":{"frontends":["198.51.100.10:%d/tcp"]}}`

func (h *harness) applyWeb(port int, more string) string {
	h.t.Helper()
	return h.ask(admin, "apply", fmt.Sprintf(`{"objects":[`+web+`]%s}`, port, more))
}

// port returns the port of web's frontend; empty: web does not exist.
func (h *harness) port() string {
	var o api.Object
	if json.Unmarshal([]byte(h.ask(admin, "get", `{"kind":"Service","name":"web"}`)), &o) != nil || o.Spec == nil {
		return ""
	}
	_, port, _ := strings.Cut(string(o.Spec), "198.51.100.10:")
	return port[:2]
}

func TestConfirm(t *testing.T) {
	h, c := newClockHarness(t)
	h.applyWeb(80, "")
	answer := h.applyWeb(81, `,"confirm":"1m","requestID":"x"`)
	want := `{"revision":2,"changes":[{"kind":"Service","name":"web","action":"updated"}],"summary":{"updated":1},` +
		`"confirm":{"revision":2,"until":"2026-03-04T05:07:07Z","left":"1m0s","uid":0,"user":"root","method":"apply"}}`
	if answer != want || h.applyWeb(81, `,"confirm":"1m","requestID":"x"`) != want {
		t.Errorf("answered %s\n want %s, and again", answer, want)
	}
	c.pass(20 * time.Second)
	if p := result[api.StatusResult](h, "status", "{}").Confirm; p == nil || p.Left != api.Duration(40*time.Second) || p.Revision != 2 {
		t.Errorf("status: %+v", p)
	}
	checkError(t, "another change", h.applyWeb(82, ""), 3, "Service/web", "", "is pending until 2026-03-04T05:07:07Z (for 40s)")
	checkError(t, "a reader's confirm", h.ask(reader, "confirm", `{"revision":2}`), 5, "", "", "user id 1007")
	h.wantError("confirm", `{"revision":1}`, 3, "", "revision", "the pending change has revision 2, not 1")
	h.wantError("confirm", `{}`, 3, "", "revision", "not 0")
	h.wantError("confirm", `{"revision":"2"}`, -32602, "", "revision", "")
	for range 2 {
		h.want("confirm", `{"revision":2}`, `{"revision":2}`)
	}
	c.pass(time.Hour)
	h.Expire()
	if h.port() != "81" || result[api.StatusResult](h, "status", "{}").Confirm != nil {
		t.Errorf("port %s after the confirmation", h.port())
	}
	h.wantEvents(t, `status {"seq":0,"kind":"","name":"","state":"waiting","message":"until 2026-03-04T05:07:07Z","revision":2}`,
		`status {"seq":0,"kind":"","name":"","state":"confirmed","message":"by root","revision":2}`)
}

func (h *harness) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := strings.Join(h.events, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("events\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestNotConfirmed: Run rolls an unconfirmed change back at the deadline.
func TestNotConfirmed(t *testing.T) {
	h, c := newClockHarness(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	defer func() { stop(); <-done }()
	h.applyWeb(80, "")
	h.applyWeb(81, `,"confirm":"1h"`)
	file := filepath.Join(h.ObjectDir, "a.yaml")
	if err := os.WriteFile(file, []byte("kind: Service\nname: web\nspec: {frontends: [\"198.51.100.10:83/tcp\"]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.wantError("reload", "{}", 3, "Service/web", "owner", "belongs to owner cli")
	if err := os.WriteFile(file, []byte("kind: Service\nname: other\nspec: {frontends: [\"198.51.100.10:80/tcp\"]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.wantError("reload", "{}", 3, "Service/other", "spec.frontends[0]", "after the rollback: 198.51.100.10:80/tcp belongs to Service/web already")
	c.pass(time.Hour)
	testnet.Eventually(t, 20*time.Second, "it is rolled back, to port 80", func() bool { return h.port() == "80" })
	checkError(t, "confirm", h.ask(admin, "confirm", `{"revision":2}`), 3, "", "revision", "was rolled back")
	e := result[api.HistoryResult](h, "history", `{"limit":1}`).Items[0]
	if e.Method != "expire" || e.User != "loxilightd" || e.Restored != 1 || e.Revision != 3 {
		t.Errorf("the history ends with %+v", e)
	}
}

func TestConfirmIsChecked(t *testing.T) {
	h := newHarness(t)
	for _, x := range []struct{ confirm, field, text string }{
		{`"999ms"`, "confirm", "999ms is not between 1s and 1h0m0s"}, {`"-1s"`, "confirm", "is not between"}, {`"61m"`, "confirm", "is not between"},
	} {
		checkError(t, x.confirm, h.applyWeb(80, `,"confirm":`+x.confirm), 1, "", x.field, x.text)
	}
	checkError(t, "a number", h.applyWeb(80, `,"confirm":60`), -32602, "", "confirm", "60")
	if a := h.applyWeb(80, `,"confirm":"1m","dryRun":true`); strings.Contains(a, "confirm") || result[api.StatusResult](h, "status", "{}").Confirm != nil {
		t.Errorf("a dry run: %s", a)
	}
	h.applyWeb(80, "")
	if a := h.applyWeb(80, `,"confirm":"1m"`); strings.Contains(a, "until") || !strings.Contains(a, "unchanged") {
		t.Errorf("without a change: %s", a)
	}
	for params, text := range map[string]string{
		`{}`: "is missing: set revision", `{"revision":1,"undo":1}`: "but not both", `{"undo":7}`: "is not pending",
		`{"revision":1,"owner":"file"}`: "change them, then reload", `{"revision":1,"owner":"cni"}`: "deleted pods are not restored", `{"revision":1,"transaction":"x"}`: "one request",
		`{"revision":1,"transaction":"x","more":true}`: "one request", `{"undo":1,"owner":"cli"}`: "cannot be combined with undo",
		`{"revision":1,"wait":"-1s"}`: "wait", `{"revision":1,"ifRevision":7}`: "at revision 1, not 7",
	} {
		var e api.Error
		if err := json.Unmarshal([]byte(h.ask(admin, "rollback", params)), &e); err != nil || !strings.Contains(e.Message, text) {
			t.Errorf("rollback %s: %v %q, want …%s…", params, err, e.Message, text)
		}
	}
	h.wantError("rollback", `{"revision":99}`, 2, "", "revision", "99 does not exist: the daemon is at 1, and the oldest revision that is kept is 0")
	h.wantError("rollback", `{"revision":-1}`, -32602, "", "revision", "")
	h.wantError("history", `{"revision":99}`, 2, "", "revision", "99 does not exist")
	h.wantError("history", `{"limit":-1}`, 1, "", "limit", "negative")
	h.wantError("history", `{"continue":"x"}`, 1, "", "continue", "not a continue value")
	h.wantError("get", `{"kind":"Service","name":"web","revision":99}`, 2, "", "revision", "99 does not exist")
	checkError(t, "a reader's rollback", h.ask(reader, "rollback", `{"revision":0}`), 5, "", "", "may only read")
	if a := h.ask(reader, "rollback", `{"revision":0,"dryRun":true}`); !strings.Contains(a, `"deleted"`) {
		t.Errorf("a reader's dry run: %s", a)
	}
}

func TestRollbackAndHistory(t *testing.T) {
	h, _ := newClockHarness(t)
	h.applyWeb(80, "")
	if err := os.WriteFile(filepath.Join(h.ObjectDir, "a.yaml"), []byte("kind: Service\nname: filed\nspec: {frontends: [\"198.51.100.11:80/tcp\"]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.ask(admin, "reload", "{}")
	h.ask(Caller{UID: 4242, Admin: true}, "replace", fmt.Sprintf(`{"owner":"cli","kinds":["Service"],"objects":[`+web+`]}`, 81))
	h.want("rollback", `{"revision":1,"dryRun":true}`,
		`{"revision":3,"changes":[{"kind":"Service","name":"web","action":"updated"}],"summary":{"updated":1},"left":[{"kind":"Service","name":"filed"}]}`)
	h.want("rollback", `{"revision":1,"wait":"1s"}`,
		`{"revision":4,"changes":[{"kind":"Service","name":"web","action":"updated"}],"summary":{"updated":1},"left":[{"kind":"Service","name":"filed"}]}`)
	if len(h.progress.waited) != 1 || h.progress.revision != 4 || h.port() != "80" {
		t.Errorf("waited for %v at %d; port %s", h.progress.waited, h.progress.revision, h.port())
	}
	h.want("history", `{"limit":2}`, `{"revision":4,"oldest":0,"items":[`+
		`{"revision":4,"previous":3,"time":"2026-03-04T05:06:07Z","uid":0,"user":"root","method":"rollback","owners":["cli"],"summary":{"updated":1},"restored":1},`+
		`{"revision":3,"previous":2,"time":"2026-03-04T05:06:07Z","uid":4242,"method":"replace","owners":["cli"],"summary":{"updated":1}}],"continue":"3"}`)
	if r := result[api.HistoryResult](h, "history", `{"continue":"3"}`); len(r.Items) != 2 || r.Items[0].Method != "reload" || r.Items[0].Owners[0] != "file" || r.Continue != "" {
		t.Errorf("the rest of the history: %+v", r)
	}
	spec := func(port int) string {
		return fmt.Sprintf(`"owner":"cli","spec":{"frontends":["198.51.100.10:%d/tcp"]}`, port)
	}
	r := result[api.HistoryResult](h, "history", `{"revision":3}`)
	d, _ := json.Marshal(r.Objects)
	if len(r.Items) != 1 || !strings.Contains(string(d), spec(80)) || !strings.Contains(string(d), `"action":"updated"`) {
		t.Errorf("revision 3: %s", d)
	}
	if a := h.ask(reader, "get", `{"kind":"Service","name":"web","revision":3}`); !strings.Contains(a, spec(81)) || strings.Contains(a, "status") {
		t.Errorf("at revision 3: %s", a)
	}
	h.wantError("get", `{"kind":"Service","name":"filed","revision":1}`, 2, "Service/filed", "", "no such object at revision 1")
	if r := result[api.HistoryResult](h, "history", `{"revision":2}`).Objects; len(r) != 1 || r[0].Before != nil || r[0].After == nil || r[0].Action != "created" {
		t.Errorf("revision 2: %+v", r)
	}
}

// TestLargeHistory: revisions of many and of large objects are returned in pages.
func TestLargeHistory(t *testing.T) {
	h := newHarness(t)
	var b strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&b, `,{"address":"10.%d.%d.%d:80"}`, i>>16, i>>8&255, i&255)
	}
	big := `{"kind":"Service","name":"big","spec":{"frontends":["198.51.100.1:80/tcp"],"backends":[` + b.String()[1:] + `]}}`
	var objects strings.Builder
	for i := range 900 {
		fmt.Fprintf(&objects, `,{"kind":"Service","name":"s%03d","spec":{"frontends":["198.51.101.%d:%d/tcp"]}}`, i, i&255, 80+i>>8)
	}
	h.ask(admin, "apply", `{"objects":[`+big+objects.String()+`]}`)
	names, pages, from := map[string]api.HistoryDiff{}, 0, ""
	for more := true; more; pages++ {
		r := result[api.HistoryResult](h, "history", fmt.Sprintf(`{"revision":1,"continue":%q}`, from))
		for _, d := range r.Objects {
			names[d.Name] = d
		}
		from, more = r.Continue, r.Continue != ""
	}
	if len(names) != 901 || pages < 3 || !names["big"].Cut || names["big"].After != nil || names["s007"].Cut {
		t.Errorf("%d objects on %d pages; big is %+v", len(names), pages, names["big"])
	}
	if o := result[api.Object](h, "get", `{"kind":"Service","name":"big","revision":1}`); strings.Count(string(o.Spec), "address") != 3000 || o.Status != nil {
		t.Errorf("big at revision 1: spec %.100s, status %s", o.Spec, o.Status)
	}
	for i := range 400 {
		h.applyWeb(10+i%80, "")
	}
	count := 0
	for from, more := "", true; more; {
		r := result[api.HistoryResult](h, "history", fmt.Sprintf(`{"continue":%q}`, from))
		count += len(r.Items)
		from, more = r.Continue, r.Continue != ""
	}
	if count != 401 {
		t.Errorf("%d revisions on all pages, want 401", count)
	}
}

// TestNotRolledBackYet: the status reports an unconfirmed change that could not be rolled back and
// is still in force.
func TestNotRolledBackYet(t *testing.T) {
	h, c := newClockHarness(t)
	h.applyWeb(80, "")
	h.applyWeb(81, `,"confirm":"1m"`)
	c.pass(time.Hour)
	if err := h.Store.Close(); err != nil { // from now on, nothing can be written
		t.Fatal(err)
	}
	h.Expire()
	r := result[api.StatusResult](h, "status", "{}")
	if m := strings.Join(r.Health.Messages, "\n"); !strings.Contains(m, "could not be rolled back yet; the rollback is retried") || r.Confirm == nil || r.Confirm.Left != 0 {
		t.Errorf("health %q, %+v waits", m, r.Confirm)
	}
}
