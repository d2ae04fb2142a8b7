// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/spf13/cobra"
)

func (a *app) waitCommand() *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "wait [KIND [NAME…]]",
		Short: "Wait until objects are Ready",
		Long: `Wait until all objects, those of a kind, or those that are named, are there and the
data plane does as they say. The exit code is 4 if that takes too long.`,
		Example: "  llcli reload && llcli wait --for 10s\n  llcli wait service web",
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			if limit <= 0 {
				return usagef("--for %s: want more than 0", limit)
			}
			kinds, wanted := api.Kinds, []api.ObjectRef(nil)
			if len(args) > 0 {
				kind, names, err := refArgs(args)
				if err != nil {
					return err
				}
				kinds = []string{kind}
				for _, name := range names {
					wanted = append(wanted, api.ObjectRef{Kind: kind, Name: name})
				}
			}
			return a.wait(ctx, d, kinds, wanted, limit)
		}),
		ValidArgsFunction: a.completeRefs(0),
	}
	cmd.Flags().DurationVar(&limit, "for", 30*time.Second, "give up after this `TIME`")
	must(cmd.RegisterFlagCompletionFunc("for", cobra.NoFileCompletions))
	return cmd
}

// wait watches objects of kinds until they are Ready: those that are wanted, or
// all.
func (a *app) wait(ctx context.Context, d Daemon, kinds []string, wanted []api.ObjectRef, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pending := map[api.ObjectRef]api.NotReady{}
	for _, ref := range wanted {
		pending[ref] = api.NotReady{Object: ref.String(), State: "absent"}
	}
	synced := false
	out := outage{app: a}
	for step, err := range d.Watch(ctx, client.WatchOptions{Kinds: kinds}) {
		switch {
		case err != nil && !isUnreachable(err):
			return err
		case err != nil && !synced:
			return err
		case err != nil:
			out.tell(err)
		case step.Synced:
			synced = true
			out.over()
		case wanted == nil || slices.Contains(wanted, step.Ref):
			note(pending, step, wanted != nil)
		}
		if synced && err == nil && len(pending) == 0 {
			return nil
		}
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	late := api.Errorf(api.ReasonTimeout, "not Ready after %s", limit)
	late.Data.NotReady = slices.SortedFunc(maps.Values(pending), func(x, y api.NotReady) int { return cmp.Compare(x.Object, y.Object) })
	return late
}

// note records whether an object is Ready. A deleted object is not Ready if it was named.
func note(pending map[api.ObjectRef]api.NotReady, step client.Watched, named bool) {
	switch {
	case step.Object != nil:
		var status api.Status
		decode(step.Object, &struct{}{}, &status)
		if status.State == api.StateReady {
			delete(pending, step.Ref)
			return
		}
		pending[step.Ref] = api.NotReady{Object: step.Ref.String(), State: or(status.State, api.StatePending), Message: status.Message}
	case named:
		pending[step.Ref] = api.NotReady{Object: step.Ref.String(), State: "absent"}
	default:
		delete(pending, step.Ref)
	}
}
