// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"

	"github.com/loxilight/loxilight/api"
)

// object requests one object.
func (a *app) object(ctx context.Context, d Daemon, kind, name string) (api.Object, error) {
	var object api.Object
	err := d.Call(ctx, api.MethodGet, api.GetParams{Kind: kind, Name: name}, &object)
	return object, err
}

// list calls each for every page of a list, and returns the revision of the first.
func (a *app) list(ctx context.Context, d Daemon, params api.ListParams, each func([]api.Object) error) (uint64, error) {
	var revision uint64
	for {
		var page api.ListResult
		if err := d.Call(ctx, api.MethodList, params, &page); err != nil {
			return 0, err
		}
		if params.Continue == "" {
			revision = page.Revision
		}
		if err := each(page.Items); err != nil {
			return 0, err
		}
		if page.Continue == "" {
			return revision, nil
		}
		params.Continue = page.Continue
	}
}

// counters requests the counters of an object, or without kind and name of the node.
func (a *app) counters(ctx context.Context, d Daemon, kind, name string) (*api.CountersResult, error) {
	var counters api.CountersResult
	err := d.Call(ctx, api.MethodCounters, api.CountersParams{Kind: kind, Name: name}, &counters)
	return &counters, err
}

// isNotFound reports whether err is the daemon's answer that an object does not exist.
func isNotFound(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Reason() == api.ReasonNotFound
}
