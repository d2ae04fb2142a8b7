// SPDX-License-Identifier: Apache-2.0

// Package datapath defines what a data plane must do, in terms of the network and independently of
// any implementation. Its types are validated: an address is a [netip.Addr], a port is in host byte
// order, a duration is a [time.Duration]. It holds no state and does not access the kernel.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"time"

	"github.com/loxilight/loxilight/datapath/policy"
)

// ErrUnsupported is wrapped when a data plane does not support an object at all, so retrying is
// pointless.
var ErrUnsupported = errors.New("not supported by this data plane")

// ErrAbsent is wrapped when something that an object needs does not exist, for example a device.
// The object is pending rather than invalid, so retrying makes sense.
var ErrAbsent = errors.New("does not exist")

// Absentf returns an [ErrAbsent] with a self-contained message, for example where the wanted object
// is instead, or which command helps.
func Absentf(format string, args ...any) error { return &absentError{fmt.Sprintf(format, args...)} }

type absentError struct{ text string }

// Error implements the error interface.
func (e *absentError) Error() string { return e.text }

// Is reports whether target is [ErrAbsent].
func (e *absentError) Is(target error) bool { return target == ErrAbsent }

// ErrOutdated is wrapped by Verify if no other program changed the row, but the state of the node
// on which it depends (the node's addresses, a route) has changed: the row must be rebuilt.
var ErrOutdated = errors.New("outdated: the state of the node has changed")

// ErrCapacity is wrapped when a table is full.
var ErrCapacity = errors.New("table full")

// Table is the part of a data plane that holds one kind of object.
//
// Every method is idempotent: a caller that crashed halfway starts again. Methods of one Table are
// not safe for concurrent use; different Tables are.
type Table[K comparable, V any] interface {
	// Update sets key to value, and creates it if necessary. No packet sees a mixture of the old
	// and the new value.
	Update(ctx context.Context, key K, value V) error
	// Delete removes key. Removing a key that does not exist is not an error.
	Delete(ctx context.Context, key K) error
	// Keys yields the current keys of the data plane, including keys that an earlier run of the
	// daemon left.
	Keys(ctx context.Context) iter.Seq2[K, error]
	// Verify compares what the kernel holds for key with what Update last wrote, and reports
	// whether they are equal. They differ if another program changed the kernel's state. The error
	// wraps ErrOutdated if no program changed it, but Update would now write a different value.
	Verify(ctx context.Context, key K) (bool, error)
}

// ExclusiveTable is a [Table] whose rows own resources. Each resource belongs to one row at a time
// and can move to another row: while several rows change together, a resource that moves is never
// unowned.
type ExclusiveTable[K comparable, V any] interface {
	Table[K, V]
	// Begin does all of Update except releasing the resources that the row no longer owns, and
	// reports whether nothing remains to be done. If it returns false, call Update once Begin,
	// Update or Delete has been called for each row that changes together with this one.
	Begin(ctx context.Context, key K, value V) (complete bool, err error)
}

// RuleTable is a table of one row, which is a set of rules.
type RuleTable[V any] interface {
	Table[SetName, V]
	// Rules returns the names of the rules that are in force, including rules that an earlier run
	// of the daemon left, in no particular order.
	Rules() []string
}

// PolicyTable is the table of network policies.
type PolicyTable interface {
	Table[SetName, *policy.State]
	// Fits returns the error, if any, with which the data plane would refuse a state because of its
	// size. It changes nothing, and takes as long as a compilation.
	Fits(s *policy.State) error
}

// ServiceTable is the table of services.
type ServiceTable interface {
	Table[ServiceName, Service]
	// OutOfUse yields the backends with a weight that receive no new connections because they are
	// draining or down, including backends that an earlier run of the daemon left, in no particular
	// order.
	OutOfUse() iter.Seq2[ServiceName, BackendAddr]
}

