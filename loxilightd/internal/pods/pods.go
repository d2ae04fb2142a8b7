// SPDX-License-Identifier: Apache-2.0

// Package pods carries out container runtimes' commands according to the Container Network
// Interface (CNI): it gives a pod its addresses and its link, creates the Endpoint object whose
// source guard protects the link, and removes all of these again. It keeps records on disk, so that
// a daemon that starts after a crash can remove unfinished interfaces.
//
// It communicates neither with runtimes nor with the kernel: package control passes requests to it,
// and [datapath.PodLinks] creates devices.
package pods

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/dirwatch"
	"github.com/loxilight/loxilight/internal/tick"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// Objects gives access to the desired state. It is safe for concurrent use.
type Objects interface {
	// Change puts some objects and deletes others, all or none, and returns the new revision.
	Change(puts []api.Object, deletes []api.ObjectRef) (revision uint64, err *api.Error)
	// Ready waits until the objects are done at revision or later. If ctx ends first, the error
	// names an object that is not Ready, and gives the reason.
	Ready(ctx context.Context, revision uint64, objects []api.ObjectRef) *api.Error
	// Status returns the status of an object; the result is false if the object does not exist.
	Status(o api.ObjectRef) (api.Status, bool)
	// Owned returns the objects of a kind that this package put.
	Owned(kind string) []api.Object
}

// Addresses assigns addresses to pods. [ipam.Store] implements it.
type Addresses interface {
	Allocate(ctx context.Context, r ipam.Request) (ipam.Lease, error)
	Release(ctx context.Context, o ipam.Owner) error
	Leases() []ipam.Lease
	Boot() string
}

// Network is a pod network.
type Network struct {
	Bridge  string // in the switch
	Subnets []netip.Prefix
	MTU     int // MTU of devices, in bytes; 0: the bridge's MTU
	// RouteMTU is the MTU of packets that leave the node, in bytes; 0: the device's MTU.
	RouteMTU int
}

// Options are the parameters of [New].
type Options struct {
	Links     datapath.PodLinks
	Objects   Objects
	Addresses Addresses
	// Network returns the desired PodNetwork with this name; false if it does not exist.
	Network func(name string) (Network, bool)
	// Named reports whether an object of another owner names a device; nil: never.
	Named func(device string) bool
	// VerifyEndpoint verifies an Endpoint in the data plane, so that the Endpoint's status is
	// current; nil: not verified.
	VerifyEndpoint func(ctx context.Context, endpoint string) error
	// ExpectRemoval is called before the link of an Endpoint is set down because the Endpoint will
	// be deleted; done must be called once the Endpoint has been deleted, or if it is kept. Nil:
	// not called.
	ExpectRemoval func(endpoint string) (done func())
	// Plugins are the directories that contain IPAM plugins. Plugins in other directories are not
	// run.
	Plugins []string
	// Reserved are host ports that pods cannot use.
	Reserved []datapath.PortRange
	// TunnelPort reports whether a Tunnel uses a UDP port; nil: never.
	TunnelPort func(port uint16) bool
	StateDir   string // the daemon's state directory
	Log        *slog.Logger
}

// Time limits.
const (
	addTimeout     = 30 * time.Second
	readyTimeout   = 10 * time.Second // for the data plane and the pod's Entity, within addTimeout
	releaseTimeout = 5 * time.Second  // for the data plane to release a pod
	pluginTimeout  = 20 * time.Second
	undoTimeout    = 20 * time.Second
	queueInterval  = time.Second
	idleInterval   = 5 * time.Second // replaces queueInterval without pods, if the queue is watched
	sweepInterval  = 10 * time.Second
	// statusPatience is how long STATUS waits for a daemon that was started less than startTime
	// ago: existing pods keep working in the meantime, but after an error, the runtime would report
	// the node as not ready.
	statusPatience = 3 * time.Second
	startTime      = 20 * time.Second
	// pendingPatience is how long CHECK and STATUS wait for objects that are Pending: a change to
	// another object, such as an uplink, makes them Pending for some milliseconds.
	pendingPatience = time.Second
	pendingInterval = 20 * time.Millisecond // between two looks at the status
)

