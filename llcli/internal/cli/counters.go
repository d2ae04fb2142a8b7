// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) countersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters [KIND [NAME…]]",
		Short: "Show packets, bytes and drops by reason, of objects or of the node",
		Long: `Show the packets, bytes, connections and drops of an object, or without one of the
node. Of several objects, or all of a kind, the figures are shown one object a line.
Reasons that never happened are left out; -o wide shows them too. llcli explain tells
what to do about a reason.

A service NAMESPACE/NAME of Kubernetes is the sum of all its ports and addresses, a pod
NAMESPACE/NAME that of all its interfaces.`,
		Example: "  llcli counters\n  llcli counters service web --watch\n  llcli counters peers\n  llcli counters pod shop/web-1",
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			kind, names := "", []string{""}
			if len(args) > 0 {
				var err error
				if kind, names, err = refArgs(args); err != nil {
					return err
				}
			}
			return a.repeat(ctx, func() error {
				if len(names) != 1 {
					return a.eachCounters(ctx, d, kind, names)
				}
				counters, err := a.allCounters(ctx, d, kind, names[0])
				if err != nil {
					return err
				}
				if !a.isTable() {
					return a.printSample(counters)
				}
				a.printCounters(kind, counters)
				return nil
			})
		}),
		ValidArgsFunction: a.completeRefs(0),
	}
	a.bindWatch(cmd)
	return cmd
}

// namedCounters are the counters of one of several objects.
type namedCounters struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	*api.CountersResult
}