// DataPlane forwards packets. It holds no desired state of its own and never retries: the
// reconciler does that.
type DataPlane interface {
	Ports() Table[PortName, Port]
	// Endpoints are ports too, but are not rows of Ports. Their counters and state are available
	// under the name of their port.
	Endpoints() Table[EndpointName, Endpoint]
	Services() ServiceTable
	// Firewall has at most one row, whose key is [NodeSet]; so does NAT. If one rule or group is at
	// fault, Update returns a [*RuleError].
	Firewall() RuleTable[FirewallSet]
	NAT() RuleTable[NATSet]
	// Tunnels and Peers define which packets are encapsulated, and for which peers. The data plane
	// holds only peers with a tunnel.
	Tunnels() Table[TunnelName, Tunnel]
	Peers() Table[PeerName, Peer]
	// Mirrors wraps [ErrAbsent] in the errors of mirrors whose port, target, service or rule does
	// not exist.
	Mirrors() Table[MirrorName, Mirror]
	// Policies has at most one row, whose key is [NodeSet]. Its Entities name rows of Endpoints,
	// which need not exist yet: policies apply to an endpoint from its first packet. If they
	// are too large together, Update returns an error that wraps [ErrCapacity].
	Policies() PolicyTable
	Connections() Connections
	Telemetry() Telemetry
	// Maintain does one bounded piece of maintenance: expiry of connections, refresh of neighbours
	// and device counters. The daemon calls it about once a second; less often while the data plane
	// is idle and there are no objects.
	Maintain(ctx context.Context) error
	// Close releases the data plane and leaves the programs running.
	io.Closer
}

// Connections is the table of tracked connections. Safe for concurrent use.
type Connections interface {
	// List returns at most limit connections that match f, starting at cursor (an empty cursor is
	// the beginning), and the cursor of the next page, which is empty if there are no more
	// connections.
	List(ctx context.Context, f ConnectionFilter, cursor string, limit int) ([]Connection, string, error)
	// Each calls each for every connection, until ctx is done. The argument is valid during the
	// call only.
	Each(ctx context.Context, each func(*Connection)) error
	// Flush ends the connections that match f and returns their number.
	Flush(ctx context.Context, f ConnectionFilter) (uint64, error)
}

// Telemetry reports the state and the counters of a data plane. Safe for concurrent use.
type Telemetry interface {
	// IsIdle reports whether the data plane handles no packets.
	IsIdle() bool
	// NodeCounters returns the counters of the node.
	NodeCounters(ctx context.Context) (NodeCounters, error)
	// ServiceCounters returns the counters of a service; false if it has no entry.
	ServiceCounters(ctx context.Context, name ServiceName) (ServiceCounters, bool, error)
	// PortCounters returns the counters of a port; false if it has no entry.
	PortCounters(ctx context.Context, name PortName) (PortCounters, bool, error)
	// RuleCounters returns the counters of a firewall rule, NATCounters the counters of a NAT;
	// false if it is not in force.
	RuleCounters(ctx context.Context, name RuleName) (RuleCounters, bool, error)
	NATCounters(ctx context.Context, name NATName) (NATCounters, bool, error)
	// PolicyCounters returns the counters of a network policy; false if it is not in force.
	PolicyCounters(ctx context.Context, name string) (PolicyCounters, bool, error)
	// PolicyVerdict returns the verdict of the network policies in force on traffic of an Endpoint, as its
	// tables give it; false: no policy applies, or policies are not in force yet.
	PolicyVerdict(endpoint EndpointName, d policy.Direction, t policy.Traffic) (policy.Verdict, bool)
	// PolicyNames returns the names in network policies that have an address in a network: for new
	// connections, and no longer.
	PolicyNames(network string, a netip.Addr) (usable, former []string, err error)
	// PolicyAddrs returns the addresses that new connections may use by a name in rules, sorted.
	PolicyAddrs(network, name string) ([]netip.Addr, error)
	// TunnelState and PeerState return the state of a tunnel or peer; false if it has no entry.
	TunnelState(name TunnelName) (TunnelState, bool)
	PeerState(name PeerName) (PeerState, bool)
	// MirrorState returns the state of a mirror; false if it has no entry.
	MirrorState(name MirrorName) (MirrorState, bool)
	// PortState returns the current state of a port's device; false if it has no entry.
	PortState(name PortName) (PortState, bool)
	// DeviceOf returns the name of the device that has an address, in the switch's network
	// namespace or in the host's, or an empty string if no device has it.
	DeviceOf(addr netip.Addr, inSwitch bool) string
	// Networks returns the networks to which the kernel has a connected route, in the switch's
	// network namespace or the host's, by device.
	Networks(inSwitch bool) map[string][]netip.Prefix
	// LocalAddrs returns the addresses of the node in ascending order, in the host's and the
	// switch's network namespace, without loopback and link-local addresses.
	LocalAddrs() []netip.Addr
	// Devices returns the devices of the switch's network namespace or of the host's, keyed by the
	// names that rules use for them, or nil if they are unknown. The caller must not change the
	// map.
	Devices(inSwitch bool) map[string]Device
	// Announces reports whether the node replies to ARP and neighbour discovery for a service
	// address that must be announced.
	Announces(addr netip.Addr) bool
	// Forwarding returns whether the kernel forwards packets, in the switch's network
	// namespace or the host's.
	Forwarding(inSwitch bool) Forwarding
	// HopTo returns the state of a next hop and whether its neighbour replies. If ask is set, the
	// kernel is made to solicit the neighbour, even if its link-layer address is known.
	HopTo(to Hop, ask bool) HopState
	// Features reports the kernel, the hooks and the fallbacks of the data plane.
	Features(ctx context.Context) (Features, error)
	// Usage returns how full each table is, keyed by its name in the configuration.
	Usage(ctx context.Context) (map[string]Usage, error)
	// Owners calls add for the entries of all tables that packets fill, except connections, with the
	// name of the table as in Usage and the number of entries.
	Owners(ctx context.Context, add func(table string, o Owner, entries uint64)) error
	// Repairs returns how often the data plane itself repaired changes by other programs, not
	// counting repairs of table rows.
	Repairs() uint64
	// Changed is signalled when another program has changed our kernel state, or a device was added
	// or removed: a round of reconciliation is due. It is never closed.
	Changed() <-chan struct{}
	// Samples delivers samples of drops and connections until ctx is done. Only one reader at a
	// time is allowed; samples that are not read in time are lost and counted.
	Samples(ctx context.Context, each func(Sample)) error
}

