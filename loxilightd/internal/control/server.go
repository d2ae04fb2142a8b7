// SPDX-License-Identifier: Apache-2.0

// Package control carries out clients' requests: it decodes and checks JSON-RPC requests, changes
// and reads the desired state, and reads the data plane. It also reads the object files, and
// publishes events.
//
// The package never changes the data plane, except to end connections on request: it writes the
// desired state to the store, and other parts of the daemon apply it.
package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/gate"
	"github.com/loxilight/loxilight/loxilightd/internal/control/packetlog"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Caller is the user who sent a request.
type Caller struct {
	UID   int
	Admin bool // may change objects

	budget *decode.Budget // budget for the request; nil: no limit
}

// Plane is the part of a data plane that this package reads. [datapath.DataPlane] implements it.
type Plane interface {
	Connections() datapath.Connections
	Telemetry() datapath.Telemetry
}

// Progress reports how much of the desired state has been applied. It is safe for concurrent use.
type Progress interface {
	// Status returns the status of an object; false if there is no status yet.
	Status(k state.Key) (api.Status, bool)
	// NotReady returns at most limit objects that are not Ready, and the total number of objects
	// that are not Ready, both without objects of the ignored kinds.
	NotReady(limit int, ignored map[string]bool) (map[state.Key]api.Status, int)
	// Noted returns messages about Ready objects that affect the health.
	Noted() map[state.Key]string
	// LastReceived returns when a packet from a Peer was last received, or the zero time if none
	// was received since the daemon started.
	LastReceived(peer string) time.Time
	// Wait returns once all objects in keys are Ready at revision or a later one, or deleted. If
	// ctx ends first, it returns the remaining objects and an error.
	Wait(ctx context.Context, revision uint64, keys []state.Key) ([]state.Key, error)
	// Health returns the health of a backend (healthy, unhealthy, unknown) and the reason.
	Health(service string, backend netip.AddrPort) (health, message string)
	// Subjects returns the number of Endpoints to which a Policy is applied.
	Subjects(policy string) int
	// PolicyState returns the state of network policies that packets obey, and the snapshot that it
	// was made from; pending: why it is not the desired state. nil: the state is unknown.
	PolicyState() (is *policy.State, of *state.Snapshot, pending string)
	// PolicyStateOf returns the state of network policies that a snapshot desires.
	PolicyStateOf(s *state.Snapshot) *policy.State
	// PodMTU returns the maximum size of a pod's packets, in bytes, or 0 if it is unknown.
	PodMTU() int
	// Repairs returns the number of external changes that have been repaired.
	Repairs() uint64
	// Problems returns messages about faults on the node.
	Problems() []string
}

// Event is an event that can be numbered. All events in package api can.
type Event interface{ SetSeq(seq uint64) }

// Options are the parameters of [New]. All fields must be set, except Report, Network, CNI,
// Leases, PodRates and ObjectDir.
type Options struct {
	Instance, Version, Build string
	StateDir                 string

	Store    *state.Store
	Report   *state.Report // report from opening the store; nil: no findings
	Plane    Plane
	Progress Progress
	Network  datapath.NetworkLister // forwarding state of the kernel; nil: not available
	CNI      CNI                    // carries out commands of container runtimes; nil: unsupported
	Leases   Leases                 // leases of pod addresses; nil: no leases
	// PodProblems returns the problems with the pods' stored state; nil: no problems.
	PodProblems func() []string
	// PodRates returns the rate limits for the pod whose Endpoint is behind a device; nil: no
	// limits.
	PodRates  func(device, endpoint string) (ingress, egress datapath.PodRate)
	ObjectDir string // directory of the *.yaml files of owner file; empty: no files
	// SwitchDevice is the switch's end of the link to the host; empty: there is no such link.
	SwitchDevice string
	// SwitchNamespace is the network namespace of the switch, or host.
	SwitchNamespace string
	// Publish numbers an event and sends it to its subscribers.
	Publish func(topic string, event Event) error
	Log     *slog.Logger
}

// Server answers requests. It is safe for concurrent use, but Run must be called only once.
type Server struct {
	Options
	started   time.Time
	methods   map[string]method
	staging   staging
	readers   gate.Readers
	loading   sync.Mutex // held while the object files are read and applied
	published uint64     // revision up to which changes are published; used by Run only

	expiry chan struct{} // signalled when a change starts or stops waiting for confirmation

	past        *pastEvents
	pods        podNames
	ruleLines   packetlog.Lines
	policyLog   *packetlog.Policies
	policyLines packetlog.Lines
	noPorts     portless
	filling     filling
	mu          sync.Mutex
	expireFail  error // why an unconfirmed change could not be rolled back yet
	fileFail    error // why the object files were rejected the last time
}

