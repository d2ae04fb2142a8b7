// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// maxPart bounds the objects of one request, in bytes of JSON: what else stands
// in a request is far shorter than the rest.
const maxPart = api.MaxRequest - 32<<10

// transaction is a change of objects, which may be too large for one request.
type transaction struct {
	method  string
	objects []api.Object    // of apply and replace
	refs    []api.ObjectRef // of delete
	owner   string          // of replace
	kinds   []string        // of replace
	change  api.Change
}

// send carries out the transaction: as one request, or as several that the
// daemon collects and carries out with the last.
func (t *transaction) send(ctx context.Context, d Daemon) (*api.ChangeResult, error) {
	ends, err := t.parts()
	if err != nil {
		return nil, err
	}
	last := t.change
	if last.RequestID == "" && !last.DryRun {
		last.RequestID = client.NewRequestID()
	}
	if len(ends) > 1 {
		last.Transaction = client.NewRequestID()
	}
	begin := 0
	for _, end := range ends[:len(ends)-1] {
		change := api.Change{Transaction: last.Transaction, More: true}
		if err := d.Call(ctx, t.method, t.params(begin, end, change), &api.ChangeResult{}); err != nil {
			return nil, err
		}
		begin = end
	}
	var result api.ChangeResult
	params := t.params(begin, ends[len(ends)-1], last)
	if last.DryRun {
		err = d.Call(ctx, t.method, params, &result)
	} else {
		err = d.Change(ctx, t.method, last.RequestID, time.Duration(last.Wait), params, &result)
	}
	return &result, err
}

// params returns the parameters of the request that holds the objects from
// begin to end.
func (t *transaction) params(begin, end int, change api.Change) any {
	switch t.method {
	case api.MethodDelete:
		return api.DeleteParams{Objects: t.refs[begin:end], Change: change}
	case api.MethodReplace:
		return api.ReplaceParams{Owner: t.owner, Kinds: t.kinds, Objects: t.objects[begin:end], Change: change}
	default:
		return api.ApplyParams{Objects: t.objects[begin:end], Change: change}
	}
}

// parts returns where each request ends, in objects; there is at least one.
func (t *transaction) parts() ([]int, error) {
	var ends []int
	total, size := len(t.objects)+len(t.refs), 0
	for i := range total {
		text, err := marshal(t.at(i))
		if err != nil {
			return nil, err
		}
		if len(text) > maxPart {
			return nil, fmt.Errorf("%s: its %d bytes do not fit a request of %d", t.name(i), len(text), maxPart)
		}
		if size+len(text)+1 > maxPart {
			ends, size = append(ends, i), 0
		}
		size += len(text) + 1
	}
	return append(ends, total), nil
}

func (t *transaction) at(i int) any {
	if t.method == api.MethodDelete {
		return t.refs[i]
	}
	return t.objects[i]
}

func (t *transaction) name(i int) string {
	if t.method == api.MethodDelete {
		return t.refs[i].String()
	}
	return api.ObjectRef{Kind: t.objects[i].Kind, Name: t.objects[i].Name}.String()
}
