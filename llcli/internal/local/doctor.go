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
		Long: `Look at everything that the data plane depends on, and say of each thing that is
not as it should be what it is, why it matters and what to do: the daemon and its
unit, files and groups, the kernel, what is pinned and attached, programs of
others on the same hooks, routes, kernel parameters, firewalls, memory.

It works whether the daemon runs, hangs or is stopped, is done within a minute,
and says what it could not see: run it as root. --fix repairs what belongs to loxilight
(modes, leftovers, object files not read yet) and reports what it did; what
belongs to others is never touched.

The exit code is 1 if errors are left; warnings and notes leave it at 0.`,
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
