// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestReasonsAreExplained compares the words with the list in the C source,
// where the names come from.
func TestReasonsAreExplained(t *testing.T) {
	source, err := os.ReadFile("../../../ebpf-src/drop.h")
	if err != nil {
		t.Fatal(err)
	}
	for prefix, v := range map[string]*vocabulary{"DROP_": &dropWords, "VERDICT_": &verdictWords} {
		var want []string
		for _, m := range regexp.MustCompile(`(?m)^\t`+prefix+`(\w+),`).FindAllStringSubmatch(string(source), -1) {
			if m[1] != "NONE" && m[1] != "MAX" {
				want = append(want, strings.ToLower(m[1]))
			}
		}
		var got []string
		for _, w := range v.words {
			got = append(got, w.name)
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("words for %s…:\n got %q\nwant %q", prefix, got, want)
		}
	}
}

// TestSchemas: each kind has one, it is what apply takes, and no field is missing.
func TestSchemas(t *testing.T) {
	specs := map[string]any{api.KindService: &api.ServiceSpec{}, api.KindInterface: &api.InterfaceSpec{}}
	for _, kind := range api.Kinds {
		docs, err := parseManifest(kind, []byte(schemas[kind]))
		if err != nil || len(docs) != 1 || docs[0].object.Kind != kind {
			t.Fatalf("schema of %s: %d documents, %v", kind, len(docs), err)
		}
		dec := json.NewDecoder(bytes.NewReader(docs[0].object.Spec))
		dec.DisallowUnknownFields()
		if err := dec.Decode(specs[kind]); err != nil {
			t.Errorf("schema of %s: %v", kind, err)
		}
		checkSet(t, kind, reflect.ValueOf(specs[kind]).Elem())
	}
}

// checkSet looks whether every field is set, in structs and in the first element
// of lists.
func checkSet(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero():
		t.Errorf("%s is missing", path)
	case v.Kind() == reflect.Pointer:
		checkSet(t, path, v.Elem())
	case v.Kind() == reflect.Slice:
		checkSet(t, path+"[0]", v.Index(0))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			checkSet(t, path+"."+v.Type().Field(i).Name, v.Field(i))
		}
	}
}
