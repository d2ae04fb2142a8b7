// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the daemon and its data plane are",
		Long: `Show the daemon's health, what the data plane runs on (kernel, attached programs,
features that fell back and why), how full its tables are, and which objects are
not Ready.`,
		Args: noWords("status takes flags only"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			return a.repeat(ctx, func() error {
				var status api.StatusResult
				if err := d.Call(ctx, api.MethodStatus, nil, &status); err != nil {
					return err
				}
				if !a.isTable() {
					return a.printSample(status)
				}
				a.printStatus(&status)
				return nil
			})
		}),
	}
	a.bindWatch(cmd)
	return cmd
}

// errDegraded is the end of a health that is not ok.
var errDegraded = errors.New("degraded")

func (a *app) healthCommand() *cobra.Command {
	var ignore []string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether all is well, with the exit code",
		Long: `Say in a few words whether all is well with the daemon and its data plane, for
probes: the exit code is 0 if it is, 1 if it is not, 3 if the daemon does not answer.`,
		Example: "  llcli health --timeout 2s || echo look at llcli status\n  llcli health --ignore services",
		Args:    noWords("health takes flags only"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			var status api.StatusResult
			if err := d.Call(ctx, api.MethodStatus, healthParams(ignore), &status); err != nil {
				return err
			}
			if a.isTable() {
				a.printf("%s\n", a.painter().paint(stateColor(status.Health.State), clean(status.Health.State)))
				for _, message := range status.Health.Messages {
					a.printf("  %s\n", clean(message))
				}
			} else if err := a.printValue(status.Health); err != nil {
				return err
			}
			if status.Health.State != "ok" {
				return errDegraded
			}
			return nil
		}),
	}
	cmd.Flags().StringSliceVar(&ignore, "ignore", nil, "`KINDS` whose objects do not count, such as services: for probes that restart something")
	return cmd
}

// healthParams are the parameters of status for kinds that do not count.
func healthParams(ignore []string) *api.StatusParams {
	if len(ignore) == 0 {
		return nil // which earlier daemons take, too
	}
	params := &api.StatusParams{}
	for _, word := range ignore {
		params.Ignore = append(params.Ignore, kindOf(word))
	}
	return params
}

func (a *app) printStatus(s *api.StatusResult) {
	paint := a.painter()
	field := func(title, text string) { a.printf("%-12s%s\n", title, text) }
	field("Health", paint.paint(stateColor(s.Health.State), s.Health.State))
	for _, message := range s.Health.Messages {
		field("", clean(message))
	}
	field("Instance", fmt.Sprintf("%s, process %d, up %s", s.Instance, s.PID, short(s.Uptime)))
	if s.Switch != "" && s.Switch != "host" {
		field("Switch", "network namespace "+clean(s.Switch))
	}
	field("Revision", strconv.FormatUint(s.Revision, 10))
	if c := s.Confirm; c != nil {
		field("To confirm", paint.paint(yellow, fmt.Sprintf("revision %d, %s by %s: will be rolled back in %s unless confirmed", c.Revision, c.Method, clean(userOf(c.Author)), short(c.Left))))
		field("", fmt.Sprintf("%s confirm %d, or %s rollback --last", a.self(), c.Revision, a.self()))
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
		field(title, plural(uint64(s.Objects[kind]), kind))
	}
	if len(s.NotReady) > 0 {
		t := a.table(column{title: "NOT READY"}, column{title: "STATE"}, column{title: "MESSAGE", flexible: true})
		for _, o := range s.NotReady {
			t.add(cell{text: o.Object}, cell{text: o.State, color: stateColor(o.State)}, cell{text: o.Message})
		}
		a.section(t)
	}
	a.section(a.hookTable(s.Datapath.Hooks))
	if len(s.Datapath.Fallbacks) > 0 {
		t := a.table(column{title: "NOT IN USE"}, column{title: "WHY", flexible: true})
		for _, feature := range slices.Sorted(maps.Keys(s.Datapath.Fallbacks)) {
			t.add(cell{text: feature, color: yellow}, cell{text: s.Datapath.Fallbacks[feature]})
		}
		a.section(t)
	}
	a.section(a.capacityTable(s.Capacity))
}

// section writes a table after an empty line, unless it has no rows.
func (a *app) section(t *table) {
	if len(t.rows) > 0 {
		a.printf("\n")
		t.flush()
	}
}

func (a *app) hookTable(hooks []api.Hook) *table {
	t := a.table(column{title: "DEVICE"}, column{title: "NETNS"}, column{title: "HOOK"}, column{title: "PROGRAM", flexible: true}, column{title: "ID", right: true})
	for _, h := range hooks {
		t.add(cell{text: h.Device}, cell{text: or(h.Netns, "host")}, cell{text: h.Hook}, cell{text: h.Program}, cell{text: strconv.FormatUint(uint64(h.ID), 10)})
	}
	return t
}

// capacityTable shows the tables of the data plane; a nearly full table is highlighted.
func (a *app) capacityTable(capacity map[string]api.Usage) *table {
	t := a.table(column{title: "TABLE"}, column{title: "USED", right: true}, column{title: "SIZE", right: true}, column{title: "FULL", right: true})
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		u := capacity[name]
		color := ""
		switch {
		case u.Used*100 >= u.Size*95:
			color = red
		case u.Used*100 >= u.Size*80:
			color = yellow
		}
		t.add(cell{text: name}, cell{text: count(u.Used)}, cell{text: room(u.Size)}, cell{text: percent(u.Used, u.Size), color: color})
	}
	return t
}

// repairsText describes the repairs since the start of the daemon.
func repairsText(n uint64) string {
	were := "were"
	if n == 1 {
		were = "was"
	}
	return fmt.Sprintf("%s %s repaired since the start", plural(n, "external change"), were)
}
