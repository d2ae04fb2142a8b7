// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// await delays the answer until the data plane has applied the change, if the request asks it to
// wait.
func (s *Server) await(ctx context.Context, r *request, result *api.ChangeResult) (any, *api.Error) {
	if r.change.Wait == 0 || r.change.DryRun {
		return result, nil
	}
	keys := slices.Clone(r.deletes)
	for _, o := range r.puts {
		keys = append(keys, o.Key)
	}
	if len(keys) == 0 { // a repeated request: only its answer is known
		for _, c := range result.Changes {
			keys = append(keys, state.Key{Kind: c.Kind, Name: c.Name})
		}
	}
	bounded, cancel := context.WithTimeout(ctx, time.Duration(r.change.Wait))
	defer cancel()
	left, err := s.Progress.Wait(bounded, result.Revision, keys)
	if err == nil {
		result.Warnings = append(result.Warnings, s.messagesOf(keys, maxNotReady-len(result.Warnings))...)
		return result, nil
	}
	if ctx.Err() != nil {
		return nil, api.Errorf(api.ReasonUnavailable, "saved as revision %d, but the daemon is stopping before the result is known", result.Revision)
	}
	e := api.Errorf(api.ReasonTimeout, "saved as revision %d, but %d of %d objects %s not Ready after %s",
		result.Revision, len(left), len(keys), wasOrWere(len(left)), r.change.Wait)
	slices.SortFunc(left, func(a, b state.Key) int { return cmpKeys(a, b) })
	for _, k := range left[:min(len(left), maxNotReady)] {
		e.Data.NotReady = append(e.Data.NotReady, s.notReady(k))
	}
	if len(e.Data.NotReady) > 0 {
		n := e.Data.NotReady[0]
		e.Message += fmt.Sprintf("; %s: %s", n.Object, n.State)
		if n.Message != "" {
			e.Message += ": " + n.Message
		}
	}
	return nil, e
}

// messagesOf returns at most limit messages, for those of the objects that are Ready.
func (s *Server) messagesOf(keys []state.Key, limit int) (list []string) {
	for _, k := range keys {
		if len(list) >= limit {
			break
		}
		if st, ok := s.Progress.Status(k); ok && st.State == api.StateReady && st.Message != "" {
			list = append(list, fmt.Sprintf("%s: %s", k, shortMessage(st.Message)))
		}
	}
	return list
}

// changeResult encodes a result, with as many of the changes as fit.
func (s *Server) changeResult(r *state.Result, from int) *api.ChangeResult {
	result := &api.ChangeResult{Revision: r.Revision, Changes: []api.ObjectChange{}, Summary: map[string]int{}, Warnings: r.Warnings}
	if r.Pending != nil {
		result.Confirm = pendingConfirm(r.Pending, r.PendingLeft)
	}
	size := 1024 // everything but the changes
	for _, w := range r.Warnings {
		size += len(w) + 8
	}
	for _, k := range r.Left[:min(len(r.Left), maxLeft)] {
		size += len(k.Kind) + len(k.Name) + len(`{"kind":"","name":""},`)
		result.Left = append(result.Left, api.ObjectRef{Kind: k.Kind, Name: k.Name})
	}
	for _, c := range r.Changes {
		result.Summary[c.Action.String()]++
	}
	for _, c := range r.Changes[min(from, len(r.Changes)):] {
		size += len(c.Kind) + len(c.Name) + len(`{"kind":"","name":"","action":"unchanged"},`)
		if size > maxPage {
			result.Truncated = true
			break
		}
		result.Changes = append(result.Changes, api.ObjectChange{Kind: c.Kind, Name: c.Name, Action: c.Action.String()})
	}
	return result
}

func encodeResult(r *api.ChangeResult) []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return text
}

var reasons = map[state.Reason]api.Reason{
	state.Invalid: api.ReasonInvalid, state.Conflict: api.ReasonConflict,
	state.Capacity: api.ReasonCapacity, state.Unavailable: api.ReasonUnavailable, state.NotKept: api.ReasonNotFound,
}

// refusalError converts the store's errors to API errors; this is the only place that does so.
func refusalError(err error) *api.Error {
	r, ok := errors.AsType[*state.Refusal](err)
	if !ok {
		return api.FromError(err)
	}
	ref := ""
	if r.Key != (state.Key{}) {
		ref = r.Key.String()
	}
	return api.Errorf(reasons[r.Reason], "%s", r.Message).At(ref, r.Field)
}

func refusalErrorOrNil(err error) *api.Error {
	if err == nil {
		return nil
	}
	return refusalError(err)
}

func cmpKeys(a, b state.Key) int {
	switch as, bs := a.String(), b.String(); {
	case as < bs:
		return -1
	case as > bs:
		return 1
	}
	return 0
}

func wasOrWere(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}
