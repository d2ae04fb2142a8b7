/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_conn.h - the connection table; ct_table.h describes how entries are found. */
#pragma once

#include "types.h"

struct ct4_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport; /* ICMP echo: both ports are the identifier */
	__be16 dport;
	__u8 proto; /* IPPROTO_; 0: the entry is not in use */
	__u8 netns; /* 0: host netns, 1: switch netns */
	/* Bridged frames: identifies bridge and VLAN. 0 if routed, or with BRIDGE_PORT_F_FLAT. */
	__u16 domain;
};
_Static_assert(sizeof(struct ct4_key) == 16, "layout is pinned");

struct ct6_key {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 netns;
	__u16 domain;
};
_Static_assert(sizeof(struct ct6_key) == 40, "layout is pinned");

/* States of a connection; both entries have the same state, except that the entry of the replies is
 * CT_NEW if the client's is CT_ONE_WAY.
 */
enum ct_state {
	CT_NEW,	     /* TCP: SYN seen; others: unanswered */
	CT_ANSWERED, /* TCP: SYN-ACK seen */
	CT_ESTABLISHED,
	CT_ONE_WAY,   /* UDP: unanswered, but the client continues to send */
	CT_FIN,	      /* one side has closed */
	CT_TIME_WAIT, /* both sides have closed */
	CT_CLOSED,    /* reset; later traffic revives it */
	CT_ENDING,    /* both entries are being deleted, see expire.bpf.c */
	CT_STATE_MAX,
};

/* ct_meta.flags */
enum ct_flag {
	CT_F_REPLY = 0x01, /* this entry is the reply direction */
	CT_F_DNAT = 0x02,
	CT_F_SNAT = 0x04,
	CT_F_LOCAL = 0x08,	     /* this direction starts or ends at the node itself */
	CT_F_FIN = 0x10,	     /* a FIN was seen in this direction */
	CT_F_FROM_NODE = 0x20,	     /* the client is the node itself */
	CT_F_RST = 0x40,	     /* a reset was seen in this direction */
	CT_F_DENIED = 0x80,	     /* denied by changed rules: evaluated again for each packet */
	CT_F_SNAT_AT_EGRESS = 0x100, /* on the slow path the egress hook translates the source */
	CT_F_NAT_ASKED = 0x200,	     /* the SNAT rules were evaluated */
	CT_F_DEVICE = 0x400,	     /* SNAT to an address of a device: ends with that address */
	/* Not evicted before it expires, and counted in ll_shares. Without it: half-open or ended. */
	CT_F_LASTING = 0x800,
	CT_F_SERVICE = 0x1000, /* it has a service */
};

/* The slow-path reason: why the kernel forwards packets of an entry. In the upper bits of
 * ct_meta.flags.
 */
enum slowpath_reason {
	SLOWPATH_UNKNOWN,   /* not evaluated yet, or its output device is not a port */
	SLOWPATH_NETFILTER, /* netfilter has rules */
	SLOWPATH_MARK,	    /* another program has set a mark */
	SLOWPATH_TAG,	    /* only the kernel can handle its VLAN tag */
	SLOWPATH_ONE_WAY,   /* no reply from its output bridge port: the bridge may flood it */
	SLOWPATH_FULL,	    /* no room for another next hop */
	SLOWPATH_ONE_WAY_1, /* as SLOWPATH_ONE_WAY, for odd packet counts */
	SLOWPATH_NAMES,	    /* names are learnt from it: see names_learn.h */
	SLOWPATH_MAX,
};

#define CT_SLOWPATH_SHIFT 13 /* in ct_meta.flags */
#define CT_SLOWPATH_MASK  0xe000

