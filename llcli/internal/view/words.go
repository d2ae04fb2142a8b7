// SPDX-License-Identifier: Apache-2.0

package view

import "strings"

// word is a word that the daemon uses in its answers.
type word struct {
	name    string
	meaning string // in one line
	advice  string // what to do, if anything
}

// vocabulary is a set of words and the title of their column.
type vocabulary struct {
	title string
	words []word
}

// The names of drops and verdicts are the names in ebpf-src/drop.h.
var (
	dropWords = vocabulary{"DROPPED", []word{
		{"no_backend", "the Service has no backend that takes new connections; the client is refused at once",
			"llcli service show NAME: are all backends draining, down, unhealthy, or of the other address family?"},
		{"no_backend_limited", "as no_backend, but without a refusal: too many were sent in this second",
			"the same as for no_backend; the clients see a timeout instead of an error"},
		{"source_range", "the client is in none of the Service's sourceRanges",
			"llcli service show NAME shows them; llcli events drops shows the clients"},
		{"no_port", "every source port towards this backend is taken, so replies to a further client could not be distinguished; or the table of a NAT's mappings or blocks of ports is full",
			"add backends or node addresses, or use source: keep where the backends route back through this node; where llcli status shows natMappings or natBlocks as full, raise tables.connections"},
		{"no_address", "the client's address has to be translated, and the way out has no address to translate it to",
			"give the device towards the backend an address of the backend's family"},
		{"table_full", "the connection fits no table",
			"llcli status shows how full they are; tables.connections and tables.halfOpen in the daemon's configuration set their sizes"},
		{"no_route", "a client on this node was sent to a backend that it has no route to",
			"ip route get BACKEND"},
		{"rewrite", "the kernel refused to change the packet",
			"it is damaged, or a fault of ours: llcli events drops shows such packets; please report them"},
		{"too_big", "larger than the MTU of its path; the sender got an ICMP error (fragmentation needed, packet too big)",
			"nothing, where path MTU discovery works: the sender sends smaller ones"},
		{"too_big_limited", "as too_big, but without an ICMP error: the limit per second was reached",
			"the sender tries again and gets the error then"},
		{"firewall", "a FirewallRule does not allow it; if the rule rejects, the sender got an answer",
			"llcli counters FirewallRule NAME, or llcli events drops, which names the rule"},
		{"firewall_limited", "as firewall, by a rule that rejects, but without an answer: the limit per second was reached",
			"the same as for firewall"},
		{"fragment", "FirewallRules exist, and this fragment arrived before the first fragment, which has the ports",
			"the sender should use path MTU discovery instead of fragments"},
		{"unclear", "FirewallRules exist, and this packet cannot be classified: too many headers, or truncated",
			"llcli events drops shows such packets: who sends them?"},
		{"no_connection", "a NAT applies to its source, but it belongs to no connection, such as a late packet of a connection that ended",
			"nothing, if there are few of them"},
		{"ttl", "its TTL or hop limit expired on this node, and a Service or a NAT translates it; the sender got an ICMP error (time exceeded)",
			"nothing, for a traceroute; else look for a routing loop"},
		{"ttl_limited", "as ttl, but without an ICMP error: the limit per second was reached",
			"the same as for ttl"},
		{"spoofed", "it came from the device of an Endpoint with a MAC or address that the Endpoint does not have, or is of a type that pods may not send",
			"llcli events drops, which names the Endpoint: check what runs in it, and whether it has addresses that its object lacks"},
		{"no_mapping", "to an address that only NAT uses, and no connection, mapping or rule matches",
			"nothing, unless a host behind the NAT should be reachable: then add a NAT of type dnat"},
		{"tunnel_unknown_peer", "it came through a Tunnel from an address that no Peer has",
			"llcli events drops shows the address: is an underlay address of a Peer missing?"},
		{"tunnel_source", "it came through a Tunnel with a source outside the prefixes of that Peer",
			"llcli get peers: is a prefix missing, or another Peer's?"},
		{"tunnel_no_peer", "it was routed to a Tunnel, and no Peer has a prefix for its destination",
			"llcli kernel routes: which route leads to the Tunnel's device and to no Peer?"},
		{"tunnel_no_route", "the host has no route to the underlay address of the Peer",
			"ip route get ADDRESS in the host's namespace"},
		{"tunnel_malformed", "it came through a Tunnel without an IP packet in it, or with a critical option that is not supported",
			"check the sender: Peers must route IP through the Tunnel, not bridge frames"},
		{"tunnel_ecn", "it has a mark of congestion, and its sender does not support ECN (RFC 6040)",
			"nothing: the loss signals the congestion to the sender"},
		{"no_backend_silent", "the Service has no backend that takes new connections, and noBackend: drop; the client gets no answer",
			"the same as for no_backend"},
		{"no_service", "no Service listens on this port of the address (otherPorts: reject)",
			"llcli events drops shows the port: is a frontend missing?"},
		{"no_service_limited", "as no_service, but without an answer: the limit per second was reached",
			"the same as for no_service"},
		{"ending", "its connection had expired and was just being deleted",
			"nothing: the next packet opens the connection anew"},
		{"tunnel_forged", "it was for the tunnel end of a Peer, and this node did not encapsulate it: a pod or another host sent it, or an ICMP error about such a packet",
			"llcli events drops names the sender: see what runs there"},
		{"tunnel_port", "it came in by a Tunnel with the address of a Peer, on a device that is no uplink and does not lead to that Peer",
			"if the underlay has several paths, set role: uplink on their Interfaces; else see who sends it"},
		{"uplink_source", "it came in by an uplink outside of Tunnels, with an address of this node, of one of its pods, or behind a Peer with a Tunnel",
			"llcli events drops names the sender; if the underlay is to route pods, remove tunnel from the Peer"},
		{"loopback", "it came in by a device, from or to an address of the loopback",
			"llcli events drops names the device: see who sends it"},
	}}
	verdictWords = vocabulary{"VERDICT", []word{
		{"fast", "redirected from port to port in one look-up: the fast path", ""},
		{"slow", "rewritten, then routed or bridged by the kernel: first packets, and those that the fast path does not take", ""},
		{"local", "rewritten, for or from the node itself", ""},
		{"icmp_error", "an ICMP error about a connection, translated with the packet that it quotes", ""},
		{"table_full", "the table of established connections is full: the connection stays half-open",
			"tables.connections in the daemon's configuration sets the size; until then a flood may end this connection"},
		{"answered", "refused, and the data plane sent the answer itself: a reset, an abort or an ICMP error", ""},
		{"over_share", "its source has so many connections that the table would fill up: this one stays half-open",
			"llcli connections --source ADDRESS shows its connections; tables.connections sets the size of the table"},
		{"crowded", "its source has so many half-open connections that the table would fill up: this one replaces the oldest of those that the source opened above its share",
			"llcli connections --source ADDRESS shows its connections; tables.halfOpen sets the size of the table"},
	}}
	connectionWords = vocabulary{"CONNECTION", []word{
		{"syn-sent", "the client asked for a connection; no answer yet", ""},
		{"syn-received", "the backend answered; the client has not confirmed yet", ""},
		{"established", "open in both directions", ""},
		{"fin-wait", "one side has closed", ""},
		{"time-wait", "both sides have closed; late packets still find it", ""},
		{"closed", "ended by a reset", ""},
		{"unreplied", "packets went one way only so far (UDP, ICMP)", ""},
		{"replied", "packets went both ways (UDP, ICMP)", ""},
	}}
	objectWords = vocabulary{"OBJECT", []word{
		{"Pending", "not applied by the data plane yet, or an object or device that it needs is missing; the message names it",
			"llcli describe KIND NAME"},
		{"Ready", "the data plane has applied it", ""},
		{"Error", "the data plane cannot apply it; it is retried",
			"llcli describe KIND NAME shows the message"},
	}}
	vocabularies = []*vocabulary{&roleWords, &ruleWords, &backendWords, &dropWords, &verdictWords, &connectionWords, &objectWords}
)

