// SPDX-License-Identifier: Apache-2.0

// Package datapath says what a data plane must do, in terms of the network and
// not of any one implementation. Its types are validated: an address is a
// [netip.Addr], a port is in host byte order, a duration is a [time.Duration].
// It holds no state and touches no kernel.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"time"
)

// ErrUnsupported is wrapped when a data plane cannot express an object at all,
// so that retrying is pointless.
var ErrUnsupported = errors.New("not supported by this data plane")

// ErrAbsent is wrapped when something that an object needs does not exist (a device, say),
// so that the object is pending rather than wrong. Retrying makes sense.
var ErrAbsent = errors.New("does not exist")

// Absentf returns an [ErrAbsent] whose text is a sentence of its own: where the wanted thing is
// instead, or which command helps.
func Absentf(format string, args ...any) error { return &absentError{fmt.Sprintf(format, args...)} }

type absentError struct{ text string }

// Error implements error.
func (e *absentError) Error() string { return e.text }

// Is makes it an [ErrAbsent].
func (e *absentError) Is(target error) bool { return target == ErrAbsent }

// ErrOutdated is wrapped by Verify where what the row was put in force for is not so any more
// (the node's addresses, a route), and nobody has touched the row: it is to be made anew.
var ErrOutdated = errors.New("is made for what the node was before")

// ErrCapacity is wrapped when a table is full.
var ErrCapacity = errors.New("table full")

// Table is the part of a data plane that holds one kind of object.
//
// Every method is idempotent: a caller that crashed half way starts over.
// Methods of one Table are not safe for concurrent use; different Tables are.
type Table[K comparable, V any] interface {
	// Update makes key behave like value, creating it if need be. Between the
	// old and the new value no packet sees a mixture.
	Update(ctx context.Context, key K, value V) error
	// Delete removes key. Removing what is not there is no error.
	Delete(ctx context.Context, key K) error
	// Keys yields what the data plane holds now, including what an earlier
	// run of the daemon left behind.
	Keys(ctx context.Context) iter.Seq2[K, error]
	// Verify compares what the kernel holds for key with what Update last wrote,
	// and reports whether it is still so. A stranger may have changed it; where none has, and
	// Update would make something else of it now, the error wraps ErrOutdated.
	Verify(ctx context.Context, key K) (bool, error)
}

// Yielder is a [Table] whose rows own something of which each piece is of one row at a
// time, and can pass from one to another: where rows change together, nothing that passes
// is nobody's in between.
type Yielder[K comparable, V any] interface {
	Table[K, V]
	// Begin does all of Update but to give up what the row owns no more, and reports whether
	// that is all that there is to do. If not, Update is to be called when Begin or Update has
	// been for each row that changes together with this one, or Delete.
	Begin(ctx context.Context, key K, value V) (whole bool, err error)
}

// RuleTable is a table of one row, which is a set of rules.
type RuleTable[V any] interface {
	Table[SetName, V]
	// Rules returns the names of the rules that are in force, also of those that an earlier
	// run of the daemon left, in no order.
	Rules() []string
}

// ServiceTable is the table of services.
type ServiceTable interface {
	Table[ServiceName, Service]
	// OutOfUse yields the backends that have a weight and get no new connections, draining
	// or down, also those that an earlier run of the daemon left, in no order.
	OutOfUse() iter.Seq2[ServiceName, BackendAddr]
}

// DataPlane carries packets. It holds no desired state of its own and never
// retries: that is the reconciler's part.
type DataPlane interface {
	Ports() Table[PortName, Port]
	// Endpoints are ports, too: not of those that Ports has. They have counters and a
	// state under the name of their port.
	Endpoints() Table[EndpointName, Endpoint]
	Services() ServiceTable
	// Firewall has at most one row, [NodeSet]; so has NAT. An error of Update about
	// one rule or group is a [*RuleError].
	Firewall() RuleTable[FirewallSet]
	NAT() RuleTable[NATSet]
	// Tunnels and Peers are what is encapsulated, and for whom. A peer that names no
	// tunnel is none of the data plane's.
	Tunnels() Table[TunnelName, Tunnel]
	Peers() Table[PeerName, Peer]
	Connections() Connections
	Telemetry() Telemetry
	// Maintain does one bounded piece of upkeep: expiry of connections, refresh
	// of neighbours and device figures. The daemon calls it about once a second.
	Maintain(ctx context.Context) error
	// Closer lets go of the data plane and leaves the programs running.
	io.Closer
}

