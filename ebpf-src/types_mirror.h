/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_mirror.h - keys and values of the maps of mirrors. */
#pragma once

#include "types.h"
#include "types_tunnel.h"

#define MIRROR_COUNT   64 /* a bit of a 64-bit mask for each */
#define MIRROR_MEMBERS 16 /* of each list of a match */

/* The ports that have programs of mirrors: the mirrors whose copies are taken there. */
struct mirror_port {
	__u64 in;   /* of arriving packets */
	__u64 out;  /* of leaving packets */
	__u64 conn; /* of arriving packets of connections */
	__u64 sent; /* of leaving packets of connections that the node itself sends */
	__u64 rule; /* those of conn and sent that are mirrors of rules */
	/* Those of conn that copy such packets in the other netns, before these cross the link. */
	__u64 crossed;
};

struct mirror_prefix {
	struct addr addr;
	struct addr mask;
};

struct mirror_ports {
	__u16 first; /* host order */
	__u16 last;
};

enum mirror_flag {
	MIRROR_F_IN = 0x1,	  /* of connections: packets from the client */
	MIRROR_F_OUT = 0x2,	  /* of connections: packets to the client */
	MIRROR_F_SERVICE = 0x4,	  /* packets of the connections of service id */
	MIRROR_F_RULE = 0x8,	  /* packets of the connections that rule id allows */
	MIRROR_F_UDP = 0x10,	  /* the outer packet is UDP */
	MIRROR_F_IPV6 = 0x20,	  /* the outer packet is IPv6 */
	MIRROR_F_IP = 0x40,	  /* the match is not empty: only IP packets */
	MIRROR_F_PROTOCOL = 0x80, /* only packets of protocols in the set */
};

/* A mirror. In the prepared header of the outer packet, the fields that differ from packet to packet
 * are zero, as in struct peer.
 */
struct mirror {
	__u64 protocol[4];  /* a bit for each protocol number */
	__u32 target[2];    /* by netns: the ifindex to which copies are sent; 0: none */
	__u32 flags;	    /* MIRROR_F_ */
	__u32 id;	    /* of a service or rule */
	__u32 len_bytes;    /* copies are cut to it; 0: whole */
	__u32 peer;	    /* index into ll_peer; 0: copies are sent to the device unchanged */
	__u32 header_len;   /* bytes of header: outer Ethernet to VXLAN, Geneve or GRE */
	__u32 source_count; /* used elements of source; 0: any */
	__u32 destination_count;
	__u32 source_port_count;
	__u32 port_count; /* of the destination */
	__u32 pad;
	struct mirror_prefix source[MIRROR_MEMBERS];
	struct mirror_prefix destination[MIRROR_MEMBERS];
	struct mirror_ports source_port[MIRROR_MEMBERS];
	struct mirror_ports port[MIRROR_MEMBERS];
	__u8 header[TUNNEL_HEADER_MAX];
};
_Static_assert(sizeof(struct mirror) == 80 + 1024 + 128 + TUNNEL_HEADER_MAX, "no holes");

#define MIRROR_NAME_MAX 256

/* The name by which loxilightd finds the slot of a mirror again. */
struct mirror_name {
	__u8 name[MIRROR_NAME_MAX]; /* padded with zeros */
};

/* Counters of a mirror, per CPU. */
struct mirror_stats {
	__u64 packet_count;
	__u64 byte_count; /* of copies: after cutting, without the outer packet's headers */
	__u64 drop_count;
};