// eachCounters shows the counters of several objects; without names, of all objects of the kind.
func (a *app) eachCounters(ctx context.Context, d Daemon, kind string, names []string) error {
	given := len(names) > 0
	if !given {
		_, err := a.list(ctx, d, api.ListParams{Kind: kind}, func(objects []api.Object) error {
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
		return fmt.Errorf("there are %s objects of kind %s, and counters looks at %s at most: name those that matter", count(uint64(len(names))), kind, count(maxTop))
	}
	figures := a.allCounters
	if !given {
		figures = a.counters // a listed object is that one
	}
	all := make([]namedCounters, 0, len(names))
	for _, name := range names {
		c, err := figures(ctx, d, kind, name)
		refused, _ := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
		case isNotFound(err) && !given:
			continue // deleted since it was listed
		case kind == api.KindPeer && refused != nil && refused.Reason() == api.ReasonUnsupported:
			c = nil // the underlay routes it
		default:
			return err
		}
		all = append(all, namedCounters{kind, name, c})
	}
	if !a.isTable() {
		return a.printSample(all)
	}
	if len(all) == 0 {
		a.noneFound("counters")
	}
	a.printEach(kind, all)
	return nil
}

// printEach shows counters one object a line.
func (a *app) printEach(kind string, all []namedCounters) {
	columns := []column{{title: "NAME", flexible: true}}
	titles, figures := []string{"PACKETS", "BYTES", "CONNECTIONS", "DROPS"}, func(c *api.CountersResult) []string {
		return []string{count(c.Packets), size(c.Bytes), count(c.Connections), count(total(c.Drops))}
	}
	switch kind {
	case api.KindTunnel, api.KindPeer:
		titles, figures = []string{"TX-PACKETS", "TX-BYTES", "RX-PACKETS", "RX-BYTES", "DROPS"}, func(c *api.CountersResult) []string {
			sent, received := orNothing(c.Sent), orNothing(c.Received)
			return []string{count(sent.Packets), size(sent.Bytes), count(received.Packets), size(received.Bytes), count(c.Dropped)}
		}
	case api.KindInterface, api.KindEndpoint: // devices have no connections
		titles, figures = []string{"PACKETS", "BYTES", "DROPS"}, func(c *api.CountersResult) []string {
			return []string{count(c.Packets), size(c.Bytes), count(total(c.Drops))}
		}
	}
	for _, title := range titles {
		columns = append(columns, column{title: title, right: true})
	}
	t := a.table(columns...)
	for _, one := range all {
		cells := []cell{{text: one.Name}}
		if one.CountersResult == nil {
			cells = append(cells, slices.Repeat([]cell{{text: "-"}}, len(titles))...)
		} else {
			for _, text := range figures(one.CountersResult) {
				cells = append(cells, cell{text: text})
			}
		}
		t.add(cells...)
	}
	t.flush()
}

func orNothing(t *api.Traffic) api.Traffic {
	if t == nil {
		return api.Traffic{}
	}
	return *t
}

// allCounters returns the counters of an object, or the sum for a service or pod of Kubernetes.
func (a *app) allCounters(ctx context.Context, d Daemon, kind, name string) (*api.CountersResult, error) {
	names, err := []string{name}, error(nil)
	switch kind {
	case api.KindService:
		names, err = a.objectsOf(ctx, d, name)
	case api.KindEndpoint:
		names, err = a.endpointsOf(ctx, d, name)
	}
	if err != nil {
		return nil, err
	}
	sum, err := a.counters(ctx, d, kind, names[0])
	for _, next := range names[1:] {
		if err != nil {
			return nil, err
		}
		var c *api.CountersResult
		if c, err = a.counters(ctx, d, kind, next); err == nil {
			addCounters(sum, c)
		}
	}
	return sum, err
}

// addCounters adds another object's counters; backends of the same address are merged.
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

// printSample writes a value that is shown once, or again and again.
func (a *app) printSample(v any) error {
	if a.watch {
		return a.printLine(v)
	}
	return a.printValue(v)
}

func (a *app) printCounters(kind string, c *api.CountersResult) {
	if c.Sent != nil || c.Received != nil {
		a.printBothWays(c)
		return
	}
	columns := []column{{title: "PACKETS", right: true}, {title: "BYTES", right: true}}
	cells := []cell{{text: count(c.Packets)}, {text: size(c.Bytes)}}
	if kind != api.KindInterface && kind != api.KindEndpoint { // devices have no connections
		columns, cells = append(columns, column{title: "CONNECTIONS", right: true}), append(cells, cell{text: count(c.Connections)})
	}
	t := a.table(columns...)
	t.add(cells...)
	t.flush()
	if len(c.Backends) > 0 {
		t := a.table(column{title: "BACKEND"}, column{title: "ACTIVE", right: true}, column{title: "CONNECTIONS", right: true},
			column{title: "PACKETS", right: true}, column{title: "BYTES", right: true})
		for _, b := range c.Backends {
			t.add(cell{text: b.Address}, cell{text: count(b.Active)}, cell{text: count(b.Connections)}, cell{text: count(b.Packets)}, cell{text: size(b.Bytes)})
		}
		a.section(t)
	}
	a.section(a.reasonTable(&verdictWords, c.Verdicts))
	a.section(a.reasonTable(&dropWords, c.Drops))
}

// printBothWays shows the counters of a tunnel or peer.
func (a *app) printBothWays(c *api.CountersResult) {
	t := a.table(column{title: "DIRECTION"}, column{title: "PACKETS", right: true}, column{title: "BYTES", right: true})
	sent, received := orNothing(c.Sent), orNothing(c.Received)
	t.add(cell{text: "sent"}, cell{text: count(sent.Packets)}, cell{text: size(sent.Bytes)})
	t.add(cell{text: "received"}, cell{text: count(received.Packets)}, cell{text: size(received.Bytes)})
	t.add(cell{text: "dropped"}, cell{text: count(c.Dropped)}, cell{text: "-"})
	t.flush()
	if c.Dropped > 0 {
		a.note("the reasons are counted for the node (llcli counters); llcli events drops shows such packets")
	}
}

// reasonTable shows counts by name, zero counts only with -o wide.
func (a *app) reasonTable(v *vocabulary, counts map[string]uint64) *table {
	t := a.table(column{title: v.title}, column{title: "PACKETS", right: true}, column{title: "MEANING", flexible: true})
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > 0 || a.output == formatWide {
			t.add(cell{text: name}, cell{text: count(counts[name])}, cell{text: v.meaning(name)})
		}
	}
	return t
}
