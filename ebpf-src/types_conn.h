/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_conn.h - keys and values of the connection maps; each direction has its own entry, found by
 * its tuple.
 */
#pragma once

#include "types.h"

struct ct4_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport; /* ICMP echo: both ports are the identifier */
	__be16 dport;
	__u8 proto; /* IPPROTO_ */
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

/* States of a connection; both entries have the same state. */
enum ct_state {
	CT_NEW,	     /* TCP: SYN seen; others: unanswered */
	CT_ANSWERED, /* TCP: SYN-ACK seen */
	CT_ESTABLISHED,
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
	SLOWPATH_MAX,
};

#define CT_SLOWPATH_SHIFT 12 /* in ct_meta.flags */
#define CT_SLOWPATH_MASK  0xf000

/* The part of an entry that is the same in both families. */
struct ct_meta {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
	__u32 last_seen_tick;
	__u32 created_tick;
	__u16 nexthop; /* index into ll_nexthop; 0: not learnt, the kernel forwards */
	/* Lower half of the arrival ifindex, or IN_PORT_PEER plus a peer's index; 0: unknown. */
	__u16 in_port;
	__u32 service_id;
	__u32 backend_id;
	/* Host order: the highest acknowledgement sent in this direction. SCTP: the verification
	 * tag of this direction. 0: unknown.
	 */
	__u32 tcp_ack;
	__u16 tcp_window; /* unscaled, of the packet with that acknowledgement */
	__u8 tcp_scale;	  /* shift of tcp_window */
	__u8 state;	  /* enum ct_state */
	__u16 flags;	  /* CT_F_ */
	/* The NAT that translates the connection. If two NATs do, the entry of the replies contains
	 * the one that translates the source. 0: none.
	 */
	__u16 nat_id;
};

/* The key of an entry is the arriving tuple, its value the leaving tuple. With a 16-byte key, an
 * element of a preallocated hash is 128 bytes, two cache lines: one for the hash header and the
 * key, one for this value.
 */
struct ct4_val {
	struct ct_meta meta;
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 pad;
};
_Static_assert(sizeof(struct ct4_val) == 64, "one cache line");

struct ct6_val {
	struct ct_meta meta;
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u32 pad;
};
_Static_assert(sizeof(struct ct6_val) == 88, "layout is pinned");

#define SHARE_SOURCES 65536

#define NEXTHOP_DEVICES 2048 /* for each netns: devices are counted by ifindex modulo this */

#define CROWD_COUNT 16	/* groups of sources that have their full share of half-open connections */
#define CROWD_SLOTS 256 /* connections that each crowd remembers, in a ring */
#define CROWD_WORDS 5	/* size of a struct tuple, in 64-bit words */

/* Use of shared tables: connections by source, see ct_share.h and ct_open_share.h; next hops by
 * device, see nh.h.
 */
struct shares {
	__u32 seed;	/* for the hash of sources */
	__u32 capacity; /* connections of each family that the table can hold; 0: no shares */
	__u32 total[2]; /* by family, IPv4 first */
	__u32 count[SHARE_SOURCES];
	__u32 nexthop_total; /* in use, or not freed yet */
	__u32 nexthop_count[2 * NEXTHOP_DEVICES];

	__u32 half_capacity; /* half-open connections that all sources share; 0: no shares */
	__u32 half_slots;    /* CROWD_SLOTS, or fewer if the table is small */
	__u32 half_crowds;   /* of each netns: CROWD_COUNT / 2, or fewer if the table is small */
	__u32 half_tick;     /* when loxilightd last counted all half-open connections */
	__u32 half_total[2];
	__u32 half_count[SHARE_SOURCES];
	__u32 pad;
	__u32 crowd_next[CROWD_COUNT]; /* the next slot, modulo half_slots */
	__u64 crowd[CROWD_COUNT * CROWD_SLOTS *
		    CROWD_WORDS]; /* words, not structs: layouts are compared at start */
};
