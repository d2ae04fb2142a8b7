// SPDX-License-Identifier: Apache-2.0

// Package view contains the commands of llcli that show what the daemon has: objects, counters,
// connections, events, kernel tables and the state of the daemon. They change nothing, except
// connections flush.
package view

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func getCommand(a *command.App) *cobra.Command {
	var options kinds.Selection
	cmd := &cobra.Command{
		Use:     "get KIND [NAME…]",
		Aliases: []string{"list", "ls"},
		Short:   "Show objects: spec and status",
		Long: `Show the objects of a kind, or the objects with these names.

With -o yaml and -o json, objects are printed in the form that apply accepts; -o name prints
only KIND/NAME of each, in the form that llcli delete accepts.

podaddresses are the addresses of pods, with their owners. GONE: why the owner can no longer
exist. llcli kernel shows the kernel's own bridges, routes, neighbours and FDB.`,
		Example: "  llcli get services\n  llcli get service web -o yaml\n  llcli get interfaces -o wide\n  llcli get nat -l team=web -o name\n  llcli get podaddresses",
		Args:    kinds.NeedKind("llcli get KIND [NAME…]"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			if isAddresses(args[0]) {
				if a.Format == output.FormatName {
					return command.Usagef("--output name: %s are not objects", addressesWord)
				}
				if len(args) > 1 {
					return command.Usagef("unexpected %q; llcli get %s shows all of them", args[1], addressesWord)
				}
				return a.Repeat(ctx, func() error { return getAddresses(ctx, a, d) })
			}
			if err := notAKind(args[0]); err != nil {
				return err
			}
			kind, names, err := kinds.RefArgs(args)
			if err != nil {
				return err
			}
			return Get(ctx, a, d, kind, names, options)
		}),
		ValidArgsFunction: completeGet(a),
		Annotations:       map[string]string{command.NamesObjects: "yes"},
	}
	options.Bind(cmd)
	a.BindWatch(cmd)
	return cmd
}

// notAKind rejects words that belong to another command, and names it.
func notAKind(word string) error {
	for _, other := range []struct{ word, command string }{
		{"addresses", "llcli get " + addressesWord},
		{"address", "llcli get " + addressesWord},
		{"connections", "llcli connections"},
		{"events", "llcli events"},
		{"counters", "llcli counters"},
		{"nodes", "llcli k8s nodes"},
		{"all", "llcli export"},
	} {
		if strings.EqualFold(word, other.word) {
			return command.Usagef("%q is not a kind of objects; use %s", word, other.command)
		}
	}
	if v := findView(word); v != nil && kinds.Find(word) == nil {
		return command.Usagef("%q is not a kind of objects; use llcli kernel %s for what the kernel has", word, v.words[0])
	}
	if strings.Contains(word, ",") {
		return command.Usagef("%q: one kind at a time", word)
	}
	return nil
}

// completeGet offers kinds and names.
func completeGet(a *command.App) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		words, directive := kinds.CompleteRefs(a, 0)(cmd, args, prefix)
		if len(args) == 0 && !strings.Contains(prefix, "/") && strings.HasPrefix(addressesWord, prefix) {
			words = append(words, cobra.CompletionWithDesc(addressesWord, "addresses of pods, with their owners"))
		}
		return words, directive
	}
}

// Get shows objects of a kind.
func Get(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string, options kinds.Selection) error {
	if len(names) > 0 && (options.Owner != "" || len(options.Labels) > 0) {
		return command.Usagef("names cannot be combined with --owner or --labels")
	}
	if a.Repeated {
		return watchObjects(ctx, a, d, kind, names, options)
	}
	return getOnce(ctx, a, d, kind, names, options)
}

func getOnce(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string, options kinds.Selection) error {
	if len(names) > 0 {
		return getNames(ctx, a, d, kind, names)
	}
	w := newObjectWriter(a, kind, false)
	addHits(ctx, a, d, w)
	params := api.ListParams{Kind: kind, Owner: options.Owner, Labels: options.Labels}
	if k := kinds.Find(kind); k != nil && k.Order != nil && a.IsTable() {
		return getInOrder(ctx, a, d, params, k, w)
	}
	if _, err := a.List(ctx, d, params, w.add); err != nil {
		return err
	}
	return w.end()
}

// getInOrder shows objects in the order of their kind, which requires all of them at once.
func getInOrder(ctx context.Context, a *command.App, d command.Daemon, params api.ListParams, k *kinds.Kind, w *objectWriter) error {
	var all []api.Object
	_, err := a.List(ctx, d, params, func(objects []api.Object) error {
		all = append(all, objects...)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(x, y api.Object) int { return k.Order(&x, &y) })
	if err := w.add(all); err != nil {
		return err
	}
	return w.end()
}

// getNames shows the objects of a kind that are named.
func getNames(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string) error {
	names, err := kinds.AllInterfaces(ctx, a, d, kind, names)
	if err != nil {
		return err
	}
	w := newObjectWriter(a, kind, len(names) == 1)
	addHits(ctx, a, d, w)
	for _, name := range names {
		object, err := a.Object(ctx, d, kind, name)
		if err != nil {
			return err
		}
		if err := w.add([]api.Object{object}); err != nil {
			return err
		}
	}
	return w.end()
}

// Commands returns the commands that show objects and the state of the daemon.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{
		getCommand(a), describeCommand(a), kernelCommand(a), connectionsCommand(a), countersCommand(a), topCommand(a),
		eventsCommand(a), statusCommand(a), capacityCommand(a), healthCommand(a), waitCommand(a), k8sCommand(a),
	}
}

// addressesWord is the word that get uses for pod addresses.
const addressesWord = "podaddresses"

// isAddresses reports whether a word means pod addresses.
func isAddresses(word string) bool {
	return strings.EqualFold(word, addressesWord) || strings.EqualFold(word, "podaddress")
}

// getAddresses shows the owners of pod addresses, page by page.
func getAddresses(ctx context.Context, a *command.App, d command.Daemon) error {
	t := a.Table(output.Column{Title: "ADDRESSES", Flexible: true}, output.Column{Title: "POD"}, output.Column{Title: "CONTAINER", Flexible: true, Optional: 2},
		output.Column{Title: "INTERFACE", Optional: 3}, output.Column{Title: "NETWORK", Optional: 1}, output.Column{Title: "SINCE", Optional: 4}, output.Column{Title: "GONE", Flexible: true})
	next := func(after string) ([]api.AddressLease, string, error) {
		var page api.AddressesListResult
		err := d.Call(ctx, api.MethodAddressesList, api.AddressesListParams{Continue: after}, &page)
		return page.Items, page.Continue, err
	}
	return output.ShowPages(a.Printer, "addresses of pods", t, next, func(l *api.AddressLease) []output.Cell {
		return []output.Cell{
			{Text: output.Join(l.Addresses)}, {Text: cmp.Or(l.Pod, "-")}, {Text: l.ContainerID}, {Text: l.IfName},
			{Text: l.Network}, {Text: l.Since}, {Text: cmp.Or(l.Gone, "-")},
		}
	})
}
