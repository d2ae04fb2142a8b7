// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"os/user"
	"strconv"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// maxLeft limits how many objects an answer to rollback lists as not restored.
const maxLeft = 100

// userName returns the name of a user, or an empty string if uid has no name.
func userName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return ""
	}
	return decode.Shorten(u.Username)
}

func authorOf(a state.Author) api.Author {
	return api.Author{UID: a.UID, User: a.User, Method: a.Method}
}

func timeOf(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// maxReaderHistory is how much of the history, in bytes, a reader's dry run may read.
const maxReaderHistory = 8 << 20

func (s *Server) rollback(ctx context.Context, c Caller, p *api.RollbackParams) (any, *api.Error) {
	switch {
	case (p.Revision == nil) == (p.Undo == 0):
		return nil, invalid("revision", "is missing: set revision to the revision to restore, or undo to the revision of the pending change, but not both")
	case p.Owner != "" && p.Undo != 0:
		return nil, invalid("owner", "cannot be combined with undo, which rolls back the whole change")
	case p.Owner == api.OwnerFile:
		return nil, invalid("owner", "objects in the object files are not rolled back: change them, then reload")
	case p.Owner == api.OwnerCNI:
		return nil, invalid("owner", "objects of pods are created and deleted with the pods: deleted pods are not restored")
	case p.Transaction != "" || p.More:
		return nil, invalid("transaction", "a rollback is one request")
	}
	r := &request{method: api.MethodRollback, change: p.Change, back: &state.Rollback{Undo: p.Undo, Owner: p.Owner}}
	if p.Revision != nil {
		r.back.Revision = *p.Revision
	}
	if !c.Admin {
		r.back.MaxBytes = maxReaderHistory
	}
	return s.change(ctx, c, r, 0, func(int) *api.Error { return nil })
}

// getAt answers a get request for an object as of an earlier revision.
func (s *Server) getAt(p *api.GetParams) (any, *api.Error) {
	k, err := parseKey(p.Kind, p.Name)
	if err != nil {
		return nil, err
	}
	o, serr := s.Store.At(p.Revision, k)
	if serr != nil {
		return nil, refusalError(serr)
	}
	if o == nil {
		return nil, api.Errorf(api.ReasonNotFound, "no such object at revision %d", p.Revision).At(k.Kind+"/"+decode.Shorten(k.Name), "")
	}
	return objectOf(o, nil), nil
}

func (s *Server) historyOf(_ context.Context, _ Caller, p *api.HistoryParams) (any, *api.Error) {
	if p.Limit < 0 {
		return nil, invalid("limit", "%d is negative", p.Limit)
	}
	history := s.Store.History()
	result := &api.HistoryResult{Revision: s.Store.Snapshot().Revision, Items: []api.HistoryEntry{}}
	result.Oldest = result.Revision
	if len(history) > 0 {
		result.Oldest = history[0].Previous
	}
	if p.Revision != 0 {
		return s.diffs(p, history, result)
	}
	before := ^uint64(0)
	if p.Continue != "" {
		var err error
		if before, err = strconv.ParseUint(p.Continue, 10, 64); err != nil {
			return nil, invalid("continue", "%q is not a continue value of this request", decode.Shorten(p.Continue))
		}
	}
	size := 512
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Revision >= before {
			continue
		}
		e := entryOf(&history[i])
		if size += sizeOfJSON(e); size > maxPage || p.Limit > 0 && len(result.Items) == p.Limit {
			result.Continue = strconv.FormatUint(history[i].Revision+1, 10)
			break
		}
		result.Items = append(result.Items, e)
	}
	return result, nil
}

func sizeOfJSON(v any) int {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers, and JSON that was checked
	}
	return len(text) + 1
}

func entryOf(e *state.Entry) api.HistoryEntry {
	summary := map[string]int{}
	for action, n := range map[string]int{api.ActionCreated: e.Created, api.ActionUpdated: e.Updated, api.ActionDeleted: e.Deleted} {
		if n > 0 {
			summary[action] = n
		}
	}
	return api.HistoryEntry{
		Revision: e.Revision, Previous: e.Previous, Time: timeOf(e.At), Author: authorOf(e.Author), Owners: e.Owners,
		Summary: summary, Restored: e.Restored, Confirm: e.Confirmation.String(),
	}
}

// diffs answers with the changes that one revision made.
func (s *Server) diffs(p *api.HistoryParams, history []state.Entry, result *api.HistoryResult) (any, *api.Error) {
	result.Objects = []api.HistoryDiff{}
	for i := range history {
		if history[i].Revision == p.Revision {
			result.Items = append(result.Items, entryOf(&history[i]))
		}
	}
	size := 2048
	last := state.Key{}
	err := s.Store.Diffs(p.Revision, p.Continue, func(d state.Diff) bool {
		h := diffOf(d)
		n := sizeOfJSON(h)
		if n > maxPage-2048 {
			h.Before, h.After, h.Cut = nil, nil, true
			n = sizeOfJSON(h)
		}
		if size += n; size > maxPage || p.Limit > 0 && len(result.Objects) == p.Limit {
			result.Continue = last.String()
			return false
		}
		result.Objects, last = append(result.Objects, h), d.Key
		return true
	})
	if err != nil {
		return nil, refusalError(err)
	}
	return result, nil
}

func diffOf(d state.Diff) api.HistoryDiff {
	h := api.HistoryDiff{ObjectChange: api.ObjectChange{Kind: d.Kind, Name: d.Name, Action: api.ActionUpdated}}
	as := func(o *state.Object, otherwise string) *api.Object {
		if o == nil {
			h.Action = otherwise
			return nil
		}
		a := objectOf(o, nil)
		return &a
	}
	h.Before, h.After = as(d.Before, api.ActionCreated), as(d.After, api.ActionDeleted)
	return h
}
