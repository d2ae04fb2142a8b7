// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func replaceCommand(a *command.App) *cobra.Command {
	var options Options
	var files, kindNames []string
	var owner string
	cmd := &cobra.Command{
		Use:   "replace -f FILE…",
		Short: "Replace all objects of an owner with the objects in files",
		Long: `Create and change the objects in the files, as apply does, and delete the owner's other
objects of these kinds, all in one transaction. Objects of other owners stay unchanged.
--dry-run lists the objects that would be deleted.`,
		Example: "  llcli export > backup.yaml\n  llcli replace -f backup.yaml --dry-run\n  llcli replace -f backup.yaml --wait 10s",
		Args:    moreFiles(&files),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, more []string) error {
			docs, change, err := changeInput(a, append(files, more...), owner, &options)
			if err != nil {
				return err
			}
			t := Transaction{Method: api.MethodReplace, owner: owner, kinds: kindsOf(kindNames), Objects: objectsOf(docs), Change: change}
			return CarryOut(ctx, a, d, t, docs)
		}),
	}
	options.Bind(cmd)
	BindFiles(cmd, &files)
	bindOwner(cmd, &owner, api.OwnerCLI, "the `OWNER` whose objects become exactly the objects of the files")
	cmd.Flags().StringSliceVar(&kindNames, "kinds", nil, "of these `KINDS` only (default: of all kinds)")
	command.Must(cmd.RegisterFlagCompletionFunc("kinds", cobra.FixedCompletions(kinds.Words(""), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// bindOwner adds the flag for an owner.
func bindOwner(cmd *cobra.Command, owner *string, value, usage string) {
	cmd.Flags().StringVar(owner, "owner", value, usage)
	command.Must(cmd.RegisterFlagCompletionFunc("owner", cobra.FixedCompletions(api.Owners, cobra.ShellCompDirectiveNoFileComp)))
}

// kindsOf returns the kinds that words refer to; without words, all kinds that this llcli knows, in
// the order in which they are applied.
func kindsOf(words []string) []string {
	if len(words) == 0 {
		return api.Kinds
	}
	var names []string
	for _, word := range words {
		if kind := kinds.NameOf(word); !slices.Contains(names, kind) {
			names = append(names, kind)
		}
	}
	return names
}

func exportCommand(a *command.App) *cobra.Command {
	var options kinds.Selection
	cmd := &cobra.Command{
		Use:     "export [KIND…]",
		Aliases: []string{"backup"},
		Short:   "Write objects in the form that apply and replace read",
		Long: `Write the objects of all kinds, or of the named kinds, in the form that apply and replace
read: the specs, without the status. All objects are from one revision; otherwise, llcli
reports that they changed in the meantime.`,
		Example: "  llcli export > backup.yaml\n  llcli export services -l team=web -o json",
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			if a.IsTable() {
				a.Format = output.FormatYAML
			}
			return exportObjects(ctx, a, d, kindsOf(args), options)
		}),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return kinds.Words(prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	options.Bind(cmd)
	return cmd
}

func exportObjects(ctx context.Context, a *command.App, d command.Daemon, kinds []string, options kinds.Selection) error {
	first, err := currentRevision(ctx, a, d)
	if err != nil {
		return err
	}
	list := a.NewList()
	for _, kind := range kinds {
		params := api.ListParams{Kind: kind, Owner: options.Owner, Labels: options.Labels}
		_, err := a.List(ctx, d, params, func(objects []api.Object) error {
			for i := range objects {
				o := objects[i]
				o.Status, o.Revision = nil, 0
				if err := list.Add(o); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	list.End()
	last, err := currentRevision(ctx, a, d)
	if err == nil && last != first {
		a.Note("the objects changed in the meantime, from revision %d to %d: export again if all objects must be of one revision", first, last)
	}
	return err
}

func reloadCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Make the daemon read its object files again",
		Long: `Make the daemon read the files in its object directory (/etc/loxilight/conf.d) again.
The objects owned by file become exactly the objects in the files; if a file has an error,
nothing changes, and the error names file and line.`,
		Args: command.NoWords("reload reads the files in the daemon's object directory"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			var result api.ReloadResult
			if err := d.Change(ctx, api.MethodReload, "", 0, nil, &result); err != nil {
				return err
			}
			if !a.IsTable() {
				return a.PrintValue(result)
			}
			for _, file := range result.Files {
				a.Printf("read %s\n", output.Clean(file))
			}
			return printChange(a, &result.ChangeResult, false)
		}),
	}
}
