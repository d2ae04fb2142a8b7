// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on a change.
const (
	maxID       = 128 // bytes of requestID and transaction
	maxWait     = time.Hour
	maxNotReady = 20 // maximum number of objects named in an error
	minConfirm  = time.Second
	maxConfirm  = time.Hour
)

// maxPage is the largest page of a list, in bytes. It is smaller than a reply, so that many clients
// together use little memory.
const maxPage = 62 << 10

// request is a checked request to apply, replace, delete or roll back.
type request struct {
	method  string
	change  api.Change
	puts    []*state.Object
	deletes []state.Key
	scope   *state.Scope
	back    *state.Rollback // parameters of a rollback; nil: not a rollback

	budget *decode.Budget // budget for the request
}

func (s *Server) apply(ctx context.Context, c Caller, p *api.ApplyParams) (any, *api.Error) {
	r := &request{method: api.MethodApply, change: p.Change, budget: c.budget}
	return s.change(ctx, c, r, sizeOf(p.Objects), func(base int) *api.Error {
		return s.parsePuts(r, p.Objects, api.OwnerCLI, base)
	})
}

func (s *Server) replace(ctx context.Context, c Caller, p *api.ReplaceParams) (any, *api.Error) {
	r := &request{method: api.MethodReplace, change: p.Change, budget: c.budget}
	return s.change(ctx, c, r, sizeOf(p.Objects), func(base int) *api.Error {
		if err := checkScope(p); err != nil {
			return err
		}
		r.scope = &state.Scope{Owner: p.Owner, Kinds: slices.Sorted(slices.Values(p.Kinds))}
		if err := s.parsePuts(r, p.Objects, p.Owner, base); err != nil {
			return err
		}
		for _, o := range r.puts {
			if o.Owner != p.Owner {
				return invalid("", "%q is not %q, the owner of this replace", o.Owner, decode.Shorten(p.Owner)).At(o.Key.String(), "owner")
			}
			if !slices.Contains(r.scope.Kinds, o.Kind) {
				return invalid("", "%s is not one of the kinds of this replace", o.Kind).At(o.Key.String(), "kind")
			}
		}
		return nil
	})
}

