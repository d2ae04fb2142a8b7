// SPDX-License-Identifier: Apache-2.0

// Package node makes the data plane follow the desired state: it translates objects into rows,
// passes them to a reconciler for each table, takes the health of backends into account, and does
// the data plane's maintenance. It neither decides on the desired state nor communicates with
// clients.
package node

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/node/condition"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Options are the parameters of a [Node].
type Options struct {
	Store *state.Store
	Plane datapath.DataPlane
	// Network is the kernel's own forwarding; nil: bridges and routes are unsupported.
	Network datapath.Network
	// Devices are the ends of the link between host and switch; empty if host and switch are the
	// same namespace.
	Devices Devices
	// Exempt packets are allowed regardless of firewall rules.
	Exempt []datapath.Match
	// Failsafe are rules, by direction, for what Policies of this node itself never deny.
	Failsafe policies.Failsafe
	Log      *slog.Logger

	// StatusChanged is called, with no lock held, whenever the status of an object changes. A
	// deleted object has the State Removed.
	StatusChanged func(state.Key, Status)
	// HealthChanged is called when the health of a backend changes. Both callbacks may be nil.
	HealthChanged func(health.Target, health.Result)

	// DevicesChanged is called when devices have changed; nil: not called.
	DevicesChanged func()

	// Opening reports whether the link of an Endpoint is set up only after the Endpoint is Ready,
	// so that the Endpoint needs no carrier to be Ready. Nil: never.
	Opening func(endpoint string) bool

	// Missing returns why the device of an Endpoint does not exist; empty: it exists, or the
	// reason is unknown. Nil: always unknown.
	Missing func(endpoint string) string

	// PruneNotBefore is the earliest time at which rows that are not desired may be deleted from
	// the data plane; zero: immediately.
	PruneNotBefore time.Time
}

// Node makes the data plane follow the desired state. All of its methods are safe for concurrent
// use; Run must be called only once.
type Node struct {
	opts             Options
	watch            *state.Watch
	bridges          *rows[datapath.BridgeName, datapath.Bridge]
	ports            *rows[datapath.PortName, datapath.Port]
	links            *rows[datapath.LinkName, datapath.Link]
	endpoints        *rows[datapath.EndpointName, datapath.Endpoint]
	expectedRemovals expectedRemovals
	tunnels          *rows[datapath.TunnelName, datapath.Tunnel]
	peers            *rows[datapath.PeerName, datapath.Peer]
	routes           *rows[datapath.RouteName, datapath.Route]
	services         *rows[datapath.ServiceName, datapath.Service]
	mirrors          *rows[datapath.MirrorName, datapath.Mirror]
	firewall         *ruleSet[datapath.FirewallSet]
	nat              *ruleSet[datapath.NATSet]
	policies         *policySet
	peerRoutes       peerRoutes
	roaming          roamingPods
	// paths are the reported path MTUs to Peers; used by follow only.
	paths map[string]int
	kept  keptMTU
	// derivedMTU is the MTU with which rows were derived; used by follow only.
	derivedMTU podMTU
	uplinks    atomic.Pointer[[]string] // the uplinks of which the NAT rules were made; written by follow only
	// mirrored are the rows of Mirrors as they were last passed on; used by follow only.
	mirrored map[datapath.MirrorName]datapath.Mirror
	// ruled is set once the sets of rules have received the objects that cannot be decoded; used by
	// follow only.
	ruled bool
	// left are the backends that an earlier run took out of use and whose services have not been
	// processed yet; used by follow only.
	left        map[string]map[netip.AddrPort]bool
	tables      []rowTable            // all of the tables above
	order       []ordered             // the order in which objects are applied; deletions run in reverse
	byKind      map[string][]rowTable // the tables in which objects of a kind have rows
	checker     *health.Checker
	maintenance *maintenance

	conditions *condition.Evaluator

	exempt   atomic.Pointer[[]datapath.Match]
	failsafe atomic.Pointer[policies.Failsafe]
	exempted chan struct{} // signalled when exempt or failsafe has changed

	mu            sync.Mutex
	changedHealth map[string]struct{} // services with a backend whose health changed
	pending       chan struct{}       // signalled when changedHealth is not empty
	handed        handed              // the snapshots whose rows the reconcilers have received
	owed          map[state.Key]bool  // objects whose next status must be reported: see owe
	world         chan struct{}       // signalled when devices or their MTU may have changed
	woken         chan struct{}       // closed and replaced when applied or the status of an object may have changed
	initialized   bool                // rows that are not desired may be deleted

	reporting sync.Mutex                     // held while reporting, so that reports are in order
	reported  map[string]map[string]reported // by kind, of sharedKinds, and name; changed only with mu held as well
}

