// SPDX-License-Identifier: Apache-2.0

// Package node makes the data plane follow the desired state: it translates
// objects into rows, gives them to a reconciler for each table, takes the health
// of backends into account, and does the data plane's upkeep. It neither decides
// what is wanted nor talks to clients.
package node

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
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
	// Network is the kernel's own forwarding; nil: bridges and routes are not supported.
	Network datapath.Network
	// Devices are the link between host and switch; none: they are one.
	Devices Devices
	// Exempt is allowed whatever the rules of the firewall say.
	Exempt []datapath.Match
	Log    *slog.Logger

	// Turned is told each time what became of an object turned, with no lock held.
	// One that is gone is told with State Removed.
	Turned func(state.Key, Status)
	// HealthTurned is the same for the health of a backend. Either may be nil.
	HealthTurned func(health.Target, health.Result)

	// Moved is called when devices have changed; nil: nothing follows them.
	Moved func()

	// Opening reports whether the link of an Endpoint is to be set up once the Endpoint is
	// Ready, so that it has no carrier before. Nil: of none.
	Opening func(endpoint string) bool

	// Missing says why the device of an Endpoint is gone; empty: it is there, or nothing is
	// known of it. Nil: nothing is known of any.
	Missing func(endpoint string) string

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
	opts      Options
	watch     *state.Watch
	bridges   *rows[datapath.BridgeName, datapath.Bridge]
	ports     *rows[datapath.PortName, datapath.Port]
	links     *rows[datapath.LinkName, datapath.Link]
	endpoints *rows[datapath.EndpointName, datapath.Endpoint]
	leaving   leaving
	tunnels   *rows[datapath.TunnelName, datapath.Tunnel]
	peers     *rows[datapath.PeerName, datapath.Peer]
	routes    *rows[datapath.RouteName, datapath.Route]
	services  *rows[datapath.ServiceName, datapath.Service]
	rules     *rules
	derived   *derived
	hostPorts hostPorts
	behind    behind
	guests    guests
	paths     map[string]int // how long packets to Peers may be, as told last; of follow alone
	kept      keptMTU
	left      map[string]map[netip.AddrPort]bool // backends that an earlier run left out of use, of services not told of yet; of follow alone
	parts     []part                             // all of these
	byKind    map[string]part                    // by the kind of their objects
	checker   *health.Checker
	upkeep    upkeep

	conditions *conditions

	exempt   atomic.Pointer[[]datapath.Match]
	exempted chan struct{} // signalled when exempt was set anew

	mu      sync.Mutex
	turned  map[string]struct{} // services of which a backend's health turned
	pending chan struct{}       // signalled when turned is not empty
	taken   uint64              // revision that the reconcilers have got
	world   chan struct{}       // signalled when devices may be others, or have another MTU
	took    chan struct{}       // closed and replaced when taken moves on
	whole   bool                // what nobody wants may be deleted
}