// Connections is the table of tracked connections. Safe for concurrent use.
type Connections interface {
	// List returns connections that match f, at most limit, from cursor on (empty:
	// from the start), and the cursor of the next page (empty: no more).
	List(ctx context.Context, f ConnectionFilter, cursor string, limit int) ([]Connection, string, error)
	// Flush ends the connections that match f and returns how many they were.
	Flush(ctx context.Context, f ConnectionFilter) (uint64, error)
}

// Telemetry is what a data plane tells about itself. Safe for concurrent use.
type Telemetry interface {
	// NodeCounters returns the counters of the node.
	NodeCounters(ctx context.Context) (NodeCounters, error)
	// ServiceCounters returns those of one service; false if it has no entry.
	ServiceCounters(ctx context.Context, name ServiceName) (ServiceCounters, bool, error)
	// PortCounters returns those of one port; false if it has no entry.
	PortCounters(ctx context.Context, name PortName) (PortCounters, bool, error)
	// RuleCounters returns those of one rule of the firewall, and NATCounters those of one
	// of NAT; false if it is not in force.
	RuleCounters(ctx context.Context, name RuleName) (RuleCounters, bool, error)
	NATCounters(ctx context.Context, name NATName) (NATCounters, bool, error)
	// TunnelState and PeerState return those of one tunnel or peer; false if it has no entry.
	TunnelState(name TunnelName) (TunnelState, bool)
	PeerState(name PeerName) (PeerState, bool)
	// PortState returns the device of a port as it is now; false if it has no entry.
	PortState(name PortName) (PortState, bool)
	// DeviceOf returns the name of the device that has an address, in the switch's network
	// namespace or the host's; empty: none has.
	DeviceOf(addr netip.Addr, inSwitch bool) string
	// LocalAddrs returns the addresses of the node in ascending order, those of the host and of
	// the switch, but for loopback and link-local addresses.
	LocalAddrs() []netip.Addr
	// Forwarding returns whether the kernel forwards packets, in the switch's network
	// namespace or the host's.
	Forwarding(inSwitch bool) Forwarding
	// HopTo returns the way to an address and whether the neighbour on it answers. With ask
	// the kernel is told to resolve that neighbour.
	HopTo(addr netip.Addr, inSwitch, ask bool) HopState
	// Features says what the data plane runs on.
	Features(ctx context.Context) (Features, error)
	// Usage returns how full each table is, by its name in the configuration.
	Usage(ctx context.Context) (map[string]Usage, error)
	// Repairs returns how often the data plane repaired by itself what another program had
	// changed, besides what the rows of its tables are repaired for.
	Repairs() uint64
	// Changed is signalled when something that is ours was changed by a stranger,
	// or a device came or went: time for a round. It is never closed.
	Changed() <-chan struct{}
	// Samples delivers samples of drops and connections until ctx ends. There is
	// one reader at a time; what is not read in time is lost and counted.
	Samples(ctx context.Context, each func(Sample)) error
}

// Forwarding is whether the kernel of a network namespace forwards packets between devices.
type Forwarding struct {
	IPv4, IPv6 bool
	Off4, Off6 []string // devices that forward nothing they receive although the others do
}

// HopState is the first hop on the way to an address.
type HopState struct {
	Err       error // why there is no way; nil: there is one, or nothing is known
	Device    string
	Link      LinkState
	Neighbour netip.Addr // on Device; invalid: none is needed
	Resolved  bool       // its link-layer address is known
	Failed    bool       // it did not answer
}

// Features says what a data plane runs on.
type Features struct {
	Kernel    string            // release
	Layout    int               // version of the pinned maps
	Hooks     []Hook            // attached programs
	Fallbacks map[string]string // feature not in use: why
	Warnings  []string          // what keeps traffic from flowing, such as forwarding switched off
}

// Hook is one program attached to one device.
type Hook struct {
	Device  string
	Netns   string // host, switch
	Hook    string // tcx-ingress, tcx-egress, tc-ingress, tc-egress
	Program string
	ID      uint32 // the kernel's
}

// Usage is how full a table is.
type Usage struct{ Used, Size uint64 }

