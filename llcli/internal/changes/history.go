// SPDX-License-Identifier: Apache-2.0

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

func historyCommand(a *command.App) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "history [REVISION]",
		Short: "Show the revisions available for rollback, or what one of them changed",
		Long: `Show who changed which objects, when and how, the latest change first. The daemon's
configuration limits how many revisions are kept. With a REVISION, show line by line what
that revision changed.`,
		Example: "  llcli history\n  llcli history 43\n  llcli history --limit 0 -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usagef("unexpected %q: llcli history takes one REVISION", args[1])
			}
			return nil
		},
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			if limit < 0 {
				return command.Usagef("--limit %d: want 0 (all) or more", limit)
			}
			if len(args) == 0 {
				return showHistory(ctx, a, d, limit)
			}
			revision, err := parseRevision(args[0])
			if err == nil {
				err = historyOf(ctx, a, d, revision)
			}
			return err
		}),
		ValidArgsFunction: completeRevisions(a),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "the latest `N` only; 0: all")
	command.Must(cmd.RegisterFlagCompletionFunc("limit", cobra.NoFileCompletions))
	return cmd
}

// eachEntry calls each for the revisions of the history, latest first, until each returns false.
func eachEntry(ctx context.Context, a *command.App, d command.Daemon, limit int, each func(api.HistoryEntry) bool) error {
	params := api.HistoryParams{Limit: limit}
	for {
		var page api.HistoryResult
		if err := d.Call(ctx, api.MethodHistory, params, &page); err != nil {
			return err
		}
		for _, e := range page.Items {
			if !each(e) {
				return nil
			}
		}
		if page.Continue == "" {
			return nil
		}
		params.Continue = page.Continue
	}
}

