// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const webObject = `{"kind":"Service","name":"web","spec":{"frontends":["198.51.100.10:80/tcp"],"backends":[{"address":"10.0.1.2:8080"}]}}`

func TestApplyGetDelete(t *testing.T) {
	h := newHarness(t)
	h.want("apply", `{"objects":[`+webObject+`]}`,
		`{"revision":1,"changes":[{"kind":"Service","name":"web","action":"created"}],"summary":{"created":1}}`)
	h.want("get", `{"kind":"Service","name":"web"}`,
		`{"kind":"Service","name":"web","owner":"cli","spec":{"frontends":["198.51.100.10:80/tcp"],"backends":[{"address":"10.0.1.2:8080"}]},`+
			`"status":{"state":"Ready","backends":[{"address":"10.0.1.2:8080","state":"active"}]},"revision":1}`)
	// An equal spec in a different notation, or with ignored fields, changes nothing.
	h.want("apply", `{"objects":[{"spec":{"backends":[{"address":"10.0.1.2:8080"}],"frontends":["198.51.100.10:80\/tcp"],"affinity":null},
		"owner":"cli","status":{"state":"Error"},"revision":99,"name":"web","kind":"Service"}]}`,
		`{"revision":1,"changes":[{"kind":"Service","name":"web","action":"unchanged"}],"summary":{"unchanged":1}}`)
	h.want("delete", `{"objects":[{"kind":"Service","name":"web"},{"kind":"Interface","name":"eth0"}]}`,
		`{"revision":2,"changes":[{"kind":"Service","name":"web","action":"deleted"},{"kind":"Interface","name":"eth0","action":"absent"}],"summary":{"absent":1,"deleted":1}}`)
	h.wantError("get", `{"kind":"Service","name":"web"}`, 2, "Service/web", "", "no such object")
	h.want("apply", `{"objects":[]}`, `{"revision":2,"changes":[]}`)
}

// TestManyGoodOneBad: the 499th of 500 objects is invalid, so nothing is applied, and the error
// names the object and the field.
func TestManyGoodOneBad(t *testing.T) {
	h := newHarness(t)
	objects := func(bad string) string {
		list := make([]string, 500)
		for i := range list {
			list[i] = fmt.Sprintf(`{"kind":"Service","name":"s%d","spec":{"frontends":["10.96.%d.%d:80/tcp"],"backends":[{"address":"10.0.1.2:8080"},{"address":"10.0.1.3:8080"}]}}`,
				i, i>>8, i&255)
		}
		list[498] = bad
		return `{"objects":[` + strings.Join(list, ",") + `]}`
	}
	for _, tt := range []struct{ bad, object, field, text string }{
		{`{"kind":"Service","name":"s498","spec":{"frontends":["10.96.1.242:80/tcp"],"backends":[{"address":"10.0.1.2:8080"},{"address":"10.0.1:8080"}]}}`, "Service/s498", "spec.backends[1].address", `"10.0.1:8080": "10.0.1" is not an address`},
		{`{"kind":"Service","name":"s498","spec":{"frontends":["10.96.1.242:80/tcp"],"backends":[{"adress":"10.0.1.2:8080"}]}}`, "Service/s498", "spec.backends[0].adress", "unknown field; want one of address, state, weight"},
		{`{"kind":"Service","name":"s498","spek":{}}`, "Service/s498", "spek", "unknown field"},
		{`{"kind":"Service","name":"s498","labels":{"a":5}}`, "Service/s498", "labels.a", "5 is not a string"},
		{`{"kind":"Service","name":"s498"}`, "Service/s498", "spec", "is missing"},
		{`{"kind":"Servise","name":"s498","spec":{}}`, "", "objects[498].kind", `"Servise" is not known`},
		{`{"kind":"Service","spec":{}}`, "", "objects[498].name", "is missing"},
		{`{"kind":"Service","name":"S498","spec":{}}`, "Service/S498", "name", "is not a valid name"},
		{`null`, "", "objects[498]", "null in a list"},
	} {
		h.wantError("apply", objects(tt.bad), 1, tt.object, tt.field, tt.text)
		h.wantError("apply", strings.TrimSuffix(objects(tt.bad), "}")+`,"dryRun":true}`, 1, tt.object, tt.field, tt.text)
	}
	h.wantError("apply", objects(strings.Replace(webObject, "198.51.100.10", "10.96.0.7", 1)), 3, "Service/web", "spec.frontends[0]", "10.96.0.7:80/tcp belongs to Service/s7")
	if s := h.Store.Snapshot(); s.Len() != 0 || s.Revision != 0 {
		t.Fatalf("%d objects at revision %d after refusals", s.Len(), s.Revision)
	}
	r := result[api.ChangeResult](h, "apply", objects(webObject))
	if len(r.Changes) != 500 || r.Summary["created"] != 500 || r.Truncated {
		t.Errorf("%d changes, %v", len(r.Changes), r.Summary)
	}
}

