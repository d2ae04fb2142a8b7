// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// TestMalformedRequests: the answer to an invalid request contains one of JSON-RPC's own codes, the
// request's id if it has one, and the name of the faulty part.
func TestMalformedRequests(t *testing.T) {
	h := newHarness(t)
	for _, tt := range []struct {
		request, id string
		code        int
		text        string
	}{
		{``, "null", api.CodeParse, "unexpected end"},
		{`hello`, "null", api.CodeParse, "want a value"},
		{`{"jsonrpc":"2.0","id":3,"method":"status"`, "null", api.CodeParse, "unexpected end: want a comma or"},
		{`{"jsonrpc":"2.0","id":3,"method":"status"} x`, "null", api.CodeParse, "unexpected text"},
		{"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"st\xffatus\"}", "3", api.CodeParse, "UTF-8"},
		{`[{"jsonrpc":"2.0","id":3,"method":"status"}]`, "null", api.CodeInvalidRequest, "is not an object"},
		{`{"jsonrpc":"1.0","id":3,"method":"status"}`, "3", api.CodeInvalidRequest, `version "1.0"`},
		{`{"id":3,"method":"status"}`, "3", api.CodeInvalidRequest, "jsonrpc"},
		{`{"jsonrpc":"2.0","id":3}`, "3", api.CodeInvalidRequest, "method: is missing"},
		{`{"jsonrpc":"2.0","id":{},"method":"status"}`, "null", api.CodeInvalidRequest, "id"},
		{`{"jsonrpc":"2.0","id":3,"method":7}`, "3", api.CodeInvalidRequest, "method: 7 is not a string"},
		{`{"jsonrpc":"2.0","id":"a","method":"status","version":9}`, `"a"`, api.CodeInvalidRequest, "version: unknown field"},
		{`{"jsonrpc":"2.0","id":3,"method":"status","method":"list"}`, "3", api.CodeInvalidRequest, "method: given twice"},
		{`{"jsonrpc":"2.0","id":3,"Method":"status"}`, "3", api.CodeInvalidRequest, "Method: unknown field"},
		{`{"jsonrpc":"2.0","id":3,"method":"status","params":[]}`, "3", api.CodeInvalidParams, "params: [] is not an object"},
		{`{"jsonrpc":"2.0","id":3,"method":"status","params":{"all":true}}`, "3", api.CodeInvalidParams, "all: unknown field"},
		{`{"jsonrpc":"2.0","id":3,"method":"fly","params":{}}`, "3", api.CodeMethodNotFound, `method "fly"`},
		{`{"jsonrpc":"2.0","id":3,"method":"list","params":{"kind":"Service","limit":"5"}}`, "3", api.CodeInvalidParams, `limit: "5" is not a number`},
		{`{"jsonrpc":"2.0","id":3,"method":"list","params":{"kind":"Service","limit":1.5}}`, "3", api.CodeInvalidParams, `limit: 1.5 is not an integer`},
		{strings.Repeat("[", 100000), "null", api.CodeParse, "deep"},
		{`{"jsonrpc":"2.0","id":3,"method":"get","params":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat("}", 100) + `}`, "3", api.CodeParse, "deep"},
	} {
		text := h.Handle(context.Background(), admin, []byte(tt.request))
		var r api.Reply
		if err := json.Unmarshal(text, &r); err != nil || r.Error == nil {
			t.Errorf("%s: answered %s", decode.Shorten(tt.request), text)
			continue
		}
		if r.Error.Code != tt.code || !strings.Contains(r.Error.Message, tt.text) || string(r.ID) != tt.id {
			t.Errorf("%s:\n got %d id %s: %s\nwant %d id %s: …%s…", decode.Shorten(tt.request), r.Error.Code, r.ID, r.Error.Message, tt.code, tt.id, tt.text)
		}
		if r.Error.Reason() != api.ReasonInvalid {
			t.Errorf("%s: reason %s", decode.Shorten(tt.request), r.Error.Reason())
		}
	}
}

func TestIDsComeBack(t *testing.T) {
	h := newHarness(t)
	for request, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"a b","method":"version"}`:            `{"jsonrpc":"2.0","id":"a b","result":{"version":"1.2.3","api":[1],"build":"go"}}`,
		`{"jsonrpc":"2.0","method":"version"}`:                       `{"jsonrpc":"2.0","id":null,"result":{"version":"1.2.3","api":[1],"build":"go"}}`,
		`{"params":null,"method":"version","id":-1,"jsonrpc":"2.0"}`: `{"jsonrpc":"2.0","id":-1,"result":{"version":"1.2.3","api":[1],"build":"go"}}`,
	} {
		if got := string(h.Handle(context.Background(), reader, []byte(request))); got != want {
			t.Errorf("%s:\n got %s\nwant %s", request, got, want)
		}
	}
}

func TestReadersMayNotChange(t *testing.T) {
	h := newHarness(t)
	web := `{"objects":[{"kind":"Service","name":"web","spec":{"frontends":["192.0.2.7:80/tcp"]}}]`
	for method, params := range map[string]string{
		"apply": web + "}", "replace": web + `,"owner":"cli","kinds":["Service"]}`, "delete": `{"objects":[{"kind":"Service","name":"web"}]}`,
		"reload": "{}", "connections.flush": `{"filter":{"all":true}}`,
	} {
		checkError(t, method, h.ask(reader, method, params), 5, "", "", method+": user id 1007 may only read")
	}
	checkError(t, "staging", h.ask(reader, "apply", web+`,"transaction":"t","more":true,"dryRun":true}`), 5, "", "", "may only read")
	if got := h.Store.Snapshot().Len(); got != 0 {
		t.Errorf("a reader made %d objects", got)
	}
	for method, params := range map[string]string{
		"version": "{}", "status": "{}", "list": `{"kind":"Service"}`, "changes": `{"since":0}`, "connections.list": "{}", "counters": "{}",
		"apply": web + `,"dryRun":true}`,
	} {
		if got := h.ask(reader, method, params); strings.Contains(got, `"code"`) {
			t.Errorf("%s by a reader: %s", method, got)
		}
	}
}

// TestRequestPanics: a panic in one method does not terminate the daemon.
func TestRequestPanics(t *testing.T) {
	h := newHarness(t)
	h.Plane = nil
	checkError(t, "status", h.ask(admin, "status", "{}"), 9, "", "", "a bug in the daemon")
	h.want("version", "{}", `{"version":"1.2.3","api":[1],"build":"go"}`)
}

func TestTooLong(t *testing.T) {
	var r api.Reply
	if err := json.Unmarshal(TooLong(), &r); err != nil || r.Error.Code != api.CodeInvalidRequest || !strings.Contains(r.Error.Message, "1048576") {
		t.Errorf("%s", TooLong())
	}
}
