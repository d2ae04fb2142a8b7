// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/api"
)

// watchObjects shows objects until the user interrupts: on a terminal the whole
// table again and again, for programs each object that changed.
func (a *app) watchObjects(ctx context.Context, d Daemon, kind string, names []string, options getOptions) error {
	if a.isTable() && a.Width() > 0 {
		return a.repeat(ctx, func() error { return a.getOnce(ctx, d, kind, names, options) })
	}
	w := a.objectWriter(kind, false)
	last := map[string]api.Object{}
	return a.periodically(ctx, func(bool) error {
		objects, err := a.fetch(ctx, d, kind, names, options)
		if err != nil {
			return err
		}
		return w.addChanged(last, objects)
	})
}

// fetch returns the objects of a kind, or those that are named, by name. One
// that is named and not there is left out.
func (a *app) fetch(ctx context.Context, d Daemon, kind string, names []string, options getOptions) (map[string]api.Object, error) {
	objects := map[string]api.Object{}
	if len(names) == 0 {
		params := api.ListParams{Kind: kind, Owner: options.owner, Labels: options.labels}
		_, err := a.list(ctx, d, params, func(page []api.Object) error {
			for i := range page {
				objects[page[i].Name] = page[i]
			}
			return nil
		})
		return objects, err
	}
	for _, name := range names {
		var object api.Object
		err := d.Call(ctx, api.MethodGet, api.GetParams{Kind: kind, Name: name}, &object)
		if e, ok := errors.AsType[*api.Error](err); ok && e.Reason() == api.ReasonNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		objects[name] = object
	}
	return objects, nil
}

// addChanged writes the objects that are not as they were in last, and those
// that are gone with the state Deleted, and makes last the same as objects.
func (w *objectWriter) addChanged(last, objects map[string]api.Object) error {
	write := func(o *api.Object) error {
		if w.app.isTable() {
			w.table.add(w.row(o)...)
			return nil
		}
		return w.app.printLine(o)
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		o := objects[name]
		if before, found := last[name]; found && before.Revision == o.Revision && string(before.Status) == string(o.Status) {
			continue
		}
		if err := write(&o); err != nil {
			return err
		}
		last[name] = o
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		if _, found := objects[name]; found {
			continue
		}
		o := last[name]
		o.Status = []byte(`{"state":"` + stateDeleted + `"}`)
		if err := write(&o); err != nil {
			return err
		}
		delete(last, name)
	}
	if w.app.isTable() && len(w.table.rows) > 0 {
		w.table.flush()
	}
	return nil
}
