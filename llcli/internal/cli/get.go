// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// getOptions are the flags of get and of the list of each noun.
type getOptions struct {
	owner  string
	labels map[string]string
}

func (o *getOptions) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.owner, "owner", "", "only objects of this `OWNER`: "+api.OwnerCLI+", "+api.OwnerFile+" or another")
	o.bindLabels(cmd)
	must(cmd.RegisterFlagCompletionFunc("owner", cobra.FixedCompletions([]string{api.OwnerCLI, api.OwnerFile, api.OwnerK8s, api.OwnerCNI}, cobra.ShellCompDirectiveNoFileComp)))
}

func (o *getOptions) bindLabels(cmd *cobra.Command) {
	cmd.Flags().StringToStringVarP(&o.labels, "labels", "l", nil, "only objects with these labels: `KEY=VALUE,...`")
	hideDefault(cmd.Flags(), "labels")
	must(cmd.RegisterFlagCompletionFunc("labels", cobra.NoFileCompletions))
}

func (a *app) getCommand() *cobra.Command {
	var options getOptions
	cmd := &cobra.Command{
		Use:     "get KIND [NAME…]",
		Aliases: []string{"list", "ls"},
		Short:   "Show objects: spec and status",
		Long: `Show the objects of a kind, or the objects with these names.

With -o yaml and -o json the objects come out as apply takes them; -o name prints only
KIND/NAME of each, as llcli delete takes them.

podaddresses are the addresses of pods with their owners. GONE: why the owner can no
longer exist. What the kernel has (its bridges, routes, neighbours and FDB) is shown by
llcli kernel.`,
		Example: "  llcli get services\n  llcli get service web -o yaml\n  llcli get interfaces -o wide\n  llcli get nat -l team=web -o name\n  llcli get podaddresses",
		Args:    needKind("llcli get KIND [NAME…]"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			if isAddresses(args[0]) {
				if a.output == formatName {
					return usagef("--output name: %s are not objects", addressesWord)
				}
				if len(args) > 1 {
					return usagef("unexpected %q; llcli get %s shows all of them", args[1], addressesWord)
				}
				return a.repeat(ctx, func() error { return a.getAddresses(ctx, d) })
			}
			if err := notAKind(args[0]); err != nil {
				return err
			}
			kind, names, err := refArgs(args)
			if err != nil {
				return err
			}
			return a.get(ctx, d, kind, names, options)
		}),
		ValidArgsFunction: a.completeGet,
		Annotations:       map[string]string{namesObjects: "yes"},
	}
	options.bind(cmd)
	a.bindWatch(cmd)
	return cmd
}

// notAKind refuses words that belong to another command, and names it.
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
			return usagef("%q is not a kind of objects; use %s", word, other.command)
		}
	}
	if v := findView(word); v != nil && findKind(word) == nil {
		return usagef("%q is not a kind of objects; use llcli kernel %s for what the kernel has", word, v.words[0])
	}
	if strings.Contains(word, ",") {
		return usagef("%q: one kind at a time", word)
	}
	return nil
}

// completeGet offers kinds and names.
func (a *app) completeGet(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	words, directive := a.completeRefs(0)(cmd, args, prefix)
	if len(args) == 0 && !strings.Contains(prefix, "/") && strings.HasPrefix(addressesWord, prefix) {
		words = append(words, cobra.CompletionWithDesc(addressesWord, "addresses of pods, with their owners"))
	}
	return words, directive
}

// refArgs reads KIND [NAME…] or KIND/NAME….
func refArgs(args []string) (string, []string, error) {
	kind, name, slash := strings.Cut(args[0], "/")
	if !slash {
		return kindOf(kind), args[1:], nil
	}
	kind = kindOf(kind)
	names := []string{name}
	for _, arg := range args[1:] {
		k, n, slash := strings.Cut(arg, "/")
		if !slash || kindOf(k) != kind {
			return "", nil, usagef("%q: want %s/NAME, as in %q", arg, kind, args[0])
		}
		names = append(names, n)
	}
	return kind, names, nil
}

// get shows objects of a kind.
func (a *app) get(ctx context.Context, d Daemon, kind string, names []string, options getOptions) error {
	if len(names) > 0 && (options.owner != "" || len(options.labels) > 0) {
		return usagef("names and --owner or --labels do not go together")
	}
	if a.watch {
		return a.watchObjects(ctx, d, kind, names, options)
	}
	return a.getOnce(ctx, d, kind, names, options)
}

