// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// testDaemon holds objects as loxilightd does, and forwards nothing: a Service
// is Ready at once unless its name begins with "stuck".
type testDaemon struct {
	mu          sync.Mutex
	objects     map[api.ObjectRef]api.Object
	revision    uint64
	connections []api.Connection
	calls       []string // methods, in the order of the calls
	healthy     bool
	quiet       bool   // no event happens during a watch
	counted     uint64 // how often counters were requested
	events      []client.Event
	interrupt   func()                // the effect of Ctrl-C
	away        error                 // the error for every client that connects
	fail        map[string]*api.Error // by method
	past        []pastRevision
	restored    uint64 // by the last rollback
	waits       *api.PendingConfirm
	asked       string // configuration of the last CNI command
	stateDir    string // as status reports it; empty: an older daemon
}

func newTestDaemon(t *testing.T) *testDaemon {
	t.Helper()
	return &testDaemon{objects: map[api.ObjectRef]api.Object{}, revision: 40, connections: testConnections(), events: testEvents(t), fail: map[string]*api.Error{}, stateDir: "/var/lib/loxilight"}
}

func (d *testDaemon) dial(context.Context, string, time.Duration) (command.Daemon, error) {
	if d.away != nil {
		return nil, d.away
	}
	return d, nil
}

// Close implements Daemon.
func (d *testDaemon) Close() error { return nil }

// Call implements Daemon.
func (d *testDaemon) Call(_ context.Context, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer, rpcErr := d.handle(method, raw)
	if rpcErr != nil {
		return rpcErr
	}
	raw, err = json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, result)
}

// Change implements Daemon.
func (d *testDaemon) Change(ctx context.Context, method, _ string, _ time.Duration, params, result any) error {
	return d.Call(ctx, method, params, result)
}

// handle answers one request.
func (d *testDaemon) handle(method string, params json.RawMessage) (any, *api.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, method)
	if err := d.fail[method]; err != nil {
		return nil, err
	}
	switch method {
	case api.MethodApply:
		return with(params, d.apply)
	case api.MethodDelete:
		return with(params, d.delete)
	case api.MethodGet:
		return with(params, d.get)
	case api.MethodList:
		return with(params, d.list)
	case api.MethodReplace:
		return with(params, d.replace)
	case api.MethodChanges:
		return with(params, d.changes)
	case api.MethodReload:
		return d.reload()
	case api.MethodConnectionsList:
		return with(params, d.connectionsList)
	case api.MethodConnectionsFlush:
		return with(params, d.connectionsFlush)
	case api.MethodCounters:
		return with(params, d.counters)
	case api.MethodNetworkList:
		return with(params, d.networkList)
	case api.MethodAddressesList:
		return with(params, addressesList)
	case api.MethodEventsList:
		return with(params, d.eventsList)
	case api.MethodHistory:
		return with(params, d.history)
	case api.MethodRollback:
		return with(params, d.rollback)
	case api.MethodConfirm:
		return with(params, d.confirm)
	case api.MethodVersion:
		return api.VersionResult{Version: "1.2.3", API: []int{1}, Build: "go1.26 linux/amd64"}, nil
	case api.MethodStatus:
		return d.status(), nil
	case api.MethodCapacity:
		return with(params, capacityOf)
	case api.MethodCNI:
		return with(params, func(p api.CNIParams) (any, *api.Error) { d.asked = string(p.Config); return struct{}{}, nil })
	default:
		return nil, &api.Error{Code: api.CodeMethodNotFound, Message: fmt.Sprintf("unknown method %q", method)}
	}
}

// with decodes the parameters of a method strictly.
func with[P any](raw json.RawMessage, f func(P) (any, *api.Error)) (any, *api.Error) {
	var params P
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&params); err != nil {
		return nil, &api.Error{Code: api.CodeInvalidParams, Message: err.Error()}
	}
	return f(params)
}