// Forwarding describes whether the kernel forwards packets between the devices of a network
// namespace.
type Forwarding struct {
	IPv4, IPv6 bool
	Off4, Off6 []string // devices whose packets are not forwarded, unlike the others'
	// Rules4 and Rules6 report whether there are routing rules (ip rule) besides the kernel's own,
	// so that the route of a packet may depend on more than its destination.
	Rules4, Rules6 bool
}

// Hop is a next hop: an address, a device, or both.
type Hop struct {
	Addr   netip.Addr // invalid: packets need no neighbour on Device
	Device string     // empty: the kernel's routes choose it
	Switch bool       // in the switch's network namespace rather than the host's
	// From describes the origin of the packets, because routing rules (ip rule) may select routes
	// by it. The zero value means the node's own packets.
	From Arrival
}

// Arrival describes packets that the node forwards.
type Arrival struct {
	Device string     // on which they arrive
	Source netip.Addr // invalid: unknown
}

// HopState is the state of a next hop.
type HopState struct {
	Err       error // why no packet can leave; nil: packets can leave, or the reason is unknown
	Device    string
	Link      LinkState
	Neighbour netip.Addr // on Device; invalid: none is needed
	Resolved  bool       // its link-layer address is known
	Resolving bool       // it has not replied yet, and the kernel is still soliciting it
	Failed    bool       // it did not reply
}

// Features describes the kernel, the hooks and the fallbacks of a data plane.
type Features struct {
	Kernel    string            // release
	Layout    int               // version of the pinned maps
	Hooks     []Hook            // attached programs
	Fallbacks map[string]string // reason by unused feature
	Warnings  []string          // faults that are not in any object's status
	// SourcePorts is how many source ports there are for translated connections of one protocol
	// from one address to one remote address and port, unless a NAT limits them.
	SourcePorts int
}

// Hook is one program attached to one device.
type Hook struct {
	Device  string
	Netns   string // host, switch
	Hook    string // tcx-ingress, tcx-egress, tc-ingress, tc-egress
	Program string
	ID      uint32 // the kernel's ID
}

