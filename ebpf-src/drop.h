/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* drop.h - why a packet was dropped. The only list of reasons: the CLI and the events read their
 * names from BTF. Append only; the numbers are in pinned counters. A reason that is answered is
 * followed by the same reason above the rate of answers (_LIMITED).
 */
#pragma once

enum drop_reason {
	DROP_NONE,
	DROP_NO_BACKEND,	  /* service without a usable backend; refused with RST or ICMP */
	DROP_NO_BACKEND_LIMITED,  /* the same, above the rate of answers */
	DROP_SOURCE_RANGE,	  /* client in none of the service's source ranges */
	DROP_NO_PORT,		  /* all source ports tried towards this backend are taken */
	DROP_NO_ADDRESS,	  /* SNAT is needed, and the output device has no address */
	DROP_TABLE_FULL,	  /* no table has room for the connection */
	DROP_NO_ROUTE,		  /* the backend of a client on the node cannot be reached */
	DROP_REWRITE,		  /* a helper refused to change the packet */
	DROP_TOO_BIG,		  /* larger than the MTU of its path; answered */
	DROP_TOO_BIG_LIMITED,	  /* the same, above the rate of answers */
	DROP_FIREWALL,		  /* a rule does not allow it; answered if the rule rejects */
	DROP_FIREWALL_LIMITED,	  /* a rule rejects it, above the rate of answers */
	DROP_FRAGMENT,		  /* rules exist, and its first fragment has not arrived */
	DROP_UNCLEAR,		  /* rules exist, and its headers are too many or cut off */
	DROP_NO_CONNECTION,	  /* its source would be translated, but it opens no connection */
	DROP_TTL,		  /* its TTL ends, and NAT or a service translates it; answered */
	DROP_TTL_LIMITED,	  /* the same, above the rate of answers */
	DROP_SPOOFED,		  /* from a pod's device, without the pod's addresses */
	DROP_NO_MAPPING,	  /* to an address that only NAT uses, without a mapping */
	DROP_TUNNEL_UNKNOWN_PEER, /* from a tunnel, outer source is not a peer */
	DROP_TUNNEL_SOURCE,	  /* from a tunnel, inner source is not in the peer's prefixes */
	DROP_TUNNEL_NO_PEER,	  /* to a tunnel, and no peer has its destination */
	DROP_TUNNEL_NO_ROUTE,	  /* the underlay has no route to the peer */
	DROP_TUNNEL_MALFORMED,	  /* from a tunnel, without an IP packet inside */
	DROP_TUNNEL_ECN,	  /* marked on its path, and cannot carry the mark (RFC 6040) */
	DROP_NO_BACKEND_SILENT,	  /* service without a usable backend that drops silently */
	DROP_NO_SERVICE, /* service address, but no service on this port; answered, or not */
	DROP_NO_SERVICE_LIMITED, /* the same, above the rate of answers */
	DROP_ENDING, /* its connection is being deleted at this moment; the next packet opens it */
	DROP_TUNNEL_FORGED, /* to the tunnel end of a peer, and not encapsulated by this node */
	DROP_TUNNEL_PORT,   /* from a tunnel, on a port by which its peer does not send */
	DROP_UPLINK_SOURCE, /* on an uplink, outside of tunnels, from a pod or the node itself */
	DROP_LOOPBACK,	    /* from another device than the loopback, with a loopback address */
	DROP_MAX,
};

/* What the programs did with a packet that they handled. Append only, as above. */
enum verdict_count {
	VERDICT_NONE,	    /* not a verdict: counts new connections without a service */
	VERDICT_FAST,	    /* redirected on the fast path */
	VERDICT_SLOW,	    /* rewritten, then forwarded by the kernel */
	VERDICT_LOCAL,	    /* rewritten, for or from the node itself */
	VERDICT_ICMP_ERROR, /* a translated ICMP error about a connection */
	VERDICT_TABLE_FULL, /* established table full: the connection stays half-open */
	VERDICT_ANSWERED,   /* refused, and answered */
	VERDICT_OVER_SHARE, /* its source has its share of connections: this one stays half-open */
	VERDICT_CROWDED, /* its source has its share of half-open ones: replaces its oldest one */
	VERDICT_MAX,
};
