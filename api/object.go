// SPDX-License-Identifier: Apache-2.0

package api

import "encoding/json"

// Kinds of objects that this daemon knows.
const (
	KindBridge       = "Bridge"
	KindInterface    = "Interface"
	KindEndpoint     = "Endpoint"
	KindRoute        = "Route"
	KindPodNetwork   = "PodNetwork"
	KindAddressGroup = "AddressGroup"
	KindNAT          = "NAT"
	KindFirewallRule = "FirewallRule"
	KindService      = "Service"
	KindTunnel       = "Tunnel"
	KindPeer         = "Peer"
	KindMirror       = "Mirror"
	KindNamespace    = "Namespace"
	KindEntity       = "Entity"
	KindTier         = "Tier"
	KindPolicy       = "Policy"
)

// Kinds lists them in the order in which they are applied.
var Kinds = []string{
	KindBridge, KindInterface, KindTunnel, KindPeer, KindRoute, KindPodNetwork, KindEndpoint, KindAddressGroup, KindNAT, KindFirewallRule, KindService, KindMirror,
	KindNamespace, KindEntity, KindTier, KindPolicy,
}

// Owners with a predefined meaning; a client may use others.
const (
	OwnerCLI  = "cli"  // the default
	OwnerFile = "file" // /etc/loxilight/conf.d; only the daemon sets it
	OwnerCNI  = "cni"  // pods that container runtimes attached
	OwnerK8s  = "k8s"  // the agent
)

// Object is one piece of the daemon's configuration. The same document is valid JSON on the
// channel and valid YAML in a file.
type Object struct {
	Kind     string            `json:"kind" yaml:"kind"`
	Name     string            `json:"name" yaml:"name"` // [a-z0-9]([-a-z0-9./:]*[a-z0-9])?, at most 253 characters
	Owner    string            `json:"owner,omitempty" yaml:"owner,omitempty"`
	Labels   map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"` // for list; the daemon does not interpret them
	Spec     json.RawMessage   `json:"spec,omitempty" yaml:"-"`                  // the Spec of the kind, such as ServiceSpec
	Status   json.RawMessage   `json:"status,omitempty" yaml:"-"`                // the Status of the kind, such as InterfaceStatus, else Status; ignored in requests
	Revision uint64            `json:"revision,omitempty" yaml:"-"`              // ignored in requests
}

// ObjectRef names an object.
type ObjectRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// String returns Kind/name.
func (r ObjectRef) String() string { return r.Kind + "/" + r.Name }

// States of an object.
const (
	StatePending = "Pending" // not applied yet, or something that it needs does not exist
	StateReady   = "Ready"
	StateError   = "Error"
)

// Status is the common part of every kind's status.
type Status struct {
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

// InterfaceSpec is a Linux device that the data plane attaches to.
type InterfaceSpec struct {
	Device  string `json:"device,omitempty"`
	Address string `json:"address,omitempty"` // instead of Device: the device with this address
	Netns   string `json:"netns,omitempty"`   // host (default), switch
	Role    string `json:"role,omitempty"`    // one of Roles
	XDP     string `json:"xdp,omitempty"`     // off (default), generic, native
}

// InterfaceStatus is the status of an Interface.
type InterfaceStatus struct {
	Status
	Device    string   `json:"device,omitempty"` // the device, if it is selected by its address
	Index     int      `json:"index,omitempty"`  // the kernel's interface index
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu,omitempty"` // bytes
	Addresses []string `json:"addresses,omitempty"`
	Hooks     []string `json:"hooks,omitempty"` // such as tcx-ingress
	Link      string   `json:"link,omitempty"`  // up, down, no carrier
}

// ServiceSpec spreads the connections to its frontends over its backends.
type ServiceSpec struct {
	// Frontends: address:port/protocol; protocol tcp, udp or sctp. At least one.
	Frontends []string `json:"frontends"`
	// Backends serve the frontends of their own address family.
	Backends []Backend `json:"backends,omitempty"`
	// Algorithm is one of [Algorithms].
	Algorithm string    `json:"algorithm,omitempty"`
	Affinity  *Affinity `json:"affinity,omitempty"` // nil: none
	// Source is the client's address as the backend sees it: keep, snat, auto (default).
	Source       string       `json:"source,omitempty"`
	SourceRanges []string     `json:"sourceRanges,omitempty"` // prefixes of permitted clients; empty: all
	Health       *HealthCheck `json:"health,omitempty"`       // nil: none
	IdleTimeout  *IdleTimeout `json:"idleTimeout,omitempty"`
	// NoBackend is the treatment of new connections while no backend is available: reject
	// (default), drop.
	NoBackend string `json:"noBackend,omitempty"`
	// Divert balances connections from some clients as if they were to other Services.
	Divert []Divert `json:"divert,omitempty"`
	// Announce makes the node answer ARP requests and neighbour solicitations for the frontends'
	// addresses on its uplinks.
	Announce bool `json:"announce,omitempty"`
	// OtherPorts is the treatment of packets to the frontends' addresses that match no Service:
	// pass (default), reject (default with Announce), drop.
	OtherPorts string `json:"otherPorts,omitempty"`
}

// Divert balances connections from some clients as if they were to another Service.
type Divert struct {
	Sources []string `json:"sources"` // prefixes of the clients; the longest that matches decides
	Service string   `json:"service"` // name of the other Service
}

// Backend is one server of a Service.
type Backend struct {
	Address string `json:"address"`          // address:port
	Weight  *int   `json:"weight,omitempty"` // 0 to 65535, default 1; 0: no new connections
	// State: active (default), draining (keeps its connections, gets no new ones), down (like
	// draining, but its UDP connections end immediately).
	State string `json:"state,omitempty"`
}

// Affinity sends a client to the backend of its last connection.
type Affinity struct {
	Timeout Duration `json:"timeout"` // since the client's last new connection; 1s to 24h
}

// HealthCheck determines whether a backend can serve.
type HealthCheck struct {
	Type      string   `json:"type"`                // tcp, http, https, ping
	Path      string   `json:"path,omitempty"`      // http and https; default /
	Port      int      `json:"port,omitempty"`      // default: the backend's
	Interval  Duration `json:"interval,omitempty"`  // default 5s
	Timeout   Duration `json:"timeout,omitempty"`   // default 1s
	Healthy   int      `json:"healthy,omitempty"`   // successes in a row; default 2
	Unhealthy int      `json:"unhealthy,omitempty"` // failures in a row; default 3
}

// IdleTimeout is the time without packets after which connections end; zero is the default.
type IdleTimeout struct {
	TCP  Duration `json:"tcp,omitempty"`  // default 2h
	UDP  Duration `json:"udp,omitempty"`  // default 30s
	SCTP Duration `json:"sctp,omitempty"` // default 2h
}

// ServiceStatus is the status of a Service.
type ServiceStatus struct {
	Status
	Backends []BackendStatus `json:"backends,omitempty"`
}

// BackendStatus is one backend as the data plane uses it.
type BackendStatus struct {
	Address string `json:"address"`
	State   string `json:"state"`            // active, draining, down
	Health  string `json:"health,omitempty"` // healthy, unhealthy, unknown; empty: not checked
	Message string `json:"message,omitempty"`
}