// New returns a Node that does nothing before Run. Objects that are in the store
// by then count as changed.
func New(o Options) *Node {
	n := &Node{
		opts:     o,
		watch:    o.Store.Watch(),
		turned:   map[string]struct{}{},
		guests:   guests{},
		pending:  make(chan struct{}, 1),
		exempted: make(chan struct{}, 1),
		world:    make(chan struct{}, 1),
		took:     make(chan struct{}),
	}
	n.upkeep = upkeep{log: o.Log, chores: []chore{{o.Plane.Maintain, upkeepInterval}}}
	if o.Network != nil {
		n.upkeep.chores = append(n.upkeep.chores, chore{o.Network.Maintain, networkInterval})
	}
	n.checker = health.New(n.healthTurned)
	n.derived = newDerived(n)
	n.conditions = newConditions(n)
	bridges, links, routes := o.tables()
	n.bridges = newRows(n, state.KindBridge, bridges, func(o *state.Object) datapath.Bridge { return o.Value.(*state.Bridge).Bridge })
	n.links = newRows(n, "Link", links, func(*state.Object) datapath.Link { return datapath.Link{} }) // there is no such kind
	n.ports = newRows(n, state.KindInterface, o.Plane.Ports(), func(o *state.Object) datapath.Port { return o.Value.(*state.Interface).Port })
	n.endpoints = newRows(n, state.KindEndpoint, o.endpointTable(&n.leaving), n.endpoint)
	n.routes = newRows(n, state.KindRoute, toPeers{routes, n}, func(o *state.Object) datapath.Route { return o.Value.(*state.Route).Route })
	tunnels, peers := o.overlay()
	n.tunnels = newRows(n, state.KindTunnel, tunnels, func(o *state.Object) datapath.Tunnel { return o.Value.(*state.Tunnel).Tunnel })
	n.peers = newRows(n, state.KindPeer, peers, n.peer)
	n.services = newRows(n, state.KindService, o.Plane.Services(), func(o *state.Object) datapath.Service {
		return n.service(o.Name, o.Value.(*state.Service))
	})
	n.left = leftOutOfUse(o.Plane.Services())
	n.exempt.Store(&n.opts.Exempt)
	n.rules = newRules(n)
	n.parts = []part{n.bridges, n.links, n.ports, n.endpoints, n.tunnels, n.peers, n.routes, n.services, n.rules, n.derived}
	n.byKind = map[string]part{
		state.KindBridge: n.bridges, state.KindInterface: n.ports, state.KindEndpoint: n.endpoints, state.KindRoute: n.routes, state.KindService: n.services,
		state.KindTunnel: n.tunnels, state.KindPeer: n.peers,
		state.KindAddressGroup: n.rules, state.KindNAT: n.rules, state.KindFirewallRule: n.rules,
		state.KindPodNetwork: n.derived,
	}
	return n
}

// leftOutOfUse returns the backends that get no new connections, by their services.
func leftOutOfUse(t datapath.ServiceTable) map[string]map[netip.AddrPort]bool {
	left := map[string]map[netip.AddrPort]bool{}
	for name, b := range t.OutOfUse() {
		of := left[string(name)]
		if of == nil {
			of = map[netip.AddrPort]bool{}
			left[string(name)] = of
		}
		of[b] = true
	}
	return left
}

// tables returns those of the network, or such as support nothing.
func (o *Options) tables() (
	datapath.Table[datapath.BridgeName, datapath.Bridge], datapath.Table[datapath.LinkName, datapath.Link], datapath.Table[datapath.RouteName, datapath.Route],
) {
	if o.Network == nil {
		return nothing[datapath.BridgeName, datapath.Bridge]{"bridges"}, nothing[datapath.LinkName, datapath.Link]{"addresses of devices"},
			nothing[datapath.RouteName, datapath.Route]{"routes"}
	}
	return o.Network.Bridges(), o.Network.Links(), o.Network.Routes()
}

// overlay returns the tables of tunnels and peers, of the network and the data plane
// together: the device of a tunnel comes before its programs, and what the programs know
// of a peer before the routes to it.
func (o *Options) overlay() (datapath.Table[datapath.TunnelName, datapath.Tunnel], datapath.Table[datapath.PeerName, datapath.Peer]) {
	if o.Network == nil {
		return nothing[datapath.TunnelName, datapath.Tunnel]{"tunnels"}, nothing[datapath.PeerName, datapath.Peer]{"peers"}
	}
	return joined[datapath.TunnelName, datapath.Tunnel]{o.Network.Tunnels(), o.Plane.Tunnels()},
		joined[datapath.PeerName, datapath.Peer]{o.Plane.Peers(), o.Network.Peers()}
}

func (n *Node) logOf(kind string) *slog.Logger { return n.opts.Log.With(slog.String("kind", kind)) }

func (n *Node) tell(k state.Key, s Status) { n.conditions.tell(k, s) }

