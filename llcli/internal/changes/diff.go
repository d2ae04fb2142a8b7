// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func diffCommand(a *command.App) *cobra.Command {
	var files []string
	var exitCode bool
	var owner string
	var revision int64
	cmd := &cobra.Command{
		Use:   "diff {-f FILE… | --revision REVISION}",
		Short: "Show what apply, or rollback, would change",
		Long: `Show line by line what apply would change in the specs. The daemon checks the files as
for apply, with the same errors. JSON and YAML output is the reply to apply --dry-run.
With --revision, show what a rollback to that revision would change.`,
		Example: "  llcli diff -f web.yaml\n  llcli diff -f conf/ --exit-code || echo it differs\n  llcli diff --revision 41",
		Args:    moreFiles(&files),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, more []string) error {
			if revision >= 0 {
				if len(files) > 0 {
					return command.Usagef("-f and --revision cannot be combined")
				}
				differs, err := diffRevision(ctx, a, d, uint64(revision), owner)
				if err == nil && differs && exitCode {
					return command.ErrFailed
				}
				return err
			}
			docs, change, err := changeInput(a, append(files, more...), owner, &Options{dryRun: true, ifRevision: -1, confirm: previewConfirm})
			if err != nil {
				return err
			}
			t := Transaction{Method: api.MethodApply, Objects: objectsOf(docs), Change: change}
			result, err := t.send(ctx, d)
			if err != nil {
				return locate(err, docs)
			}
			differs := slices.ContainsFunc(result.Changes, func(c api.ObjectChange) bool { return c.Action != api.ActionUnchanged })
			if a.IsTable() {
				err = diffObjects(ctx, a, d, objectsOf(docs))
			} else {
				err = a.PrintValue(result)
			}
			if err == nil && differs && exitCode {
				return command.ErrFailed
			}
			return err
		}),
	}
	BindFiles(cmd, &files)
	bindOwner(cmd, &owner, "", "the `OWNER` of objects without an owner (default cli)")
	cmd.Flags().Int64Var(&revision, "revision", -1, "compare the current objects with the objects at this `REVISION`, of all owners or of --owner")
	command.HideDefault(cmd.Flags(), "revision")
	command.Must(cmd.RegisterFlagCompletionFunc("revision", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeRevisions(a)(cmd, nil, prefix)
	}))
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if there are differences")
	return cmd
}

// diffObjects shows how each object differs from the daemon's copy.
func diffObjects(ctx context.Context, a *command.App, d command.Daemon, objects []api.Object) error {
	for i := range objects {
		o := &objects[i]
		is, err := a.Object(ctx, d, o.Kind, o.Name)
		absent := command.IsNotFound(err)
		if err != nil && !absent {
			return err
		}
		before, after := "", ""
		if !absent {
			if before, err = canonical(&is); err != nil {
				return err
			}
		}
		if after, err = canonical(o); err != nil {
			return err
		}
		if lines := diffLines(before, after); len(lines) > 0 {
			printDiff(a, o.Kind+"/"+o.Name, absent, lines)
		}
	}
	return nil
}

// canonical writes the desired state of an object as YAML, with its fields in alphabetical order.
func canonical(o *api.Object) (string, error) {
	wanted := map[string]any{"owner": cmp.Or(o.Owner, api.OwnerCLI)}
	if len(o.Labels) > 0 {
		wanted["labels"] = o.Labels
	}
	spec := map[string]any{}
	if err := kinds.MergeFields(spec, asKept(o)); o.Spec != nil && err != nil {
		return "", fmt.Errorf("%s/%s: spec: %w", o.Kind, o.Name, err)
	}
	wanted["spec"] = spec
	text, err := document.ToYAML(wanted)
	return string(text), err
}

// asKept returns a spec as the daemon stores it: a single value of a list field becomes a list with
// one element. Unknown fields stay unchanged.
func asKept(o *api.Object) json.RawMessage {
	k := kinds.Find(o.Kind)
	if k == nil || o.Spec == nil {
		return o.Spec
	}
	spec := k.Spec()
	dec := json.NewDecoder(bytes.NewReader(o.Spec))
	dec.DisallowUnknownFields()
	if dec.Decode(spec) != nil {
		return o.Spec
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return o.Spec
	}
	return raw
}

func printDiff(a *command.App, ref string, absent bool, lines []string) {
	paint := a.Painter()
	title := ref
	if absent {
		title += " (does not exist)"
	}
	a.Printf("%s\n", paint.Paint(output.Bold, output.Clean(title)))
	printDiffLines(a, lines)
}

func printDiffLines(a *command.App, lines []string) {
	paint := a.Painter()
	for _, line := range lines {
		color := ""
		switch line[0] {
		case '+':
			color = output.Green
		case '-':
			color = output.Red
		}
		a.Printf("%s\n", paint.Paint(color, output.Clean(line)))
	}
}

// diffContext is how many unchanged lines are shown around a changed line.
const diffContext = 3

// diffLines returns the differing lines of two texts and a few lines around them, each preceded by
// +, - or a blank. It returns nothing if the texts are equal.
func diffLines(before, after string) []string {
	if before == after {
		return nil
	}
	all := editScript(splitLines(before), splitLines(after))
	keep := make([]bool, len(all))
	for i := range all {
		if all[i][0] == ' ' {
			continue
		}
		for j := max(0, i-diffContext); j < min(len(all), i+diffContext+1); j++ {
			keep[j] = true
		}
	}
	var lines []string
	for i := range all {
		switch {
		case keep[i]:
			lines = append(lines, all[i])
		case i == 0 || keep[i-1]:
			lines = append(lines, "  …")
		}
	}
	return lines
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// maxDiff bounds the table of the longest common subsequence, in cells.
const maxDiff = 4 << 20

// editScript returns the lines of both texts, each with its mark.
func editScript(before, after []string) []string {
	var script, tail []string
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		script = append(script, "  "+before[0])
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		tail = append(tail, "  "+before[len(before)-1])
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	slices.Reverse(tail)
	if len(before)*len(after) > maxDiff { // too long: all of it is shown as different
		return slices.Concat(script, prefixLines("- ", before), prefixLines("+ ", after), tail)
	}
	return slices.Concat(script, commonScript(before, after), tail)
}

// commonScript keeps the longest common subsequence.
func commonScript(before, after []string) []string {
	// length[i][j] is the length for before[i:] and after[j:].
	length := make([][]int32, len(before)+1)
	for i := range length {
		length[i] = make([]int32, len(after)+1)
	}
	for i := len(before) - 1; i >= 0; i-- {
		for j := len(after) - 1; j >= 0; j-- {
			if before[i] == after[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var script []string
	i, j := 0, 0
	for i < len(before) && j < len(after) {
		switch {
		case before[i] == after[j]:
			script = append(script, "  "+before[i])
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			script = append(script, "- "+before[i])
			i++
		default:
			script = append(script, "+ "+after[j])
			j++
		}
	}
	return slices.Concat(script, prefixLines("- ", before[i:]), prefixLines("+ ", after[j:]))
}

func prefixLines(prefix string, lines []string) []string {
	out := make([]string, len(lines))
	for i := range lines {
		out[i] = prefix + lines[i]
	}
	return out
}
