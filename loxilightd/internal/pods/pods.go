// SPDX-License-Identifier: Apache-2.0

// Package pods carries out what container runtimes want by the container network
// interface (CNI): it gives a pod its addresses and its link, has an Endpoint object
// guard it, and takes all of that away again. What it made it remembers on disk, so
// that a start after a crash clears away what was not finished.
//
// It neither speaks to runtimes nor to the kernel: package control hands it requests,
// and [datapath.PodLinks] makes devices.
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
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// Objects are the desired state as this package needs it. Safe for concurrent use.
type Objects interface {
	// Change puts objects and deletes others, all or none, and returns the revision of it.
	Change(puts []api.Object, deletes []api.ObjectRef) (revision uint64, err *api.Error)
	// Ready waits until the objects are as wanted at revision or later. When ctx ends
	// first the error names what is not, and why.
	Ready(ctx context.Context, revision uint64, objects []api.ObjectRef) *api.Error
	// Status returns what became of an object; false if there is none.
	Status(o api.ObjectRef) (api.Status, bool)
	// Owned returns the objects of a kind that this package put.
	Owned(kind string) []api.Object
}

// Addresses gives pods their addresses. [ipam.Store] does.
type Addresses interface {
	Allocate(ctx context.Context, r ipam.Request) (ipam.Lease, error)
	Release(ctx context.Context, o ipam.Owner) error
	Leases() []ipam.Lease
	Boot() string
}

// Network is a network that pods can be in.
type Network struct {
	Bridge  string // of the switch
	Subnets []netip.Prefix
	MTU     int // of devices, in bytes; 0: that of the bridge
	// RouteMTU is how long what leaves the node may be, in bytes; 0: as the device.
	RouteMTU int
}

// Options are what [New] needs.
type Options struct {
	Links     datapath.PodLinks
	Objects   Objects
	Addresses Addresses
	// Network returns the PodNetwork of a name as it is wanted; false if there is none.
	Network func(name string) (Network, bool)
	// Named says whether an object of somebody else speaks of a device of that name; nil:
	// none does.
	Named func(device string) bool
	// Look has the data plane's part of an Endpoint looked at, so that its status is as of
	// now; nil: nobody does.
	Look func(ctx context.Context, endpoint string) error
	// Leaves is told, before the link of an Endpoint is shut, that the Endpoint is about to be
	// deleted; the function is called when it is, or stays. Nil: nobody wants to know.
	Leaves func(endpoint string) (done func())
	// Plugins are the folders of IPAM plugins; no plugin in another folder is run.
	Plugins []string
	// Reserved are host ports that no pod gets.
	Reserved []datapath.PortRange
	// TunnelPort reports whether a UDP port is that of a Tunnel; nil: none is.
	TunnelPort func(port uint16) bool
	StateDir   string // of the daemon
	Log        *slog.Logger
}

// How long things may take.
const (
	addTimeout    = 30 * time.Second
	readyTimeout  = 15 * time.Second // for the data plane, as a part of that
	goneTimeout   = 5 * time.Second  // for the data plane to let go of a pod
	pluginTimeout = 20 * time.Second
	undoTimeout   = 20 * time.Second
	queueInterval = time.Second
	sweepInterval = 10 * time.Second
	// STATUS waits so long for a daemon that was started less than that ago: pods go on
	// meanwhile, and a runtime that is told otherwise calls the node not ready.
	statusPatience = 3 * time.Second
	startTime      = 20 * time.Second
)

// Server carries out commands. Safe for concurrent use; Run is called once.
type Server struct {
	Options
	changes *batch
	woken   chan struct{} // signalled by Wake
	clean   chan struct{} // closed when what an earlier run left is cleared away
	starts  time.Time     // until when the daemon is starting
	root    uint32        // user id that owns IPAM plugins beside 0, in tests

	addresses []netip.Addr // of the node, as host ports follow them; of Run alone

	mu      sync.Mutex
	pods    map[ipam.Owner]*record
	names   map[string]ipam.Owner // of devices that are taken
	locks   map[ipam.Owner]*lock
	opening map[string]bool       // Endpoints whose link is opened when they are Ready
	missing map[string]string     // why links are gone, by the names of Endpoints
	kept    map[string]ipam.Owner // links of pods of which nothing is known, by device; the owner may be empty
}

// New returns a Server that answers nothing but STATUS before Run.
func New(o Options) *Server {
	if o.Named == nil {
		o.Named = func(string) bool { return false }
	}
	return &Server{
		Options: o, changes: newBatch(o.Objects), woken: make(chan struct{}, 1), clean: make(chan struct{}), starts: time.Now().Add(startTime),
		pods: map[ipam.Owner]*record{}, names: map[string]ipam.Owner{}, locks: map[ipam.Owner]*lock{}, kept: map[string]ipam.Owner{},
		missing: map[string]string{}, opening: map[string]bool{},
	}
}

// Rates are what bounds the traffic to and from the pod behind a device, if it is that of the
// Endpoint.
func (s *Server) Rates(device, endpoint string) (ingress, egress datapath.PodRate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pods[s.names[device]]
	if r == nil || r.Object != endpoint {
		return datapath.PodRate{}, datapath.PodRate{}
	}
	return r.Ingress, r.Egress
}

// Run clears away what an earlier run left, carries out what was asked for while there
// was no daemon, and goes on to, until ctx ends.
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
	queue, sweep := time.NewTicker(queueInterval), time.NewTicker(sweepInterval)
	defer queue.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-queue.C:
			s.drain(ctx)
			s.followAddresses(ctx)
		case <-sweep.C:
			s.sweep(ctx)
			s.refreshGroups(ctx)
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

// lock is held while something is done about one interface of one container.
type lock struct {
	turn  chan struct{} // holds one token while nobody has it
	users int           // of Server.mu
}

// hold waits for the lock of an interface; the function gives it back.
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