// Usage is the fill level of a table.
type Usage struct{ Used, Size uint64 }

// Owner is what entries of a table belong to; fields that do not apply are zero.
type Owner struct {
	Service  ServiceName
	NAT      NATName
	Source   netip.Addr // the client, before translation
	Device   string
	InSwitch bool // the device is in the switch's network namespace
}

// Tables are the sizes of the tables, in entries.
type Tables struct {
	Connections uint32 // per address family, at most
	// ConnectionsMin is the number of connections with which the tables of connections begin, and
	// below which they do not shrink. 0: Connections, they keep their size.
	ConnectionsMin uint32
	Services       uint32 // frontends
	Backends       uint32 // backends of all services
	Affinity       uint32 // remembered clients
	Ranges         uint32 // source ranges of all services
	Rules          uint32 // of the firewall and NAT together
	Prefixes       uint32 // in rules, policies and groups; see [FirewallRule.Cost]
	Entities       uint32 // addresses of the participants of network policies
}

// MaxFirewallRules is the maximum number of rules of a firewall, whatever the size of the table:
// the compiled rule set holds 16,384, some of which exempt traffic that is never filtered.
const MaxFirewallRules = 16_000

// MaxNATs returns the maximum number of NAT rules.
func (t *Tables) MaxNATs() uint32 { return max(t.Rules/16, 64) }

// DefaultTables are the sizes of a node with plenty of memory.
func DefaultTables() Tables {
	return Tables{
		Connections: 1 << 20,
		Services:    1 << 16,
		Backends:    1 << 20,
		Affinity:    1 << 18,
		Ranges:      1 << 16,
		Rules:       1 << 16,
		Prefixes:    1 << 21,
		Entities:    1 << 16,
	}
}

const (
	// plenty is the memory with which tables reach their full sizes: machines with nominally 16 GB
	// report slightly less.
	plenty = 14 << 30
	// mostHalvings limits how small the tables become: 1/64 of their full sizes.
	mostHalvings = 6
)

// TablesFor returns the sizes for a node with that many bytes of memory: the sizes of
// [DefaultTables] if it has plenty, halved for each halving of the memory below that constant. All
// tables together take at most 1/12 of the memory when they are created, and 1/8 when they are
// full; more only if the memory is less than 512 MiB.
func TablesFor(memory uint64) Tables {
	halvings := 0
	for memory < plenty>>halvings && halvings < mostHalvings {
		halvings++
	}
	t := DefaultTables()
	for _, size := range []*uint32{&t.Connections, &t.Services, &t.Backends, &t.Affinity, &t.Ranges, &t.Rules, &t.Prefixes, &t.Entities} {
		*size >>= halvings
	}
	t.ConnectionsMin = min(t.Connections, connectionsMin)
	return t
}

// connectionsMin is the number of connections with which tables of automatic size begin.
const connectionsMin = 1 << 16

// Config is the configuration with which a data plane is opened.
type Config struct {
	PinDir          string // where its kernel objects are pinned; created if necessary
	SwitchNamespace string // name of the switch's network namespace; "host" for the host's
	// MakeSwitch requests that namespace from a process with the necessary privileges, if this
	// process may not mount. It may return before the namespace exists; nil: no such process
	// exists.
	MakeSwitch func() error
	// HostDevice and SwitchDevice are the ends of the link between the host's and the switch's
	// network namespace; there is no link if one of them is empty.
	HostDevice, SwitchDevice string
	Instance                 string // marks the devices that are created
	StateDir                 string // where state is stored that the kernel cannot report
	Tables                   Tables
	// Attach forces the hook: "tcx", "tc" (cls_bpf), or "" for the best available.
	Attach  string
	Version string // of loxilight; stored with the pins, for messages
	// SweepInterval is the interval between sweeps over all connections; 0: 5 s, and up to a minute
	// if they would take more than a third of a percent of a processor.
	SweepInterval time.Duration
	// NameGrace is how long new connections may use an address of a name in policies after its TTL.
	NameGrace time.Duration
}
