/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* drop.h - drop reasons and verdicts: why a packet was dropped, and what else the programs did with
 * a packet. This is the only list of both: the daemon reads the names from BTF, and llcli the
 * sentences, which describe the packet to a user, from this file. Append only, since pinned
 * counters use the numbers. A reason whose packets are answered is followed by its _LIMITED
 * counterpart, for packets above the rate of answers.
 */
#pragma once

enum drop_reason {
	DROP_NONE,
	/* the Service has no backend that takes new connections; the client is refused at once */
	DROP_NO_BACKEND,
	/* as no_backend, but without a refusal: too many were sent in this second */
	DROP_NO_BACKEND_LIMITED,
	/* the client is in none of the Service's sourceRanges */
	DROP_SOURCE_RANGE,
	/* every source port towards this backend is taken, so replies to a further client could not
	 * be distinguished; or the table of a NAT's mappings or port blocks is full
	 */
	DROP_NO_PORT,
	/* the client's address has to be translated, and the output device has no suitable
	 * address
	 */
	DROP_NO_ADDRESS,
	/* established connections have taken all places of a new one in the table */
	DROP_TABLE_FULL,
	/* a client on this node was sent to a backend that it has no route to */
	DROP_NO_ROUTE,
	/* the kernel refused to change the packet */
	DROP_REWRITE,
	/* larger than the MTU of its path; the sender got an ICMP error (fragmentation needed,
	 * packet too big)
	 */
	DROP_TOO_BIG,
	/* as too_big, but without an ICMP error: the limit per second was reached */
	DROP_TOO_BIG_LIMITED,
	/* a FirewallRule does not allow it; if the rule rejects, the sender got an answer */
	DROP_FIREWALL,
	/* as firewall, by a rule that rejects, but without an answer: the limit per second was
	 * reached
	 */
	DROP_FIREWALL_LIMITED,
	/* FirewallRules exist, and this fragment arrived before the first fragment, which has the
	 * ports
	 */
	DROP_FRAGMENT,
	/* FirewallRules exist, and this packet cannot be classified: too many headers, or truncated
	 */
	DROP_UNCLEAR,
	/* a NAT applies to its source, but it belongs to no connection, such as a late packet of a
	 * connection that ended
	 */
	DROP_NO_CONNECTION,
	/* its TTL or hop limit expired on this node, and a Service or a NAT translates it; the
	 * sender got an ICMP error (time exceeded)
	 */
	DROP_TTL,
	/* as ttl, but without an ICMP error: the limit per second was reached */
	DROP_TTL_LIMITED,
	/* it came from the device of an Endpoint with a MAC or address that the Endpoint does not
	 * have, or is of a type that pods may not send
	 */
	DROP_SPOOFED,
	/* it was sent to an address that only NAT uses, and no connection, mapping or rule matches
	 * it
	 */
	DROP_NO_MAPPING,
	/* it arrived through a Tunnel from an address that no Peer has */
	DROP_TUNNEL_UNKNOWN_PEER,
	/* it arrived through a Tunnel with a source outside the prefixes of that Peer */
	DROP_TUNNEL_SOURCE,
	/* it was routed to a Tunnel, and no Peer has a prefix for its destination */
	DROP_TUNNEL_NO_PEER,
	/* the host has no route to the underlay address of the Peer */
	DROP_TUNNEL_NO_ROUTE,
	/* it arrived through a Tunnel and contains no IP packet, or has a critical option that is
	 * not supported
	 */
	DROP_TUNNEL_MALFORMED,
	/* it was marked as congested on the way, and its sender does not support ECN (RFC 6040) */
	DROP_TUNNEL_ECN,
	/* the Service has no backend that takes new connections, and noBackend: drop; the client
	 * gets no answer
	 */
	DROP_NO_BACKEND_SILENT,
	/* no Service listens on this port of the address (otherPorts: reject) */
	DROP_NO_SERVICE,
	/* as no_service, but without an answer: the limit per second was reached */
	DROP_NO_SERVICE_LIMITED,
	/* its connection had expired and was just being deleted */
	DROP_ENDING,
	/* it was addressed to the tunnel end of a Peer, and this node did not encapsulate it: a pod or
	 * another host sent it, or an ICMP error about such a packet
	 */
	DROP_TUNNEL_FORGED,
	/* it arrived through a Tunnel with the address of a Peer, on a device that is not an uplink
	 * and does not lead to that Peer
	 */
	DROP_TUNNEL_PORT,
	/* it arrived on an uplink without encapsulation, although its source is an address of this
	 * node or of one of its pods, or is behind a Peer with a Tunnel
	 */
	DROP_UPLINK_SOURCE,
	/* it arrived on a device other than the loopback, from or to a loopback address */
	DROP_LOOPBACK,
	/* the program of the slow path is gone, since its pin was deleted while loxilightd did not
	 * run: start loxilightd
	 */
	DROP_NO_SLOW_PATH,
	/* a network Policy of the Endpoint that sends it, or of the one for which it is, does not allow
	 * it; if the Policy rejects, the sender got an answer
	 */
	DROP_POLICY,
	/* as policy, by a Policy that rejects, but without an answer: the limit per second was reached
	 */
	DROP_POLICY_LIMITED,
	/* its network requires an Entity for the Endpoint that sends it, or for the one for which it is,
	 * and there is none: the Kubernetes agent has not configured the pod yet, or the Entity was
	 * deleted
	 */
	DROP_POLICY_UNKNOWN,
	DROP_MAX,
};

/* What the programs did with a packet that they handled. Append only, as above. */
enum verdict_count {
	VERDICT_NONE, /* not a verdict: counts new connections without a Service */
	/* redirected from port to port in one look-up: the fast path */
	VERDICT_FAST,
	/* rewritten, then routed or bridged by the kernel: first packets, and those that the fast
	 * path does not take
	 */
	VERDICT_SLOW,
	/* rewritten, for or from the node itself */
	VERDICT_LOCAL,
	/* an ICMP error about a connection, translated with the packet that it quotes */
	VERDICT_ICMP_ERROR,
	/* refused, and the data plane sent the answer itself: a reset, an abort or an ICMP error */
	VERDICT_ANSWERED,
	/* its source has so many connections that the table would fill up: this one stays half-open
	 */
	VERDICT_OVER_SHARE,
	/* removed, half-open or ended, to make room for another connection */
	VERDICT_EVICTED,
	/* of a known connection, and evaluated again: rules, or the policies of its ports, had
	 * changed
	 */
	VERDICT_EVALUATED,
	/* a Policy with log decided about it, and no event reports it: the limit per second was
	 * reached
	 */
	VERDICT_UNLOGGED,
	VERDICT_MAX,
};
