// SPDX-License-Identifier: Apache-2.0

// Package changes contains the commands of llcli that change objects, or show their changes: apply,
// delete, replace, edit, diff, history and rollback. Every change is one transaction in the daemon.
package changes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func applyCommand(a *command.App) *cobra.Command {
	var options Options
	var files []string
	var owner string
	cmd := &cobra.Command{
		Use:   "apply -f FILE…",
		Short: "Create or change the objects in files",
		Long: `Create or change the objects in the files, all in one transaction. Other objects stay
unchanged.

FILE is YAML (several documents separated by ---) or JSON, a directory of such files,
or - for standard input.`,
		Example: "  llcli apply -f web.yaml --wait 10s\n  llcli apply -f services/ --dry-run\n  generate | llcli apply -f -",
		Args:    moreFiles(&files),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, more []string) error {
			docs, change, err := changeInput(a, append(files, more...), owner, &options)
			if err != nil {
				return err
			}
			return CarryOut(ctx, a, d, Transaction{Method: api.MethodApply, Objects: objectsOf(docs), Change: change}, docs)
		}),
	}
	options.Bind(cmd)
	BindFiles(cmd, &files)
	cmd.Flags().StringVar(&owner, "owner", "", "the `OWNER` of objects without an owner (default cli)")
	return cmd
}

// ReadObjects reads the objects in files. toFile adds the file and the line to an error about one of
// them.
func ReadObjects(a *command.App, files []string) (objects []api.Object, toFile func(error) error, err error) {
	docs, err := readManifests(a.In, files)
	if err == nil && len(docs) == 0 {
		err = fmt.Errorf("no object in %s", titles(files))
	}
	return objectsOf(docs), func(err error) error { return locate(err, docs) }, err
}

// BindFiles adds the flag for files of objects.
func BindFiles(cmd *cobra.Command, files *[]string) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil, "a `FILE` of objects, a directory, or - for standard input; may be repeated")
	command.Must(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
}

// moreFiles accepts arguments after -f FILE as further files, because a shell expands -f *.yaml to
// such arguments. Without -f they are rejected, because they could be meant as names.
func moreFiles(files *[]string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 && len(*files) == 0 {
			return command.Usagef("unexpected %q; name files with -f FILE", args[0])
		}
		return nil
	}
}

// changeInput reads the input of a change that is defined by files.
func changeInput(a *command.App, files []string, owner string, options *Options) ([]manifest, api.Change, error) {
	change, err := options.Params()
	if err != nil {
		return nil, change, err
	}
	if len(files) == 0 {
		return nil, change, command.Usagef("which objects? name a file with -f FILE, or -f - for standard input")
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

// CarryOut carries out a change and prints the result for each object. An error that names an
// object in docs is reported with its file and line.
func CarryOut(ctx context.Context, a *command.App, d command.Daemon, t Transaction, docs []manifest) error {
	result, err := t.send(ctx, d)
	if err != nil {
		tellWaiting(a, &t, err)
		return locate(err, docs)
	}
	if t.Change.DryRun && a.IsTable() {
		if err := diffObjects(ctx, a, d, t.changed(result)); err != nil {
			return err
		}
	}
	if err := printChange(a, result, t.Change.DryRun); err != nil {
		return err
	}
	return keepOrRollBack(ctx, a, d, result.Confirm)
}

// locate finds the place in docs that an error from the daemon names.
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
		l := &command.Located{Place: at, Err: err}
		for _, o := range e.Data.Others {
			o.Message = cmp.Or(place(o.Object, o.Field), "?") + ": " + o.Message
			l.Others = append(l.Others, o)
		}
		return l
	}
	if d := nameless(e, docs); d != nil {
		_, field, _ := strings.Cut(e.Data.Field, ".")
		return &command.Located{Place: fmt.Sprintf("%s:%d", d.File, d.Line(field)), Err: err}
	}
	return err
}

// nameless returns the document that an error about a missing kind or name refers to.
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

func printChange(a *command.App, result *api.ChangeResult, dryRun bool) error {
	if a.Format == output.FormatName {
		for _, c := range result.Changes {
			a.Printf("%s/%s\n", c.Kind, c.Name)
		}
		return nil
	}
	if !a.IsTable() {
		return a.PrintValue(result)
	}
	summary := result.Summary
	if summary == nil {
		summary = make(map[string]int)
		for _, c := range result.Changes {
			summary[c.Action]++
		}
	}
	paint := a.Painter()
	for _, c := range result.Changes {
		a.Printf("%s/%s %s\n", c.Kind, c.Name, paint.Paint(output.ActionColor(c.Action), actionText(c.Action, dryRun)))
	}
	var parts []string
	total := 0
	for _, action := range slices.Sorted(maps.Keys(summary)) {
		total += summary[action]
		parts = append(parts, fmt.Sprintf("%d %s", summary[action], shortAction(action, dryRun)))
	}
	if more := total - len(result.Changes); more > 0 {
		a.Printf("… and %d more\n", more)
	}
	if len(parts) == 0 {
		parts = []string{"nothing to do"}
	}
	head := fmt.Sprintf("revision %d", result.Revision)
	if dryRun {
		head = "dry run, nothing was changed"
	}
	a.Printf("%s: %s\n", head, strings.Join(parts, ", "))
	printLeft(a, result)
	for _, warning := range result.Warnings {
		a.Printf("warning: %s\n", output.Clean(warning))
	}
	return nil
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

// Commands returns the commands that change objects.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{
		applyCommand(a), deleteCommand(a), diffCommand(a), editCommand(a), replaceCommand(a), exportCommand(a), reloadCommand(a),
		confirmCommand(a), historyCommand(a), rollbackCommand(a),
	}
}
