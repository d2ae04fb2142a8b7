// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) countersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters [KIND NAME]",
		Short: "Show packets, bytes and drops by reason, of an object or of the node",
		Long: `Show the packets, bytes, connections and drops of an object, or without one of the
node. Reasons that never happened are left out; -o wide shows them too. llcli explain
tells what to do about a reason.`,
		Example: "  llcli counters\n  llcli counters service web --watch",
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			kind, name := "", ""
			if len(args) > 0 {
				k, names, err := refArgs(args)
				if err != nil {
					return err
				}
				if len(names) != 1 {
					return usagef("want KIND and one NAME, or neither for the node")
				}
				kind, name = k, names[0]
			}
			return a.repeat(ctx, func() error {
				counters, err := a.counters(ctx, d, kind, name)
				if err != nil {
					return err
				}
				if !a.isTable() {
					return a.printSample(counters)
				}
				a.printCounters(counters)
				return nil
			})
		}),
		ValidArgsFunction: a.completeRefs(1),
	}
	a.bindWatch(cmd)
	return cmd
}

// printSample writes a value that is shown once, or again and again.
func (a *app) printSample(v any) error {
	if a.watch {
		return a.printLine(v)
	}
	return a.printValue(v)
}

func (a *app) printCounters(c *api.CountersResult) {
	t := a.table(column{title: "PACKETS", right: true}, column{title: "BYTES", right: true}, column{title: "CONNECTIONS", right: true})
	t.add(cell{text: count(c.Packets)}, cell{text: size(c.Bytes)}, cell{text: count(c.Connections)})
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

// reasonTable shows counts by name, those of none only with -o wide.
func (a *app) reasonTable(v *vocabulary, counts map[string]uint64) *table {
	t := a.table(column{title: v.title}, column{title: "PACKETS", right: true}, column{title: "MEANING", flexible: true})
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > 0 || a.output == formatWide {
			t.add(cell{text: name}, cell{text: count(counts[name])}, cell{text: v.meaning(name)})
		}
	}
	return t
}
