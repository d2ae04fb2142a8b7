// SPDX-License-Identifier: Apache-2.0

package api

// The values of fields that take one of a fixed set of words. If the field may be absent, the first
// value is its default. The daemon and its clients use these lists, so that each word is defined
// once.
var (
	Algorithms    = []string{"maglev", "random", "round-robin", "least-connections", "source-hash"} // algorithm of a Service
	SourceModes   = []string{"auto", "keep", "snat"}                                                // source of a Service
	NoBackends    = []string{"reject", "drop"}                                                      // noBackend of a Service
	OtherPorts    = []string{"pass", "reject", "drop"}                                              // otherPorts of a Service
	BackendStates = []string{"active", "draining", "down"}
	HealthTypes   = []string{"tcp", "http", "https", "ping"} // required

	Netns    = []string{"host", "switch"}                   // netns of an Interface, a Route, and network.list
	Roles    = []string{"uplink", "port", "host", "tunnel"} // role of an Interface
	XDPModes = []string{"off", "generic", "native"}         // xdp of an Interface

	RouteTypes  = []string{"unicast", "blackhole", "unreachable", "prohibit"}
	TunnelTypes = []string{"vxlan", "geneve", "gre"}

	NATTypes        = []string{"snat", "dnat", "masquerade"}                         // required
	NATBehaviours   = []string{"address-and-port-dependent", "endpoint-independent"} // mapping and filtering of a NAT
	FirewallActions = []string{"allow", "deny", "reject"}                            // required
	FirewallHooks   = []string{"forward", "input", "output"}                         // default: all at which the fields of the match are known

	MirrorDirections = []string{"both", "in", "out"}

	PolicyActions    = []string{"allow", "deny", "reject", "pass"} // required
	PolicyStages     = []string{"enforced", "staged"}
	PolicyLogs       = []string{"allow", "deny"}                         // log of a Policy
	IsolateActions   = []string{"deny", "reject"}                        // isolateAction of a Policy
	PolicyDirections = []string{"ingress", "egress"}                     // isolate of a Policy
	TierPeers        = []string{"self", "node"}                          // always of a Tier
	LabelOperators   = []string{"In", "NotIn", "Exists", "DoesNotExist"} // required
)

// Owners are the owners with a predefined meaning.
var Owners = []string{OwnerCLI, OwnerFile, OwnerK8s, OwnerCNI}

// Protocols are the common protocols of a Match, which also accepts others, by name or number.
var Protocols = []string{"tcp", "udp", "sctp", "icmp", "icmpv6", "gre", "esp", "ah"}

// ConnectionProtocols are the protocols that the data plane tracks. ServiceProtocols are the
// protocols with ports: of Services' frontends, and in Policies and Entities.
var (
	ConnectionProtocols = Protocols[:5]
	ServiceProtocols    = Protocols[:3]
)