// New returns a Node that does nothing before Run. All objects that are in the store when Run is
// called count as changed.
func New(o Options) *Node {
	n := &Node{
		opts:          o,
		watch:         o.Store.Watch(),
		changedHealth: map[string]struct{}{},
		roaming:       roamingPods{},
		mirrored:      map[datapath.MirrorName]datapath.Mirror{},
		pending:       make(chan struct{}, 1),
		exempted:      make(chan struct{}, 1),
		world:         make(chan struct{}, 1),
		woken:         make(chan struct{}),
		owed:          map[state.Key]bool{},
		reported:      map[string]map[string]reported{},
	}
	tasks := []periodicTask{{o.Plane.Maintain, maintenanceInterval}}
	if o.Network != nil {
		tasks = append(tasks, periodicTask{o.Network.Maintain, networkInterval})
	}
	n.maintenance = newMaintenance(tasks, func() bool { return o.Store.Snapshot().Len() == 0 && o.Plane.Telemetry().IsIdle() }, o.Log)
	n.checker = health.New(n.healthChanged)
	bridges, links, routes := o.tables()
	n.bridges = newRows(n, state.KindBridge, bridges, func(o *state.Object) datapath.Bridge { return o.Value.(*state.Bridge).Bridge })
	n.links = newRows(n, "Link", links, func(*state.Object) datapath.Link { return datapath.Link{} }) // no objects of this kind exist
	n.ports = newRows(n, state.KindInterface, o.Plane.Ports(), func(o *state.Object) datapath.Port { return o.Value.(*state.Interface).Port })
	n.endpoints = newRows(n, state.KindEndpoint, o.endpointTable(&n.expectedRemovals), n.endpoint)
	n.routes = newRows(n, state.KindRoute, routeTable{routes, n}, func(o *state.Object) datapath.Route { return o.Value.(*state.Route).Route })
	tunnels, peers := o.overlay()
	n.tunnels = newRows(n, state.KindTunnel, tunnels, func(o *state.Object) datapath.Tunnel { return o.Value.(*state.Tunnel).Tunnel })
	n.peers = newRows(n, state.KindPeer, peers, n.peer)
	n.services = newRows(n, state.KindService, o.Plane.Services(), func(o *state.Object) datapath.Service {
		return n.service(o.Name, o.Value.(*state.Service))
	})
	n.mirrors = newRows(n, state.KindMirror, n.mirrorTable(), func(o *state.Object) datapath.Mirror { return o.Value.(*state.Mirror).Mirror })
	n.left = leftOutOfUse(o.Plane.Services())
	n.exempt.Store(&n.opts.Exempt)
	n.failsafe.Store(&n.opts.Failsafe)
	n.firewall = newRuleSet(n, state.KindFirewallRule, o.Plane.Firewall(), n.buildFirewall)
	n.nat = newRuleSet(n, state.KindNAT, o.Plane.NAT(), n.buildNAT)
	n.policies = newPolicySet(n)
	n.order = []ordered{n.bridges, n.links, n.ports, n.endpoints, n.tunnels, n.peers, n.routes, n.mirrors}
	n.tables = []rowTable{n.bridges, n.links, n.ports, n.endpoints, n.tunnels, n.peers, n.routes, n.services, n.firewall, n.nat, n.mirrors, n.policies}
	n.byKind = map[string][]rowTable{
		state.KindBridge: {n.bridges}, state.KindInterface: {n.ports}, state.KindEndpoint: {n.endpoints}, state.KindRoute: {n.routes},
		state.KindService: {n.services}, state.KindTunnel: {n.tunnels}, state.KindPeer: {n.peers}, state.KindMirror: {n.mirrors},
		state.KindFirewallRule: {n.firewall}, state.KindNAT: {n.nat}, state.KindAddressGroup: {n.firewall, n.nat, n.policies},
		state.KindPodNetwork: {n.bridges, n.links, n.ports, n.routes, n.peers, n.nat},
		state.KindEntity:     {n.policies}, state.KindNamespace: {n.policies}, state.KindTier: {n.policies}, state.KindPolicy: {n.policies},
	}
	for _, kind := range sharedKinds {
		n.reported[kind] = map[string]reported{}
	}
	n.conditions = n.newConditions()
	return n
}

