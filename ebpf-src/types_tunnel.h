/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_tunnel.h - tunnels and their peers: keys and values of maps. */
#pragma once

#include "types.h"

#define PEER_COUNT	  16384 /* index 0 is none */
#define TUNNEL_PORTS	  8
#define TUNNEL_HEADER_MAX 96

/* All inner Ethernet headers are from 02:4c:4c:00:00:02 to 02:4c:4c:00:00:01. */
enum tunnel_type {
	TUNNEL_NONE,
	TUNNEL_VXLAN,  /* RFC 7348 */
	TUNNEL_GENEVE, /* RFC 8926, sent without options */
	TUNNEL_GRE,    /* RFC 2784, RFC 2890: the key is the VNI, where there is one */
};

/* What incoming packets are looked at for, before anything else. All zero: nothing. */
struct tunnel_gate {
	__be16 port[TUNNEL_PORTS]; /* of UDP; 0: none */
	__u32 gre;
	__u32 inside; /* ll_peer_prefix has prefixes of pods, of this node or behind tunnels */
	__u32 seed;   /* random, for loxilightd: the seed of all peers */
};

struct tunnel_key {
	struct addr local;
	__u32 vni;   /* GRE without a key: 0 */
	__be16 port; /* GRE: 0 */
	__u8 proto;  /* of the outer packet */
	__u8 keyed;  /* GRE: it has a key */
};
_Static_assert(sizeof(struct tunnel_key) == 24, "layout is pinned");

struct tunnel {
	__u32 id; /* from 1 on */
	enum tunnel_type type;
};

struct peer_key {
	struct addr underlay;
	__u32 tunnel_id;
};

struct peer_prefix_key {
	__u32 prefix_len; /* bits, of addr */
	struct addr addr;
};

/* The value of ll_peer_prefix: the index of a peer, and one of these unless a tunnel leads to
 * that.
 */
#define PREFIX_F_HERE	0x10000 /* of this node's own pods */
#define PREFIX_F_ROUTED 0x20000 /* the underlay routes it */

/* ct_meta.in_port of what comes out of tunnels: with the index of the peer. */
#define IN_PORT_PEER 0x8000

/* A node behind a tunnel. What the header has of each packet is zero in it: lengths,
 * source port, class of traffic, the type of what is inside. Its sum is without them.
 */
struct peer {
	struct addr local; /* of the underlay, as remote */
	struct addr remote;
	__u32 tunnel_id; /* 0: no peer here */
	enum tunnel_type type;
	__u32 device_ifindex; /* of the tunnel, in the switch */
	__u32 crossing_ifindex; /* in the switch: leads to the host's namespace; 0: it is the host's */
	__u32 return_ifindex; /* in the host's namespace: its other end */
	__u32 out_ifindex;    /* by which the host reaches it, where it does not forward */
	__u32 header_len;     /* bytes, Ethernet included */
	__u32 seed;	      /* of source ports: others cannot tell which they are */
	__u8 header[TUNNEL_HEADER_MAX];
};
_Static_assert(sizeof(struct peer) == 160, "no holes");

/* How long a packet to a peer may be, outer headers included, as a router has said. */
struct peer_path {
	__u32 mtu_bytes;  /* 0: nobody has said anything */
	__u32 heard_tick; /* when, the last time */
};

/* How long that is believed: ten minutes, as in the kernel. */
#define PATH_MTU_TICKS (600000000000ULL >> TICK_SHIFT)

#define PEER_NAME_MAX 256

/* For loxilightd, which finds its tunnels and peers again by it. */
struct peer_name {
	__u8 name[PEER_NAME_MAX]; /* padded with zeros */
	__u8 device[16];	  /* of a tunnel, likewise */
};

/* Counters of a peer, per CPU. Bytes are those of inner packets, with an Ethernet header. */
struct peer_stats {
	__u64 sent_packet_count;
	__u64 sent_byte_count;
	__u64 received_packet_count;
	__u64 received_byte_count;
	__u64 drop_count;
};