func showHistory(ctx context.Context, a *command.App, d command.Daemon, limit int) error {
	t := a.Table(output.Column{Title: "REVISION", Right: true}, output.Column{Title: "TIME"}, output.Column{Title: "USER"}, output.Column{Title: "BY"},
		output.Column{Title: "OWNERS", Flexible: true, Optional: 1}, output.Column{Title: "CHANGES"}, output.Column{Title: "OBJECTS", Flexible: true, Optional: 3}, output.Column{Title: "CONFIRM", Optional: 2})
	list := a.NewList()
	count := 0
	var failed error
	err := eachEntry(ctx, a, d, limit, func(e api.HistoryEntry) bool {
		if count++; limit > 0 && count > limit {
			return false
		}
		if !a.IsTable() {
			failed = list.Add(e)
			return failed == nil
		}
		names, err := changedNames(ctx, a, d, count, &e)
		if failed = err; err != nil {
			return false
		}
		t.Add(output.Cell{Text: strconv.FormatUint(e.Revision, 10)}, output.Cell{Text: a.LocalTime(e.Time)}, output.Cell{Text: output.UserOf(e.Author)}, output.Cell{Text: madeBy(&e)},
			output.Cell{Text: output.Join(e.Owners)}, output.Cell{Text: summaryText(e.Summary)}, output.Cell{Text: names}, output.Cell{Text: cmp.Or(e.Confirm, "-"), Color: output.ConfirmColor(e.Confirm)})
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	switch {
	case !a.IsTable():
		list.End()
	case count == 0:
		a.Note("the daemon has recorded no change yet")
	default:
		t.Flush()
		if limit > 0 && count > limit {
			a.Printf("… and more: --limit 0 shows all\n")
		}
	}
	return nil
}

// madeBy describes the request that made a revision, and the revision to which it returned.
func madeBy(e *api.HistoryEntry) string {
	switch to := strconv.FormatUint(e.Restored, 10); {
	case e.Method == methodExpire:
		return "timed out, back to " + to
	case e.Restored > 0 || e.Method == api.MethodRollback:
		return e.Method + " to " + to
	default:
		return e.Method
	}
}

// methodExpire is the method of the revisions with which the daemon rolled back an unconfirmed
// change.
const methodExpire = "expire"

// namedEntries is the maximum number of revisions for which objects are looked up; namedObjects is
// the maximum number of objects shown per revision.
const namedEntries, namedObjects = 100, 3

// changedNames names the first objects that a revision changed.
func changedNames(ctx context.Context, a *command.App, d command.Daemon, count int, e *api.HistoryEntry) (string, error) {
	if count > namedEntries {
		return "-", nil
	}
	var page api.HistoryResult
	err := d.Call(ctx, api.MethodHistory, api.HistoryParams{Revision: e.Revision, Limit: namedObjects}, &page)
	if command.IsNotFound(err) { // the daemon has since discarded it
		return "-", nil
	}
	var names []string
	for i := range page.Objects {
		names = append(names, page.Objects[i].Kind+"/"+page.Objects[i].Name)
	}
	if page.Continue != "" {
		names = append(names, "…")
	}
	return output.Join(names), err
}

func summaryText(summary map[string]int) string {
	var parts []string
	for _, action := range slices.Sorted(maps.Keys(summary)) {
		parts = append(parts, fmt.Sprintf("%d %s", summary[action], action))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// historyOf shows the changes in one revision.
func historyOf(ctx context.Context, a *command.App, d command.Daemon, revision uint64) error {
	if revision == 0 {
		return command.Usagef("revision 0 is the initial state: nothing was changed")
	}
	params := api.HistoryParams{Revision: revision}
	list := a.NewList()
	for {
		var page api.HistoryResult
		if err := d.Call(ctx, api.MethodHistory, params, &page); err != nil {
			return err
		}
		if params.Continue == "" && a.IsTable() && len(page.Items) == 1 {
			e := &page.Items[0]
			a.Printf("revision %d: %s by %s, %s\n", e.Revision, e.Method, output.UserOf(e.Author), a.LocalTime(e.Time))
		}
		for i := range page.Objects {
			o := &page.Objects[i]
			err := completeDiff(ctx, a, d, page.Items, o)
			if err == nil && a.IsTable() {
				err = printHistoryDiff(a, o)
			} else if err == nil {
				err = list.Add(o)
			}
			if err != nil {
				return err
			}
		}
		if params.Continue = page.Continue; params.Continue == "" {
			break
		}
	}
	if !a.IsTable() {
		list.End()
	}
	return nil
}

// completeDiff reads the objects that did not fit in a reply.
func completeDiff(ctx context.Context, a *command.App, d command.Daemon, items []api.HistoryEntry, o *api.HistoryDiff) (err error) {
	if !o.Cut || len(items) != 1 {
		return nil
	}
	if o.Before, err = objectAt(ctx, a, d, o.Kind, o.Name, items[0].Previous); err != nil {
		return err
	}
	o.After, err = objectAt(ctx, a, d, o.Kind, o.Name, items[0].Revision)
	o.Cut = false
	return err
}

// objectAt requests an object as it was at a revision. It returns nil if the object did not exist.
func objectAt(ctx context.Context, a *command.App, d command.Daemon, kind, name string, revision uint64) (*api.Object, error) {
	if revision == 0 { // the beginning: no object existed
		return nil, nil
	}
	var o api.Object
	err := d.Call(ctx, api.MethodGet, api.GetParams{Kind: kind, Name: name, Revision: revision}, &o)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Reason() == api.ReasonNotFound && e.Data.Field == "" {
		return nil, nil
	}
	return &o, err
}

func printHistoryDiff(a *command.App, o *api.HistoryDiff) error {
	texts := [2]string{}
	for i, side := range []*api.Object{o.Before, o.After} {
		if side != nil {
			text, err := canonical(side)
			if err != nil {
				return err
			}
			texts[i] = text
		}
	}
	paint := a.Painter()
	a.Printf("%s %s\n", paint.Paint(output.Bold, output.Clean(o.Kind+"/"+o.Name)), paint.Paint(output.ActionColor(o.Action), o.Action))
	printDiffLines(a, diffLines(texts[0], texts[1]))
	return nil
}

// completeRevisions offers revisions for a rollback.
func completeRevisions(a *command.App) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var words []string
		if len(args) == 0 {
			a.Ask(cmd.Context(), func(ctx context.Context, d command.Daemon) error {
				return eachEntry(ctx, a, d, 0, func(e api.HistoryEntry) bool {
					if text := strconv.FormatUint(e.Revision, 10); strings.HasPrefix(text, prefix) {
						words = append(words, cobra.CompletionWithDesc(text, fmt.Sprintf("%s by %s: %s", e.Method, output.UserOf(e.Author), summaryText(e.Summary))))
					}
					return len(words) < command.MaxCompletions
				})
			})
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}
