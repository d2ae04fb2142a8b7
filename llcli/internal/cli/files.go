// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) replaceCommand() *cobra.Command {
	var options changeOptions
	var files, kindNames []string
	var owner string
	cmd := &cobra.Command{
		Use:   "replace -f FILE…",
		Short: "Replace all objects of an owner by the objects of files",
		Long: `Create and change the objects of the files as apply does, and delete the owner's
other objects of these kinds, all of it in one transaction. Objects of other
owners stay as they are. With --dry-run it lists the objects that it would delete.`,
		Example: "  llcli export > backup.yaml\n  llcli replace -f backup.yaml --dry-run\n  llcli replace -f backup.yaml --wait 10s",
		Args:    moreFiles(&files),
		RunE: a.run(func(ctx context.Context, d Daemon, more []string) error {
			docs, change, err := a.changeInput(append(files, more...), owner, &options)
			if err != nil {
				return err
			}
			t := transaction{method: api.MethodReplace, owner: owner, kinds: kindsOf(kindNames), objects: objectsOf(docs), change: change}
			return a.change(ctx, d, t, docs)
		}),
	}
	options.bind(cmd)
	bindFiles(cmd, &files)
	bindOwner(cmd, &owner, api.OwnerCLI, "the `OWNER` whose objects become exactly the objects of the files")
	cmd.Flags().StringSliceVar(&kindNames, "kinds", nil, "of these `KINDS` only (default: of all kinds)")
	must(cmd.RegisterFlagCompletionFunc("kinds", cobra.FixedCompletions(kindWords(""), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// bindOwner adds the flag for an owner.
func bindOwner(cmd *cobra.Command, owner *string, value, usage string) {
	cmd.Flags().StringVar(owner, "owner", value, usage)
	must(cmd.RegisterFlagCompletionFunc("owner", cobra.FixedCompletions([]string{api.OwnerCLI, api.OwnerFile, api.OwnerK8s, api.OwnerCNI}, cobra.ShellCompDirectiveNoFileComp)))
}

// kindsOf returns the kinds that words mean; without words all that this llcli
// knows, in the order in which they are applied.
func kindsOf(words []string) []string {
	if len(words) == 0 {
		return api.Kinds
	}
	var names []string
	for _, word := range words {
		if kind := kindOf(word); !slices.Contains(names, kind) {
			names = append(names, kind)
		}
	}
	return names
}

func (a *app) exportCommand() *cobra.Command {
	var options getOptions
	cmd := &cobra.Command{
		Use:     "export [KIND…]",
		Aliases: []string{"backup"},
		Short:   "Write objects as apply and replace take them",
		Long: `Write the objects of all kinds, or of those that are named, as a file that apply and
replace take: the specs, without the status. They are of one revision, or llcli reports that they
changed meanwhile.`,
		Example: "  llcli export > backup.yaml\n  llcli export services -l team=web -o json",
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			if a.isTable() {
				a.output = formatYAML
			}
			return a.export(ctx, d, kindsOf(args), options)
		}),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return kindWords(prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	options.bind(cmd)
	return cmd
}

func (a *app) export(ctx context.Context, d Daemon, kinds []string, options getOptions) error {
	first, err := a.revision(ctx, d)
	if err != nil {
		return err
	}
	list := listWriter{app: a}
	for _, kind := range kinds {
		params := api.ListParams{Kind: kind, Owner: options.owner, Labels: options.labels}
		_, err := a.list(ctx, d, params, func(objects []api.Object) error {
			for i := range objects {
				o := objects[i]
				o.Status, o.Revision = nil, 0
				if err := list.add(o); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	list.end()
	last, err := a.revision(ctx, d)
	if err == nil && last != first {
		a.note("the objects changed meanwhile, from revision %d to %d: export again where they must be of one", first, last)
	}
	return err
}

func (a *app) reloadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Make the daemon read its object files again",
		Long: `Have the daemon read the files of its object folder (/etc/loxilight/conf.d) again.
What owner file holds becomes exactly what they say, or nothing changes and the
error names file and line.`,
		Args: noWords("the daemon knows its files"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			var result api.ReloadResult
			if err := d.Change(ctx, api.MethodReload, "", 0, nil, &result); err != nil {
				return err
			}
			if !a.isTable() {
				return a.printValue(result)
			}
			for _, file := range result.Files {
				a.printf("read %s\n", clean(file))
			}
			return a.printChange(&result.ChangeResult, false)
		}),
	}
}
