// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func statusCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon and its data plane",
		Long: `Show the daemon's health, the environment of the data plane (kernel, attached programs,
features that use a fallback, with the reason), table usage, and the objects that are not
Ready.`,
		Args: command.NoWords("status takes flags only"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			return a.Repeat(ctx, func() error {
				var status api.StatusResult
				if err := d.Call(ctx, api.MethodStatus, nil, &status); err != nil {
					return err
				}
				if !a.IsTable() {
					return a.PrintSample(status)
				}
				printStatus(a, &status)
				return nil
			})
		}),
	}
	a.BindWatch(cmd)
	return cmd
}

func healthCommand(a *command.App) *cobra.Command {
	var ignore []string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Report with the exit code whether the state is ok",
		Long: `Report briefly whether the daemon and its data plane work, for probes: the exit code is 0 if
the state is ok, 1 if it is not, and 3 if the daemon does not answer.`,
		Example: "  llcli health --timeout 2s || echo look at llcli status\n  llcli health --ignore services",
		Args:    command.NoWords("health takes flags only"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			var status api.StatusResult
			if err := d.Call(ctx, api.MethodStatus, healthParams(ignore), &status); err != nil {
				return err
			}
			if a.IsTable() {
				a.Printf("%s\n", a.Painter().Paint(output.StateColor(status.Health.State), output.Clean(status.Health.State)))
				for _, message := range status.Health.Messages {
					a.Printf("  %s\n", output.Clean(message))
				}
			} else if err := a.PrintValue(status.Health); err != nil {
				return err
			}
			if status.Health.State != "ok" {
				return command.ErrFailed
			}
			return nil
		}),
	}
	cmd.Flags().StringSliceVar(&ignore, "ignore", nil, "`KINDS` whose objects do not count, such as services: for probes that restart something")
	return cmd
}

// healthParams are the parameters of status with which the objects of some kinds are ignored.
func healthParams(ignore []string) *api.StatusParams {
	if len(ignore) == 0 {
		return nil // which earlier daemons accept, too
	}
	params := &api.StatusParams{}
	for _, word := range ignore {
		params.Ignore = append(params.Ignore, kinds.NameOf(word))
	}
	return params
}

func printStatus(a *command.App, s *api.StatusResult) {
	paint := a.Painter()
	field := func(title, text string) { a.Printf("%-12s%s\n", title, text) }
	field("Health", paint.Paint(output.StateColor(s.Health.State), s.Health.State))
	for _, message := range s.Health.Messages {
		field("", output.Clean(message))
	}
	field("Instance", fmt.Sprintf("%s, process %d, up %s", s.Instance, s.PID, output.Short(s.Uptime)))
	if s.Switch != "" && s.Switch != "host" {
		field("Switch", "network namespace "+output.Clean(s.Switch))
	}
	field("Revision", strconv.FormatUint(s.Revision, 10))
	if c := s.Confirm; c != nil {
		field("To confirm", paint.Paint(output.Yellow, fmt.Sprintf("%s, %s by %s: will be rolled back in %s unless confirmed", output.Revisions(c), c.Method, output.Clean(output.UserOf(c.Author)), output.Short(c.Left))))
		field("", fmt.Sprintf("%s confirm %d, or %s rollback --last", a.Self(), c.Revision, a.Self()))
	}
	field("Kernel", fmt.Sprintf("%s, map layout %d", s.Datapath.Kernel, s.Datapath.Layout))
	if s.Repairs > 0 {
		field("Repairs", repairsText(s.Repairs))
	}
	for i, kind := range slices.Sorted(maps.Keys(s.Objects)) {
		title := ""
		if i == 0 {
			title = "Objects"
		}
		field(title, countOf(s.Objects[kind], kind))
	}
	if len(s.NotReady) > 0 {
		t := a.Table(output.Column{Title: "NOT READY"}, output.Column{Title: "STATE"}, output.Column{Title: "MESSAGE", Flexible: true})
		for _, o := range s.NotReady {
			t.Add(output.Cell{Text: o.Object}, output.Cell{Text: o.State, Color: output.StateColor(o.State)}, output.Cell{Text: o.Message})
		}
		a.Section(t)
	}
	a.Section(hookTable(a, s.Datapath.Hooks))
	if len(s.Datapath.Fallbacks) > 0 {
		t := a.Table(output.Column{Title: "NOT IN USE"}, output.Column{Title: "WHY", Flexible: true})
		for _, feature := range slices.Sorted(maps.Keys(s.Datapath.Fallbacks)) {
			t.Add(output.Cell{Text: feature, Color: output.Yellow}, output.Cell{Text: s.Datapath.Fallbacks[feature]})
		}
		a.Section(t)
	}
	a.Section(capacityTable(a, s.Capacity))
}

func hookTable(a *command.App, hooks []api.Hook) *output.Table {
	t := a.Table(output.Column{Title: "DEVICE"}, output.Column{Title: "NETNS"}, output.Column{Title: "HOOK"}, output.Column{Title: "PROGRAM", Flexible: true}, output.Column{Title: "ID", Right: true})
	for _, h := range hooks {
		t.Add(output.Cell{Text: h.Device}, output.Cell{Text: cmp.Or(h.Netns, "host")}, output.Cell{Text: h.Hook}, output.Cell{Text: h.Program}, output.Cell{Text: strconv.FormatUint(uint64(h.ID), 10)})
	}
	return t
}

// capacityTable shows the tables of the data plane; a nearly full table is highlighted.
func capacityTable(a *command.App, capacity map[string]api.Usage) *output.Table {
	t := a.Table(output.Column{Title: "TABLE"}, output.Column{Title: "USED", Right: true}, output.Column{Title: "SIZE", Right: true}, output.Column{Title: "FULL", Right: true})
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		u := capacity[name]
		t.Add(output.Cell{Text: name}, output.Cell{Text: output.Count(u.Used)}, output.Cell{Text: output.Room(u.Size)}, output.Cell{Text: output.Percent(u.Used, u.Size), Color: fullColor(u)})
	}
	return t
}

// repairsText describes the repairs since the daemon started.
func repairsText(n uint64) string {
	were := "were"
	if n == 1 {
		were = "was"
	}
	return fmt.Sprintf("%s %s repaired since the start", output.Plural(n, "external change"), were)
}

// countOf writes a number of objects of a kind.
func countOf(n int, kind string) string {
	if n == 1 {
		return output.Plural(1, kind)
	}
	return output.Count(uint64(n)) + " " + kinds.PluralOf(kind)
}
