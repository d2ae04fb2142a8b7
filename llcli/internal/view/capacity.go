// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// How many owners of each kind are shown: of all tables, and of tables that are named.
const (
	ownersOfAll   = 3
	ownersOfNamed = 10
)

func capacityCommand(a *command.App) *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:   "capacity [TABLE…]",
		Short: "Show how full the tables are, when they will be full, and the owners of their entries",
		Long: `Show every table, pool and resource that can be full: the entries in use, the size, the
growth in the last 5 minutes and in the last hour, when it will be full if it continues to
grow as in the last 5 minutes, and what changes its size; then the largest owners of its
entries: source addresses (of IPv6 addresses, the first 64 bits), objects, and for source
ports the remote addresses. Growth is unknown until the daemon has run for that long.

The row sourcePorts is about the remote address to which the largest share of the ports is in
use; it needs --owners.`,
		Example:           "  llcli capacity\n  llcli capacity connections --owners 20\n  llcli capacity -o json",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.Run(func(ctx context.Context, d command.Daemon, names []string) error {
		switch {
		case cmd.Flags().Changed("owners"):
		case len(names) > 0:
			count = ownersOfNamed
		default:
			count = ownersOfAll
		}
		return a.Repeat(ctx, func() error { return showCapacity(ctx, a, d, names, count) })
	})
	cmd.Flags().IntVar(&count, "owners", 0, "show the `N` largest owners of each kind, at most 100; 0: none (3 if not set; 10 of named tables)")
	command.Must(cmd.RegisterFlagCompletionFunc("owners", cobra.NoFileCompletions))
	a.BindWatch(cmd)
	return cmd
}

func showCapacity(ctx context.Context, a *command.App, d command.Daemon, names []string, owners int) error {
	var all api.CapacityResult
	if err := d.Call(ctx, api.MethodCapacity, api.CapacityParams{Owners: owners}, &all); err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(all.Tables, func(t api.TableCapacity) bool { return isCalled(&t, name) }) {
			if owners == 0 && strings.EqualFold(name, "sourcePorts") {
				return command.Usagef("source ports are counted only with --owners 1 or more")
			}
			return command.Usagef("there is no table %q: llcli capacity shows all of them", name)
		}
	}
	all.Tables = slices.DeleteFunc(all.Tables, func(t api.TableCapacity) bool {
		return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return isCalled(&t, name) })
	})
	if !a.IsTable() {
		return a.PrintSample(all)
	}
	growthTable(a, all.Tables).Flush()
	if t := ownersTable(a, all.Tables); t != nil {
		a.Section(t)
	}
	return nil
}

// isCalled reports whether a user means a table by a name: "connections" means the tables of
// both families.
func isCalled(t *api.TableCapacity, name string) bool {
	return strings.EqualFold(t.Name, name) || strings.HasPrefix(strings.ToLower(t.Name), strings.ToLower(name)+" ")
}

func growthTable(a *command.App, tables []api.TableCapacity) *output.Table {
	t := a.Table(
		output.Column{Title: "TABLE"}, output.Column{Title: "USED", Right: true}, output.Column{Title: "SIZE", Right: true},
		output.Column{Title: "FULL", Right: true}, output.Column{Title: "5 MIN", Right: true}, output.Column{Title: "1 HOUR", Right: true},
		output.Column{Title: "FULL IN", Right: true}, output.Column{Title: "SIZE SET BY", Flexible: true, Optional: 1},
	)
	for i := range tables {
		c := &tables[i]
		left := "-"
		if c.FullIn != nil {
			left = output.Short(*c.FullIn)
		}
		used, size := amount(c.Unit, c.Used), output.Room(c.Size)
		if c.Unit == "bytes" {
			size = output.Size(c.Size)
		}
		t.Add(
			output.Cell{Text: output.Clean(c.Name)}, output.Cell{Text: used}, output.Cell{Text: size},
			output.Cell{Text: output.Percent(c.Used, c.Size), Color: fullColor(c.Usage)},
			output.Cell{Text: growth(c.Unit, c.Growth5m)}, output.Cell{Text: growth(c.Unit, c.Growth1h)},
			output.Cell{Text: left}, output.Cell{Text: output.Clean(c.Setting)},
		)
	}
	return t
}

// ownersTable returns the table of the largest owners, or nil if no table has owners.
func ownersTable(a *command.App, tables []api.TableCapacity) *output.Table {
	t := a.Table(
		output.Column{Title: "TABLE"}, output.Column{Title: "LARGEST OWNERS", Flexible: true}, output.Column{Title: "USED", Right: true},
	)
	some := false
	for i := range tables {
		for _, o := range tables[i].Owners {
			used := output.Count(o.Used)
			if o.AtLeast {
				used += "+"
			}
			t.Add(output.Cell{Text: output.Clean(tables[i].Name)}, output.Cell{Text: output.Clean(o.Name)}, output.Cell{Text: used})
			some = true
		}
	}
	if !some {
		return nil
	}
	return t
}

func amount(unit string, n uint64) string {
	if unit == "bytes" {
		return output.Size(n)
	}
	return output.Count(n)
}

// growth writes a change with its sign; - if it is unknown.
func growth(unit string, n *int64) string {
	switch {
	case n == nil:
		return "-"
	case *n < 0:
		return "-" + amount(unit, uint64(-*n))
	case *n > 0:
		return "+" + amount(unit, uint64(*n))
	}
	return "0"
}

// fullColor highlights a table that is nearly full.
func fullColor(u api.Usage) string {
	switch {
	case u.Size == 0:
		return ""
	case u.Used*100 >= u.Size*95:
		return output.Red
	case u.Used*100 >= u.Size*80:
		return output.Yellow
	}
	return ""
}