// check validates an object as the daemon would.
func check(o *api.Object, i int) *api.Error {
	ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}.String()
	if !slices.Contains(api.Kinds, o.Kind) {
		return api.Errorf(api.ReasonInvalid, "unknown kind %q", o.Kind).At("", fmt.Sprintf("objects[%d].kind", i))
	}
	if o.Kind != api.KindService {
		return nil
	}
	var spec api.ServiceSpec
	dec := json.NewDecoder(bytes.NewReader(o.Spec))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&spec); err != nil {
		return api.Errorf(api.ReasonInvalid, "%v", err).At(ref, "spec")
	}
	for i, b := range spec.Backends {
		if strings.HasPrefix(b.Address, "bad") {
			return api.Errorf(api.ReasonInvalid, "%q is no address", b.Address).At(ref, fmt.Sprintf("spec.backends[%d].address", i))
		}
	}
	return nil
}

func (d *testDaemon) apply(p api.ApplyParams) (any, *api.Error) {
	result := &api.ChangeResult{Revision: d.revision, Summary: map[string]int{}}
	after := maps.Clone(d.objects)
	var stuck []api.NotReady
	for i, o := range p.Objects {
		if err := check(&o, i); err != nil {
			return nil, err
		}
		ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
		before, found := d.objects[ref]
		o.Owner = cmp.Or(o.Owner, api.OwnerCLI)
		action := api.ActionCreated
		switch {
		case found && bytes.Equal(before.Spec, o.Spec) && before.Owner == o.Owner:
			action = api.ActionUnchanged
		case found:
			action = api.ActionUpdated
		}
		if action != api.ActionUnchanged {
			o.Revision, o.Status = d.revision+1, statusOf(&o)
			after[ref] = o
		}
		if strings.HasPrefix(o.Name, "stuck") {
			stuck = append(stuck, api.NotReady{Object: ref.String(), State: api.StatePending, Message: "device eth9 is not there"})
		}
		addChange(result, ref, action)
	}
	return d.commit(result, after, p.Change, stuck)
}

func (d *testDaemon) delete(p api.DeleteParams) (any, *api.Error) {
	result := &api.ChangeResult{Revision: d.revision, Summary: map[string]int{}}
	after := maps.Clone(d.objects)
	for i, ref := range p.Objects {
		if err := checkKind(ref.Kind, fmt.Sprintf("objects[%d].kind", i)); err != nil {
			return nil, err
		}
		action := api.ActionAbsent
		if _, found := after[ref]; found {
			action = api.ActionDeleted
			delete(after, ref)
		}
		addChange(result, ref, action)
	}
	return d.commit(result, after, p.Change, nil)
}

// replace deletes before it applies, which is invisible because both happen in one transaction.
func (d *testDaemon) replace(p api.ReplaceParams) (any, *api.Error) {
	before := d.objects
	given := map[api.ObjectRef]bool{}
	for _, o := range p.Objects {
		given[api.ObjectRef{Kind: o.Kind, Name: o.Name}] = true
	}
	answer, err := d.apply(api.ApplyParams{Objects: p.Objects, Change: p.Change})
	if err != nil {
		return nil, err
	}
	result := answer.(*api.ChangeResult)
	for _, ref := range slices.SortedFunc(maps.Keys(before), func(a, b api.ObjectRef) int { return cmp.Compare(a.Name, b.Name) }) {
		if !given[ref] && before[ref].Owner == p.Owner && slices.Contains(p.Kinds, ref.Kind) {
			addChange(result, ref, api.ActionDeleted)
			if !p.DryRun {
				delete(d.objects, ref)
			}
		}
	}
	return result, nil
}

