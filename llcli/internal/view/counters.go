// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func countersCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters [KIND [NAME…]]",
		Short: "Show packets, bytes and drops by reason, of objects or of the node",
		Long: `Show the packets, bytes, connections and drops of an object, or, without an object, of the
node. For several objects, or all objects of a kind, each object has one line. Reasons with a
count of 0 are omitted; -o wide shows them too. llcli explain REASON shows what to do.

The counters of a Kubernetes Service NAMESPACE/NAME are the sums over all its ports and
addresses, the counters of a pod NAMESPACE/NAME the sums over all its interfaces.`,
		Example: "  llcli counters\n  llcli counters service web --watch\n  llcli counters peers\n  llcli counters pod shop/web-1",
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			kind, names := "", []string{""}
			if len(args) > 0 {
				var err error
				if kind, names, err = kinds.RefArgs(args); err != nil {
					return err
				}
			}
			return a.Repeat(ctx, func() error {
				if len(names) != 1 {
					return eachCounters(ctx, a, d, kind, names)
				}
				counters, err := allCounters(ctx, a, d, kind, names[0])
				if err != nil {
					return err
				}
				if !a.IsTable() {
					return a.PrintSample(counters)
				}
				printCounters(a, kind, counters)
				return nil
			})
		}),
		ValidArgsFunction: kinds.CompleteRefs(a, 0),
	}
	a.BindWatch(cmd)
	return cmd
}

// namedCounters are the counters of one of several objects.
type namedCounters struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	*api.CountersResult
}

