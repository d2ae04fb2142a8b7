// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/api"
)

// A change that is larger than one request is sent in pieces of one transaction: all but the last
// only collect objects, the last commits them all.

// plan is a change as the requests that make it up.
type plan struct {
	staged    [][]byte // change nothing yet
	counts    []int    // of objects that the daemon has after each of them
	commit    []byte
	requestID string
}

// newPlan encodes a change. The parameters of apply, replace, delete and rollback get a request id
// if it is missing, and are split if necessary.
func newPlan(method, requestID string, params any) (*plan, error) {
	switch p := params.(type) {
	case *api.ApplyParams:
		return newPlan(method, requestID, *p)
	case *api.ReplaceParams:
		return newPlan(method, requestID, *p)
	case *api.DeleteParams:
		return newPlan(method, requestID, *p)
	case api.ApplyParams:
		return planOf(method, p.Objects, p.Change, splitObjects, func(objects []api.Object, c api.Change) any {
			return api.ApplyParams{Objects: objects, Change: c}
		})
	case api.ReplaceParams:
		return planOf(method, p.Objects, p.Change, splitObjects, func(objects []api.Object, c api.Change) any {
			return api.ReplaceParams{Owner: p.Owner, Kinds: p.Kinds, Objects: objects, Change: c}
		})
	case api.DeleteParams:
		return planOf(method, p.Objects, p.Change, nil, func(objects []api.ObjectRef, c api.Change) any {
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

// planOf makes a plan for objects. split divides objects that are larger than a request; nil: no
// object is. params returns the parameters of one request.
func planOf[T any](method string, objects []T, c api.Change, split func([]T) ([][]T, error), params func([]T, api.Change) any) (*plan, error) {
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
	if c.Transaction != "" {
		return nil, err // the caller splits
	}
	c.Transaction = NewRequestID()
	staging := api.Change{Transaction: c.Transaction, More: true}
	runs := [][]T{objects}
	if split != nil {
		if runs, err = split(objects); err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
	}
	for _, run := range runs {
		if err := stage(p, method, run, staging, params); err != nil {
			return nil, err
		}
	}
	p.commit, err = encode(method, params([]T{}, c))
	return p, err
}

// stage adds the requests that collect a run of objects to a plan.
func stage[T any](p *plan, method string, objects []T, staging api.Change, params func([]T, api.Change) any) error {
	empty, err := encode(method, params([]T{}, staging))
	if err != nil {
		return err
	}
	count := 0
	if len(p.counts) > 0 {
		count = p.counts[len(p.counts)-1]
	}
	for len(objects) > 0 {
		n, err := fit(objects, api.MaxRequest-len(empty))
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		request, err := encode(method, params(objects[:n], staging))
		if err != nil {
			return err
		}
		count += n
		p.staged, p.counts = append(p.staged, request), append(p.counts, count)
		objects = objects[n:]
	}
	return nil
}

// fit returns how many of the first objects, which are encoded with a comma
// behind each, take no more than size bytes: one at least.
func fit[T any](objects []T, size int) (int, error) {
	used := 0
	for i := range objects {
		b, err := json.Marshal(objects[i])
		if err != nil {
			return 0, fmt.Errorf("encode the request: %w", err)
		}
		used += len(b) + 1
		if used > size {
			return max(i, 1), nil
		}
	}
	return len(objects), nil
}

// requests returns all requests in their order.
func (p *plan) requests() [][]byte { return append(slices.Clip(p.staged), p.commit) }
