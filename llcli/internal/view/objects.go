// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

// objectWriter writes objects in the requested format.
type objectWriter struct {
	app    *command.App
	name   string      // of the kind
	kind   *kinds.Kind // nil: unknown to this llcli
	single bool        // one object, not a list of one
	table  *output.Table
	list   *output.ListWriter
	count  int
	hits   func(o *api.Object) string // packets that a rule decided on; nil: the kind has no such column
}

func newObjectWriter(a *command.App, name string, single bool) *objectWriter {
	w := &objectWriter{app: a, name: name, kind: kinds.Find(name), single: single, list: a.NewList()}
	columns := []output.Column{{Title: "NAME"}, {Title: "STATE"}}
	if w.kind != nil {
		columns = append(columns, w.kind.Columns...)
	}
	if w.hasHits() {
		columns = append(columns, output.Column{Title: "HITS", Right: true, Optional: 1})
	}
	if a.Format == output.FormatWide {
		if w.kind != nil {
			columns = append(columns, w.kind.Wide...)
		}
		columns = append(columns, output.Column{Title: "OWNER", Optional: 2}, output.Column{Title: "REVISION", Right: true, Optional: 3})
	}
	w.table = a.Table(append(columns, output.Column{Title: "MESSAGE", Flexible: true})...)
	return w
}

// hasHits reports whether the table shows how often each object decided.
func (w *objectWriter) hasHits() bool {
	return w.app.IsTable() && w.kind != nil && w.kind.Hits
}

// addHits makes w request the counters of each object that it shows, unless there are many.
func addHits(ctx context.Context, a *command.App, d command.Daemon, w *objectWriter) {
	w.hits = func(o *api.Object) string {
		if w.count > maxTop {
			return "-"
		}
		c, err := a.Counters(ctx, d, o.Kind, o.Name)
		if err != nil { // it has since been deleted, or the data plane has no rules
			return "-"
		}
		return output.Count(c.Packets)
	}
}

func (w *objectWriter) add(objects []api.Object) error {
	w.count += len(objects)
	for i := range objects {
		switch {
		case w.app.IsTable():
			w.table.Add(w.row(&objects[i])...)
		case w.app.Format == output.FormatName:
			w.app.Printf("%s\n", kinds.RefOf(&objects[i]))
		case w.single:
			return w.app.PrintValue(objects[i])
		default:
			if err := w.list.Add(objects[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *objectWriter) row(o *api.Object) []output.Cell {
	var status api.Status
	kinds.Decode(o, &struct{}{}, &status)
	state := cmp.Or(status.State, api.StatePending)
	wide := w.app.Format == output.FormatWide
	cells := []output.Cell{{Text: o.Name}, {Text: state, Color: output.StateColor(state)}}
	if w.kind != nil {
		cells = append(cells, w.kind.Cells(o, wide)...)
	}
	if w.hasHits() {
		cells = slices.Insert(cells, 2+len(w.kind.Columns), output.Cell{Text: w.hits(o)})
	}
	if wide {
		cells = append(cells, output.Cell{Text: cmp.Or(o.Owner, api.OwnerCLI)}, output.Cell{Text: strconv.FormatUint(o.Revision, 10)})
	}
	return append(cells, output.Cell{Text: status.Message})
}

func (w *objectWriter) end() error {
	switch {
	case !w.app.IsTable():
		if !w.single && w.app.Format != output.FormatName {
			w.list.End()
		}
	case w.count == 0:
		w.app.NoneFound(kinds.PluralOf(w.name))
	default:
		w.table.Flush()
	}
	return nil
}

// addOne writes one object of a stream.
func (w *objectWriter) addOne(o *api.Object) error {
	if w.app.IsTable() {
		w.table.Add(w.row(o)...)
		return nil
	}
	if w.app.Format == output.FormatName {
		w.app.Printf("%s\n", kinds.RefOf(o))
		return nil
	}
	return w.app.PrintLine(o)
}

func (w *objectWriter) flush() error {
	if !w.table.Empty() {
		w.table.Flush()
	}
	return w.app.Flush()
}
