// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/report"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

func doctorCommand(a *command.App) *cobra.Command {
	var o localOptions
	var fix bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the daemon, and report faults and how to repair them",
		Long: `Check everything that the data plane depends on, and report for each fault what it is, why it
matters and what to do: the daemon and its unit, files and groups, the kernel, pins and
attached programs, other programs on the same hooks, routes, kernel parameters, firewalls,
memory.

The command works whether the daemon is running, hangs or is stopped, takes at most a minute,
and reports what it could not check: run it as root. --fix repairs what belongs to loxilight
(modes, leftovers, object files that have not been read yet) and reports what it did; it never
changes anything that belongs to other programs.

The exit code is 1 if errors remain; warnings and notes do not affect it.`,
		Example: "  llcli doctor\n  llcli doctor --fix\n  llcli doctor -o json",
		Args:    command.NoWords("doctor takes flags only"),
		RunE: a.RunLocal(func(ctx context.Context, _ []string) error {
			config, err := configFile(a, &o)
			if err != nil {
				return err
			}
			args := []string{"--config", config, "--doctor", "--json"}
			if fix {
				args = append(args, "--fix")
			}
			if a.IsTable() && a.Terminal != nil && a.Terminal() {
				a.Note("checking this machine; the kernel verifies the programs, which may take ten seconds …")
			}
			out, code, err := loxilightd(ctx, a, args...)
			if err != nil {
				return err
			}
			var found api.DoctorReport
			if err := json.Unmarshal(out, &found); err != nil {
				return fmt.Errorf("loxilightd --doctor ended with exit code %d and no report: %w", code, err)
			}
			if a.IsTable() {
				a.Printf("%s", report.Style{Width: a.Width(), Color: bool(a.Painter())}.Text(&found))
			} else if err := a.PrintValue(&found); err != nil {
				return err
			}
			if code != 0 {
				return command.ErrFailed
			}
			return nil
		}),
	}
	o.bind(cmd)
	cmd.Flags().BoolVar(&fix, "fix", false, "repair what belongs to loxilight")
	return cmd
}
