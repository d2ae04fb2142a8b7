// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// FuzzStrict compares Strict with encoding/json: a document that Strict accepts gives the same
// result with both, and a document that it rejects as invalid JSON is invalid for both.
func FuzzStrict(f *testing.F) {
	for _, seed := range []string{
		`{"objects":[{"kind":"Service","name":"web","spec":{"frontends":["198.51.100.10:80/tcp"]}}],"wait":"5s","ifRevision":7}`,
		`{"objects":[{"kind":"a\u00e9\n","labels":{"x":"y","":""},"spec":{"a":[1,-2.5e3,true,null,"\\"]},"revision":3}],"dryRun":true}`,
		` { } `, `null`, `{"objects":null}`, `{"objects":[null]}`, `{"ifRevision":-1}`, `{"changesFrom":12345678901234567890}`,
		`{"a":{"b":[[]]}}`, `{"objects":[{}],"objects":[]}`, `{"wait":5}`, `{"more":truE}`, `{"objects":[1,]}`, `{"spec":01}`, "\"\x01\"", `"\ud800"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want api.ApplyParams
		err := Strict(text, &got)
		theirs := json.Unmarshal(text, &want)
		if err == nil && (theirs != nil || !reflect.DeepEqual(normal(got), normal(want))) {
			t.Errorf("%q was decoded as %+v; encoding/json: %+v, %v", text, got, want, theirs)
		}
		if err != nil && err.Syntax && json.Valid(text) && len(text) < maxNesting && validText(text) {
			t.Errorf("%q is JSON and was refused as none: %v", text, err)
		}
		if err != nil && !err.Syntax && !json.Valid(text) && strings.Contains(err.Error(), "no JSON") {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// validText reports whether text contains no bytes that encoding/json would replace.
func validText(text []byte) bool { return strings.ToValidUTF8(string(text), "") == string(text) }

// normal returns the same text for values that differ only in irrelevant ways.
func normal(p api.ApplyParams) string {
	text, err := json.Marshal(p)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(text), `"objects":null`, `"objects":[]`)
}

func TestStrictPaths(t *testing.T) {
	for _, tt := range []struct{ text, path, message string }{
		{`{"frontends":"x"}`, "frontends", `"x" is not a list: write ["x"]`},
		{`{"backends":[{"address":"x","weight":"7"}]}`, "backends[0].weight", `"7" is not a number: omit the quotes`},
		{`{"frontends":["a",5]}`, "frontends[1]", "5 is not a string"},
		{`{"backends":[{},{"weight":true}]}`, "backends[1].weight", "true is not a number"},
		{`{"backends":[{"weight":1e2}]}`, "backends[0].weight", "1e2 is not an integer"},
		{`{"backends":[{"Weight":1}]}`, "backends[0].Weight", "unknown field"},
		{`{"affinity":{"timeout":"3 hours"}}`, "affinity.timeout", "3 hours"},
		{`{"affinity":{"timeout":"3h","timeout":"3h"}}`, "affinity.timeout", "twice"},
		{`{"affinity":[]}`, "affinity", "[] is not an object"},
		{`{"sourceRanges":[null]}`, "sourceRanges[0]", "null in a list"},
		{"{\n\"source\": \n\"keep\",,}", "", "line 3"},
		{`{"source":"\q"}`, "", "invalid escape"},
	} {
		var s api.ServiceSpec
		err := Strict([]byte(tt.text), &s)
		if err == nil || err.Path != tt.path || !strings.Contains(err.Text, tt.message) {
			t.Errorf("%s: %v at %q, want …%s… at %q", tt.text, err, err.Path, tt.message, tt.path)
		}
	}
}

// TestElement: an element of a list is found if it precedes the first error in the document.
func TestElement(t *testing.T) {
	for document, want := range map[string]string{
		`{"wait":"5s","objects":[{"a":[7]}, {"kind":"Service", "name":"web"},{]}`: `{"kind":"Service", "name":"web"}`,
		`{"objects":[{},3],"objects":[]}`:                                         `3`,
		`{"objects":[{}`:                                                          "", `{"objects":[{}]}`: "", `{"objects":{}}`: "", `[1,2]`: "", ``: "",
	} {
		if got := string(Element([]byte(document), "objects", 1)); got != want {
			t.Errorf("%s: element 1 is %q, want %q", document, got, want)
		}
	}
}
