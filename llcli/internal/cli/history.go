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

func (a *app) historyCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "history [REVISION]",
		Short: "Show the revisions that can be gone back to, or what one of them changed",
		Long: `Show who changed what is wanted, when and how, the latest first: as far back as the
daemon's configuration has it remember. With a REVISION, show line by line what that
one changed.`,
		Example: "  llcli history\n  llcli history 43\n  llcli history --limit 0 -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("unexpected %q: llcli history takes one REVISION", args[1])
			}
			return nil
		},
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			if limit < 0 {
				return usagef("--limit %d: want 0 (all) or more", limit)
			}
			if len(args) == 0 {
				return a.history(ctx, d, limit)
			}
			revision, err := parseRevision(args[0])
			if err == nil {
				err = a.historyOf(ctx, d, revision)
			}
			return err
		}),
		ValidArgsFunction: a.completeRevisions,
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "the latest `N` only; 0: all")
	must(cmd.RegisterFlagCompletionFunc("limit", cobra.NoFileCompletions))
	return cmd
}

// eachEntry calls each for the revisions of the history, the latest first, until it
// returns false.
func (a *app) eachEntry(ctx context.Context, d Daemon, limit int, each func(api.HistoryEntry) bool) error {
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

func (a *app) history(ctx context.Context, d Daemon, limit int) error {
	t := a.table(column{title: "REVISION", right: true}, column{title: "TIME"}, column{title: "USER"}, column{title: "BY"},
		column{title: "OWNERS", flexible: true, optional: 1}, column{title: "CHANGES"}, column{title: "OBJECTS", flexible: true, optional: 3}, column{title: "CONFIRM", optional: 2})
	list := listWriter{app: a}
	count := 0
	var failed error
	err := a.eachEntry(ctx, d, limit, func(e api.HistoryEntry) bool {
		if count++; limit > 0 && count > limit {
			return false
		}
		if !a.isTable() {
			failed = list.add(e)
			return failed == nil
		}
		names, err := a.changedNames(ctx, d, count, &e)
		if failed = err; err != nil {
			return false
		}
		t.add(cell{text: strconv.FormatUint(e.Revision, 10)}, cell{text: a.localTime(e.Time)}, cell{text: userOf(e.Author)}, cell{text: madeBy(&e)},
			cell{text: join(e.Owners)}, cell{text: summaryText(e.Summary)}, cell{text: names}, cell{text: or(e.Confirm, "-"), color: confirmColor(e.Confirm)})
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	switch {
	case !a.isTable():
		list.end()
	case count == 0:
		a.note("the daemon has recorded no change yet")
	default:
		t.flush()
		if limit > 0 && count > limit {
			a.printf("… and more: --limit 0 shows all\n")
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

// methodExpire is the method of revisions by which the daemon rolled back an unconfirmed change.
const methodExpire = "expire"

// namedEntries bounds the revisions of which the objects are looked up, namedObjects the objects
// that are shown of one.
const namedEntries, namedObjects = 100, 3

// changedNames names the first objects that a revision changed.
func (a *app) changedNames(ctx context.Context, d Daemon, count int, e *api.HistoryEntry) (string, error) {
	if count > namedEntries {
		return "-", nil
	}
	var page api.HistoryResult
	err := d.Call(ctx, api.MethodHistory, api.HistoryParams{Revision: e.Revision, Limit: namedObjects}, &page)
	if isNotFound(err) { // forgotten meanwhile
		return "-", nil
	}
	var names []string
	for i := range page.Objects {
		names = append(names, page.Objects[i].Kind+"/"+page.Objects[i].Name)
	}
	if page.Continue != "" {
		names = append(names, "…")
	}
	return join(names), err
}

func userOf(author api.Author) string { return or(author.User, strconv.Itoa(author.UID)) }

func confirmColor(confirm string) string {
	switch confirm {
	case "waiting":
		return yellow
	case "rolled-back":
		return red
	case "confirmed":
		return green
	}
	return ""
}

// localTime converts a time of the daemon to the user's time zone.
func (a *app) localTime(text string) string {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	return t.In(a.Now().Location()).Format("2006-01-02 15:04:05")
}

func summaryText(summary map[string]int) string {
	var parts []string
	for _, action := range slices.Sorted(maps.Keys(summary)) {
		parts = append(parts, fmt.Sprintf("%d %s", summary[action], action))
	}
	return or(strings.Join(parts, ", "), "-")
}

// historyOf shows the changes of one revision.
func (a *app) historyOf(ctx context.Context, d Daemon, revision uint64) error {
	if revision == 0 {
		return usagef("0 is the beginning: nothing was changed by it")
	}
	params := api.HistoryParams{Revision: revision}
	list := listWriter{app: a}
	for {
		var page api.HistoryResult
		if err := d.Call(ctx, api.MethodHistory, params, &page); err != nil {
			return err
		}
		if params.Continue == "" && a.isTable() && len(page.Items) == 1 {
			e := &page.Items[0]
			a.printf("revision %d: %s by %s, %s\n", e.Revision, e.Method, userOf(e.Author), a.localTime(e.Time))
		}
		for i := range page.Objects {
			o := &page.Objects[i]
			err := a.completeDiff(ctx, d, page.Items, o)
			if err == nil && a.isTable() {
				err = a.printHistoryDiff(o)
			} else if err == nil {
				err = list.add(o)
			}
			if err != nil {
				return err
			}
		}
		if params.Continue = page.Continue; params.Continue == "" {
			break
		}
	}
	if !a.isTable() {
		list.end()
	}
	return nil
}

// completeDiff reads the objects that did not fit a reply.
func (a *app) completeDiff(ctx context.Context, d Daemon, items []api.HistoryEntry, o *api.HistoryDiff) (err error) {
	if !o.Cut || len(items) != 1 {
		return nil
	}
	if o.Before, err = a.objectAt(ctx, d, o.Kind, o.Name, items[0].Previous); err != nil {
		return err
	}
	o.After, err = a.objectAt(ctx, d, o.Kind, o.Name, items[0].Revision)
	o.Cut = false
	return err
}

// objectAt requests an object as it was at a revision; nil: it did not exist.
func (a *app) objectAt(ctx context.Context, d Daemon, kind, name string, revision uint64) (*api.Object, error) {
	if revision == 0 { // the beginning: nothing was there
		return nil, nil
	}
	var o api.Object
	err := d.Call(ctx, api.MethodGet, api.GetParams{Kind: kind, Name: name, Revision: revision}, &o)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Reason() == api.ReasonNotFound && e.Data.Field == "" {
		return nil, nil
	}
	return &o, err
}

func (a *app) printHistoryDiff(o *api.HistoryDiff) error {
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
	paint := a.painter()
	a.printf("%s %s\n", paint.paint(bold, clean(o.Kind+"/"+o.Name)), paint.paint(actionColor(o.Action), o.Action))
	a.printDiffLines(diffLines(texts[0], texts[1]))
	return nil
}

// completeRevisions offers revisions for a rollback.
func (a *app) completeRevisions(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var words []string
	if len(args) == 0 {
		a.ask(cmd.Context(), func(ctx context.Context, d Daemon) error {
			return a.eachEntry(ctx, d, 0, func(e api.HistoryEntry) bool {
				if text := strconv.FormatUint(e.Revision, 10); strings.HasPrefix(text, prefix) {
					words = append(words, cobra.CompletionWithDesc(text, fmt.Sprintf("%s by %s: %s", e.Method, userOf(e.Author), summaryText(e.Summary))))
				}
				return len(words) < maxCompletions
			})
		})
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
