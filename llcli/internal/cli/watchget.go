// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// watchObjects shows objects until the user interrupts: on a terminal the whole
// table again and again, else, for programs, each object as it changes.
func (a *app) watchObjects(ctx context.Context, d Daemon, kind string, names []string, options getOptions) error {
	if a.isTable() && a.Width() > 0 {
		return a.repeat(ctx, func() error { return a.getOnce(ctx, d, kind, names, options) })
	}
	w := a.objectWriter(kind, false)
	a.addHits(ctx, d, w)
	w.table.widths[1] = len(stateDeleted) // the longest that a state can become
	shown := map[string]api.Object{}
	synced := false
	out := outage{app: a}
	for step, err := range d.Watch(ctx, client.WatchOptions{Kinds: []string{kind}, Owner: options.owner}) {
		switch {
		case err != nil && (!synced || !isUnreachable(err)):
			return err
		case err != nil:
			out.tell(err)
			continue
		case step.Synced:
			synced = true
			out.over()
		case step.Object != nil && (len(names) == 0 || slices.Contains(names, step.Ref.Name)) && options.matches(step.Object):
			shown[step.Ref.Name] = *step.Object
			err = w.addOne(step.Object)
		case step.Object == nil:
			o, was := shown[step.Ref.Name]
			if !was {
				continue
			}
			delete(shown, step.Ref.Name)
			o.Status = []byte(`{"state":"` + stateDeleted + `"}`)
			err = w.addOne(&o)
		}
		if err != nil {
			return err
		}
		if synced { // until then the rows are laid out together
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// matches reports whether an object has the requested labels.
func (o *getOptions) matches(object *api.Object) bool {
	for key, value := range o.labels {
		if object.Labels[key] != value {
			return false
		}
	}
	return true
}

// addOne writes one object of a stream.
func (w *objectWriter) addOne(o *api.Object) error {
	if w.app.isTable() {
		w.table.add(w.row(o)...)
		return nil
	}
	if w.app.output == formatName {
		w.app.printf("%s\n", refOf(o))
		return nil
	}
	return w.app.printLine(o)
}

func (w *objectWriter) flush() error {
	if len(w.table.rows) > 0 {
		w.table.flush()
	}
	return w.app.out.Flush()
}