// method is one method of the control channel.
type method struct {
	run func(ctx context.Context, c Caller, params json.RawMessage) (any, *api.Error)
	// changes means that only an admin may call the method.
	changes bool
}

// New returns a Server.
func New(o Options) *Server {
	if o.Report == nil {
		o.Report = &state.Report{}
	}
	s := &Server{Options: o, started: time.Now(), published: o.Store.Snapshot().Revision, expiry: make(chan struct{}, 1), readers: gate.NewReaders()}
	s.filling.counting = make(chan struct{}, 1)
	s.past = newPastEvents(s.started)
	s.policyLog = packetlog.NewPolicies(s.reportPolicy)
	s.methods = map[string]method{
		api.MethodVersion:          {run: with(s.version)},
		api.MethodStatus:           {run: with(s.status)},
		api.MethodApply:            {run: with(s.apply)}, // every user may do a dry run
		api.MethodReplace:          {run: with(s.replace)},
		api.MethodDelete:           {run: with(s.delete)},
		api.MethodGet:              {run: with(s.get)},
		api.MethodList:             {run: with(s.list)},
		api.MethodChanges:          {run: with(s.changes)},
		api.MethodHistory:          {run: with(s.historyOf)},
		api.MethodRollback:         {run: with(s.rollback)}, // every user may do a dry run
		api.MethodConfirm:          {run: with(s.confirm), changes: true},
		api.MethodReload:           {run: with(s.reload), changes: true},
		api.MethodConnectionsList:  {run: with(s.connectionsList)},
		api.MethodConnectionsFlush: {run: with(s.connectionsFlush), changes: true},
		api.MethodCounters:         {run: with(s.counters)},
		api.MethodNetworkList:      {run: with(s.networkList)},
		api.MethodCNI:              {run: with(s.cni)}, // checks permissions itself
		api.MethodAddressesList:    {run: with(s.addressesList)},
		api.MethodEventsList:       {run: with(s.eventsList)},
		api.MethodCapacity:         {run: with(s.capacity)},
		api.MethodPoliciesCheck:    {run: with(s.policiesCheck)},
		api.MethodPoliciesFor:      {run: with(s.policiesFor)},
		api.MethodPoliciesUnused:   {run: with(s.policiesUnused)},
		api.MethodPoliciesCompare:  {run: with(s.policiesCompare)},
	}
	return s
}

// with decodes the parameters of a method.
func with[P any](run func(context.Context, Caller, *P) (any, *api.Error)) func(context.Context, Caller, json.RawMessage) (any, *api.Error) {
	return func(ctx context.Context, c Caller, raw json.RawMessage) (any, *api.Error) {
		var p P
		if len(raw) > 0 {
			if err := decode.Within(raw, &p, c.budget); err != nil {
				return nil, documentError(err, raw)
			}
		}
		return run(ctx, c, &p)
	}
}

// none is the type of the parameters of a method that takes none.
type none struct{}

// Handle answers one request. The reply is at most [api.MaxReply] bytes long.
func (s *Server) Handle(ctx context.Context, c Caller, request []byte) []byte {
	r, err := parseRequest(request)
	if err != nil {
		return reply(r.ID, nil, err)
	}
	c.budget = s.budgetOf(c)
	if !c.Admin {
		leave, ok := s.readers.Enter(ctx, c.UID, len(request) > gate.LongRequest || dryRuns[r.Method])
		if !ok {
			return reply(r.ID, nil, api.Errorf(api.ReasonUnavailable, "the daemon is stopping, or the connection is closed"))
		}
		defer leave()
	}
	result, err := s.call(ctx, c, r)
	return reply(r.ID, result, err)
}

// dryRuns are the methods that take long: readers may call them with dryRun only, if they change
// objects.
var dryRuns = map[string]bool{
	api.MethodApply: true, api.MethodReplace: true, api.MethodDelete: true, api.MethodRollback: true, api.MethodPoliciesCheck: true,
}

func (s *Server) call(ctx context.Context, c Caller, r *api.Request) (result any, err *api.Error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic in a request", "method", r.Method, "error", fmt.Sprint(p), "stack", stack())
			result, err = nil, api.Errorf(api.ReasonInternal, "%s: a bug in the daemon, see its log: %v", r.Method, p)
		}
	}()
	m, ok := s.methods[r.Method]
	if !ok {
		return nil, &api.Error{
			Code: api.CodeMethodNotFound, Message: fmt.Sprintf("method %q is not known", decode.Shorten(r.Method)),
			Data: &api.ErrorData{Reason: api.ReasonInvalid, Field: "method"},
		}
	}
	if m.changes {
		if err := c.mayChange(r.Method); err != nil {
			return nil, err
		}
	}
	return m.run(ctx, c, r.Params)
}

