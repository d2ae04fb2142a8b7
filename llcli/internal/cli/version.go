// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// versions is the output of llcli version.
type versions struct {
	Client api.VersionResult  `json:"client"`
	Daemon *api.VersionResult `json:"daemon,omitempty"`
}

func versionCommand(a *command.App) *cobra.Command {
	var own bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of llcli and of the daemon",
		Args:  command.NoWords("version takes flags only"),
		RunE: a.RunLocal(func(ctx context.Context, _ []string) error {
			v := versions{Client: api.VersionResult{Version: a.Version, API: []int{api.Version}, Build: a.Build}}
			var err error
			if !own {
				v.Daemon, err = daemonVersion(ctx, a)
			}
			return cmp.Or(printVersions(a, &v), err)
		}),
	}
	cmd.Flags().BoolVar(&own, "client", false, "only the version of llcli, without the daemon")
	return cmd
}

func daemonVersion(ctx context.Context, a *command.App) (*api.VersionResult, error) {
	d, err := a.Connect(ctx)
	if err != nil {
		return nil, err
	}
	var v api.VersionResult
	err = d.Call(ctx, api.MethodVersion, nil, &v)
	if err := cmp.Or(err, d.Close()); err != nil {
		return nil, err
	}
	return &v, nil
}

func printVersions(a *command.App, v *versions) error {
	if !a.IsTable() {
		return a.PrintValue(v)
	}
	t := a.Table(output.Column{Title: ""}, output.Column{Title: "VERSION"}, output.Column{Title: "API"}, output.Column{Title: "BUILD", Flexible: true})
	row := func(who string, v *api.VersionResult) {
		t.Add(output.Cell{Text: who}, output.Cell{Text: v.Version}, output.Cell{Text: fmt.Sprint(v.API)}, output.Cell{Text: v.Build})
	}
	row("llcli", &v.Client)
	if v.Daemon != nil {
		row("loxilightd", v.Daemon)
	}
	t.Flush()
	return nil
}
