// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (s *Server) get(_ context.Context, _ Caller, p *api.GetParams) (any, *api.Error) {
	if p.Revision != 0 {
		return s.getAt(p)
	}
	o, from, err := s.find(p.Kind, p.Name, p.Continue)
	if err != nil {
		return nil, err
	}
	text, _, err := s.encode(o, from, maxResult)
	if err != nil {
		return nil, err
	}
	return text, nil
}

// find returns the object that a request names, and the index in its lists at which the answer
// starts.
func (s *Server) find(kindText, name, continued string) (o *state.Object, from int, err *api.Error) {
	k, from, err := parseGet(kindText, name, continued)
	if err != nil {
		return nil, 0, err
	}
	o, ok := s.Store.Snapshot().Get(k)
	if !ok {
		return nil, 0, notFound(k.Kind, name)
	}
	return o, from, nil
}

func parseGet(kindText, name, continued string) (k state.Key, from int, err *api.Error) {
	kind, err := parseKind(kindText, "kind")
	if err != nil {
		return k, 0, err
	}
	if name == "" {
		return k, 0, invalid("name", "is missing")
	}
	from, err = parseIndex(continued)
	return state.Key{Kind: kind, Name: name}, from, err
}

// parseIndex parses the continuation of an answer that was split within lists.
func parseIndex(text string) (int, *api.Error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, invalid("continue", "%q is not from an answer to this", shorten(text))
	}
	return int(n), nil
}

func notFound(kind, name string) *api.Error {
	todo := "see llcli get " + strings.ToLower(kind) + "s"
	if kind == api.KindEndpoint {
		todo += ", where a pod is called NAMESPACE/NAME"
	}
	return api.Errorf(api.ReasonNotFound, "there is no such object: %s", todo).At(kind+"/"+shorten(name), "")
}

// encode returns o as an answer of at most limit bytes, with its lists from element from; whole
// reports whether the lists fit.
func (s *Server) encode(o *state.Object, from, limit int) (text json.RawMessage, whole bool, err *api.Error) {
	return encodeWith(o, s.objectStatus(o), from, limit)
}

// encodeWith is encode with a status; nil: without.
func encodeWith(o *state.Object, status json.RawMessage, from, limit int) (text json.RawMessage, whole bool, err *api.Error) {
	a := objectOf(o, status)
	text, merr := json.Marshal(&a)
	if merr != nil {
		return nil, false, api.FromError(merr)
	}
	if from == 0 && len(text) <= limit {
		return text, true, nil
	}
	if limit < maxResult {
		// It does not fit here and must not be split.
		return text, false, nil
	}
	text, err = cutObject(&a, from, limit)
	return text, false, err
}

func cut[T any](list []T, from, size int) []T {
	from = min(from, len(list))
	return list[from:min(from+size, len(list))]
}

func (s *Server) list(ctx context.Context, _ Caller, p *api.ListParams) (any, *api.Error) {
	kinds, after, err := listRange(p)
	if err != nil {
		return nil, err
	}
	snapshot := s.Store.Snapshot()
	result := &listResult{Revision: snapshot.Revision, Items: []json.RawMessage{}}
	size := 512
	for _, kind := range kinds {
		for o := range snapshot.After(kind, after) {
			if p.Owner != "" && o.Owner != p.Owner || !hasLabels(o, p.Labels) {
				continue
			}
			if ctx.Err() != nil {
				return nil, api.Errorf(api.ReasonUnavailable, "the client hung up")
			}
			full := p.Limit > 0 && len(result.Items) == p.Limit
			if !full {
				text, whole, err := s.encode(o, 0, maxResult-size)
				if !whole && err == nil && len(result.Items) == 0 {
					text, _, err = s.encode(o, 0, maxResult) // on a page of its own
					whole = true
				}
				if err != nil {
					return nil, err
				}
				if whole {
					size += len(text) + 1
					result.Items = append(result.Items, text)
					result.last = o.Key
					continue
				}
			}
			result.Continue = result.last.String()
			return result, nil
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
	last     state.Key
}

// listRange returns the kinds to list, and the name in the first kind after which to start.
func listRange(p *api.ListParams) (kinds []string, after string, err *api.Error) {
	if p.Limit < 0 {
		return nil, "", invalid("limit", "%d is negative", p.Limit)
	}
	kinds = api.Kinds
	if p.Kind != "" {
		kind, err := parseKind(p.Kind, "kind")
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
	return nil, "", invalid("continue", "%q is not from an answer to this list", shorten(p.Continue))
}

func hasLabels(o *state.Object, want map[string]string) bool {
	for k, v := range want {
		if got, ok := o.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// changes lists what changed. A revision is sent as a whole: a revision that does not fit a reply
// counts as expired, and the last revision may exceed limit.
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
	size, whole := 512, 0 // whole is how many changes of whole revisions there are
	for i, c := range all {
		if i > 0 && all[i-1].Revision != c.Revision {
			whole = i
			if p.Limit > 0 && whole >= p.Limit {
				break
			}
		}
		size += len(c.Kind) + len(c.Name) + len(`{"revision":18446744073709551615,"kind":"","name":"","action":"unchanged"},`)
		if size > maxResult {
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