func (c Caller) mayChange(method string) *api.Error {
	if c.Admin {
		return nil
	}
	return api.Errorf(api.ReasonDenied, "%s: user id %d may only read: only root and members of loxilight-admin may make changes", method, c.UID)
}

// parseRequest returns a request; if its ID could be read, the request contains it even if there is
// an error.
func parseRequest(text []byte) (*api.Request, *api.Error) {
	r := &api.Request{}
	refuse := func(code int, field, format string, args ...any) (*api.Request, *api.Error) {
		err := api.Errorf(api.ReasonInvalid, format, args...).At("", field)
		err.Code = code
		return r, err
	}
	if ferr := decode.Strict(text, r); ferr != nil {
		var lenient struct{ ID json.RawMessage }
		if json.Unmarshal(text, &lenient) == nil && validID(lenient.ID) {
			r.ID = lenient.ID
		} else {
			r.ID = nil
		}
		if ferr.Syntax {
			return refuse(api.CodeParse, "", "%s", ferr.Text)
		}
		return refuse(api.CodeInvalidRequest, ferr.Path, "%s", ferr.Text)
	}
	id := r.ID
	if !validID(id) {
		r.ID = nil
		return refuse(api.CodeInvalidRequest, "id", "must be a string, a number or null, not %s", decode.Shorten(string(id)))
	}
	switch {
	case r.JSONRPC != "2.0":
		return refuse(api.CodeInvalidRequest, "jsonrpc", "version %q is not supported: want \"2.0\"", decode.Shorten(r.JSONRPC))
	case r.Method == "":
		return refuse(api.CodeInvalidRequest, "method", "is missing")
	case len(r.Params) > 0 && r.Params[0] != '{' && r.Params[0] != 'n':
		return refuse(api.CodeInvalidParams, "params", "%s is not an object", decode.Shorten(string(r.Params)))
	}
	if len(r.Params) > 0 && r.Params[0] == 'n' {
		r.Params = nil
	}
	return r, nil
}

func validID(id json.RawMessage) bool {
	return len(id) == 0 || len(id) <= 256 && id[0] != '{' && id[0] != '[' && id[0] != 't' && id[0] != 'f'
}

// reply encodes an answer.
func reply(id json.RawMessage, result any, err *api.Error) []byte {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	if err == nil {
		text, merr := json.Marshal(struct { // like an api.Reply, whose result would be encoded twice
			JSONRPC string          `json:"jsonrpc"`
			ID      json.RawMessage `json:"id"`
			Result  any             `json:"result"`
		}{"2.0", id, result})
		switch {
		case merr != nil:
			err = api.Errorf(api.ReasonInternal, "encode the answer: %v", merr)
		case len(text) > api.MaxReply:
			err = api.Errorf(api.ReasonInternal, "a bug in the daemon: the answer has %d bytes, at most %d", len(text), api.MaxReply)
		default:
			return text
		}
	}
	clampError(err)
	text, merr := json.Marshal(api.Reply{JSONRPC: "2.0", ID: id, Error: err})
	if merr != nil { // only the id can cause an error, and it has been checked
		text, _ = json.Marshal(api.Reply{JSONRPC: "2.0", ID: json.RawMessage("null"), Error: api.FromError(merr)})
	}
	return text
}

// Limits on the texts of an error, in bytes. With them, a reply to any request fits in
// [api.MaxReply].
const (
	maxMessage  = 4 << 10
	maxErrorRef = 1 << 10
)

// invalid returns an error about one parameter of a request.
func invalid(field, format string, args ...any) *api.Error {
	return api.Errorf(api.ReasonInvalid, format, args...).At("", field)
}

func clampError(e *api.Error) {
	if e == nil {
		return
	}
	e.Message = decode.ShortenTo(e.Message, maxMessage)
	if e.Data != nil {
		e.Data.Object, e.Data.Field = decode.ShortenTo(e.Data.Object, maxErrorRef), decode.ShortenTo(e.Data.Field, maxErrorRef)
	}
}

// TooLong returns the answer to a request longer than [api.MaxRequest].
func TooLong() []byte {
	err := api.Errorf(api.ReasonInvalid, "the request is longer than %d bytes: send its objects in a transaction of several requests (parameters transaction and more); "+
		"a larger object must become several objects", api.MaxRequest)
	err.Code = api.CodeInvalidRequest
	return reply(nil, nil, err)
}