// Server carries out commands. It is safe for concurrent use, but Run must be called only once.
type Server struct {
	Options
	changes *batch
	woken   chan struct{} // signalled by Wake
	opened  chan struct{} // signalled when the first pod is added
	clean   chan struct{} // closed once the remains of an earlier run have been removed
	starts  time.Time     // end of the period in which the daemon counts as starting
	root    uint32        // user id that may own IPAM plugins in addition to 0, in tests

	addresses []netip.Addr // the node's addresses, for host ports; used by Run only

	mu      sync.Mutex
	pods    map[ipam.Owner]*record
	names   map[string]ipam.Owner // device names in use
	locks   map[ipam.Owner]*lock
	opening map[string]bool       // Endpoints whose links are opened once they are Ready
	missing map[string]string     // why links do not exist, by Endpoint
	kept    map[string]ipam.Owner // links of unknown pods, by device; the owner may be empty
}

// New returns a Server that answers only STATUS before Run.
func New(o Options) *Server {
	if o.Named == nil {
		o.Named = func(string) bool { return false }
	}
	return &Server{
		Options: o, changes: newBatch(o.Objects), woken: make(chan struct{}, 1), opened: make(chan struct{}, 1), clean: make(chan struct{}), starts: time.Now().Add(startTime),
		pods: map[ipam.Owner]*record{}, names: map[string]ipam.Owner{}, locks: map[ipam.Owner]*lock{}, kept: map[string]ipam.Owner{},
		missing: map[string]string{}, opening: map[string]bool{},
	}
}

// Rates returns the rate limits of the pod behind a device if the pod has the given Endpoint.
func (s *Server) Rates(device, endpoint string) (ingress, egress datapath.PodRate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pods[s.names[device]]
	if r == nil || r.Object != endpoint {
		return datapath.PodRate{}, datapath.PodRate{}
	}
	return r.Ingress, r.Egress
}

// Run removes the remains of an earlier run, and carries out queued commands, including commands
// that were queued while no daemon was running, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var changes sync.WaitGroup
	changes.Go(func() { s.changes.run(ctx) })
	defer changes.Wait()
	for !s.recover(ctx) {
		select {
		case <-time.After(queueInterval):
		case <-ctx.Done():
			return
		}
	}
	close(s.clean)
	changes.Go(func() { s.remakeLoop(ctx) })
	s.follow(ctx)
}

// follow carries out queued commands, and follows changes to the node that concern pods, until ctx
// ends.
func (s *Server) follow(ctx context.Context) {
	var queued <-chan struct{}
	watcher, err := dirwatch.New()
	if err == nil {
		defer watcher.Close()
		queued = watcher.Changed()
	}
	for swept := time.Now(); ; {
		watched := err == nil && s.watchQueue(watcher)
		pending := s.drain(ctx)
		s.followAddresses(ctx)
		if time.Since(swept) >= sweepInterval-queueInterval/2 {
			swept = time.Now()
			s.sweep(ctx)
			s.refreshGroups(ctx)
		}
		interval := queueInterval
		if watched && !pending && !s.hasLinks() {
			interval = idleInterval
		}
		select {
		case <-queued:
		case <-s.opened:
		case <-tick.After(interval):
		case <-ctx.Done():
			return
		}
	}
}

// Handle carries out one command and returns the result for the runtime.
func (s *Server) Handle(ctx context.Context, p *api.CNIParams) (json.RawMessage, *api.Error) {
	conf, err := parseConf(p)
	if err != nil {
		return nil, err
	}
	if p.Command != api.CNIStatus {
		select {
		case <-s.clean:
		case <-ctx.Done():
			return nil, unavailable("the daemon has not finished its start: %v", context.Cause(ctx))
		}
	}
	switch p.Command {
	case api.CNIAdd:
		return s.add(ctx, p, conf)
	case api.CNIDel:
		err = s.del(ctx, p, conf)
	case api.CNICheck:
		err = s.check(ctx, p, conf)
	case api.CNIGC:
		err = s.gc(ctx, conf)
	case api.CNIStatus:
		err = s.patientStatus(ctx, conf)
	}
	if err != nil {
		return nil, err
	}
	return json.RawMessage("{}"), nil
}

func ownerOf(p *api.CNIParams) ipam.Owner {
	return ipam.Owner{ContainerID: p.ContainerID, IfName: p.IfName}
}

// lock is held while one interface of one container is changed.
type lock struct {
	turn  chan struct{} // contains one token while the lock is free
	users int           // protected by Server.mu
}

// hold acquires the lock of an interface; the returned function releases it.
func (s *Server) hold(ctx context.Context, o ipam.Owner) (func(), *api.Error) {
	s.mu.Lock()
	l := s.locks[o]
	if l == nil {
		l = &lock{turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		s.locks[o] = l
	}
	l.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.locks, o)
		}
	}
	select {
	case <-l.turn:
		return func() { l.turn <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, unavailable("%s is busy with another command: %v", o, context.Cause(ctx))
	}
}
