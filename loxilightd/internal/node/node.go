// SPDX-License-Identifier: Apache-2.0

// Package node makes the data plane follow the desired state: it translates
// objects into rows, gives them to a reconciler for each table, takes the health
// of backends into account, and does the data plane's upkeep. It neither decides
// what is wanted nor talks to clients.
package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Options are what a [Node] needs.
type Options struct {
	Store *state.Store
	Plane datapath.DataPlane
	Log   *slog.Logger

	// Turned is told each time what became of an object turned, with no lock held.
	// One that is gone is told with State Removed.
	Turned func(state.Key, Status)
	// HealthTurned is the same for the health of a backend. Either may be nil.
	HealthTurned func(health.Target, health.Result)

	// Keep are objects that may be wanted though they are not in the store: what
	// the data plane has of them stays.
	Keep []state.Key
	// PruneNotBefore is when what nobody wants may be deleted from the data
	// plane; zero: at once.
	PruneNotBefore time.Time
}

// Status is what became of an object.
type Status = reconcile.Status

// Node makes the data plane follow the desired state. All of its methods are
// safe for concurrent use; Run is called once.
type Node struct {
	opts     Options
	watch    *state.Watch
	ports    *reconcile.Reconciler[datapath.PortName, datapath.Port]
	services *reconcile.Reconciler[datapath.ServiceName, datapath.Service]
	checker  *health.Checker
	upkeep   upkeep

	mu      sync.Mutex
	turned  map[string]struct{} // services of which a backend's health turned
	pending chan struct{}       // signalled when turned is not empty
	taken   uint64              // revision that the reconcilers have got
	took    chan struct{}       // closed and replaced when taken moves on
	whole   bool                // what nobody wants may be deleted
}

// New returns a Node that does nothing before Run. Objects that are in the store
// by then count as changed.
func New(o Options) *Node {
	n := &Node{
		opts:    o,
		watch:   o.Store.Watch(),
		turned:  map[string]struct{}{},
		pending: make(chan struct{}, 1),
		took:    make(chan struct{}),
		upkeep:  upkeep{plane: o.Plane, log: o.Log},
	}
	keepPorts, keepServices := keys(o.Keep)
	n.ports = reconcile.New(reconcile.Options[datapath.PortName, datapath.Port]{
		Table:  o.Plane.Ports(),
		Log:    o.Log.With(slog.String("kind", state.KindInterface)),
		Keep:   keepPorts,
		Notify: func(k datapath.PortName, s Status) { n.tell(state.Key{Kind: state.KindInterface, Name: string(k)}, s) },
	})
	n.services = reconcile.New(reconcile.Options[datapath.ServiceName, datapath.Service]{
		Table:  o.Plane.Services(),
		Log:    o.Log.With(slog.String("kind", state.KindService)),
		Keep:   keepServices,
		Notify: func(k datapath.ServiceName, s Status) { n.tell(state.Key{Kind: state.KindService, Name: string(k)}, s) },
	})
	n.checker = health.New(n.healthTurned)
	return n
}

func keys(keep []state.Key) (ports map[datapath.PortName]bool, services map[datapath.ServiceName]bool) {
	ports, services = map[datapath.PortName]bool{}, map[datapath.ServiceName]bool{}
	for _, k := range keep {
		switch k.Kind {
		case state.KindInterface:
			ports[datapath.PortName(k.Name)] = true
		case state.KindService:
			services[datapath.ServiceName(k.Name)] = true
		}
	}
	return ports, services
}

func (n *Node) tell(k state.Key, s Status) {
	if n.opts.Turned != nil {
		n.opts.Turned(k, s)
	}
}

// Run works until ctx ends.
func (n *Node) Run(ctx context.Context) {
	defer n.watch.Close()
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { n.ports.Run(ctx) })
	parts.Go(func() { n.services.Run(ctx) })
	parts.Go(func() { n.checker.Run(ctx) })
	parts.Go(func() { n.upkeep.run(ctx) })
	parts.Go(func() { n.watchWorld(ctx) })
	n.follow(ctx)
}

// servicesPause is the least time between two hurried looks at all services, of
// which there may be very many: devices may come and go all the time.
const servicesPause = 2 * time.Second

// watchWorld has the tables looked at when the data plane says that something is
// not as it was left.
func (n *Node) watchWorld(ctx context.Context) {
	var last time.Time
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	for {
		select {
		case <-n.opts.Plane.Telemetry().Changed():
			n.ports.Kick()
			later.Reset(time.Until(last.Add(servicesPause)))
		case <-later.C:
			last = time.Now()
			n.services.Kick()
		case <-ctx.Done():
			return
		}
	}
}

// Settled waits until the desired state as of the start has been tried once, and
// what nobody wanted is gone or failed to go.
func (n *Node) Settled(ctx context.Context) error {
	for _, settled := range []<-chan struct{}{n.ports.Settled(), n.services.Settled()} {
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Status returns what became of an object; false if the data plane was not told
// of it yet.
func (n *Node) Status(k state.Key) (Status, bool) {
	switch k.Kind {
	case state.KindInterface:
		return n.ports.Status(datapath.PortName(k.Name))
	case state.KindService:
		return n.services.Status(datapath.ServiceName(k.Name))
	}
	return Status{}, false
}

// NotRealised returns at most limit objects which the data plane does not do as
// told, in no order, and how many there are.
func (n *Node) NotRealised(limit int) (some map[state.Key]Status, count int) {
	some, count = n.untold(limit)
	for k, s := range n.ports.NotRealised(limit - len(some)) {
		some[state.Key{Kind: state.KindInterface, Name: string(k)}] = s
	}
	for k, s := range n.services.NotRealised(limit - len(some)) {
		some[state.Key{Kind: state.KindService, Name: string(k)}] = s
	}
	for _, c := range []map[reconcile.State]int{n.ports.Counts(), n.services.Counts()} {
		count += c[reconcile.Pending] + c[reconcile.Failed]
	}
	return some, count
}

// untold returns at most limit objects that the reconcilers have not got yet, and
// how many there are: all just after a start.
func (n *Node) untold(limit int) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	s := n.opts.Store.Snapshot()
	n.mu.Lock()
	taken := n.taken
	n.mu.Unlock()
	if taken >= s.Revision {
		return some, 0
	}
	for o := range s.All() {
		if _, told := n.Status(o.Key); told {
			continue
		}
		count++
		if len(some) < limit {
			some[o.Key] = Status{State: reconcile.Pending}
		}
	}
	return some, count
}

// Repairs returns how often something was mended that a stranger had changed.
func (n *Node) Repairs() uint64 { return n.ports.Repairs() + n.services.Repairs() }

// Health returns what is known of a backend.
func (n *Node) Health(t health.Target) health.Result { return n.checker.Result(t.Service, t.Backend) }

// Problems says what keeps the node from working as it should, for people.
func (n *Node) Problems() []string {
	var p []string
	n.mu.Lock()
	whole := n.whole
	n.mu.Unlock()
	if !whole && !n.opts.PruneNotBefore.IsZero() {
		p = append(p, "desired state was lost: nothing is deleted from the data plane before "+
			n.opts.PruneNotBefore.Format(time.RFC3339)+"; tell the daemon what is wanted until then")
	}
	if err := n.upkeep.trouble(); err != nil {
		p = append(p, "upkeep of the data plane: "+err.Error())
	}
	return p
}
