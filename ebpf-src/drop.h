/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* drop.h - why a packet was dropped. The only list of reasons: their names reach
 * the CLI and the events by BTF. Append only; the numbers are in pinned counters.
 * A reason that senders are told of is followed by the same, over the rate of answers.
 */
#pragma once

enum drop_reason {
	DROP_NONE,
	DROP_NO_BACKEND,	 /* service without a usable backend; refused with RST or ICMP */
	DROP_NO_BACKEND_LIMITED, /* the same, but nobody was told */
	DROP_SOURCE_RANGE,	 /* client not in the service's source ranges */
	DROP_NO_PORT,		 /* every source port towards this backend is taken */
	DROP_NO_ADDRESS,	 /* SNAT wanted, and no address on the way out */
	DROP_TABLE_FULL,	 /* the connection could not be entered anywhere */
	DROP_NO_ROUTE,		 /* a local client's backend cannot be reached */
	DROP_REWRITE,		 /* a helper refused to change the packet */
	DROP_TOO_BIG,		 /* larger than the MTU where it was to go; its sender was told */
	DROP_TOO_BIG_LIMITED,	 /* the same, but nobody was told */
	DROP_FIREWALL,	       /* a rule does not allow it; one that rejects: its sender was told */
	DROP_FIREWALL_LIMITED, /* a rule rejects it, but over the rate of answers */
	DROP_FRAGMENT,	       /* there are rules, and its first fragment has not come */
	DROP_UNCLEAR,	       /* there are rules, and its headers are too many or cut off */
	DROP_NO_CONNECTION,    /* its source is to be translated, but it opens no connection */
	DROP_TTL,	       /* its TTL ends, and its source is translated; its sender was told */
	DROP_TTL_LIMITED,      /* the same, but nobody was told */
	DROP_SPOOFED,	       /* by a pod's device, with what is not the pod's */
	DROP_NO_MAPPING,       /* for an address that only translations use, and none has it */
	DROP_TUNNEL_UNKNOWN_PEER, /* came in by a tunnel, from nobody who is a peer */
	DROP_TUNNEL_SOURCE,	  /* came in by a tunnel, with a source that is not its peer's */
	DROP_TUNNEL_NO_PEER,	  /* is to leave by a tunnel, and no peer has its destination */
	DROP_TUNNEL_NO_ROUTE,	  /* the underlay has no way to the peer */
	DROP_TUNNEL_MALFORMED,	  /* came in by a tunnel, and holds no IP packet */
	DROP_TUNNEL_ECN,	  /* was marked on its way, and cannot bear the mark (RFC 6040) */
	DROP_NO_BACKEND_SILENT,	  /* service without a usable backend that refuses nobody */
	DROP_NO_SERVICE, /* for the address of services, and none of theirs; refused, or not */
	DROP_NO_SERVICE_LIMITED, /* refused, but nobody was told */
	DROP_ENDING, /* its connection is being deleted at this moment; the next packet opens it */
	DROP_TUNNEL_FORGED, /* to a Peer's end of a tunnel, and this node did not encapsulate it */
	DROP_TUNNEL_PORT,   /* came in by a tunnel, on a port by which its Peer does not send */
	DROP_UPLINK_SOURCE, /* came in by an uplink, outside of tunnels, with a source among pods */
	DROP_LOOPBACK,	    /* came in from outside, from or to an address of the loopback */
	DROP_MAX,
};

/* What was done with a packet that was ours. Append only, as above. */
enum verdict_count {
	VERDICT_NONE,
	VERDICT_TRACKED,    /* redirected by the short cut */
	VERDICT_SLOW,	    /* rewritten, then left to the kernel */
	VERDICT_LOCAL,	    /* rewritten, for or from the node itself */
	VERDICT_ICMP_ERROR, /* an ICMP error about a connection, translated */
	VERDICT_TABLE_FULL, /* established table full: connection stays half-open */
	VERDICT_ANSWERED,   /* refused, and an answer sent in its place */
	VERDICT_OVER_SHARE, /* its source has many connections: this one stays half-open */
	VERDICT_CROWDED,    /* its source has many half-open ones: it takes the place of another */
	VERDICT_MAX,
};