// find returns the word with a name; nil: no such word exists.
func (v *vocabulary) find(name string) *word {
	for i := range v.words {
		if strings.EqualFold(v.words[i].name, name) || strings.EqualFold(v.words[i].name, strings.ReplaceAll(name, "-", "_")) {
			return &v.words[i]
		}
	}
	return nil
}

// meaning returns the meaning of a name; empty: unknown to this llcli.
func (v *vocabulary) meaning(name string) string {
	if w := v.find(name); w != nil {
		return w.meaning
	}
	return ""
}

// roleWords are the roles of Interfaces.
var roleWords = vocabulary{"ROLE", []word{
	{"uplink", "a device towards the rest of the network, or towards clients: the default. Masquerading and the MTU of pods go by uplinks",
		"the WAN side and the LAN side of a gateway are both uplinks"},
	{"port", "a device behind which one pod, VM or server is", ""},
	{"host", "the host's own end of its link to the switch", ""},
	{"tunnel", "a device of a tunnel; devices of Tunnels need no Interface", ""},
}}

// ruleWords are values of fields of FirewallRules and NATs.
var ruleWords = vocabulary{"RULE", []word{
	{"allow", "of a FirewallRule: the packet passes, and its replies too unless stateful is false", ""},
	{"deny", "of a FirewallRule: the packet is dropped silently", "llcli events drops --of firewall/NAME shows such packets"},
	{"reject", "of a FirewallRule: the packet is dropped, and its sender gets a reset, an SCTP ABORT or an ICMP error", ""},
	{"forward", "a hook: packets that are routed or bridged through the node", ""},
	{"input", "a hook: packets to the node itself", ""},
	{"output", "a hook: packets from the node itself", ""},
	{"local", "in source and destination of rules: the current addresses of the node, except loopback and link-local addresses", ""},
	{"masquerade", "a NAT: the source becomes the address of the output device",
		"llcli nat add out --masquerade --out eth0"},
	{"snat", "a NAT: the source becomes an address of to.addresses", "llcli nat add out --snat --out eth0 --to 192.0.2.10"},
	{"dnat", "a NAT: the destination becomes an address of to.addresses: a port forward",
		"llcli nat add web --dnat --in eth0 --destination local --protocol tcp --port 8080 --to 10.0.0.7:80"},
}}

// backendWords are states of backends, as configured and as observed.
var backendWords = vocabulary{"BACKEND", []word{
	{"active", "gets new connections; the default", ""},
	{"draining", "keeps its connections and gets no new ones, unless the Service has no other backends",
		"llcli service drain NAME ADDRESS --undo ends it"},
	{"down", "gets no new connections, and its UDP connections end at once; others continue", ""},
	{"healthy", "its health check succeeds", ""},
	{"unhealthy", "its health check fails: it counts as down until it succeeds again", "llcli describe service NAME shows the reason"},
	{"unknown", "no result of a health check yet, or no health check", ""},
}}
