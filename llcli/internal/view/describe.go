// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/spf13/cobra"
)

func describeCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "describe KIND NAME…",
		Aliases: []string{"show"},
		Short:   "Show everything about an object: spec, status and counters",
		Example: "  llcli describe service web\n  llcli describe interface eth0",
		Args:    kinds.NeedKind("llcli describe KIND NAME…"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			kind, names, err := kinds.RefArgs(args)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				return command.Usagef("which %s? name it, or list them with llcli get %s", kind, args[0])
			}
			return a.Repeat(ctx, func() error { return Show(ctx, a, d, kind, names) })
		}),
		ValidArgsFunction: kinds.CompleteRefs(a, 0),
	}
	a.BindWatch(cmd)
	return cmd
}

// Show writes all details of objects of a kind.
func Show(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string) error {
	if !a.IsTable() {
		return getNames(ctx, a, d, kind, names)
	}
	names, err := kinds.AllInterfaces(ctx, a, d, kind, names)
	if err != nil {
		return err
	}
	for i, name := range names {
		object, err := a.Object(ctx, d, kind, name)
		if err != nil {
			return err
		}
		if i > 0 {
			a.Printf("\n")
		}
		if err := kinds.ShowObject(ctx, a, d, &object); err != nil {
			return err
		}
	}
	return nil
}