func TestReplace(t *testing.T) {
	h := newHarness(t)
	result[api.ChangeResult](h, "apply", `{"objects":[`+webObject+`]}`)
	k8s := func(name string) string {
		return fmt.Sprintf(`{"kind":"Service","name":"%s","spec":{"frontends":["10.96.0.%s:80/tcp"]}}`, name, strings.TrimPrefix(name, "k"))
	}
	result[api.ChangeResult](h, "replace", `{"owner":"k8s","kinds":["Service"],"objects":[`+k8s("k1")+","+k8s("k2")+`]}`)
	h.want("replace", `{"owner":"k8s","kinds":["Service"],"objects":[`+k8s("k2")+","+k8s("k3")+`]}`,
		`{"revision":3,"changes":[{"kind":"Service","name":"k2","action":"unchanged"},{"kind":"Service","name":"k3","action":"created"},`+
			`{"kind":"Service","name":"k1","action":"deleted"}],"summary":{"created":1,"deleted":1,"unchanged":1}}`)
	for _, tt := range []struct {
		params              string
		code                int
		object, field, text string
	}{
		{`{"kinds":["Service"],"objects":[]}`, 1, "", "owner", "missing"},
		{`{"owner":"k8s","objects":[]}`, 1, "", "kinds", "missing"},
		{`{"owner":"file","kinds":["Service"],"objects":[]}`, 1, "", "owner", "object files"},
		{`{"owner":"k8s","kinds":["Pod"],"objects":[]}`, 1, "", "kinds[0]", `"Pod"`},
		{`{"owner":"k8s","kinds":["Interface"],"objects":[` + k8s("k1") + `]}`, 1, "Service/k1", "kind", "Service"},
		{`{"owner":"k8s","kinds":["Service"],"objects":[` + strings.Replace(k8s("k1"), `"spec"`, `"owner":"cli","spec"`, 1) + `]}`, 1, "Service/k1", "owner", "cli"},
		{`{"owner":"k8s","kinds":["Service"],"objects":[` + webObject + `]}`, 3, "Service/web", "owner", "belongs to owner cli"},
	} {
		h.wantError("replace", tt.params, tt.code, tt.object, tt.field, tt.text)
	}
	h.want("replace", `{"owner":"k8s","kinds":["Service","Interface"],"objects":[]}`,
		`{"revision":4,"changes":[{"kind":"Service","name":"k2","action":"deleted"},{"kind":"Service","name":"k3","action":"deleted"}],"summary":{"deleted":2}}`)
}

func TestConditionsOfAChange(t *testing.T) {
	h := newHarness(t)
	h.wantError("apply", `{"ifRevision":5,"objects":[`+webObject+`]}`, 3, "", "", "at revision 0, not 5")
	for method, params := range map[string]string{"apply": `{}`, "delete": `{"objects":null}`, "replace": `{"owner":"cli","kinds":["Service"]}`} {
		h.wantError(method, params, 1, "", "objects", "is missing")
	}
	h.wantError("apply", `{"objects":[],"wait":"-1s"}`, 1, "", "wait", "-1s")
	h.wantError("apply", `{"objects":[],"wait":"soon"}`, api.CodeInvalidParams, "", "wait", `"soon"`)
	h.wantError("apply", `{"objects":[],"requestID":"`+strings.Repeat("x", 129)+`"}`, 1, "", "requestID", "129")
	h.wantError("apply", `{"objects":[],"more":true}`, 1, "", "more", "transaction")
	h.wantError("apply", `{"objects":[],"changesFrom":4}`, 1, "", "changesFrom", "dry run")
	h.want("apply", `{"ifRevision":0,"dryRun":true,"objects":[`+webObject+`]}`,
		`{"revision":0,"changes":[{"kind":"Service","name":"web","action":"created"}],"summary":{"created":1}}`)
	h.want("apply", `{"ifRevision":0,"objects":[`+webObject+`]}`,
		`{"revision":1,"changes":[{"kind":"Service","name":"web","action":"created"}],"summary":{"created":1}}`)
	h.wantError("apply", `{"objects":[`+strings.Replace(webObject, `"spec"`, `"owner":"file","spec"`, 1)+`]}`, 1, "Service/web", "owner", "object files")
}

