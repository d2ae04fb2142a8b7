// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// specFlags are the flags that a spec is made of.
type specFlags interface {
	bind(cmd *cobra.Command)
	// spec returns the whole spec of an object from its name and the flags.
	spec(name string) (any, error)
	// merge puts the values of the given flags into a spec.
	merge(spec map[string]any, given *pflag.FlagSet) error
	// paths returns the fields of the spec that the flags set.
	paths() []flagPath
}

func (a *app) interfaceCommand() *cobra.Command {
	k := findKind(api.KindInterface)
	cmd := a.nounCommand(k, &interfaceFlags{}, "  llcli interface add eth0\n  llcli interface add uplink --device enp3s0")
	cmd.AddCommand(a.setCommand(k, &interfaceFlags{}, "  llcli interface set eth0 --xdp native"))
	return cmd
}

// nounCommand is the word for a kind, with the verbs that all kinds have.
func (a *app) nounCommand(k *kind, flags specFlags, addExample string) *cobra.Command {
	noun := k.words[0]
	cmd := &cobra.Command{
		Use:     noun,
		Aliases: k.words[1:],
		Short:   fmt.Sprintf("Add, change, show and delete %ss", k.name),
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.addCommand(k, flags, addExample), a.nounList(k), a.nounShow(k), a.nounDelete(k))
	return cmd
}

// addCommand makes one object from flags.
func (a *app) addCommand(k *kind, flags specFlags, example string) *cobra.Command {
	var options changeOptions
	var owner string
	var labels map[string]string
	var overwrite bool
	var given *pflag.FlagSet
	cmd := &cobra.Command{
		Use:     "add NAME",
		Aliases: []string{"create"},
		Short:   "Add " + article(k.name) + " by flags",
		Long:    fmt.Sprintf("Add %s. An existing object with a different spec is left alone unless --overwrite is\ngiven. llcli explain %s explains the fields.", article(k.name), k.words[0]),
		Example: example,
		Args:    oneName(k.words[0]+" add", "NAME"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			change, err := options.params()
			if err != nil {
				return err
			}
			spec, err := flags.spec(args[0])
			if err != nil {
				return err
			}
			raw, err := document.Marshal(spec)
			if err != nil {
				return err
			}
			object := api.Object{Kind: k.name, Name: args[0], Owner: owner, Labels: labels, Spec: raw}
			t := transaction{method: api.MethodApply, objects: []api.Object{object}, change: change}
			if overwrite {
				return inFlags(a.change(ctx, d, t, nil), flags.paths(), given)
			}
			return inFlags(a.attempt(ctx, d, t, func(t *transaction) error { return t.checkAbsent(ctx, d) }), flags.paths(), given)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	if k.name == api.KindInterface {
		cmd.ValidArgsFunction = a.completeDevices
	}
	given = cmd.Flags()
	flags.bind(cmd)
	options.bind(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "`OWNER` of the object (default cli)")
	cmd.Flags().StringToStringVarP(&labels, "labels", "l", nil, "labels of the object: `KEY=VALUE,...`")
	hideDefault(cmd.Flags(), "labels")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "change the object if it exists")
	return cmd
}

// checkAbsent refuses to change objects that already exist with a different spec.
func (t *transaction) checkAbsent(ctx context.Context, d Daemon) error {
	dry := *t
	dry.change = api.Change{DryRun: true, IfRevision: t.change.IfRevision}
	result, err := dry.send(ctx, d)
	if err != nil {
		return err
	}
	for _, c := range result.Changes {
		if c.Action == api.ActionUpdated {
			return fmt.Errorf("%s/%s already exists with a different spec; use llcli %s set, or --overwrite", c.Kind, c.Name, nounOf(c.Kind))
		}
	}
	return nil
}

func (a *app) nounList(k *kind) *cobra.Command {
	var options getOptions
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   fmt.Sprintf("List %ss", k.name),
		Args:    noWords("name objects with show or get"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			return a.get(ctx, d, k.name, nil, options)
		}),
		Annotations: map[string]string{namesObjects: "yes"},
	}
	options.bind(cmd)
	a.bindWatch(cmd)
	return cmd
}

func (a *app) nounShow(k *kind) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME…",
		Short: fmt.Sprintf("Show all about %s: spec, status and counters", article(k.name)),
		Args:  needWords(1, "llcli "+k.words[0]+" show NAME…"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			return a.repeat(ctx, func() error { return a.show(ctx, d, k.name, args) })
		}),
		ValidArgsFunction: a.completeNames(k.name),
	}
	a.bindWatch(cmd)
	return cmd
}

func (a *app) nounDelete(k *kind) *cobra.Command {
	var options changeOptions
	var chosen getOptions
	cmd := &cobra.Command{
		Use:     "delete {NAME… | -l KEY=VALUE}",
		Aliases: []string{"rm", "remove"},
		Short:   fmt.Sprintf("Delete %ss", k.name),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !cmd.Flags().Changed("labels") {
				return usagef("something is missing: llcli %s delete NAME…, or -l KEY=VALUE", k.words[0])
			}
			return nil
		},
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			change, err := options.params()
			if err != nil {
				return err
			}
			return a.deleteChosen(ctx, d, k.name, args, chosen, change)
		}),
		ValidArgsFunction: a.completeNames(k.name),
	}
	options.bind(cmd)
	chosen.bindLabels(cmd)
	return cmd
}

// interfaceFlags are an InterfaceSpec as flags.
type interfaceFlags struct{ api.InterfaceSpec }

func (f *interfaceFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Device, "device", "", "the Linux `DEVICE` that the data plane attaches to (default of add: NAME, without --address)")
	flags.StringVar(&f.Address, "address", "", "instead of a device the `ADDRESS` that it has")
	flags.StringVar(&f.Netns, "netns", "", "the `NAMESPACE` that it is in: host (default) or switch")
	flags.StringVar(&f.Role, "role", "", "its `ROLE`: uplink (default), port, host or tunnel")
	flags.StringVar(&f.XDP, "xdp", "", "the `MODE` of XDP: off (default), generic or native")
	for flag, values := range map[string][]string{
		"device": nil, "address": nil, "netns": {"host", "switch"}, "role": {"uplink", "port", "host", "tunnel"}, "xdp": {"off", "generic", "native"},
	} {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
}

// spec uses the name as the device, unless a device or an address is given.
func (f *interfaceFlags) spec(name string) (any, error) {
	spec := f.InterfaceSpec
	if spec.Address == "" {
		spec.Device = or(spec.Device, name)
	}
	return spec, nil
}

// article returns a kind with its indefinite article.
func article(kind string) string {
	if strings.ContainsRune("AEIOU", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

// nounOf returns the word of the command line for a kind.
func nounOf(name string) string {
	if k := findKind(name); k != nil {
		return k.words[0]
	}
	return name
}

func (f *interfaceFlags) paths() []flagPath {
	return []flagPath{{"device", "device"}, {"address", "address"}, {"netns", "netns"}, {"role", "role"}, {"xdp", "xdp"}}
}
