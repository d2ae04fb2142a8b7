// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// versions is the output of llcli version.
type versions struct {
	Client api.VersionResult  `json:"client"`
	Daemon *api.VersionResult `json:"daemon,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var own bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of llcli and of the daemon",
		Args:  noWords("version takes flags only"),
		RunE: a.runLocal(func(ctx context.Context, _ []string) error {
			v := versions{Client: api.VersionResult{Version: a.Version, API: []int{api.Version}, Build: a.Build}}
			var err error
			if !own {
				v.Daemon, err = a.daemonVersion(ctx)
			}
			return firstError(a.printVersions(&v), err)
		}),
	}
	cmd.Flags().BoolVar(&own, "client", false, "only the version of llcli, without the daemon")
	return cmd
}

func (a *app) daemonVersion(ctx context.Context) (*api.VersionResult, error) {
	d, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	var v api.VersionResult
	err = d.Call(ctx, api.MethodVersion, nil, &v)
	if err := firstError(err, d.Close()); err != nil {
		return nil, err
	}
	return &v, nil
}

func (a *app) printVersions(v *versions) error {
	if !a.isTable() {
		return a.printValue(v)
	}
	t := a.table(column{title: ""}, column{title: "VERSION"}, column{title: "API"}, column{title: "BUILD", flexible: true})
	row := func(who string, v *api.VersionResult) {
		t.add(cell{text: who}, cell{text: v.Version}, cell{text: fmt.Sprint(v.API)}, cell{text: v.Build})
	}
	row("llcli", &v.Client)
	if v.Daemon != nil {
		row("loxilightd", v.Daemon)
	}
	t.flush()
	return nil
}

// firstError returns the first of errs that is one.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
