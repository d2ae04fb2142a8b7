// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/api"
)

// A change that is larger than one request is sent as a transaction of several requests: all but
// the last only collect objects; the last one commits them all.

// plan contains the requests that make up a change.
type plan struct {
	staged    [][]byte // requests that change nothing yet
	counts    []int    // how many objects the daemon has collected after each staged request
	commit    []byte
	requestID string
}

// newPlan encodes a change. The parameters of apply, replace, delete and rollback get a request id
// unless they have one, and are split if necessary.
func newPlan(method, requestID string, params any) (*plan, error) {
	switch p := params.(type) {
	case *api.ApplyParams:
		return newPlan(method, requestID, *p)
	case *api.ReplaceParams:
		return newPlan(method, requestID, *p)
	case *api.DeleteParams:
		return newPlan(method, requestID, *p)
	case api.ApplyParams:
		return planOf(method, p.Objects, p.Change, func(objects []api.Object, c api.Change) any {
			return api.ApplyParams{Objects: objects, Change: c}
		})
	case api.ReplaceParams:
		return planOf(method, p.Objects, p.Change, func(objects []api.Object, c api.Change) any {
			return api.ReplaceParams{Owner: p.Owner, Kinds: p.Kinds, Objects: objects, Change: c}
		})
	case api.DeleteParams:
		return planOf(method, p.Objects, p.Change, func(objects []api.ObjectRef, c api.Change) any {
			return api.DeleteParams{Objects: objects, Change: c}
		})
	case *api.RollbackParams:
		return newPlan(method, requestID, *p)
	case api.RollbackParams:
		if p.RequestID == "" && !p.DryRun {
			p.RequestID = NewRequestID()
		}
		requestID, params = p.RequestID, p
	}
	request, err := encode(method, params)
	return &plan{commit: request, requestID: requestID}, err
}

// planOf makes a plan for objects. params returns the parameters of one request.
func planOf[T any](method string, objects []T, c api.Change, params func([]T, api.Change) any) (*plan, error) {
	if c.RequestID == "" && !c.DryRun {
		c.RequestID = NewRequestID()
	}
	if objects == nil {
		objects = []T{} // not null
	}
	p := &plan{requestID: c.RequestID}
	request, err := encode(method, params(objects, c))
	if err == nil || !errors.Is(err, ErrTooLong) {
		p.commit = request
		return p, err
	}
	staging := api.Change{Transaction: NewRequestID(), More: true}
	for count := 0; count < len(objects); {
		n, refused := fit(objects[count:])
		switch {
		case refused != nil:
			return nil, refused
		case c.Transaction != "":
			return nil, err // the caller sends several requests
		}
		request, err := encode(method, params(objects[count:count+n], staging))
		if err != nil {
			return nil, err
		}
		count += n
		p.staged, p.counts = append(p.staged, request), append(p.counts, count)
	}
	c.Transaction = staging.Transaction
	p.commit, err = encode(method, params([]T{}, c))
	return p, err
}

// fit returns how many of the first objects, each encoded with a trailing comma, fit in a request.
// It returns an error if not even the first object does.
func fit[T any](objects []T) (int, error) {
	used := 0
	for i := range objects {
		b, err := json.Marshal(objects[i])
		if err != nil {
			return 0, fmt.Errorf("encode the request: %w", err)
		}
		used += len(b) + 1
		switch {
		case used <= api.MaxObject:
		case i > 0:
			return i, nil
		default:
			return 0, tooLarge(objects[0], len(b))
		}
	}
	return len(objects), nil
}

// tooLarge returns the error for an object that does not fit in a request.
func tooLarge(object any, size int) error {
	if o, ok := object.(api.Object); ok {
		return api.ObjectTooLarge(o.Kind, o.Name, size)
	}
	return ErrTooLong
}

// requests returns all requests in order.
func (p *plan) requests() [][]byte { return append(slices.Clip(p.staged), p.commit) }