func TestCapacity(t *testing.T) {
	tables := datapath.DefaultTables()
	tables.Services = 2
	h := newHarnessAt(t, t.TempDir(), tables)
	result[api.ChangeResult](h, "apply", `{"objects":[`+webObject+`]}`)
	h.wantError("apply", `{"objects":[{"kind":"Service","name":"b","spec":{"frontends":["192.0.2.1:80/tcp","192.0.2.1:80/udp"]}}]}`,
		4, "Service/b", "spec.frontends", "table services is full: 1 of 2")
	h.want("get", `{"kind":"Service","name":"web"}`, h.ask(reader, "get", `{"kind":"Service","name":"web"}`))
}

// TestRequestID: a request that the same user repeats with the same id is carried out once and
// answered twice, even after a restart.
func TestRequestID(t *testing.T) {
	dir := t.TempDir()
	h := newHarnessAt(t, dir, datapath.DefaultTables())
	apply := `{"requestID":"r1","objects":[` + webObject + `]}`
	first := h.ask(admin, "apply", apply)
	result[api.ChangeResult](h, "delete", `{"objects":[{"kind":"Service","name":"web"}]}`)
	if err := h.Store.Close(); err != nil {
		t.Fatal(err)
	}
	h = newHarnessAt(t, dir, datapath.DefaultTables())
	h.want("apply", apply, first)
	if n := h.Store.Snapshot().Len(); n != 0 {
		t.Error("it was carried out again")
	}
	other := Caller{UID: 33, Admin: true}
	if got := h.ask(other, "apply", apply); !strings.Contains(got, `"revision":3`) {
		t.Errorf("the same id by another user: %s", got)
	}
}

func TestWait(t *testing.T) {
	h := newHarness(t)
	h.want("apply", `{"wait":"5s","objects":[`+webObject+`]}`,
		`{"revision":1,"changes":[{"kind":"Service","name":"web","action":"created"}],"summary":{"created":1}}`)
	if len(h.progress.waited) != 1 || h.progress.waited[0].Name != "web" || h.progress.revision != 1 {
		t.Errorf("waited for %v at %d", h.progress.waited, h.progress.revision)
	}
	h.progress.not[state.Key{Kind: "Service", Name: "web"}] = api.Status{State: api.StateError, Message: "no such device"}
	start := time.Now()
	answer := h.ask(admin, "apply", `{"wait":"30ms","objects":[`+webObject+`]}`)
	checkError(t, "wait", answer, 8, "", "", "saved as revision 1, but 1 of 1 objects was not Ready after 30ms; Service/web: Error: no such device")
	var e api.Error
	if err := json.Unmarshal([]byte(answer), &e); err != nil || len(e.Data.NotReady) != 1 || e.Data.NotReady[0].Object != "Service/web" || time.Since(start) < 30*time.Millisecond {
		t.Errorf("%v after %s", e.Data, time.Since(start))
	}
	h.progress.waited = nil
	result[api.ChangeResult](h, "replace", `{"wait":"1ms","dryRun":true,"owner":"cli","kinds":["Service"],"objects":[]}`)
	if h.progress.waited != nil {
		t.Error("a dry run waits")
	}
	h.progress.not[state.Key{Kind: "Service", Name: "web"}] = api.Status{State: api.StateReady, Message: "no backend"}
	if r := result[api.ChangeResult](h, "apply", `{"wait":"1s","objects":[`+webObject+`]}`); !slices.Equal(r.Warnings, []string{"Service/web: no backend"}) {
		t.Errorf("warnings %q, want the message of web", r.Warnings)
	}
	delete(h.progress.not, state.Key{Kind: "Service", Name: "web"})
	result[api.ChangeResult](h, "replace", `{"wait":"1s","owner":"cli","kinds":["Service"],"objects":[]}`)
	if len(h.progress.waited) != 1 {
		t.Errorf("a replace that deletes web waits for %v", h.progress.waited)
	}
}

