// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/spf13/cobra"
)

func waitCommand(a *command.App) *cobra.Command {
	var limit time.Duration
	var created bool
	cmd := &cobra.Command{
		Use:   "wait [KIND [NAME…]]",
		Short: "Wait until objects are Ready",
		Long: `Wait until all objects, the objects of a kind, or the named objects are Ready. The exit code
is 4 if this takes too long. A named object that does not exist, or that is deleted in the
meantime, is an error with exit code 1; with --created, llcli waits until it exists.`,
		Example: "  llcli reload && llcli wait --for 10s\n  llcli wait service web\n  llcli wait endpoint shop-web-1 --created",
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			if limit <= 0 {
				return command.Usagef("--for %s: want more than 0", limit)
			}
			watched, wanted := api.Kinds, []api.ObjectRef(nil)
			if len(args) > 0 {
				kind, names, err := kinds.RefArgs(args)
				if err != nil {
					return err
				}
				watched = []string{kind}
				for _, name := range names {
					wanted = append(wanted, api.ObjectRef{Kind: kind, Name: name})
				}
			}
			return waitReady(ctx, a, d, watched, wanted, created, limit)
		}),
		ValidArgsFunction: kinds.CompleteRefs(a, 0),
	}
	cmd.Flags().DurationVar(&limit, "for", 30*time.Second, "give up after this `TIME`")
	cmd.Flags().BoolVar(&created, "created", false, "also wait until the named objects exist")
	command.Must(cmd.RegisterFlagCompletionFunc("for", cobra.NoFileCompletions))
	return cmd
}

// stateAbsent is the state of an object that does not exist.
const stateAbsent = "absent"

// errLate: the objects are not Ready in time.
var errLate = errors.New("not Ready in time")

// waitReady watches the objects of kinds until the wanted ones, or all, are Ready. If created is
// set, wanted objects may be absent at first. The objects are listed at least once, however short
// limit is: until then, nothing is known of them.
func waitReady(ctx context.Context, a *command.App, d command.Daemon, kinds []string, wanted []api.ObjectRef, created bool, limit time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	pending := map[api.ObjectRef]api.NotReady{}
	for _, ref := range wanted {
		pending[ref] = api.NotReady{Object: ref.String(), State: stateAbsent}
	}
	synced := false
	out := command.Outage{App: a}
	for step, err := range d.Watch(ctx, client.WatchOptions{Kinds: kinds}) {
		switch {
		case err != nil && !command.IsUnreachable(err):
			return err
		case err != nil && !synced:
			return err
		case err != nil:
			out.Tell(err)
		case step.Synced:
			if !synced {
				end := time.AfterFunc(limit-time.Since(start), func() { cancel(errLate) })
				defer end.Stop()
			}
			synced = true
			out.Over()
		case wanted == nil || slices.Contains(wanted, step.Ref):
			note(pending, step, wanted != nil)
		}
		if synced && err == nil && len(pending) == 0 {
			return nil
		}
		if synced && err == nil && !created {
			if err := absent(pending); err != nil {
				return err
			}
		}
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errLate) {
		return cause
	}
	late := api.Errorf(api.ReasonTimeout, "not Ready after %s", limit)
	late.Data.NotReady = slices.SortedFunc(maps.Values(pending), func(x, y api.NotReady) int { return cmp.Compare(x.Object, y.Object) })
	return late
}

// absent returns the error about wanted objects that do not exist, or nil if all of them exist.
func absent(pending map[api.ObjectRef]api.NotReady) error {
	var names []string
	for _, p := range pending {
		if p.State == stateAbsent {
			names = append(names, p.Object)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return api.Errorf(api.ReasonNotFound, "%s: not found; --created waits until the object exists", strings.Join(names, ", "))
}

// note records whether an object is Ready. A deleted object is not Ready if it was named.
func note(pending map[api.ObjectRef]api.NotReady, step client.Watched, named bool) {
	switch {
	case step.Object != nil:
		var status api.Status
		kinds.Decode(step.Object, &struct{}{}, &status)
		if status.State == api.StateReady {
			delete(pending, step.Ref)
			return
		}
		pending[step.Ref] = api.NotReady{Object: step.Ref.String(), State: cmp.Or(status.State, api.StatePending), Message: status.Message}
	case named:
		pending[step.Ref] = api.NotReady{Object: step.Ref.String(), State: stateAbsent}
	default:
		delete(pending, step.Ref)
	}
}
