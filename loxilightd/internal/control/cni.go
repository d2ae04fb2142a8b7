// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// CNI carries out Container Network Interface (CNI) commands.
type CNI func(ctx context.Context, p *api.CNIParams) (json.RawMessage, *api.Error)

// cni passes a command to the CNI function. Only root may use commands, because they enter network
// namespaces and run IPAM plugins. STATUS does neither, so every user with read access may use it.
func (s *Server) cni(ctx context.Context, c Caller, p *api.CNIParams) (any, *api.Error) {
	if c.UID != 0 && p.Command != api.CNIStatus {
		return nil, api.Errorf(api.ReasonDenied, "%s: user id %d is not root: only root may attach containers", api.MethodCNI, c.UID)
	}
	if s.CNI == nil {
		return nil, api.Errorf(api.ReasonUnsupported, "%s: this daemon does not support containers", api.MethodCNI)
	}
	result, err := s.CNI(ctx, p)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Objects gives a part of the daemon access to the objects of one owner. It is safe for concurrent
// use.
type Objects struct {
	s     *Server
	owner string
}

// ObjectsOf returns the objects of owner.
func (s *Server) ObjectsOf(owner string) Objects { return Objects{s, owner} }

// Change puts some objects and deletes others, all or none, and returns the new revision.
func (o Objects) Change(puts []api.Object, deletes []api.ObjectRef) (uint64, *api.Error) {
	t := &state.Transaction{Owner: o.owner, By: state.Author{User: userName(0), Method: api.MethodCNI}}
	for i := range puts {
		x, err := parseObject(&puts[i], o.owner, i, nil)
		if err == nil {
			err = o.s.notReserved(x)
		}
		if err != nil {
			return 0, err
		}
		t.Put = append(t.Put, x)
	}
	for _, ref := range deletes {
		t.Delete = append(t.Delete, state.Key{Kind: ref.Kind, Name: ref.Name})
	}
	result, err := o.s.Store.Commit(t)
	if err != nil {
		return 0, refusalError(err)
	}
	if slices.ContainsFunc(deletes, func(ref api.ObjectRef) bool { return ref.Kind == api.KindEndpoint }) {
		o.s.podsRemoved()
	}
	return result.Revision, nil
}

// podsRemoved reads the object files again if a PodNetwork in them was rejected because of pods. If
// pods still conflict, the daemon's health reports the conflict.
func (s *Server) podsRemoved() {
	err, ok := errors.AsType[*api.Error](s.filesFailed())
	if !ok || err.Reason() != api.ReasonConflict || err.Data == nil || !strings.HasPrefix(err.Data.Object, api.KindPodNetwork+"/") {
		return
	}
	if result, err := s.Reload(); err == nil {
		s.Log.Info("object files applied, since the conflicting pods were deleted", slog.Any("changes", result.Summary))
	}
}

// Ready waits until the objects are Ready at revision or later. If ctx ends first, the error names
// an object that is not Ready, and gives the reason.
func (o Objects) Ready(ctx context.Context, revision uint64, objects []api.ObjectRef) *api.Error {
	keys := make([]state.Key, len(objects))
	for i, ref := range objects {
		keys[i] = state.Key{Kind: ref.Kind, Name: ref.Name}
	}
	left, err := o.s.Progress.Wait(ctx, revision, keys)
	if err == nil || len(left) == 0 {
		return nil
	}
	slices.SortFunc(left, cmpKeys)
	n := o.s.notReady(left[0])
	text := fmt.Sprintf("%s: not Ready in time: %s", n.Object, n.State)
	if n.Message != "" {
		text += ": " + n.Message
	}
	return api.Errorf(api.ReasonTimeout, "%s", text)
}

// Status returns the status of an object; the result is false if the object does not exist.
func (o Objects) Status(ref api.ObjectRef) (api.Status, bool) {
	k := state.Key{Kind: ref.Kind, Name: ref.Name}
	if _, ok := o.s.Store.Snapshot().Get(k); !ok {
		return api.Status{}, false
	}
	st, ok := o.s.Progress.Status(k)
	if !ok {
		st = api.Status{State: api.StatePending}
	}
	return st, true
}

// Owned returns the owner's objects of a kind.
func (o Objects) Owned(kind string) (list []api.Object) {
	for x := range o.s.Store.Snapshot().After(kind, "") {
		if x.Owner == o.owner {
			list = append(list, api.Object{Kind: x.Kind, Name: x.Name, Owner: x.Owner, Spec: json.RawMessage(x.Spec)})
		}
	}
	return list
}
