// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/changes"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/view"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nounCommand returns the noun for a kind; complete: with the verbs that all kinds have.
func nounCommand(a *command.App, k *kinds.Kind, complete bool) *cobra.Command {
	noun := k.Words[0]
	cmd := &cobra.Command{
		Use:     noun,
		Aliases: k.Words[1:],
		Short:   fmt.Sprintf("Add, change, show and delete %s", kinds.PluralOf(k.Name)),
		Args:    command.NoCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	if complete {
		cmd.AddCommand(addCommand(a, k), setCommand(a, k), nounList(a, k), nounShow(a, k), nounDelete(a, k))
	}
	return cmd
}

// addCommand makes one object from flags.
func addCommand(a *command.App, k *kinds.Kind) *cobra.Command {
	flags := k.Flags(a)
	var options changes.Options
	var owner string
	var labels map[string]string
	var overwrite bool
	var given *pflag.FlagSet
	cmd := &cobra.Command{
		Use:     "add NAME",
		Aliases: []string{"create"},
		Short:   "Add " + kinds.Article(k.Name) + " with flags",
		Long:    fmt.Sprintf("Add %s. An existing object with a different spec is left alone unless --overwrite is\ngiven. llcli explain %s explains the fields.", kinds.Article(k.Name), k.Words[0]),
		Example: k.AddExample,
		Args:    command.OneName(k.Words[0]+" add", "NAME"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			if err := nothingEmpty(given); err != nil {
				return err
			}
			spec, err := flags.Spec(args[0])
			if err != nil {
				return err
			}
			raw, err := document.Marshal(spec)
			if err != nil {
				return err
			}
			object := api.Object{Kind: k.Name, Name: args[0], Owner: owner, Labels: labels, Spec: raw}
			t := changes.Transaction{Method: api.MethodApply, Objects: []api.Object{object}, Change: change}
			if overwrite {
				return command.InFlags(changes.CarryOut(ctx, a, d, t, nil), flags.Paths(), given)
			}
			return command.InFlags(changes.Attempt(ctx, a, d, t, func(t *changes.Transaction) error { return t.CheckAbsent(ctx, d) }), flags.Paths(), given)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	if k.Name == api.KindInterface {
		cmd.ValidArgsFunction = a.CompleteDevices
	}
	given = cmd.Flags()
	flags.Bind(cmd)
	options.Bind(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "`OWNER` of the object (default cli)")
	cmd.Flags().StringToStringVarP(&labels, "labels", "l", nil, "labels of the object: `KEY=VALUE,...`")
	command.HideDefault(cmd.Flags(), "labels")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "change the object if it exists")
	return cmd
}

// nothingEmpty rejects a flag with an empty value, for example from a variable that a script did
// not set: a rule without a source matches all sources.
func nothingEmpty(given *pflag.FlagSet) (err error) {
	given.Visit(func(flag *pflag.Flag) {
		if v := flag.Value.String(); err == nil && (v == "" || v == "[]" || v == `[""]`) {
			err = command.Usagef("--%s is empty; omit it, or give a value", flag.Name)
		}
	})
	return err
}

func nounList(a *command.App, k *kinds.Kind) *cobra.Command {
	var options kinds.Selection
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   fmt.Sprintf("List %s", kinds.PluralOf(k.Name)),
		Args:    command.NoWords("name objects with show or get"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			return view.Get(ctx, a, d, k.Name, nil, options)
		}),
		Annotations: map[string]string{command.NamesObjects: "yes"},
	}
	options.Bind(cmd)
	a.BindWatch(cmd)
	return cmd
}

func nounShow(a *command.App, k *kinds.Kind) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME…",
		Short: fmt.Sprintf("Show everything about %s: spec, status and counters", kinds.Article(k.Name)),
		Args:  command.NeedWords(1, "llcli "+k.Words[0]+" show NAME…"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			return a.Repeat(ctx, func() error { return view.Show(ctx, a, d, k.Name, args) })
		}),
		ValidArgsFunction: kinds.CompleteNames(a, k.Name),
	}
	a.BindWatch(cmd)
	return cmd
}

func nounDelete(a *command.App, k *kinds.Kind) *cobra.Command {
	var options changes.Options
	var chosen kinds.Selection
	cmd := &cobra.Command{
		Use:     "delete {NAME… | -l KEY=VALUE}",
		Aliases: []string{"rm", "remove"},
		Short:   fmt.Sprintf("Delete %s", kinds.PluralOf(k.Name)),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !cmd.Flags().Changed("labels") {
				return command.Usagef("missing argument: llcli %s delete NAME…, or -l KEY=VALUE", k.Words[0])
			}
			return nil
		},
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			return changes.DeleteChosen(ctx, a, d, k.Name, args, chosen, change)
		}),
		ValidArgsFunction: kinds.CompleteNames(a, k.Name),
	}
	options.Bind(cmd)
	chosen.BindLabels(cmd)
	return cmd
}

// nounCommands returns the nouns for all kinds, those that are used with their verbs.
func nounCommands(a *command.App, isUsed func(words ...string) bool) []*cobra.Command {
	commands := make([]*cobra.Command, len(kinds.All))
	for i := range kinds.All {
		complete := isUsed(kinds.All[i].Words...)
		commands[i] = nounCommand(a, &kinds.All[i], complete)
		if complete && kinds.All[i].Name == api.KindService {
			commands[i].AddCommand(drainCommand(a), backendCommand(a))
		}
		if complete && kinds.All[i].Name == api.KindPolicy {
			commands[i].AddCommand(policyCheckCommand(a), policyForCommand(a), policyUnusedCommand(a))
		}
	}
	return commands
}

// setCommand changes only the given fields of one object.
func setCommand(a *command.App, k *kinds.Kind) *cobra.Command {
	flags := k.Flags(a)
	var options changes.Options
	cmd := &cobra.Command{
		Use:     "set NAME",
		Aliases: []string{"update"},
		Short:   fmt.Sprintf("Change fields of %s with flags", kinds.Article(k.Name)),
		Long:    fmt.Sprintf("Change the fields of %s that flags name. Other fields stay as they are. A list replaces the\nwhole list; --add-… and --remove-… change single elements. --diff shows the difference first.", kinds.Article(k.Name)),
		Example: k.SetExample,
		Args:    command.OneName(k.Words[0]+" set", "NAME"),
	}
	flags.Bind(cmd)
	own := 0 // flags of the spec that were given
	cmd.RunE = a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
		change, err := options.Params()
		if err != nil {
			return err
		}
		if own == 0 {
			return command.Usagef("nothing to change; see llcli %s set --help", k.Words[0])
		}
		ref := api.ObjectRef{Kind: k.Name, Name: args[0]}
		return command.InFlags(changes.EditSpec(ctx, a, d, ref, change, func(spec map[string]any) error { return flags.Merge(spec, cmd.Flags()) }), flags.Paths(), cmd.Flags())
	})
	var names []string
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if slices.Contains(names, flag.Name) {
				own++
			}
		})
	}
	options.Bind(cmd)
	cmd.ValidArgsFunction = kinds.CompleteName(a, k.Name)
	return cmd
}