// newConditions returns the Evaluator of conditions, which uses the tables and the checker.
func (n *Node) newConditions() *condition.Evaluator {
	return condition.New(condition.Options{
		Store: n.opts.Store, Telemetry: n.opts.Plane.Telemetry(),
		HostDevice: n.opts.Devices.Host, SwitchDevice: n.opts.Devices.Switch, SwitchNamespace: n.opts.Devices.Namespace,
		RowStatus: n.rowStatus, PortStatus: n.ports.current, EndpointStatus: n.endpoints.current, TunnelStatus: n.tunnels.current,
		PeerStatus: n.peers.current, BackendHealth: n.checker.Result, Subjects: n.subjects, Denied: n.denied, Opening: n.opts.Opening, StatusChanged: n.opts.StatusChanged,
	})
}

// leftOutOfUse returns, for each service, the backends that receive no new connections.
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

// tables returns the tables of the network, or tables that do not support any operation.
func (o *Options) tables() (
	datapath.Table[datapath.BridgeName, datapath.Bridge], datapath.Table[datapath.LinkName, datapath.Link], datapath.Table[datapath.RouteName, datapath.Route],
) {
	if o.Network == nil {
		return nothing[datapath.BridgeName, datapath.Bridge]{"bridges"}, nothing[datapath.LinkName, datapath.Link]{"addresses of devices"},
			nothing[datapath.RouteName, datapath.Route]{"routes"}
	}
	return o.Network.Bridges(), o.Network.Links(), o.Network.Routes()
}

// overlay returns the tables of tunnels and peers, which combine the network and the data plane: a
// tunnel's device is created before its programs are attached, and the programs learn of a peer
// before routes to it exist.
func (o *Options) overlay() (datapath.Table[datapath.TunnelName, datapath.Tunnel], datapath.Table[datapath.PeerName, datapath.Peer]) {
	if o.Network == nil {
		return nothing[datapath.TunnelName, datapath.Tunnel]{"tunnels"}, nothing[datapath.PeerName, datapath.Peer]{"peers"}
	}
	return chainedTable[datapath.TunnelName, datapath.Tunnel]{o.Network.Tunnels(), o.Plane.Tunnels()},
		chainedTable[datapath.PeerName, datapath.Peer]{o.Plane.Peers(), o.Network.Peers()}
}

func (n *Node) logOf(kind string) *slog.Logger { return n.opts.Log.With(slog.String("kind", kind)) }

// SetExempt replaces the set of packets that are allowed regardless of firewall rules; the initial
// value is in the options.
func (n *Node) SetExempt(exempt []datapath.Match) {
	n.exempt.Store(&exempt)
	signal(n.exempted)
}

// SetFailsafe replaces the rules for what Policies of this node itself never deny; the initial value is
// in the options.
func (n *Node) SetFailsafe(failsafe policies.Failsafe) {
	n.failsafe.Store(&failsafe)
	signal(n.exempted)
}

// signal sends to a channel of size 1, unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run makes the data plane follow the desired state until ctx ends.
func (n *Node) Run(ctx context.Context) {
	defer n.watch.Close()
	var parts sync.WaitGroup
	defer parts.Wait()
	for _, t := range n.tables {
		parts.Go(func() { t.Run(ctx) })
	}
	parts.Go(func() { n.checker.Run(ctx) })
	parts.Go(func() { n.maintenance.run(ctx) })
	parts.Go(func() { n.watchWorld(ctx) })
	parts.Go(func() { n.conditions.Run(ctx) })
	n.follow(ctx)
}

// hurryPause is the minimum time between two early verifications of all services and rules, because
// there may be very many of them and devices may change continuously.
const hurryPause = 2 * time.Second

// watchWorld triggers a verification of the tables when the data plane reports an external change.
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
			// Otherwise, applyWorld triggers the ports once it has applied the rules.
			if !n.uplinksChanged(n.opts.Store.Snapshot()) {
				n.ports.Trigger()
			}
			n.triggerNetwork()
			n.mirrors.Trigger()
			n.conditions.Trigger()
			signal(n.world)
			n.devicesChanged()
			later.Reset(time.Until(last.Add(hurryPause)))
		case <-network:
			n.triggerNetwork()
			signal(n.world)
			n.devicesChanged()
		case <-later.C:
			last = time.Now()
			n.services.Trigger()
			n.firewall.Trigger()
			n.nat.Trigger()
			n.policies.Trigger()
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) devicesChanged() {
	if n.opts.DevicesChanged != nil {
		n.opts.DevicesChanged()
	}
}

func (n *Node) triggerNetwork() {
	n.bridges.Trigger()
	n.links.Trigger()
	n.endpoints.Trigger()
	n.tunnels.Trigger()
	n.peers.Trigger()
	n.routes.Trigger()
}

// Synced waits until an attempt has been made to apply the desired state as of startup, and rows
// that are not desired have been deleted or could not be deleted.
func (n *Node) Synced(ctx context.Context) error {
	for _, t := range n.tables {
		select {
		case <-t.Synced():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