// Tables are the sizes of the tables, in entries.
type Tables struct {
	Connections uint32 // established ones, for each address family
	HalfOpen    uint32 // half-open ones, for each address family
	Services    uint32 // frontends
	Backends    uint32 // backends of all services
	Slots       uint32 // of all backend selection tables; see Service.Slots
	Affinity    uint32 // remembered clients
	Ranges      uint32 // source ranges of all services
	Rules       uint32 // of the firewall and of NAT together
	Prefixes    uint32 // that rules and groups name; see FirewallRule.Cost
}

// MaxFirewallRules is how many rules a firewall has at most, whatever the size of the table:
// the image of rules holds 16,384, some of which are for what is never filtered.
const MaxFirewallRules = 16_000

// MaxNATs returns how many rules of NAT there are at most.
func (t *Tables) MaxNATs() uint32 { return max(t.Rules/16, 64) }

// DefaultTables are the sizes of a node with plenty of memory.
func DefaultTables() Tables {
	return Tables{
		Connections: 1 << 20,
		HalfOpen:    1 << 18,
		Services:    1 << 16,
		Backends:    1 << 20,
		Slots:       1 << 24,
		Affinity:    1 << 18,
		Ranges:      1 << 16,
		Rules:       1 << 16,
		Prefixes:    1 << 21,
	}
}

const (
	// plenty is where the full sizes begin: machines sold as 16 GB report a little less.
	plenty = 14 << 30
	// mostHalvings bounds how small the tables become: a 64th.
	mostHalvings = 6
)

// TablesFor returns the sizes for a node with so many bytes of memory: those of
// [DefaultTables] where it is plenty, and half of them for each time that it is
// half of that. All tables together take at most a twelfth of the memory when
// they are made, and an eighth when they are full; more only where it is less than
// 448 MiB.
func TablesFor(memory uint64) Tables {
	halvings := 0
	for memory < plenty>>halvings && halvings < mostHalvings {
		halvings++
	}
	t := DefaultTables()
	for _, size := range []*uint32{&t.Connections, &t.HalfOpen, &t.Services, &t.Backends, &t.Slots, &t.Affinity, &t.Ranges, &t.Rules, &t.Prefixes} {
		*size >>= halvings
	}
	return t
}

// NodeCounters count packets since the data plane was set up.
type NodeCounters struct {
	Packets, Bytes uint64            // handled by the fast path
	Verdicts       map[string]uint64 // packets by what was done with them
	Drops          map[string]uint64 // packets by reason; every reason is there
	Connections    uint64            // opened so far
}

// ServiceCounters count what a service carried since its entry was made.
type ServiceCounters struct {
	Packets, Bytes uint64
	Connections    uint64
	Drops          map[string]uint64
	Backends       []BackendCounters
}

// BackendCounters are the figures of one backend of a service.
type BackendCounters struct {
	Backend             BackendAddr
	Connections, Active uint64
	Packets, Bytes      uint64
}

// RuleCounters count what a rule decided since it came into force.
type RuleCounters struct {
	Packets, Bytes uint64 // that were looked up and matched it first; later ones of a connection are not
	Connections    uint64 // that it opened
}

// NATCounters count what a NAT did since it came into force.
type NATCounters struct {
	Packets, Bytes uint64            // of connections that it translated, both ways, as of the last look through them
	Connections    uint64            // that it translated
	Drops          map[string]uint64 // of what it matched, by reason
}

// PortCounters count what passed a port's device, both ways, as the kernel counts it: not
// what its programs hand to the other end of a veth.
type PortCounters struct {
	Packets, Bytes uint64            // since the device was made
	Drops          map[string]uint64 // of the programs on it, by reason
}

// Config is how a data plane is opened.
type Config struct {
	PinDir          string // where its kernel objects are kept; made if need be
	SwitchNamespace string // name of the switch's network namespace; "host" for the host's
	// MakeSwitch asks somebody who may to make that namespace, where the process may
	// not mount. It may return before it is there; nil: nobody is there to be asked.
	MakeSwitch func() error
	// HostDevice and SwitchDevice are the ends of the link between the host and the
	// switch's network namespace; none where one of them is empty.
	HostDevice, SwitchDevice string
	Instance                 string // marks devices that are made
	StateDir                 string // where what is ours is remembered, as far as the kernel cannot say it
	Tables                   Tables
	// Attach forces the hook: "tcx", "tc" (cls_bpf), or "" for the best there is.
	Attach  string
	Version string // of loxilight; kept with what is pinned, for messages
	// SweepInterval is how often all connections are looked through; 0: 5 s.
	SweepInterval time.Duration
}