func checkScope(p *api.ReplaceParams) *api.Error {
	switch {
	case p.Owner == "":
		return invalid("owner", "is missing: set it to the owner whose objects are replaced")
	case p.Owner == api.OwnerFile:
		return invalid("owner", "the owner %s is reserved for the object files: change them, then reload", api.OwnerFile)
	}
	if err := object.CheckOwner(p.Owner); err != nil {
		return err
	}
	if len(p.Kinds) == 0 {
		return invalid("kinds", "is missing: list the kinds of which all other objects are deleted")
	}
	for i, kind := range p.Kinds {
		if _, err := object.ParseKind(kind, fmt.Sprintf("kinds[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) delete(ctx context.Context, c Caller, p *api.DeleteParams) (any, *api.Error) {
	r := &request{method: api.MethodDelete, change: p.Change, budget: c.budget}
	return s.change(ctx, c, r, sizeOf(p.Objects), func(base int) *api.Error {
		for i, ref := range p.Objects {
			place := fmt.Sprintf("objects[%d]", base+i)
			kind, err := object.ParseKind(ref.Kind, place+".kind")
			if err == nil {
				err = object.CheckName(kind, ref.Name, place+".name")
			}
			if err != nil {
				return err
			}
			r.deletes = append(r.deletes, state.Key{Kind: kind, Name: ref.Name})
		}
		return nil
	})
}

// parsePuts checks the objects of a request. base is the number of objects staged before the
// request.
func (s *Server) parsePuts(r *request, objects []api.Object, owner string, base int) *api.Error {
	r.puts = make([]*state.Object, len(objects))
	var first *api.Error
	for i := range objects {
		o, err := s.parsePut(r, &objects[i], owner, base+i)
		if r.puts[i] = o; err == nil {
			continue
		}
		full := err.Reason() == api.ReasonCapacity // the objects exceed the budget together
		switch {
		case first == nil:
			first = err
		case !full && err.Data != nil && err.Data.Object != "":
			first.Data.Others = append(first.Data.Others, api.ObjectError{
				Object: decode.ShortenTo(err.Data.Object, maxErrorRef), Field: decode.ShortenTo(err.Data.Field, maxErrorRef),
				Message: decode.ShortenTo(err.Message, maxErrorRef),
			})
		}
		if full || first.Data == nil || first.Data.Object == "" || len(first.Data.Others) == maxOthers {
			break
		}
	}
	return first
}

// maxOthers limits how many further objects an error names.
const maxOthers = 9

// parsePut checks one object of a request.
func (s *Server) parsePut(r *request, o *api.Object, owner string, index int) (*state.Object, *api.Error) {
	put, err := parseObject(o, owner, index, r.budget)
	if err == nil {
		err = s.notReserved(put)
	}
	if err == nil && put.Owner == api.OwnerFile {
		err = invalid("", "the owner %s is reserved for the object files: choose another", api.OwnerFile).At(put.Key.String(), "owner")
	}
	return put, err
}

// sizeOf returns the number of objects in a request; -1 if it has no list.
func sizeOf[T any](objects []T) int {
	if objects == nil {
		return -1
	}
	return len(objects)
}

// change carries out a change, or stages it. parse checks its objects; base is the number of
// objects that were staged earlier.
func (s *Server) change(ctx context.Context, c Caller, r *request, size int, parse func(base int) *api.Error) (any, *api.Error) {
	if err := checkChange(&r.change); err != nil {
		return nil, err
	}
	if !r.change.DryRun || r.change.More {
		if err := c.mayChange(r.method); err != nil {
			return nil, err
		}
	}
	if size < 0 {
		return nil, invalid("objects", "is missing: an empty list means none")
	}
	id := stageID{c.UID, r.change.Transaction}
	if r.change.More {
		n, err := s.staging.add(id, r, size, parse)
		if err != nil {
			return nil, err
		}
		return &api.ChangeResult{Revision: s.Store.Snapshot().Revision, Changes: []api.ObjectChange{}, Staged: n}, nil
	}
	if answer, err := s.answered(c, r); answer != nil || err != nil {
		s.staging.forget(id)
		if err != nil {
			return nil, err
		}
		return s.await(ctx, r, answer)
	}
	if err := s.staging.take(id, r, parse); err != nil {
		return nil, err
	}
	result, err := s.commit(c, r)
	if err != nil {
		return nil, refusalError(err)
	}
	if result.Answer != nil {
		return s.repeated(ctx, r, result.Answer)
	}
	from := 0
	if r.change.DryRun {
		from = r.change.ChangesFrom
	}
	r.note(result.Changes)
	s.noteConfirmation(r, result)
	return s.await(ctx, r, s.changeResult(result, from))
}

// commit carries out a complete request.
func (s *Server) commit(c Caller, r *request) (*state.Result, error) {
	answer := func(result *state.Result) []byte { return encodeResult(s.changeResult(result, 0)) }
	by := state.Author{UID: c.UID, User: userName(c.UID), Method: r.method}
	if b := r.back; b != nil {
		b.By, b.IfRevision, b.DryRun, b.Confirm = by, r.change.IfRevision, r.change.DryRun, time.Duration(r.change.Confirm)
		b.RequestID, b.Answer = requestID(c, r), answer
		return s.Store.Rollback(b)
	}
	return s.Store.Commit(&state.Transaction{
		Put: r.puts, Delete: r.deletes, Replace: r.scope, Owner: "", By: by, Confirm: time.Duration(r.change.Confirm),
		IfRevision: r.change.IfRevision, DryRun: r.change.DryRun, RequestID: requestID(c, r), Answer: answer,
		Force: r.change.Force, Observed: s.observed(),
	})
}

// observed returns the state of the node.
func (s *Server) observed() state.Observed {
	telemetry := s.Plane.Telemetry()
	port := func(name string) datapath.PortState {
		is, _ := telemetry.PortState(datapath.PortName(name))
		return is
	}
	return state.Observed{
		DeviceOf:   func(name string) string { return port(name).Device },
		IsAttached: func(name string) bool { return port(name).Index != 0 },
		DeviceTo:   func(a netip.Addr) string { return telemetry.HopTo(datapath.Hop{Addr: a}, false).Device },
		Devices:    func() map[string]datapath.Device { return telemetry.Devices(false) },
	}
}

func checkChange(c *api.Change) *api.Error {
	switch {
	case len(c.RequestID) > maxID:
		return invalid("requestID", "%d bytes long, at most %d", len(c.RequestID), maxID)
	case len(c.Transaction) > maxID:
		return invalid("transaction", "%d bytes long, at most %d", len(c.Transaction), maxID)
	case c.More && c.Transaction == "":
		return invalid("more", "requires a transaction")
	case c.Wait < 0 || time.Duration(c.Wait) > maxWait:
		return invalid("wait", "%s is not between 0s and %s", c.Wait, maxWait)
	case c.Confirm != 0 && (time.Duration(c.Confirm) < minConfirm || time.Duration(c.Confirm) > maxConfirm):
		return invalid("confirm", "%s is not between %s and %s", c.Confirm, minConfirm, maxConfirm)
	case c.ChangesFrom < 0:
		return invalid("changesFrom", "%d is negative", c.ChangesFrom)
	case c.ChangesFrom > 0 && !c.DryRun:
		return invalid("changesFrom", "is for dry runs only: after a commit, use the method changes")
	}
	return nil
}

// requestID returns the id under which a request is remembered. Each user has a separate set of
// ids.
func requestID(c Caller, r *request) string {
	if r.change.RequestID == "" || r.change.DryRun {
		return ""
	}
	return fmt.Sprintf("%d/%s", c.UID, r.change.RequestID)
}

// answered returns the stored reply to the request, or nil if the request has not been executed
// before.
func (s *Server) answered(c Caller, r *request) (*api.ChangeResult, *api.Error) {
	id := requestID(c, r)
	if id == "" {
		return nil, nil
	}
	text, err := s.Store.Answer(id)
	if text == nil || err != nil {
		return nil, refusalErrorOrNil(err)
	}
	return decodeResult(text)
}

func decodeResult(text []byte) (*api.ChangeResult, *api.Error) {
	var result api.ChangeResult
	if err := json.Unmarshal(text, &result); err != nil {
		return nil, api.Errorf(api.ReasonInternal, "stored reply: %v", err)
	}
	return &result, nil
}

func (s *Server) repeated(ctx context.Context, r *request, text []byte) (any, *api.Error) {
	result, err := decodeResult(text)
	if err != nil {
		return nil, err
	}
	return s.await(ctx, r, result)
}

// note records the objects that a change affected in addition to the objects that it named.
func (r *request) note(changes []state.Change) {
	if r.scope == nil && r.back == nil {
		return
	}
	for _, c := range changes {
		if c.Action == state.Deleted || r.back != nil {
			r.deletes = append(r.deletes, c.Key)
		}
	}
}

// kindsOf returns the kinds of a replace, for messages and comparison.
func kindsOf(s *state.Scope) []string { return slices.Sorted(maps.Keys(setOf(s.Kinds))) }

func setOf(words []string) map[string]struct{} {
	m := make(map[string]struct{}, len(words))
	for _, w := range words {
		m[w] = struct{}{}
	}
	return m
}
