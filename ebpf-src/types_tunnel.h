/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_tunnel.h - keys and values of the maps of tunnels and peers. */
#pragma once

#include "types.h"

#define PEER_COUNT	  16384 /* index 0 is not used */
#define TUNNEL_PORTS	  8
#define TUNNEL_HEADER_MAX 96

/* The inner Ethernet header is always from 02:4c:4c:00:00:02 to 02:4c:4c:00:00:01. */
enum tunnel_type {
	TUNNEL_NONE,
	TUNNEL_VXLAN,  /* RFC 7348 */
	TUNNEL_GENEVE, /* RFC 8926, sent without options */
	TUNNEL_GRE,    /* RFC 2784, RFC 2890: the key, if present, is the VNI */
};

/* The first check of arriving packets: which of them may belong to tunnels. All zero: none. */
struct tunnel_gate {
	__be16 port[TUNNEL_PORTS]; /* UDP ports, from the first element on; 0: none */
	__u32 gre;
	__u32 inside; /* ll_peer_prefix has prefixes of pods, of this node or behind tunnels */
	__u32 seed;   /* random, for loxilightd: the seed of all peers */
};

struct tunnel_key {
	struct addr local;
	__u32 vni;   /* GRE without a key: 0 */
	__be16 port; /* GRE: 0 */
	__u8 proto;  /* of the outer packet */
	__u8 keyed;  /* GRE: has a key */
};
_Static_assert(sizeof(struct tunnel_key) == 24, "layout is pinned");

struct tunnel {
	__u32 id; /* starts at 1 */
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

/* A value of ll_peer_prefix is the index of a peer, or one of these if no tunnel leads to the
 * prefix.
 */
enum prefix_flag {
	PREFIX_F_HERE = 0x10000,   /* pods of this node */
	PREFIX_F_ROUTED = 0x20000, /* the underlay routes it */
};

/* Set in ct_meta.in_port of packets from a tunnel, together with the index of the peer. */
#define IN_PORT_PEER 0x8000

/* A node behind a tunnel. In the prepared header the fields that differ from packet to packet are
 * zero: lengths, source port, traffic class, inner EtherType. The IPv4 checksum does not include
 * them.
 */
struct peer {
	struct addr local; /* underlay addresses */
	struct addr remote;
	__u32 tunnel_id; /* 0: no such peer */
	enum tunnel_type type;
	__u32 device_ifindex; /* of the tunnel, in the switch netns */
	/* In the switch netns: the device that leads to the host netns; 0: the switch is in the
	 * host netns.
	 */
	__u32 link_switch_ifindex;
	__u32 link_host_ifindex; /* its other end, in the host netns */
	__u32 out_ifindex;	 /* the device through which the host reaches the peer */
	__u32 header_len;	 /* bytes, including Ethernet */
	__u32 seed; /* of source ports: random, so that other hosts cannot predict them */
	__u8 header[TUNNEL_HEADER_MAX];
};
_Static_assert(sizeof(struct peer) == 160, "no holes");

/* The path MTU to a peer, including outer headers, as routers of the underlay reported it. */
struct peer_pmtu {
	__u32 mtu_bytes;  /* 0: none reported */
	__u32 heard_tick; /* time of the last report */
};

/* How long a report is valid: ten minutes, as in the kernel. */
#define PATH_MTU_TICKS (600000000000ULL >> TICK_SHIFT)

#define PEER_NAME_MAX 256

/* The name by which loxilightd finds the id of a tunnel or the index of a peer again. */
struct peer_name {
	__u8 name[PEER_NAME_MAX]; /* padded with zeros */
	__u8 device[16];	  /* of a tunnel; padded with zeros */
};

/* Counters of a peer, per CPU. Bytes are counted for inner packets, with an Ethernet header. */
struct peer_stats {
	__u64 sent_packet_count;
	__u64 sent_byte_count;
	__u64 received_packet_count;
	__u64 received_byte_count;
	__u64 drop_count;
};
