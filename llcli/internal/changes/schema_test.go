// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
)

// TestSchemas: each kind has a schema that apply accepts and that contains every field.
func TestSchemas(t *testing.T) {
	for _, kind := range api.Kinds {
		docs, err := parseManifest(kind, []byte(kinds.SchemaOf(kind)))
		if err != nil || len(docs) == 0 {
			t.Fatalf("schema of %s: %d documents, %v", kind, len(docs), err)
		}
		set := map[string]bool{"Route.Peer": true} // has a document of its own
		for _, d := range docs {
			spec := reflect.ValueOf(kinds.Find(kind).Spec())
			dec := json.NewDecoder(bytes.NewReader(d.object.Spec))
			dec.DisallowUnknownFields()
			if err := dec.Decode(spec.Interface()); err != nil || d.object.Kind != kind {
				t.Errorf("schema of %s: %s: %v", kind, d.object.Kind, err)
			}
			checkSet(set, kind, spec.Elem())
		}
		for path, is := range set {
			elsewhere := strings.HasPrefix(path, "NAT.Match.") // same as in a FirewallRule
			if field, ok := strings.CutPrefix(path, "Mirror.Match."); ok {
				elsewhere = slices.Contains([]string{"ICMP", "TCPFlags", "In", "Out", "VLANs", "DSCP"}, field) // rejected
			}
			elsewhere = elsewhere || path == "Policy.Ingress[0].From[0].Names" // rejected
			for _, same := range []string{"Policy.Egress[0].To[0].", "Policy.Egress[0].Ports[0].", "Policy.Ingress[0].From[0].Namespaces.", "Policy.Ingress[0].From[0].Entities."} {
				elsewhere = elsewhere || strings.HasPrefix(path, same) // same as for ingress, or in appliedTo
			}
			if !is && !elsewhere {
				t.Errorf("%s is missing", path)
			}
		}
	}
}

// checkSet records for every field whether it is set in one of the documents, in structs and in the
// first element of lists.
func checkSet(set map[string]bool, path string, v reflect.Value) {
	set[path] = set[path] || !v.IsZero()
	switch {
	case v.IsZero():
	case v.Kind() == reflect.Pointer:
		checkSet(set, path, v.Elem())
	case v.Kind() == reflect.Slice:
		checkSet(set, path+"[0]", v.Index(0))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			checkSet(set, path+"."+v.Type().Field(i).Name, v.Field(i))
		}
	}
}