// SetExempt makes these allowed whatever the rules of the firewall say, and nothing
// else; before that it is what the options say.
func (n *Node) SetExempt(exempt []datapath.Match) {
	n.exempt.Store(&exempt)
	select {
	case n.exempted <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (n *Node) Run(ctx context.Context) {
	defer n.watch.Close()
	var parts sync.WaitGroup
	defer parts.Wait()
	for _, p := range n.parts {
		parts.Go(func() { p.Run(ctx) })
	}
	parts.Go(func() { n.checker.Run(ctx) })
	parts.Go(func() { n.upkeep.run(ctx) })
	parts.Go(func() { n.watchWorld(ctx) })
	parts.Go(func() { n.conditions.run(ctx) })
	n.follow(ctx)
}

// hurryPause is the least time between two hurried looks at all services and rules, of
// which there may be very many: devices may come and go all the time.
const hurryPause = 2 * time.Second

// watchWorld has the tables looked at when the data plane says that something is
// not as it was left.
func (n *Node) watchWorld(ctx context.Context) {
	var last time.Time
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	var network <-chan struct{}
	if n.opts.Network != nil {
		network = n.opts.Network.Changed()
	}
	for {
		select {
		case <-n.opts.Plane.Telemetry().Changed():
			if !n.uplinksTurned(n.opts.Store.Snapshot()) { // else applyWorld does, after the rules
				n.ports.Kick()
			}
			n.kickNetwork()
			n.conditions.kick()
			n.signalWorld()
			n.moved()
			later.Reset(time.Until(last.Add(hurryPause)))
		case <-network:
			n.kickNetwork()
			n.signalWorld()
			n.moved()
		case <-later.C:
			last = time.Now()
			n.services.Kick()
			n.rules.Kick()
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) moved() {
	if n.opts.Moved != nil {
		n.opts.Moved()
	}
}

// signalWorld has what depends on devices looked at.
func (n *Node) signalWorld() {
	select {
	case n.world <- struct{}{}:
	default:
	}
}

func (n *Node) kickNetwork() {
	n.bridges.Kick()
	n.links.Kick()
	n.endpoints.Kick()
	n.tunnels.Kick()
	n.peers.Kick()
	n.routes.Kick()
}

// Settled waits until the desired state as of the start has been tried once, and
// what nobody wanted is gone or failed to go.
func (n *Node) Settled(ctx context.Context) error {
	for _, p := range n.parts {
		for _, settled := range p.settled() {
			select {
			case <-settled:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// Status returns the outcome of an object's current spec; false if the data plane did not get
// the object yet. The outcome of an earlier spec is not that of the current one.
func (n *Node) Status(k state.Key) (Status, bool) {
	s, ok := n.rowStatus(k)
	return n.conditions.apply(k, s), ok
}

// rowStatus is Status as far as the rows of an object show.
func (n *Node) rowStatus(k state.Key) (Status, bool) {
	p, ok := n.byKind[k.Kind]
	if !ok {
		return Status{}, false
	}
	s, ok := p.status(k)
	if ok && s.State == reconcile.Realised {
		o, found := n.opts.Store.Snapshot().Get(k)
		ok = !found || o.Revision <= s.Revision
	}
	return s, ok
}

// NotRealised returns at most limit objects which the data plane does not do as
// told, in no order, and how many there are.
func (n *Node) NotRealised(limit int) (some map[state.Key]Status, count int) {
	return n.NotRealisedBut(limit, nil)
}

// NotRealisedBut is NotRealised without objects of the ignored kinds.
func (n *Node) NotRealisedBut(limit int, ignored map[string]bool) (some map[state.Key]Status, count int) {
	some, count = n.untold(limit)
	for _, p := range n.parts {
		most := limit - len(some)
		if len(ignored) > 0 {
			most = math.MaxInt // to tell the kinds apart
		}
		of, c := p.notRealised(most)
		for k, s := range of {
			switch {
			case ignored[k.Kind]:
				c--
			case len(some) < limit:
				some[k] = s
			}
		}
		count += c
	}
	unmet, byKind := n.conditions.notRealised(limit - len(some))
	maps.Copy(some, unmet)
	for kind, c := range byKind {
		if !ignored[kind] {
			count += c
		}
	}
	return some, count
}

// Noted returns messages about Ready objects that count for the health of the daemon.
func (n *Node) Noted() map[state.Key]string { return n.conditions.noted() }

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
func (n *Node) Repairs() (count uint64) {
	for _, p := range n.parts {
		count += p.Repairs()
	}
	if n.opts.Network != nil {
		count += n.opts.Network.Repairs()
	}
	return count + n.opts.Plane.Telemetry().Repairs()
}

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
	p = append(p, n.rules.problems()...)
	if err := n.upkeep.trouble(); err != nil {
		p = append(p, "upkeep of the data plane: "+err.Error())
	}
	if n, ok := n.opts.Network.(interface{ Problems() []string }); ok {
		p = append(p, n.Problems()...)
	}
	return p
}
