// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (s *Server) get(_ context.Context, _ Caller, p *api.GetParams) (any, *api.Error) {
	if p.Revision != 0 {
		return s.getAt(p)
	}
	o, err := s.find(p.Kind, p.Name)
	if err != nil {
		return nil, err
	}
	return objectOf(o, s.objectStatus(o)), nil
}

// find returns the object that a request names.
func (s *Server) find(kind, name string) (*state.Object, *api.Error) {
	k, err := parseKey(kind, name)
	if err != nil {
		return nil, err
	}
	o, ok := s.Store.Snapshot().Get(k)
	if !ok {
		return nil, notFound(k.Kind, name)
	}
	return o, nil
}

func parseKey(kind, name string) (state.Key, *api.Error) {
	kind, err := object.ParseKind(kind, "kind")
	if err == nil && name == "" {
		err = invalid("name", "is missing")
	}
	return state.Key{Kind: kind, Name: name}, err
}

func notFound(kind, name string) *api.Error {
	todo := "see llcli get " + strings.ToLower(kind) + "s"
	if kind == api.KindEndpoint {
		todo += ", which lists pods as NAMESPACE/NAME"
	}
	return api.Errorf(api.ReasonNotFound, "no such object: %s", todo).At(kind+"/"+decode.Shorten(name), "")
}

func (s *Server) list(ctx context.Context, _ Caller, p *api.ListParams) (any, *api.Error) {
	kinds, after, err := listRange(p)
	if err != nil {
		return nil, err
	}
	snapshot := s.Store.Snapshot()
	result := &listResult{Revision: snapshot.Revision, Items: []json.RawMessage{}}
	var last state.Key
	size := 512
	for _, kind := range kinds {
		for o := range snapshot.After(kind, after) {
			if p.Owner != "" && o.Owner != p.Owner || !hasLabels(o, p.Labels) {
				continue
			}
			if ctx.Err() != nil {
				return nil, api.Errorf(api.ReasonUnavailable, "the client disconnected")
			}
			text, err := json.Marshal(objectOf(o, s.objectStatus(o)))
			if err != nil {
				return nil, api.FromError(err)
			}
			size += len(text) + 1
			if n := len(result.Items); n > 0 && (n == p.Limit || size > maxPage) {
				result.Continue = last.String()
				return result, nil
			}
			result.Items, last = append(result.Items, text), o.Key
		}
		after = ""
	}
	return result, nil
}

// listResult is an [api.ListResult] with encoded items.
type listResult struct {
	Revision uint64            `json:"revision"`
	Items    []json.RawMessage `json:"items"`
	Continue string            `json:"continue,omitempty"`
}

// listRange returns the kinds to list, and the name in the first kind after which to start.
func listRange(p *api.ListParams) (kinds []string, after string, err *api.Error) {
	if p.Limit < 0 {
		return nil, "", invalid("limit", "%d is negative", p.Limit)
	}
	kinds = api.Kinds
	if p.Kind != "" {
		kind, err := object.ParseKind(p.Kind, "kind")
		if err != nil {
			return nil, "", err
		}
		kinds = []string{kind}
	}
	if p.Continue == "" {
		return kinds, "", nil
	}
	kind, name, ok := strings.Cut(p.Continue, "/")
	for i := range kinds {
		if ok && name != "" && kinds[i] == kind {
			return kinds[i:], name, nil
		}
	}
	return nil, "", invalid("continue", "%q is not a continue value of this request", decode.Shorten(p.Continue))
}

func hasLabels(o *state.Object, want map[string]string) bool {
	for k, v := range want {
		if got, ok := o.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// changes lists the changes since a revision. The changes of one revision are sent together: a
// revision that does not fit in a reply counts as expired, and the last revision may exceed limit.
func (s *Server) changes(_ context.Context, _ Caller, p *api.ChangesParams) (any, *api.Error) {
	if p.Limit < 0 {
		return nil, invalid("limit", "%d is negative", p.Limit)
	}
	all, revision, ok := s.Store.Changes(p.Since)
	result := &api.ChangesResult{Revision: revision, Changes: []api.RevisedChange{}}
	if !ok {
		result.Expired = true
		return result, nil
	}
	size, whole := 512, 0 // whole is the number of changes that belong to complete revisions
	for i, c := range all {
		if i > 0 && all[i-1].Revision != c.Revision {
			whole = i
			if p.Limit > 0 && whole >= p.Limit {
				break
			}
		}
		size += len(c.Kind) + len(c.Name) + len(`{"revision":18446744073709551615,"kind":"","name":"","action":"unchanged"},`)
		if size > maxPage {
			break
		}
		result.Changes = append(result.Changes, api.RevisedChange{
			Revision: c.Revision, ObjectChange: api.ObjectChange{Kind: c.Kind, Name: c.Name, Action: c.Action.String()},
		})
		if i == len(all)-1 {
			return result, nil
		}
	}
	if len(all) == 0 {
		return result, nil
	}
	result.Changes = result.Changes[:whole]
	if whole == 0 {
		result.Expired = true
		return result, nil
	}
	result.Revision, result.More = all[whole-1].Revision, true
	return result, nil
}
