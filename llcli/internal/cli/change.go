// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// changeOptions are the flags of every command that changes something.
type changeOptions struct {
	dryRun     bool
	wait       time.Duration
	confirm    time.Duration
	force      bool
	ifRevision int64
	requestID  string
}

const typeConfirm = "time to confirm"

// confirmTime is the value of --confirm: zero is refused, since it would protect from nothing.
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
func (c *confirmTime) Type() string { return typeConfirm }

func (o *changeOptions) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.dryRun, "dry-run", false, "check the change and show the result without applying it")
	flags.BoolVar(&o.dryRun, "diff", false, "the same as --dry-run: show line by line what would change")
	flags.DurationVar(&o.wait, "wait", 0, "return when the data plane has applied the change, or after this `TIME` with exit code 4")
	flags.Var((*confirmTime)(&o.confirm), "confirm", "roll back automatically after `TIME` (1s to 1h) unless llcli confirm is run first: for changes that may lock you out")
	flags.BoolVar(&o.force, "force", false, "delete or change an Interface although other objects need its device")
	flags.Int64Var(&o.ifRevision, "if-revision", -1, "refuse unless the daemon is still at this `REVISION`")
	flags.StringVar(&o.requestID, "request-id", "", "your own `ID` of the change; a change with the same id is made only once")
	hideDefault(flags, "if-revision")
	for _, flag := range []string{"wait", "confirm", "if-revision", "request-id"} {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
}

func (o *changeOptions) params() (api.Change, error) {
	if o.wait < 0 {
		return api.Change{}, usagef("--wait %s: want 0 or more", o.wait)
	}
	change := api.Change{DryRun: o.dryRun, Wait: api.Duration(o.wait), Confirm: api.Duration(o.confirm), RequestID: o.requestID, Force: o.force}
	if o.ifRevision >= 0 {
		revision := uint64(o.ifRevision)
		change.IfRevision = &revision
	}
	return change, nil
}

func (a *app) applyCommand() *cobra.Command {
	var options changeOptions
	var files []string
	var owner string
	cmd := &cobra.Command{
		Use:   "apply -f FILE…",
		Short: "Create or change the objects of files",
		Long: `Create or change the objects of the files, all of them in one transaction. Other objects
stay as they are.

FILE is YAML (several documents with --- between them) or JSON, a folder of such
files, or - for the standard input.`,
		Example: "  llcli apply -f web.yaml --wait 10s\n  llcli apply -f services/ --dry-run\n  generate | llcli apply -f -",
		Args:    moreFiles(&files),
		RunE: a.run(func(ctx context.Context, d Daemon, more []string) error {
			docs, change, err := a.changeInput(append(files, more...), owner, &options)
			if err != nil {
				return err
			}
			return a.change(ctx, d, transaction{method: api.MethodApply, objects: objectsOf(docs), change: change}, docs)
		}),
	}
	options.bind(cmd)
	bindFiles(cmd, &files)
	cmd.Flags().StringVar(&owner, "owner", "", "the `OWNER` of objects that name none (default cli)")
	return cmd
}

func bindFiles(cmd *cobra.Command, files *[]string) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil, "a `FILE` of objects, a folder, or - for the standard input; may be repeated")
	must(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
}

// moreFiles takes words behind -f FILE for further files, as a shell makes them
// of -f *.yaml. Without -f they are refused: they could be meant for names.
func moreFiles(files *[]string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 && len(*files) == 0 {
			return usagef("unexpected %q; name files with -f FILE", args[0])
		}
		return nil
	}
}

// changeInput reads the input of a change by files.
func (a *app) changeInput(files []string, owner string, options *changeOptions) ([]manifest, api.Change, error) {
	change, err := options.params()
	if err != nil {
		return nil, change, err
	}
	if len(files) == 0 {
		return nil, change, usagef("which objects? name a file with -f FILE, or -f - for the standard input")
	}
	docs, err := readManifests(a.In, files)
	if err == nil && len(docs) == 0 {
		err = fmt.Errorf("no object in %s", titles(files))
	}
	for i := range docs {
		if docs[i].object.Owner == "" {
			docs[i].object.Owner = owner
		}
	}
	return docs, change, err
}

func objectsOf(docs []manifest) []api.Object {
	objects := make([]api.Object, len(docs))
	for i := range docs {
		objects[i] = docs[i].object
	}
	return objects
}

func (a *app) deleteCommand() *cobra.Command {
	var options changeOptions
	var files []string
	var chosen getOptions
	cmd := &cobra.Command{
		Use:     "delete {KIND NAME… | KIND -l KEY=VALUE | -f FILE…}",
		Aliases: []string{"rm", "remove"},
		Short:   "Delete objects",
		Long:    "Delete objects in one transaction: by name, by label, or the objects that files name. Deleting an object that does not exist is not an error.",
		Example: "  llcli delete service web\n  llcli delete nat -l team=web --dry-run\n  llcli delete -f web.yaml",
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			change, err := options.params()
			if err != nil {
				return err
			}
			if len(files) > 0 {
				if len(args) > 0 || len(chosen.labels) > 0 {
					return usagef("-f does not go together with names or --labels")
				}
				docs, change, err := a.changeInput(files, "", &options)
				if err != nil {
					return err
				}
				refs := make([]api.ObjectRef, len(docs))
				for i := range docs {
					refs[i] = docs[i].ref()
				}
				return a.change(ctx, d, transaction{method: api.MethodDelete, refs: refs, change: change}, docs)
			}
			if len(args) == 0 {
				return usagef("which objects? llcli delete KIND NAME…, KIND -l KEY=VALUE, or -f FILE")
			}
			kind, names, err := refArgs(args)
			if err != nil {
				return err
			}
			return a.deleteChosen(ctx, d, kind, names, chosen, change)
		}),
		ValidArgsFunction: a.completeRefs(0),
	}
	options.bind(cmd)
	bindFiles(cmd, &files)
	chosen.bindLabels(cmd)
	return cmd
}