// eachCounters shows the counters of several objects; without names, of all objects of the kind.
func eachCounters(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string) error {
	given := len(names) > 0
	if !given {
		_, err := a.List(ctx, d, api.ListParams{Kind: kind}, func(objects []api.Object) error {
			for i := range objects {
				names = append(names, objects[i].Name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(names) > maxTop {
		return fmt.Errorf("there are %s objects of kind %s, and counters shows at most %s; name the objects to show", output.Count(uint64(len(names))), kind, output.Count(maxTop))
	}
	figures := func(name string) (*api.CountersResult, error) {
		if given {
			return allCounters(ctx, a, d, kind, name)
		}
		return a.Counters(ctx, d, kind, name) // the name of a listed object stands for that object only
	}
	all := make([]namedCounters, 0, len(names))
	for _, name := range names {
		c, err := figures(name)
		refused, _ := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
		case command.IsNotFound(err) && !given:
			continue // deleted since it was listed
		case kind == api.KindPeer && refused != nil && refused.Reason() == api.ReasonUnsupported:
			c = nil // the underlay routes it
		default:
			return err
		}
		all = append(all, namedCounters{kind, name, c})
	}
	if !a.IsTable() {
		return a.PrintSample(all)
	}
	if len(all) == 0 {
		a.NoneFound("counters")
	}
	printEach(a, kind, all)
	return nil
}

// printEach shows counters one object per line.
func printEach(a *command.App, kind string, all []namedCounters) {
	columns := []output.Column{{Title: "NAME", Flexible: true}}
	titles, figures := []string{"PACKETS", "BYTES", "CONNECTIONS", "DROPS"}, func(c *api.CountersResult) []string {
		return []string{output.Count(c.Packets), output.Size(c.Bytes), output.Count(c.Connections), output.Count(total(c.Drops))}
	}
	switch kinds.CountersOf(kind) {
	case kinds.TunnelCounters:
		titles, figures = []string{"TX-PACKETS", "TX-BYTES", "RX-PACKETS", "RX-BYTES", "DROPS"}, func(c *api.CountersResult) []string {
			sent, received := orNothing(c.Sent), orNothing(c.Received)
			return []string{output.Count(sent.Packets), output.Size(sent.Bytes), output.Count(received.Packets), output.Size(received.Bytes), output.Count(c.Dropped)}
		}
	case kinds.CopyCounters:
		titles, figures = []string{"COPIES", "BYTES", "DROPS"}, func(c *api.CountersResult) []string {
			return []string{output.Count(c.Packets), output.Size(c.Bytes), output.Count(c.Dropped)}
		}
	case kinds.DeviceCounters:
		titles, figures = []string{"PACKETS", "BYTES", "DROPS"}, func(c *api.CountersResult) []string {
			return []string{output.Count(c.Packets), output.Size(c.Bytes), output.Count(total(c.Drops))}
		}
	}
	for _, title := range titles {
		columns = append(columns, output.Column{Title: title, Right: true})
	}
	t := a.Table(columns...)
	for _, one := range all {
		cells := []output.Cell{{Text: one.Name}}
		if one.CountersResult == nil {
			cells = append(cells, slices.Repeat([]output.Cell{{Text: "-"}}, len(titles))...)
		} else {
			for _, text := range figures(one.CountersResult) {
				cells = append(cells, output.Cell{Text: text})
			}
		}
		t.Add(cells...)
	}
	t.Flush()
}

func orNothing(t *api.Traffic) api.Traffic {
	if t == nil {
		return api.Traffic{}
	}
	return *t
}

// allCounters returns the counters of an object, or the sum for a Kubernetes service or pod.
func allCounters(ctx context.Context, a *command.App, d command.Daemon, kind, name string) (*api.CountersResult, error) {
	names, err := kinds.Expand(ctx, a, d, kind, name)
	if err != nil {
		return nil, err
	}
	sum, err := a.Counters(ctx, d, kind, names[0])
	for _, next := range names[1:] {
		if err != nil {
			return nil, err
		}
		var c *api.CountersResult
		if c, err = a.Counters(ctx, d, kind, next); err == nil {
			addCounters(sum, c)
		}
	}
	return sum, err
}

// addCounters adds another object's counters; backends with the same address are merged.
func addCounters(to, c *api.CountersResult) {
	to.Packets, to.Bytes, to.Connections = to.Packets+c.Packets, to.Bytes+c.Bytes, to.Connections+c.Connections
	if to.Drops == nil {
		to.Drops = map[string]uint64{}
	}
	for reason, n := range c.Drops {
		to.Drops[reason] += n
	}
	for _, b := range c.Backends {
		i := slices.IndexFunc(to.Backends, func(have api.BackendCounters) bool { return have.Address == b.Address })
		if i < 0 {
			to.Backends = append(to.Backends, b)
			continue
		}
		have := &to.Backends[i]
		have.Connections, have.Active = have.Connections+b.Connections, have.Active+b.Active
		have.Packets, have.Bytes = have.Packets+b.Packets, have.Bytes+b.Bytes
	}
}

func printCounters(a *command.App, kind string, c *api.CountersResult) {
	if c.Sent != nil || c.Received != nil {
		printBothWays(a, c)
		return
	}
	columns := []output.Column{{Title: "PACKETS", Right: true}, {Title: "BYTES", Right: true}}
	cells := []output.Cell{{Text: output.Count(c.Packets)}, {Text: output.Size(c.Bytes)}}
	switch kinds.CountersOf(kind) {
	case kinds.DeviceCounters:
	case kinds.CopyCounters:
		columns[0].Title = "COPIES"
		columns, cells = append(columns, output.Column{Title: "DROPS", Right: true}), append(cells, output.Cell{Text: output.Count(c.Dropped)})
	default:
		columns, cells = append(columns, output.Column{Title: "CONNECTIONS", Right: true}), append(cells, output.Cell{Text: output.Count(c.Connections)})
	}
	t := a.Table(columns...)
	t.Add(cells...)
	t.Flush()
	if len(c.Backends) > 0 {
		t := a.Table(output.Column{Title: "BACKEND"}, output.Column{Title: "ACTIVE", Right: true}, output.Column{Title: "CONNECTIONS", Right: true},
			output.Column{Title: "PACKETS", Right: true}, output.Column{Title: "BYTES", Right: true})
		for _, b := range c.Backends {
			t.Add(output.Cell{Text: b.Address}, output.Cell{Text: output.Count(b.Active)}, output.Cell{Text: output.Count(b.Connections)}, output.Cell{Text: output.Count(b.Packets)}, output.Cell{Text: output.Size(b.Bytes)})
		}
		a.Section(t)
	}
	if len(c.Rules) > 0 {
		a.Section(kinds.DecisionsTable(a, c.Rules))
	}
	a.Section(reasonTable(a, &verdictWords, c.Verdicts))
	a.Section(reasonTable(a, &dropWords, c.Drops))
}

// printBothWays shows the counters of a tunnel or peer.
func printBothWays(a *command.App, c *api.CountersResult) {
	t := a.Table(output.Column{Title: "DIRECTION"}, output.Column{Title: "PACKETS", Right: true}, output.Column{Title: "BYTES", Right: true})
	sent, received := orNothing(c.Sent), orNothing(c.Received)
	t.Add(output.Cell{Text: "sent"}, output.Cell{Text: output.Count(sent.Packets)}, output.Cell{Text: output.Size(sent.Bytes)})
	t.Add(output.Cell{Text: "received"}, output.Cell{Text: output.Count(received.Packets)}, output.Cell{Text: output.Size(received.Bytes)})
	t.Add(output.Cell{Text: "dropped"}, output.Cell{Text: output.Count(c.Dropped)}, output.Cell{Text: "-"})
	t.Flush()
	if c.Dropped > 0 {
		a.Note("the reasons are counted for the node (llcli counters); llcli events drops shows such packets")
	}
}

// reasonTable shows counts by name, zero counts only with -o wide.
func reasonTable(a *command.App, v *vocabulary, counts map[string]uint64) *output.Table {
	t := a.Table(output.Column{Title: v.title}, output.Column{Title: "PACKETS", Right: true}, output.Column{Title: "MEANING", Flexible: true})
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > 0 || a.Format == output.FormatWide {
			t.Add(output.Cell{Text: name}, output.Cell{Text: output.Count(counts[name])}, output.Cell{Text: v.meaning(name)})
		}
	}
	return t
}
