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

// CNI carries out commands of the container network interface.
type CNI func(ctx context.Context, p *api.CNIParams) (json.RawMessage, *api.Error)

// cni hands a command on. Commands are for root alone: they enter network namespaces, and run
// IPAM plugins. STATUS does neither, so every user who may read may ask for it.
func (s *Server) cni(ctx context.Context, c Caller, p *api.CNIParams) (any, *api.Error) {
	if c.UID != 0 && p.Command != api.CNIStatus {
		return nil, api.Errorf(api.ReasonDenied, "%s: user id %d is not root, who alone may attach containers", api.MethodCNI, c.UID)
	}
	if s.CNI == nil {
		return nil, api.Errorf(api.ReasonUnsupported, "%s: this daemon has no part for containers", api.MethodCNI)
	}
	result, err := s.CNI(ctx, p)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Objects is the desired state for a part of the daemon that makes objects of one
// owner. Safe for concurrent use.
type Objects struct {
	s     *Server
	owner string
}

// ObjectsOf returns the objects of owner.
func (s *Server) ObjectsOf(owner string) Objects { return Objects{s, owner} }

// Change puts objects and deletes others, all or none, and returns the revision of it.
func (o Objects) Change(puts []api.Object, deletes []api.ObjectRef) (uint64, *api.Error) {
	t := &state.Transaction{Owner: o.owner, By: state.Author{User: userName(0), Method: api.MethodCNI}}
	for i := range puts {
		x, err := parseObject(&puts[i], o.owner, i, nil)
		if err == nil {
			err = o.s.carried(x)
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
		o.s.podsGone()
	}
	return result.Revision, nil
}

// podsGone reads the object files again where pods were in the way of a PodNetwork in
// them. While others still are, the state of the daemon says so.
func (s *Server) podsGone() {
	err, ok := errors.AsType[*api.Error](s.filesFailed())
	if !ok || err.Reason() != api.ReasonConflict || err.Data == nil || !strings.HasPrefix(err.Data.Object, api.KindPodNetwork+"/") {
		return
	}
	if result, err := s.Reload(); err == nil {
		s.Log.Info("object files taken over, since pods that were in their way are gone", slog.Any("changes", result.Summary))
	}
}

// Ready waits until the objects are as wanted at revision or later. When ctx ends first
// the error names what is not, and why.
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

// Status returns what became of an object; false if there is none.
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

// Owned returns the objects of a kind that the owner has.
func (o Objects) Owned(kind string) (list []api.Object) {
	for x := range o.s.Store.Snapshot().After(kind, "") {
		if x.Owner == o.owner {
			list = append(list, api.Object{Kind: x.Kind, Name: x.Name, Owner: x.Owner, Spec: json.RawMessage(x.Spec)})
		}
	}
	return list
}
