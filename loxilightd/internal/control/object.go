// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const maxName = 253

var (
	namePattern  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9./:]*[a-z0-9])?$`)
	ownerPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9._/:]*[a-z0-9])?$`)
)

// Limits on labels.
const (
	maxLabels   = 64
	maxLabelLen = 253
	maxOwner    = 63
)

// parseObject checks one object of a request or a file. owner is the default owner, index is the
// object's position in the request, and b is the budget of the request.
func parseObject(o *api.Object, owner string, index int, b *budget) (*state.Object, *api.Error) {
	place := "objects[" + strconv.Itoa(index) + "]"
	kind, err := parseKind(o.Kind, place+".kind")
	if err != nil {
		return nil, err
	}
	if err := parseName(kind, o.Name, place+".name"); err != nil {
		return nil, err
	}
	ref := api.ObjectRef{Kind: kind, Name: o.Name}.String()
	at := func(err *api.Error) *api.Error {
		field := ""
		if err.Data != nil {
			field = err.Data.Field
		}
		text := strings.TrimPrefix(err.Message, field+": ")
		return (&api.Error{Code: err.Code, Message: text, Data: err.Data}).At(ref, field)
	}
	if o.Owner == "" {
		o.Owner = owner
	}
	if len(o.Owner) > maxOwner || !ownerPattern.MatchString(o.Owner) {
		return nil, at(invalid("owner", "%q is not a valid owner: want at most %d of a-z, 0-9 and -._/: between them", shorten(o.Owner), maxOwner))
	}
	if err := checkLabels(o.Labels); err != nil {
		return nil, at(err)
	}
	if len(o.Spec) == 0 || string(o.Spec) == "null" {
		return nil, at(invalid("spec", "is missing"))
	}
	value, canonical, err := kindSpecs[kind].parse(o.Spec, b)
	// One such backend must not cause one of the agent's changes to be rejected as a whole: the
	// Service reports the backend instead.
	if admit := kindSpecs[kind].admit; err == nil && admit != nil && o.Owner != api.OwnerK8s {
		err = admit(value)
	}
	if err != nil {
		return nil, at(err)
	}
	put := &state.Object{
		Key: state.Key{Kind: kind, Name: o.Name}, Owner: o.Owner, Labels: o.Labels, Spec: string(canonical), Value: value,
	}
	if size := replySize(put); size > api.MaxObject {
		return nil, api.ObjectTooLarge(kind, o.Name, size)
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

// parseKind returns the constant for a kind.
func parseKind(kind, field string) (string, *api.Error) {
	if i := slices.Index(api.Kinds, kind); i >= 0 {
		return api.Kinds[i], nil
	}
	if kind == "" {
		return "", invalid(field, "is missing: want one of %s", strings.Join(api.Kinds, ", "))
	}
	hint := ""
	if near := nearest(shorten(kind), api.Kinds); near != "" {
		hint = "did you mean " + near + "? "
	}
	return "", invalid(field, "%q is not known: %swant one of %s", shorten(kind), hint, strings.Join(api.Kinds, ", "))
}

// mostEdits is the maximum number of wrong letters with which [nearest] still finds a word.
const mostEdits = 2

// nearest returns the word that is most similar to text, ignoring case, or that begins with text.
// It returns an empty string if no word is similar.
func nearest(text string, words []string) (best string) {
	text = strings.ToLower(text)
	least := mostEdits + 1
	for _, word := range words {
		edits := distance(text, strings.ToLower(word))
		if len(text) > mostEdits && strings.HasPrefix(strings.ToLower(word), text) {
			edits = min(edits, mostEdits)
		}
		if edits < least && edits < len(text) {
			best, least = word, edits
		}
	}
	return best
}

// distance returns the Levenshtein distance between two texts, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances from a[:i] to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

func parseName(kind, name, field string) *api.Error {
	if name == "" {
		return invalid(field, "is missing")
	}
	if len(name) > maxName || !namePattern.MatchString(name) {
		return api.Errorf(api.ReasonInvalid, "%q is not a valid name: want at most %d of a-z, 0-9 and -./: between them", shorten(name), maxName).
			At(kind+"/"+shorten(name), "name")
	}
	return nil
}

func checkLabels(labels map[string]string) *api.Error {
	if len(labels) > maxLabels {
		return invalid("labels", "%d of them: at most %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabelLen || len(v) > maxLabelLen {
			return invalid("labels", "%q: names have 1 to %d bytes, values at most %d", shorten(k), maxLabelLen, maxLabelLen)
		}
	}
	return nil
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
func documentError(e *fieldError, params []byte) *api.Error {
	if e.syntax {
		return &api.Error{Code: api.CodeParse, Message: e.text, Data: &api.ErrorData{Reason: api.ReasonInvalid}}
	}
	var index int
	if n, _ := fmt.Sscanf(e.path, "objects[%d]", &index); n == 1 {
		_, field, _ := strings.Cut(e.path, "]")
		if ref := refAt(params, index); ref != "" && field != "" {
			return api.Errorf(e.reason(), "%s", e.text).At(ref, strings.TrimPrefix(field, "."))
		}
		return api.Errorf(e.reason(), "%s", e.text).At("", e.path)
	}
	err := api.Errorf(e.reason(), "%s", e.text).At("", e.path)
	if !e.full {
		err.Code = api.CodeInvalidParams
	}
	return err
}

// refAt returns the name of object i of a malformed request. It does not retain the preceding
// objects, because a request may contain very many.
func refAt(params []byte, i int) string {
	var found json.RawMessage
	d := decoder{data: params}
	if d.peek() != '{' {
		return ""
	}
	_ = d.object(func(key string, _ *uint64) *fieldError { // an error ends the search
		if key != "objects" || d.peek() != '[' {
			_, err := d.raw()
			return err
		}
		return d.members(']', func(at int) *fieldError {
			raw, err := d.raw()
			if at == i {
				found = raw
				return fieldErrorf("", "found")
			}
			return err
		})
	})
	var ref api.ObjectRef
	if json.Unmarshal(found, &ref) != nil || ref.Kind == "" || ref.Name == "" {
		return ""
	}
	return shorten(ref.String())
}