/* What each packet of an entry reads or changes; the same in both families. */
struct ct_meta {
	__u64 byte_count;   /* of whole frames */
	__u32 packet_count; /* lower part */
	__u32 last_seen_tick;
	/* Host order: the highest acknowledgement sent in this direction. SCTP: the verification
	 * tag of this direction. 0: unknown.
	 */
	__u32 tcp_ack;
	__u16 tcp_window; /* unscaled, of the packet with that acknowledgement */
	__u8 tcp_scale;	  /* shift of tcp_window */
	__u8 state;	  /* enum ct_state */
	__u16 nexthop;	  /* index into ll_nexthop; 0: not learnt, the kernel forwards */
	/* Lower half of the arrival ifindex, or IN_PORT_PEER plus a peer's index; 0: unknown. */
	__u16 in_port;
	__u16 flags; /* CT_F_; in the table, changed by ct_flags_set and ct_flags_clear */
	__u16 packet_count_high; /* upper part */
};
_Static_assert(sizeof(struct ct_meta) == 32, "half a cache line");

/* What is needed only when a connection begins or ends. */
struct ct_more {
	__u32 created_tick;
	/* The FirewallRule that allows the connection, or with CT_F_DENIED denies it; 0: none. */
	__u32 rule_id;
	__u32 backend_id; /* its service is the service of the connection */
	/* The NAT that translates the connection. If two NATs do, the entry of the replies contains
	 * the one that translates the source. 0: none.
	 */
	__u16 nat_id;
	/* Time without packets after which it has expired once it is established, in units of
	 * 2^CT_IDLE_SHIFT ticks (8.6 s), rounded up. 0: unknown, it never expires in the programs.
	 */
	__u16 idle;
};
#define CT_IDLE_SHIFT 6
_Static_assert(sizeof(struct ct_more) == 16, "layout is pinned");

/* An entry: the arriving tuple is its key; saddr, daddr, sport and dport are the leaving tuple. */
struct ct4 {
	struct ct4_key key;
	struct ct_meta meta;
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 chain; /* of the entries that belong here: see ct_table.h */
};
_Static_assert(sizeof(struct ct4) == 64, "one cache line");

struct ct6 {
	struct ct6_key key;
	__be16 sport;
	__be16 dport;
	__u32 chain;
	__u64 pad[2];
	struct ct_meta meta; /* the second cache line */
	struct addr saddr;
	struct addr daddr;
};
_Static_assert(sizeof(struct ct6) == 128 && offsetof(struct ct6, meta) == 64, "two cache lines");

#define CT_BLOCK 64 /* entries of a block */

/* A block of entries; what is seldom needed of each; and a bit for each entry that is taken. */
struct ct4_block {
	struct ct4 entry[CT_BLOCK];
	struct ct_more more[CT_BLOCK];
	__u64 used;
	__u64 pad[7]; /* entries begin with a cache line */
};

struct ct6_block {
	struct ct6 entry[CT_BLOCK];
	struct ct_more more[CT_BLOCK];
	__u64 used;
	__u64 pad[7];
};

#define CT_SEGMENTS 64 /* the most segments of a table, a power of two */

/* The numbers of segments of the tables, by family, IPv4 first. In the lower half of a word, the bits
 * of the hash that select the segment (CT_SEGMENT_BITS); in the upper half, those before the change
 * that is under way. 0: one segment. Written by loxilightd.
 */
struct ct_size {
	__u32 segments[2];
};

#define CT_HASH_KEYS 11 /* words of a key of IPv6, in halves, and one more */

#define SHARE_SOURCES 65536

#define NEXTHOP_DEVICES 2048 /* for each netns: devices are counted by ifindex modulo this */

/* Use of shared tables: connections by source, see ct_share.h; next hops by device, see nh.h. */
struct shares {
	__u32 seed; /* for the hash of sources */
	/* By family, IPv4 first: connections that the table can hold, 0: no shares; and connections. */
	__u32 capacity_of[2];
	__u32 total[2];
	__u32 count[SHARE_SOURCES];
	__u32 nexthop_total; /* in use, or not freed yet */
	__u32 nexthop_count[2 * NEXTHOP_DEVICES];
	__u64 ct_hash[CT_HASH_KEYS]; /* random: config_ct_hash of ct_table.h */
};
