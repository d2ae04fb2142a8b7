// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"

	"github.com/loxilight/loxilight/api"
)

// Object requests one object.
func (a *App) Object(ctx context.Context, d Daemon, kind, name string) (api.Object, error) {
	var object api.Object
	err := d.Call(ctx, api.MethodGet, api.GetParams{Kind: kind, Name: name}, &object)
	return object, err
}

// List calls each for every page of a list, and returns the revision of the first page.
func (a *App) List(ctx context.Context, d Daemon, params api.ListParams, each func([]api.Object) error) (uint64, error) {
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

// Counters requests the counters of an object, or of the node if kind and name are empty.
func (a *App) Counters(ctx context.Context, d Daemon, kind, name string) (*api.CountersResult, error) {
	var counters api.CountersResult
	err := d.Call(ctx, api.MethodCounters, api.CountersParams{Kind: kind, Name: name}, &counters)
	return &counters, err
}

// IsNotFound reports whether err is the daemon's report that an object does not exist.
func IsNotFound(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Reason() == api.ReasonNotFound
}

// Collect returns all objects of a list.
func (a *App) Collect(ctx context.Context, d Daemon, params api.ListParams) ([]api.Object, error) {
	var all []api.Object
	_, err := a.List(ctx, d, params, func(objects []api.Object) error {
		all = append(all, objects...)
		return nil
	})
	return all, err
}
