// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// decode decodes JSON from another program; at is the configuration field that contains the JSON,
// or empty if the JSON is the whole configuration.
func decode(at string, text []byte, v any) *api.Error {
	err := json.Unmarshal(text, v)
	if err == nil {
		return nil
	}
	field, what := explain(err)
	field = cmp.Or(strings.Trim(at+"."+field, "."), "config")
	return coded(api.ReasonInvalid, api.CNIDecodingFailed, "%s", what).At("", field)
}

// explain returns the faulty field, which may be empty, and a description of the error in JSON
// terms.
func explain(err error) (field, what string) {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		is := map[string]string{"object": "an object", "array": "a list", "string": "a string", "number": "a number", "bool": "true or false"}[wrong.Value]
		if is == "" {
			is = strings.TrimPrefix(wrong.Value, "number ") // keep only the number itself
		}
		return wrong.Field, fmt.Sprintf("want %s, not %s", wantedBy(wrong.Type), is)
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return "", fmt.Sprintf("is not valid JSON: %v, at byte %d", syntax, syntax.Offset)
	}
	// net/netip formats its errors as ParseAddr("x"): reason.
	head, _, _ := strings.Cut(err.Error(), "): ")
	if call, value, ok := strings.Cut(head, "("); ok {
		switch strings.TrimPrefix(call, "netip.") {
		case "ParseAddr":
			return "", value + " is not a valid address"
		case "ParsePrefix":
			return "", value + " is not a valid address with a prefix length, such as 10.244.3.0/24"
		}
	}
	return "", err.Error()
}

var readsText = reflect.TypeFor[encoding.TextUnmarshaler]()

// wantedBy returns the JSON type from which a Go type can be decoded.
func wantedBy(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(readsText) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint64:
		return "a whole number that is not negative"
	case reflect.Int:
		return "a whole number"
	}
	return "an object"
}
