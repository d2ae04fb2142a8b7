// SPDX-License-Identifier: Apache-2.0

// Package object checks the objects of requests and files, and converts them into desired state:
// strings of package api become the types of packages datapath and state.
//
// The package checks an object by itself, and knows neither the other objects nor the data plane.
package object

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const maxName = 253

var (
	namePattern  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9./:]*[a-z0-9])?$`)
	ownerPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9._/:]*[a-z0-9])?$`)
)

// maxOwner is the longest owner, in bytes.
const maxOwner = 63

// MaxLabels is the maximum number of labels of an object.
const MaxLabels = 64

// MaxLabelLen is the maximum length of the name and of the value of a label, in bytes.
const MaxLabelLen = 253

// Parse checks one object of a request or a file, and returns it as desired state. owner is the
// default owner, index is the object's position in the request, and b is the budget of the request.
func Parse(o *api.Object, owner string, index int, b *decode.Budget) (*state.Object, *api.Error) {
	place := "objects[" + strconv.Itoa(index) + "]"
	kind, err := ParseKind(o.Kind, place+".kind")
	if err != nil {
		return nil, err
	}
	if err := CheckName(kind, o.Name, place+".name"); err != nil {
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
	if err := CheckOwner(o.Owner); err != nil {
		return nil, at(err)
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
	return &state.Object{
		Key: state.Key{Kind: kind, Name: o.Name}, Owner: o.Owner, Labels: o.Labels, Spec: string(canonical), Value: value,
	}, nil
}

// ParseKind returns the constant for a kind; field is the path of the kind in the request.
func ParseKind(kind, field string) (string, *api.Error) {
	if i := slices.Index(api.Kinds, kind); i >= 0 {
		return api.Kinds[i], nil
	}
	if kind == "" {
		return "", invalid(field, "is missing: want one of %s", strings.Join(api.Kinds, ", "))
	}
	hint := ""
	if near := nearest(decode.Shorten(kind), api.Kinds); near != "" {
		hint = "did you mean " + near + "? "
	}
	return "", invalid(field, "%q is not known: %swant one of %s", decode.Shorten(kind), hint, strings.Join(api.Kinds, ", "))
}

// mostEdits is the maximum number of wrong letters with which [nearest] still finds a word.
const mostEdits = 2

// nearest returns the word that is most similar to text, ignoring case, or that begins with text;
// empty: no word is similar.
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

// CheckName checks the name of an object; field is the path of the name in the request.
func CheckName(kind, name, field string) *api.Error {
	if name == "" {
		return invalid(field, "is missing")
	}
	if len(name) > maxName || !namePattern.MatchString(name) {
		return api.Errorf(api.ReasonInvalid, "%q is not a valid name: want at most %d characters from a-z and 0-9, with -./: only between them", decode.Shorten(name), maxName).
			At(kind+"/"+decode.Shorten(name), "name")
	}
	if name == policy.Failsafe && (kind == state.KindPolicy || kind == state.KindTier) {
		return api.Errorf(api.ReasonInvalid, "%q is the key of the configuration by which the node stays reachable: choose another name", name).
			At(kind+"/"+name, "name")
	}
	return nil
}

// CheckOwner checks the owner of an object.
func CheckOwner(owner string) *api.Error {
	if len(owner) > maxOwner || !ownerPattern.MatchString(owner) {
		return invalid("owner", "%q is not a valid owner: want at most %d characters from a-z and 0-9, with -._/: only between them", decode.Shorten(owner), maxOwner)
	}
	return nil
}

func checkLabels(labels map[string]string) *api.Error {
	if len(labels) > MaxLabels {
		return invalid("labels", "%d of them: at most %d", len(labels), MaxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > MaxLabelLen || len(v) > MaxLabelLen {
			return invalid("labels", "%q: names have 1 to %d bytes, values at most %d", decode.Shorten(k), MaxLabelLen, MaxLabelLen)
		}
	}
	return nil
}
