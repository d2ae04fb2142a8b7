// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Decode parses the spec of a stored object.
func Decode(kind string, spec []byte) (state.Value, error) {
	if !slices.Contains(api.Kinds, kind) {
		return nil, fmt.Errorf("kind %s is not known", kind)
	}
	v, _, err := object.ParseSpec(kind, spec, nil)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// parseObject checks one object of a request or a file, and whether it fits in a reply. owner is
// the default owner, index is the object's position in the request, and b is the budget of the
// request.
func parseObject(o *api.Object, owner string, index int, b *decode.Budget) (*state.Object, *api.Error) {
	put, err := object.Parse(o, owner, index, b)
	if err != nil {
		return nil, err
	}
	if size := replySize(put); size > api.MaxObject {
		return nil, api.ObjectTooLarge(put.Kind, put.Name, size)
	}
	return put, nil
}

// The largest sizes, in bytes, of the parts of a reply about one object: for each backend, and for
// everything else except spec and labels. An Interface's addresses may take up more, but its spec
// is always small.
const (
	maxBackendStatus   = len(`{"address":"[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535","state":"draining","health":"unhealthy"},`)
	maxBackendCounters = len(`{"address":"[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535","connections":,"active":,"packets":,"bytes":},`) + 4*20
	maxRest            = 48 << 10
)

// replySize returns the maximum size, in bytes, of a reply that contains o with its status or its
// counters.
func replySize(o *state.Object) int {
	size := maxRest + len(o.Spec) + sizeOfJSON(o.Labels)
	if v, ok := o.Value.(*state.Service); ok {
		size = max(size+len(v.Backends)*maxBackendStatus, maxRest+len(v.Backends)*maxBackendCounters)
	}
	return size
}

// objectOf returns o as clients receive it. status is nil if it was not requested.
func objectOf(o *state.Object, status json.RawMessage) api.Object {
	return api.Object{
		Kind: o.Kind, Name: o.Name, Owner: o.Owner, Labels: o.Labels,
		Spec: json.RawMessage(o.Spec), Status: status, Revision: o.Revision,
	}
}

// documentError converts a structural error in a request to an API error. If the error is within an
// object whose name can be read, the API error names that object.
func documentError(e *decode.Error, params []byte) *api.Error {
	if e.Syntax {
		return &api.Error{Code: api.CodeParse, Message: e.Text, Data: &api.ErrorData{Reason: api.ReasonInvalid}}
	}
	var index int
	if n, _ := fmt.Sscanf(e.Path, "objects[%d]", &index); n == 1 {
		_, field, _ := strings.Cut(e.Path, "]")
		if ref := refAt(params, index); ref != "" && field != "" {
			return api.Errorf(e.Reason(), "%s", e.Text).At(ref, strings.TrimPrefix(field, "."))
		}
		return api.Errorf(e.Reason(), "%s", e.Text).At("", e.Path)
	}
	err := api.Errorf(e.Reason(), "%s", e.Text).At("", e.Path)
	if !e.Full {
		err.Code = api.CodeInvalidParams
	}
	return err
}

// refAt returns the name of object i of a malformed request; empty: it cannot be read.
func refAt(params []byte, i int) string {
	var ref api.ObjectRef
	if json.Unmarshal(decode.Element(params, "objects", i), &ref) != nil || ref.Kind == "" || ref.Name == "" {
		return ""
	}
	return decode.Shorten(ref.String())
}