func (a *app) getOnce(ctx context.Context, d Daemon, kind string, names []string, options getOptions) error {
	if len(names) > 0 {
		return a.getNames(ctx, d, kind, names)
	}
	w := a.objectWriter(kind, false)
	a.addHits(ctx, d, w)
	params := api.ListParams{Kind: kind, Owner: options.owner, Labels: options.labels}
	if k := findKind(kind); k != nil && k.order != nil && a.isTable() {
		return a.getInOrder(ctx, d, params, k, w)
	}
	if _, err := a.list(ctx, d, params, w.add); err != nil {
		return err
	}
	return w.end()
}

// getInOrder shows objects in the order of their kind, which takes all of them.
func (a *app) getInOrder(ctx context.Context, d Daemon, params api.ListParams, k *kind, w *objectWriter) error {
	var all []api.Object
	_, err := a.list(ctx, d, params, func(objects []api.Object) error {
		all = append(all, objects...)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(x, y api.Object) int { return k.order(&x, &y) })
	if err := w.add(all); err != nil {
		return err
	}
	return w.end()
}

// getNames shows the objects of a kind that are named.
func (a *app) getNames(ctx context.Context, d Daemon, kind string, names []string) error {
	names, err := a.allInterfaces(ctx, d, kind, names)
	if err != nil {
		return err
	}
	w := a.objectWriter(kind, len(names) == 1)
	a.addHits(ctx, d, w)
	for _, name := range names {
		object, err := a.object(ctx, d, kind, name)
		if err != nil {
			return err
		}
		if err := w.add([]api.Object{object}); err != nil {
			return err
		}
	}
	return w.end()
}

// objectWriter writes objects in the requested format.
type objectWriter struct {
	app    *app
	name   string // of the kind
	kind   *kind  // nil: unknown to this llcli
	single bool   // one object, not a list of one
	table  *table
	list   listWriter
	count  int
	hits   func(o *api.Object) string // packets that a rule decided on; nil: the kind has no such column
}

func (a *app) objectWriter(name string, single bool) *objectWriter {
	w := &objectWriter{app: a, name: name, kind: findKind(name), single: single, list: listWriter{app: a}}
	columns := []column{{title: "NAME"}, {title: "STATE"}}
	if w.kind != nil {
		columns = append(columns, w.kind.columns...)
	}
	if w.hasHits() {
		columns = append(columns, column{title: "HITS", right: true, optional: 1})
	}
	if a.output == formatWide {
		if w.kind != nil {
			columns = append(columns, w.kind.wide...)
		}
		columns = append(columns, column{title: "OWNER", optional: 2}, column{title: "REVISION", right: true, optional: 3})
	}
	w.table = a.table(append(columns, column{title: "MESSAGE", flexible: true})...)
	return w
}

// hasHits reports whether the table shows how often each object decided.
func (w *objectWriter) hasHits() bool {
	return w.app.isTable() && (w.name == api.KindFirewallRule || w.name == api.KindNAT)
}

// addHits makes w request the counters of each object that it shows, unless there are many.
func (a *app) addHits(ctx context.Context, d Daemon, w *objectWriter) {
	w.hits = func(o *api.Object) string {
		if w.count > maxTop {
			return "-"
		}
		c, err := a.counters(ctx, d, o.Kind, o.Name)
		if err != nil { // it was deleted meanwhile, or the data plane has no rules
			return "-"
		}
		return count(c.Packets)
	}
}

func (w *objectWriter) add(objects []api.Object) error {
	w.count += len(objects)
	for i := range objects {
		switch {
		case w.app.isTable():
			w.table.add(w.row(&objects[i])...)
		case w.app.output == formatName:
			w.app.printf("%s\n", refOf(&objects[i]))
		case w.single:
			return w.app.printValue(objects[i])
		default:
			if err := w.list.add(objects[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func refOf(o *api.Object) api.ObjectRef { return api.ObjectRef{Kind: o.Kind, Name: o.Name} }

func (w *objectWriter) row(o *api.Object) []cell {
	var status api.Status
	decode(o, &struct{}{}, &status)
	state := or(status.State, api.StatePending)
	wide := w.app.output == formatWide
	cells := []cell{{text: o.Name}, {text: state, color: stateColor(state)}}
	if w.kind != nil {
		cells = append(cells, w.kind.cells(o, wide)...)
	}
	if w.hasHits() {
		cells = slices.Insert(cells, 2+len(w.kind.columns), cell{text: w.hits(o)})
	}
	if wide {
		cells = append(cells, cell{text: or(o.Owner, api.OwnerCLI)}, cell{text: strconv.FormatUint(o.Revision, 10)})
	}
	return append(cells, cell{text: status.Message})
}

func (w *objectWriter) end() error {
	switch {
	case !w.app.isTable():
		if !w.single && w.app.output != formatName {
			w.list.end()
		}
	case w.count == 0:
		w.app.noneFound(w.name)
	default:
		w.table.flush()
	}
	return nil
}
