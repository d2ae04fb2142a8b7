// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/loxilight/loxilight/api"
)

// mini is a minimal daemon for testing clients over real sockets: it keeps objects and revisions in
// memory, and checks nothing.
type mini struct {
	mu       sync.Mutex
	publish  func(topic string, event Numbered) error // nil: no events
	objects  map[api.ObjectRef]api.Object
	revision uint64
	staged   map[string][]api.Object
	done     map[string]api.ChangeResult // by request id
	commits  int
	page     int // objects in a page of list
	executed func()
}

func newMini() *mini {
	return &mini{
		objects: map[api.ObjectRef]api.Object{}, staged: map[string][]api.Object{},
		done: map[string]api.ChangeResult{}, page: 45,
	}
}

// handle is a Handler.
func (m *mini) handle(_ context.Context, peer Peer, request []byte) []byte {
	reply := api.Reply{JSONRPC: "2.0", ID: json.RawMessage("null")}
	var r api.Request
	result, err := any(nil), json.Unmarshal(request, &r)
	if err == nil {
		reply.ID = r.ID
		result, err = m.call(peer, r)
	}
	if err == nil {
		reply.Result, err = json.Marshal(result)
	}
	if err != nil {
		reply.Error = api.FromError(err)
	}
	encoded, err := json.Marshal(reply)
	if err != nil {
		panic(err)
	}
	return encoded
}

func (m *mini) call(peer Peer, r api.Request) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r.Method {
	case api.MethodVersion:
		return api.VersionResult{Version: "1.0", API: []int{1}}, nil
	case api.MethodStatus:
		return api.StatusResult{Revision: m.revision}, nil
	case api.MethodGet:
		return with(r, m.get)
	case api.MethodList:
		return with(r, m.list)
	case api.MethodApply, api.MethodDelete:
		if !peer.Admin {
			return nil, api.Errorf(api.ReasonDenied, "user %d may read only", peer.UID)
		}
		if r.Method == api.MethodApply {
			return with(r, m.apply)
		}
		return with(r, m.delete)
	}
	return nil, &api.Error{Code: api.CodeMethodNotFound, Message: "unknown method " + r.Method}
}

func with[P, R any](r api.Request, f func(P) (R, error)) (R, error) {
	var p P
	if err := json.Unmarshal(r.Params, &p); err != nil {
		var none R
		return none, err
	}
	return f(p)
}

func (m *mini) get(p api.GetParams) (api.Object, error) {
	o, ok := m.objects[api.ObjectRef{Kind: p.Kind, Name: p.Name}]
	if !ok {
		return o, api.Errorf(api.ReasonNotFound, "%s/%s: no such object", p.Kind, p.Name)
	}
	return o, nil
}

func (m *mini) list(p api.ListParams) (api.ListResult, error) {
	var all []api.Object
	for ref, o := range m.objects {
		if ref.Kind == p.Kind && ref.Name > p.Continue {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b api.Object) int { return strings.Compare(a.Name, b.Name) })
	result := api.ListResult{Revision: m.revision, Items: all}
	if len(all) > m.page {
		result.Items, result.Continue = all[:m.page], all[m.page-1].Name
	}
	return result, nil
}

func (m *mini) apply(p api.ApplyParams) (api.ChangeResult, error) {
	if p.More {
		m.staged[p.Transaction] = append(m.staged[p.Transaction], p.Objects...)
		return api.ChangeResult{Staged: len(m.staged[p.Transaction])}, nil
	}
	if result, ok := m.done[p.RequestID]; ok && p.RequestID != "" {
		return result, nil
	}
	m.revision++
	m.commits++
	for _, o := range append(m.staged[p.Transaction], p.Objects...) {
		o.Revision = m.revision
		m.objects[api.ObjectRef{Kind: o.Kind, Name: o.Name}] = o
		m.tell(o.Kind, o.Name, api.ActionUpdated)
	}
	delete(m.staged, p.Transaction)
	m.done[p.RequestID] = api.ChangeResult{Revision: m.revision}
	if m.executed != nil {
		m.executed()
	}
	return api.ChangeResult{Revision: m.revision}, nil
}

func (m *mini) delete(p api.DeleteParams) (api.ChangeResult, error) {
	m.revision++
	for _, ref := range p.Objects {
		delete(m.objects, ref)
		m.tell(ref.Kind, ref.Name, api.ActionDeleted)
	}
	return api.ChangeResult{Revision: m.revision}, nil
}

func (m *mini) tell(kind, name, action string) {
	if m.publish == nil {
		return
	}
	if err := m.publish(api.TopicChanges, &api.ChangeEvent{Revision: m.revision, Kind: kind, Name: name, Action: action}); err != nil {
		panic(fmt.Sprintf("publish: %v", err))
	}
}

// service is an object of about 1 KiB.
func service(name string, generation int) api.Object {
	spec := fmt.Sprintf(`{"frontends":["198.51.100.10:%d/tcp"],"pad":%q}`, generation, strings.Repeat("x", 1000))
	return api.Object{Kind: api.KindService, Name: name, Spec: json.RawMessage(spec)}
}
