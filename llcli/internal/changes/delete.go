// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/spf13/cobra"
)

func deleteCommand(a *command.App) *cobra.Command {
	var options Options
	var files []string
	var chosen kinds.Selection
	cmd := &cobra.Command{
		Use:     "delete {KIND NAME… | KIND -l KEY=VALUE | -f FILE…}",
		Aliases: []string{"rm", "remove"},
		Short:   "Delete objects",
		Long:    "Delete objects in one transaction: by name, by label, or the objects that files name. Deleting an object that does not exist is not an error.",
		Example: "  llcli delete service web\n  llcli delete nat -l team=web --dry-run\n  llcli delete -f web.yaml",
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			if len(files) > 0 {
				if len(args) > 0 || len(chosen.Labels) > 0 {
					return command.Usagef("-f cannot be combined with names or --labels")
				}
				docs, change, err := changeInput(a, files, "", &options)
				if err != nil {
					return err
				}
				refs := make([]api.ObjectRef, len(docs))
				for i := range docs {
					refs[i] = docs[i].ref()
				}
				return CarryOut(ctx, a, d, Transaction{Method: api.MethodDelete, refs: refs, Change: change}, docs)
			}
			if len(args) == 0 {
				return command.Usagef("which objects? llcli delete KIND NAME…, KIND -l KEY=VALUE, or -f FILE")
			}
			kind, names, err := kinds.RefArgs(args)
			if err != nil {
				return err
			}
			return DeleteChosen(ctx, a, d, kind, names, chosen, change)
		}),
		ValidArgsFunction: kinds.CompleteRefs(a, 0),
	}
	options.Bind(cmd)
	BindFiles(cmd, &files)
	chosen.BindLabels(cmd)
	return cmd
}

// DeleteChosen deletes the objects of a kind that have one of the names, or the labels.
func DeleteChosen(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string, chosen kinds.Selection, change api.Change) error {
	switch {
	case len(names) > 0 && len(chosen.Labels) > 0:
		return command.Usagef("names and --labels cannot be combined")
	case len(chosen.Labels) > 0:
		_, err := a.List(ctx, d, api.ListParams{Kind: kind, Labels: chosen.Labels}, func(objects []api.Object) error {
			for i := range objects {
				names = append(names, objects[i].Name)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(names) == 0 {
			a.NoneFound(kinds.PluralOf(kind))
			return nil
		}
	case len(names) == 0:
		return command.Usagef("which %s? name it, or select by label with -l KEY=VALUE", kind)
	}
	refs := make([]api.ObjectRef, len(names))
	for i, name := range names {
		refs[i] = api.ObjectRef{Kind: kind, Name: name}
	}
	return CarryOut(ctx, a, d, Transaction{Method: api.MethodDelete, refs: refs, Change: change}, nil)
}
