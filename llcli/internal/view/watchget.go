// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

// watchObjects shows objects until the user interrupts: on a terminal, the whole table repeatedly;
// otherwise, for programs, each object as it changes.
func watchObjects(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string, options kinds.Selection) error {
	if a.IsTable() && a.Width() > 0 {
		return a.Repeat(ctx, func() error { return getOnce(ctx, a, d, kind, names, options) })
	}
	w := newObjectWriter(a, kind, false)
	addHits(ctx, a, d, w)
	w.table.Reserve(1, len(output.StateDeleted)) // the longest state that may appear
	shown := map[string]api.Object{}
	synced := false
	out := command.Outage{App: a}
	for step, err := range d.Watch(ctx, client.WatchOptions{Kinds: []string{kind}, Owner: options.Owner}) {
		switch {
		case err != nil && (!synced || !command.IsUnreachable(err)):
			return err
		case err != nil:
			out.Tell(err)
			continue
		case step.Synced:
			synced = true
			out.Over()
		case step.Object != nil && (len(names) == 0 || slices.Contains(names, step.Ref.Name)) && options.Matches(step.Object):
			shown[step.Ref.Name] = *step.Object
			err = w.addOne(step.Object)
		case step.Object == nil:
			o, was := shown[step.Ref.Name]
			if !was {
				continue
			}
			delete(shown, step.Ref.Name)
			o.Status = []byte(`{"state":"` + output.StateDeleted + `"}`)
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
