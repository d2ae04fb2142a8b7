// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"fmt"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

// Options are the flags of every command that changes something.
type Options struct {
	dryRun     bool
	wait       time.Duration
	confirm    time.Duration
	force      bool
	ifRevision int64
	requestID  string
}

// TypeConfirm is the type of the flag --confirm.
const TypeConfirm = "time to confirm"

// confirmTime is the value of --confirm: zero is rejected, because it would not protect against
// anything.
type confirmTime time.Duration

// Set implements [pflag.Value].
func (c *confirmTime) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > time.Hour {
		return fmt.Errorf("%q is not 1s to 1h", text)
	}
	*c = confirmTime(d)
	return nil
}

// String implements [pflag.Value].
func (c *confirmTime) String() string {
	if *c == 0 {
		return ""
	}
	return time.Duration(*c).String()
}

// Type implements [pflag.Value].
func (c *confirmTime) Type() string { return TypeConfirm }

// Bind adds the flags to a command.
func (o *Options) Bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.dryRun, "dry-run", false, "check the change and show the result without applying it")
	flags.BoolVar(&o.dryRun, "diff", false, "the same as --dry-run: show line by line what would change")
	flags.DurationVar(&o.wait, "wait", 0, "return when the data plane has applied the change, or after this `TIME` with exit code 4")
	flags.Var((*confirmTime)(&o.confirm), "confirm", "roll back automatically after `TIME` (1s to 1h) unless llcli confirm is run first: for changes that may lock you out. If a change is already pending, this one joins it and has its deadline")
	flags.BoolVar(&o.force, "force", false, "delete or change an Interface although other objects need its device")
	flags.Int64Var(&o.ifRevision, "if-revision", -1, "refuse unless the daemon is still at this `REVISION`")
	flags.StringVar(&o.requestID, "request-id", "", "your own `ID` of the change; a change with the same id is made only once")
	command.HideDefault(flags, "if-revision")
	for _, flag := range []string{"wait", "confirm", "if-revision", "request-id"} {
		command.Must(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
}

// Params returns the flags as the daemon expects them.
func (o *Options) Params() (api.Change, error) {
	if o.wait < 0 {
		return api.Change{}, command.Usagef("--wait %s: want 0 or more", o.wait)
	}
	change := api.Change{DryRun: o.dryRun, Wait: api.Duration(o.wait), Confirm: api.Duration(o.confirm), RequestID: o.requestID, Force: o.force}
	if o.ifRevision >= 0 {
		revision := uint64(o.ifRevision)
		change.IfRevision = &revision
	}
	return change, nil
}