// reload finds one file with one Interface.
func (d *testDaemon) reload() (any, *api.Error) {
	files := []string{"/etc/loxilight/conf.d/10-eth.yaml"}
	objects := []api.Object{{Kind: api.KindInterface, Name: "eth7", Owner: api.OwnerFile, Spec: json.RawMessage(`{"device":"eth7"}`)}}
	answer, err := d.replace(api.ReplaceParams{Owner: api.OwnerFile, Kinds: api.Kinds, Objects: objects})
	if err != nil {
		return nil, err
	}
	return api.ReloadResult{ChangeResult: *answer.(*api.ChangeResult), Files: files}, nil
}

// act executes an instruction of a script: the daemon recovers, or another client changes an
// object.
func (d *testDaemon) act(t *testing.T, words []string) {
	t.Helper()
	raw := strings.Join(words, " ")
	switch raw {
	case "ok":
		d.healthy = true
		return
	case "quiet":
		d.quiet = true
		return
	}
	var o api.Object
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		t.Fatalf("script: daemon %s: %v", raw, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.apply(api.ApplyParams{Objects: []api.Object{o}}); err != nil {
		t.Fatalf("script: daemon %s: %v", raw, err)
	}
}

func addChange(r *api.ChangeResult, ref api.ObjectRef, action string) {
	r.Changes = append(r.Changes, api.ObjectChange{Kind: ref.Kind, Name: ref.Name, Action: action})
	r.Summary[action]++
}

func (d *testDaemon) commit(result *api.ChangeResult, after map[api.ObjectRef]api.Object, change api.Change, stuck []api.NotReady) (any, *api.Error) {
	if change.IfRevision != nil && *change.IfRevision != d.revision {
		return nil, api.Errorf(api.ReasonConflict, "the daemon is at revision %d, not %d", d.revision, *change.IfRevision)
	}
	if d.waits != nil && change.Confirm == 0 {
		return nil, api.Errorf(api.ReasonConflict, "the change of revision %d is pending", d.waits.Revision)
	}
	if change.DryRun {
		return result, nil
	}
	if !maps.EqualFunc(d.objects, after, func(a, b api.Object) bool { return a.Revision == b.Revision }) {
		d.revision++
		result.Revision = d.revision
		d.remember(result, after, change)
	}
	d.objects = after
	if change.Wait > 0 && len(stuck) > 0 {
		err := api.Errorf(api.ReasonTimeout, "not Ready after %s", change.Wait)
		err.Data.NotReady = stuck
		return nil, err
	}
	return result, nil
}

// statusOf returns the status of an object that the data plane has accepted.
func statusOf(o *api.Object) json.RawMessage {
	state := api.Status{State: api.StateReady}
	if strings.HasPrefix(o.Name, "stuck") {
		state = api.Status{State: api.StatePending, Message: "device eth9 is not there"}
	}
	var status any = state
	if strings.HasSuffix(o.Name, "/0a1b2c3d4e") {
		status = api.EndpointStatus{Status: state, IngressRate: 10_000_000}
	}
	if o.Kind == api.KindInterface {
		status = api.InterfaceStatus{Status: state, Index: 3, MAC: "02:00:5e:10:20:30", MTU: 1500,
			Addresses: []string{"192.0.2.7/24", "2001:db8:7::1/64"}, Hooks: []string{"tcx-ingress", "tcx-egress"}}
	}
	if o.Kind == api.KindMirror {
		status = api.MirrorStatus{Status: state, Devices: []string{"eth0", "eth1"}, Counters: &api.MirrorCounters{Packets: 41, Bytes: 4200, Drops: 3}}
	}
	if o.Kind == api.KindPolicy {
		status = api.PolicyStatus{Status: state, Subjects: 2}
	}
	if o.Kind == api.KindPodNetwork {
		status = api.PodNetworkStatus{Status: state, MTU: 1450, Subnets: []api.PodSubnet{
			{Subnet: "10.244.3.0/24", Gateway: "10.244.3.1", Host: "10.244.3.2", Used: 17, Size: 252},
			{Subnet: "2001:db8:3::/64", Gateway: "2001:db8:3::1", Host: "2001:db8:3::2", Used: 16, Size: 1 << 53},
		}}
	}
	if o.Kind == api.KindService {
		var spec api.ServiceSpec
		_ = json.Unmarshal(o.Spec, &spec)
		service := api.ServiceStatus{Status: state}
		for _, b := range spec.Backends {
			service.Backends = append(service.Backends, api.BackendStatus{Address: b.Address, State: cmp.Or(b.State, "active")})
		}
		status = service
	}
	raw, _ := json.Marshal(status)
	return raw
}

func (d *testDaemon) get(p api.GetParams) (any, *api.Error) {
	if err := checkKind(p.Kind, "kind"); err != nil {
		return nil, err
	}
	o, found := d.at(p.Revision)[api.ObjectRef{Kind: p.Kind, Name: p.Name}]
	if !found {
		return nil, api.Errorf(api.ReasonNotFound, "there is none").At(p.Kind+"/"+p.Name, "")
	}
	return o, nil
}

// checkKind rejects unknown kinds in a field of the parameters.
func checkKind(kind, field string) *api.Error {
	if slices.Contains(api.Kinds, kind) {
		return nil
	}
	return api.Errorf(api.ReasonInvalid, "unknown kind %q: want one of %s", kind, strings.Join(api.Kinds, ", ")).At("", field)
}

// list returns pages of two objects, so that every list of three needs a second page.
func (d *testDaemon) list(p api.ListParams) (any, *api.Error) {
	if err := checkKind(p.Kind, "kind"); err != nil {
		return nil, err
	}
	result := api.ListResult{Revision: d.revision, Items: []api.Object{}}
	for _, ref := range slices.SortedFunc(maps.Keys(d.objects), func(a, b api.ObjectRef) int { return cmp.Compare(a.Name, b.Name) }) {
		o := d.objects[ref]
		if o.Kind != p.Kind || o.Name <= p.Continue || (p.Owner != "" && o.Owner != p.Owner) || !hasLabels(&o, p.Labels) {
			continue
		}
		if len(result.Items) == 2 {
			result.Continue = result.Items[1].Name
			break
		}
		result.Items = append(result.Items, o)
	}
	return result, nil
}

func (d *testDaemon) status() api.StatusResult {
	s := api.StatusResult{
		Instance: "default", PID: 4711, Uptime: api.Duration(26*3600e9 + 180e9), Revision: d.revision, StateDir: d.stateDir,
		Datapath: api.DatapathStatus{
			Kernel: "6.1.0-37-amd64", Layout: 1,
			Hooks: []api.Hook{
				{Device: "eth0", Netns: "host", Hook: "tc-ingress", Program: "ll_ingress", ID: 1201},
				{Device: "eth0", Netns: "host", Hook: "tc-egress", Program: "ll_egress", ID: 1202},
			},
			Fallbacks: map[string]string{"tcx": "the kernel is older than 6.6; clsact and cls_bpf do its work"},
		},
		Capacity: map[string]api.Usage{
			"connections IPv4": {Used: 870_221, Size: 1_048_576},
			"backends":         {Used: 5, Size: 1_048_576},
			"services":         {Used: 65_000, Size: 65_536},
		},
		Health:  api.Health{State: "degraded", Messages: []string{"table services is 99% full"}},
		Objects: map[string]int{},
		Confirm: d.waits,
	}
	if d.healthy {
		s.Health = api.Health{State: "ok"}
	}
	for _, o := range d.objects {
		s.Objects[o.Kind]++
		var status api.Status
		_ = json.Unmarshal(o.Status, &status)
		if status.State != api.StateReady {
			s.NotReady = append(s.NotReady, api.NotReady{Object: o.Kind + "/" + o.Name, State: status.State, Message: status.Message})
		}
	}
	return s
}

// called returns how often a method was called.
func (d *testDaemon) called(method string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c == method {
			n++
		}
	}
	return n
}
