// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/loxilight/loxilight/api"
)

// An object can be larger than a reply. Then its lists arrive in parts. A caller that changes a
// partial object, and applies it, would lose the rest: so callers never see a part unless they
// request it.

// caller makes one call, whose result may be a part.
type caller func(ctx context.Context, method string, params, result any) error

// whole reads the parts that did not fit the reply with result.
func (call caller) whole(ctx context.Context, params, result any) error {
	switch r := result.(type) {
	case *api.Object:
		if p, ok := params.(api.GetParams); ok && p.Continue == "" {
			return call.completeObject(ctx, r, p.Revision)
		}
	case *api.ListResult:
		items := r.Items[:0]
		for _, o := range r.Items {
			err := call.completeObject(ctx, &o, 0)
			if refused, ok := errors.AsType[*api.Error](err); ok && refused.Reason() == api.ReasonNotFound {
				continue // deleted meanwhile
			}
			if err != nil {
				return err
			}
			items = append(items, o)
		}
		r.Items = items
	case *api.CountersResult:
		if p, ok := params.(api.CountersParams); ok && p.Continue == "" {
			return call.completeCounters(ctx, p, r)
		}
	}
	return nil
}

func (call caller) completeCounters(ctx context.Context, p api.CountersParams, all *api.CountersResult) error {
	for all.Continue != "" {
		var part api.CountersResult
		p.Continue = all.Continue
		if err := call(ctx, api.MethodCounters, p, &part); err != nil {
			return err
		}
		all.Backends, all.Continue = append(all.Backends, part.Backends...), part.Continue
	}
	return nil
}

// completions is how often an object that changes meanwhile is read again.
const completions = 10

// completeObject reads the rest of o as it was at a revision; zero: as it is.
func (call caller) completeObject(ctx context.Context, o *api.Object, revision uint64) error {
	ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
	for range completions {
		err := call.addParts(ctx, o, revision)
		if err == nil {
			return nil
		}
		refused, ok := errors.AsType[*api.Error](err)
		if !errors.Is(err, errChanged) && (!ok || refused.Reason() != api.ReasonInvalid) { // invalid: it has become shorter
			return err
		}
		*o = api.Object{}
		if err := call(ctx, api.MethodGet, api.GetParams{Kind: ref.Kind, Name: ref.Name, Revision: revision}, o); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: changes faster than it can be read", ref)
}

// errChanged: two parts are of different revisions.
var errChanged = errors.New("changed while it was read")

func (call caller) addParts(ctx context.Context, o *api.Object, revision uint64) error {
	for o.Continue != "" {
		var part api.Object
		if err := call(ctx, api.MethodGet, api.GetParams{Kind: o.Kind, Name: o.Name, Revision: revision, Continue: o.Continue}, &part); err != nil {
			return err
		}
		if part.Revision != o.Revision {
			return errChanged
		}
		var err error
		if o.Spec, err = joinLists(o.Spec, part.Spec); err != nil {
			return fmt.Errorf("%s/%s: spec: %w", o.Kind, o.Name, err)
		}
		if o.Status, err = joinLists(o.Status, part.Status); err != nil {
			return fmt.Errorf("%s/%s: status: %w", o.Kind, o.Name, err)
		}
		o.Continue = part.Continue
	}
	return nil
}

func isObject(text json.RawMessage) bool { return len(text) > 0 && text[0] == '{' }

// joinLists appends the lists of the object b to the lists of the object a, recursively.
func joinLists(a, b json.RawMessage) (json.RawMessage, error) {
	switch {
	case len(b) == 0:
		return a, nil
	case len(a) == 0:
		return b, nil
	}
	var first, second map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(a, &first), json.Unmarshal(b, &second)); err != nil {
		return nil, err
	}
	for name, more := range second {
		var before, behind []json.RawMessage
		if there, ok := first[name]; ok && isObject(there) && isObject(more) {
			joined, err := joinLists(there, more)
			if err != nil {
				return nil, err
			}
			first[name] = joined
			continue
		}
		if json.Unmarshal(more, &behind) != nil || len(behind) == 0 {
			continue // no list: both parts have it
		}
		if there, ok := first[name]; ok {
			if err := json.Unmarshal(there, &before); err != nil {
				return nil, fmt.Errorf("%s is a list in one part only: %w", name, err)
			}
		}
		joined, err := json.Marshal(append(before, behind...))
		if err != nil {
			return nil, err
		}
		first[name] = joined
	}
	return json.Marshal(first)
}