// TestWaitEndsWithTheDaemon: if the daemon stops, a waiting client is notified that the change is
// durable.
func TestWaitEndsWithTheDaemon(t *testing.T) {
	h := newHarness(t)
	h.progress.not[state.Key{Kind: "Service", Name: "web"}] = api.Status{State: api.StatePending}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	answer := h.Handle(ctx, admin, []byte(`{"jsonrpc":"2.0","id":7,"method":"apply","params":{"wait":"1h","objects":[`+webObject+`]}}`))
	var r api.Reply
	if err := json.Unmarshal(answer, &r); err != nil || r.Error == nil || r.Error.Reason() != api.ReasonUnavailable || !strings.Contains(r.Error.Message, "saved as revision 1") {
		t.Errorf("%s", answer)
	}
}

// TestTruncated: a list of changes that does not fit in a reply is marked as truncated, and the
// rest can be requested.
func TestTruncated(t *testing.T) {
	h := newHarness(t)
	const count = 1500
	params := func(more string) string {
		list := make([]string, count)
		for i := range list {
			list[i] = fmt.Sprintf(`{"kind":"Service","name":"service-number-%d","spec":{"frontends":["10.96.%d.%d:80/tcp"]}}`, i, i>>8, i&255)
		}
		return `{"objects":[` + strings.Join(list, ",") + `]` + more + `}`
	}
	var names []string
	for from, truncated := 0, true; truncated; from = len(names) {
		r := result[api.ChangeResult](h, "apply", params(fmt.Sprintf(`,"dryRun":true,"changesFrom":%d`, from)))
		for _, c := range r.Changes {
			names = append(names, c.Name)
		}
		if truncated = r.Truncated; r.Summary["created"] != count || len(r.Changes) == 0 {
			t.Fatalf("from %d: %d changes, summary %v", from, len(r.Changes), r.Summary)
		}
	}
	if len(names) != count || names[0] != "service-number-0" || names[count-1] != "service-number-1499" {
		t.Errorf("%d changes were reported", len(names))
	}
	r := result[api.ChangeResult](h, "apply", params(""))
	if !r.Truncated || r.Revision != 1 {
		t.Errorf("committed as %d, truncated: %v", r.Revision, r.Truncated)
	}
}

// TestOtherErrors: an error also names other invalid objects, up to a limit.
func TestOtherErrors(t *testing.T) {
	h := newHarness(t)
	errorOf := func(names ...string) *api.Error {
		var objects []string
		for _, name := range names {
			action := "allow"
			if strings.HasPrefix(name, "bad") {
				action = strings.Repeat("x", 100_000)
			}
			objects = append(objects, fmt.Sprintf(`{"kind":"FirewallRule","name":%q,"spec":{"action":%q}}`, name, action))
		}
		var e api.Error
		answer := h.ask(admin, "apply", `{"objects":[`+strings.Join(objects, ",")+`]}`)
		if err := json.Unmarshal([]byte(answer), &e); err != nil || e.Data == nil {
			t.Fatalf("no error, but %s", answer)
		}
		return &e
	}
	e := errorOf("good", "bad-1", "fine", "bad-2", "bad-3")
	if e.Data.Object != "FirewallRule/bad-1" || len(e.Data.Others) != 2 || e.Data.Others[1].Object != "FirewallRule/bad-3" ||
		e.Data.Others[1].Field != "spec.action" || !strings.HasPrefix(e.Data.Others[1].Message, "FirewallRule/bad-3: spec.action: ") {
		t.Errorf("got %s, others %+v", e.Data.Object, e.Data.Others)
	}
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprint("bad-", i))
	}
	if e := errorOf(many...); len(e.Data.Others) != maxOthers {
		t.Errorf("%d others, want %d", len(e.Data.Others), maxOthers)
	}
}