// deleteChosen deletes the objects of a kind that are named or have the labels.
func (a *app) deleteChosen(ctx context.Context, d Daemon, kind string, names []string, chosen getOptions, change api.Change) error {
	switch {
	case len(names) > 0 && len(chosen.labels) > 0:
		return usagef("names and --labels do not go together")
	case len(chosen.labels) > 0:
		_, err := a.list(ctx, d, api.ListParams{Kind: kind, Labels: chosen.labels}, func(objects []api.Object) error {
			for i := range objects {
				names = append(names, objects[i].Name)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(names) == 0 {
			a.noneFound(kind)
			return nil
		}
	case len(names) == 0:
		return usagef("which %s? name it, or choose by label with -l KEY=VALUE", kind)
	}
	refs := make([]api.ObjectRef, len(names))
	for i, name := range names {
		refs[i] = api.ObjectRef{Kind: kind, Name: name}
	}
	return a.change(ctx, d, transaction{method: api.MethodDelete, refs: refs, change: change}, nil)
}

// change carries out a change and prints the result for each object. An error that names an object
// of docs is reported with its file and line.
func (a *app) change(ctx context.Context, d Daemon, t transaction, docs []manifest) error {
	result, err := t.send(ctx, d)
	if err != nil {
		a.tellWaiting(&t, err)
		return locate(err, docs)
	}
	if t.change.DryRun && a.isTable() {
		if err := a.diffObjects(ctx, d, t.changed(result)); err != nil {
			return err
		}
	}
	if err := a.printChange(result, t.change.DryRun); err != nil {
		return err
	}
	return a.keep(ctx, d, result.Confirm)
}

// located is an error of the daemon with the place in a file that it is about.
type located struct {
	place  string
	err    error
	others []api.ObjectError // of other objects, with the places in their messages
}

func (e *located) Error() string { return e.place + ": " + e.err.Error() }
func (e *located) Unwrap() error { return e.err }

// locate finds the place in docs that an error of the daemon names.
func locate(err error, docs []manifest) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Data == nil {
		return err
	}
	place := func(object, field string) string {
		for i := range docs {
			if d := &docs[i]; d.ref().String() == object {
				return fmt.Sprintf("%s:%d", d.File, d.Line(field))
			}
		}
		return ""
	}
	if at := place(e.Data.Object, e.Data.Field); at != "" {
		l := &located{place: at, err: err}
		for _, o := range e.Data.Others {
			o.Message = or(place(o.Object, o.Field), "?") + ": " + o.Message
			l.others = append(l.others, o)
		}
		return l
	}
	if d := nameless(e, docs); d != nil {
		_, field, _ := strings.Cut(e.Data.Field, ".")
		return &located{place: fmt.Sprintf("%s:%d", d.File, d.Line(field)), err: err}
	}
	return err
}

// nameless returns the document of an error that is about a missing kind or name.
func nameless(e *api.Error, docs []manifest) *manifest {
	var i int
	if _, err := fmt.Sscanf(e.Data.Field, "objects[%d].kind", &i); err != nil || i < 0 || i >= len(docs) {
		return nil
	}
	if d := &docs[i]; strings.Contains(e.Message, strconv.Quote(d.object.Kind)) {
		return d
	}
	return nil
}

func (a *app) printChange(result *api.ChangeResult, dryRun bool) error {
	if a.output == formatName {
		for _, c := range result.Changes {
			a.printf("%s/%s\n", c.Kind, c.Name)
		}
		return nil
	}
	if !a.isTable() {
		return a.printValue(result)
	}
	summary := result.Summary
	if summary == nil {
		summary = make(map[string]int)
		for _, c := range result.Changes {
			summary[c.Action]++
		}
	}
	paint := a.painter()
	for _, c := range result.Changes {
		a.printf("%s/%s %s\n", c.Kind, c.Name, paint.paint(actionColor(c.Action), actionText(c.Action, dryRun)))
	}
	var parts []string
	total := 0
	for _, action := range slices.Sorted(maps.Keys(summary)) {
		total += summary[action]
		parts = append(parts, fmt.Sprintf("%d %s", summary[action], shortAction(action, dryRun)))
	}
	if more := total - len(result.Changes); more > 0 {
		a.printf("… and %d more\n", more)
	}
	if len(parts) == 0 {
		parts = []string{"nothing to do"}
	}
	head := fmt.Sprintf("revision %d", result.Revision)
	if dryRun {
		head = "dry run, nothing was changed"
	}
	a.printf("%s: %s\n", head, strings.Join(parts, ", "))
	a.printLeft(result)
	for _, warning := range result.Warnings {
		a.printf("warning: %s\n", clean(warning))
	}
	return nil
}

func actionColor(action string) string {
	switch action {
	case api.ActionCreated:
		return green
	case api.ActionUpdated:
		return yellow
	case api.ActionDeleted:
		return red
	default:
		return ""
	}
}

// actionText describes the result, or the predicted result, for an object.
func actionText(action string, dryRun bool) string {
	if action == api.ActionAbsent {
		return "not found, nothing to delete"
	}
	return shortAction(action, dryRun)
}

func shortAction(action string, dryRun bool) string {
	switch {
	case action == api.ActionAbsent:
		return "not found"
	case dryRun && action != api.ActionUnchanged:
		return "would be " + action
	default:
		return action
	}
}
