// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/api"
)

// pastRevision is an earlier revision of a testDaemon.
type pastRevision struct {
	api.HistoryEntry
	objects map[api.ObjectRef]api.Object // after it
}

// remember records a change in the history. d.mu is held.
func (d *testDaemon) remember(result *api.ChangeResult, after map[api.ObjectRef]api.Object, change api.Change) {
	summary := maps.Clone(result.Summary)
	delete(summary, api.ActionUnchanged)
	delete(summary, api.ActionAbsent)
	e := api.HistoryEntry{
		Revision: d.revision, Previous: d.revision - 1, Time: "2026-03-04T05:06:07Z", Author: api.Author{UID: 0, User: "root", Method: d.calls[len(d.calls)-1]},
		Owners: []string{"cli"}, Summary: summary,
	}
	if e.Method == api.MethodRollback {
		e.Restored = d.restored
	}
	if change.Confirm > 0 {
		e.Confirm = "waiting"
		waits := api.PendingConfirm{Revision: d.revision, Until: "2026-03-04T05:07:07Z", Left: change.Confirm, Author: e.Author}
		if before := d.waits; before != nil {
			waits.Joined, waits.Left = append(slices.Clone(before.Joined), before.Revision), before.Left
		}
		d.waits, result.Confirm = &waits, &waits
	}
	d.past = append(d.past, pastRevision{e, maps.Clone(after)})
}

// at returns the objects as they were at a revision; 0: the current objects.
func (d *testDaemon) at(revision uint64) map[api.ObjectRef]api.Object {
	if revision == 0 || revision == d.revision {
		return d.objects
	}
	for _, p := range d.past {
		if p.Revision == revision {
			return p.objects
		}
	}
	return nil
}

func (d *testDaemon) history(p api.HistoryParams) (any, *api.Error) {
	result := api.HistoryResult{Revision: d.revision, Oldest: 40, Items: []api.HistoryEntry{}}
	for _, past := range slices.Backward(d.past) {
		if p.Revision == 0 {
			result.Items = append(result.Items, past.HistoryEntry)
		} else if p.Revision == past.Revision {
			result.Items = append(result.Items, past.HistoryEntry)
			result.Objects = d.diffs(d.at(past.Previous), past.objects)
		}
	}
	if p.Revision != 0 && len(result.Items) == 0 {
		return nil, api.Errorf(api.ReasonNotFound, "%d is not kept", p.Revision).At("", "revision")
	}
	return result, nil
}

// diffs returns the changes to objects; the change to an object named large is truncated: it
// contains no objects.
func (d *testDaemon) diffs(before, after map[api.ObjectRef]api.Object) (diffs []api.HistoryDiff) {
	all := maps.Clone(after)
	for ref, o := range before {
		if _, there := all[ref]; !there {
			all[ref] = o
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(all), func(a, b api.ObjectRef) int { return cmp.Compare(a.String(), b.String()) }) {
		was, wasThere := before[ref]
		is, isThere := after[ref]
		diff := api.HistoryDiff{ObjectChange: api.ObjectChange{Kind: ref.Kind, Name: ref.Name, Action: api.ActionUpdated}, Cut: ref.Name == "large"}
		switch {
		case wasThere && isThere && was.Revision == is.Revision:
			continue
		case !wasThere:
			diff.Action = api.ActionCreated
		case !isThere:
			diff.Action = api.ActionDeleted
		}
		if wasThere && !diff.Cut {
			diff.Before = &was
		}
		if isThere && !diff.Cut {
			diff.After = &is
		}
		diffs = append(diffs, diff)
	}
	return diffs
}

func (d *testDaemon) rollback(p api.RollbackParams) (any, *api.Error) {
	to := p.Undo - 1
	if d.waits != nil && p.Undo == d.waits.Revision {
		to -= uint64(len(d.waits.Joined))
	}
	if p.Revision != nil {
		to = *p.Revision
	}
	then := d.at(to)
	if then == nil && to != 40 {
		return nil, api.Errorf(api.ReasonNotFound, "%d is not kept", to).At("", "revision")
	}
	result := &api.ChangeResult{Revision: d.revision, Summary: map[string]int{}}
	after := map[api.ObjectRef]api.Object{}
	maps.Copy(after, then)
	for ref, o := range d.objects {
		if o.Owner == api.OwnerFile {
			after[ref] = o
		}
	}
	for _, diff := range d.diffs(d.objects, after) {
		addChange(result, api.ObjectRef{Kind: diff.Kind, Name: diff.Name}, diff.Action)
	}
	for ref, o := range after {
		if _, was := then[ref]; !was && o.Owner == api.OwnerFile {
			result.Left = append(result.Left, ref)
		}
	}
	if d.restored = to; !p.DryRun {
		d.settle("rolled-back")
	}
	return d.commit(result, after, p.Change, nil)
}

func (d *testDaemon) settle(how string) {
	for i := range d.past {
		if d.waits != nil && (d.past[i].Revision == d.waits.Revision || slices.Contains(d.waits.Joined, d.past[i].Revision)) {
			d.past[i].Confirm = how
		}
	}
	d.waits = nil
}

func (d *testDaemon) confirm(p api.ConfirmParams) (any, *api.Error) {
	if d.waits == nil || d.waits.Revision != p.Revision {
		return nil, api.Errorf(api.ReasonConflict, "no change is pending").At("", "revision")
	}
	d.settle("confirmed")
	return api.ConfirmResult(p), nil
}
