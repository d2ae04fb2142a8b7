/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_conn.h - connections; both directions are found by their own tuple: keys and values of maps. */
#pragma once

#include "types.h"

struct ct4_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport; /* ICMP echo: identifier in both */
	__be16 dport;
	__u8 proto; /* IPPROTO_ */
	__u8 zone;  /* 0: host, 1: switch namespace */
	__u16 domain; /* of bridged frames that of their bridge and VLAN; else, or STATION_F_FLAT, 0 */
};
_Static_assert(sizeof(struct ct4_key) == 16, "layout is pinned");

struct ct6_key {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 zone;
	__u16 domain;
};
_Static_assert(sizeof(struct ct6_key) == 40, "layout is pinned");

/* States of a connection; both entries of it have the same. */
enum ct_state {
	CT_NEW,	     /* TCP: SYN seen; others: nothing answered yet */
	CT_ANSWERED, /* TCP: SYN-ACK seen */
	CT_ESTABLISHED,
	CT_FIN,	      /* one side has closed */
	CT_TIME_WAIT, /* both sides have closed */
	CT_CLOSED,    /* reset; traffic that goes on revives it */
	CT_ENDING,    /* both entries are being deleted, see expire.bpf.c */
	CT_STATE_MAX,
};

/* ct_meta.flags */
#define CT_F_REPLY     0x01 /* this entry is the reply direction */
#define CT_F_DNAT      0x02
#define CT_F_SNAT      0x04
#define CT_F_LOCAL     0x08  /* this direction ends at, or begins at, the node itself */
#define CT_F_FIN       0x10  /* a FIN was seen in this direction */
#define CT_F_FROM_NODE 0x20  /* the client is the node itself */
#define CT_F_RST       0x40  /* a reset was seen in this direction */
#define CT_F_DENIED    0x80  /* by rules that changed: asked about again each time */
#define CT_F_SNAT_LATE 0x100 /* on the slow path the egress hook translates the source */
#define CT_F_NAT_ASKED 0x200 /* the rules of translation were asked about the source */
#define CT_F_DEVICE    0x400 /* the source is the address of a device: ends with it */

/* Why the kernel forwards what comes in by an entry: the upper bits of ct_meta.flags. */
enum slow_why {
	WHY_UNKNOWN,   /* nobody asked yet, or it leaves by no port of ours */
	WHY_NETFILTER, /* netfilter has rules */
	WHY_MARK,      /* somebody has set a mark */
	WHY_TAG,       /* its VLAN tag is only the kernel's to handle */
	WHY_ONE_WAY,   /* a bridge sends it to a station that was not heard there */
	WHY_FULL,      /* no room for another next hop */
	WHY_ONE_WAY_1, /* as WHY_ONE_WAY, which has the packets of even numbers, of odd ones */
	WHY_MAX,
};

#define CT_WHY_SHIFT 12 /* in ct_meta.flags */
#define CT_WHY_MASK  0xf000

/* The part of an entry that both families have. */
struct ct_meta {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
	__u32 last_seen_tick;
	__u32 created_tick;
	__u16 nexthop; /* index into nexthops; 0: not learnt, the kernel forwards */
	__u16 in_port; /* lower half of the index of the device that it comes in by, or IN_PORT_PEER; 0: unknown */
	__u32 service_id;
	__u32 backend_id;
	__u32 tcp_ack;	  /* host order: highest acknowledgement sent in this direction; of SCTP
			   * the verification tag of its packets; 0: not known
			   */
	__u16 tcp_window; /* unscaled, with that acknowledgement */
	__u8 tcp_scale;	  /* shift of tcp_window */
	__u8 state;	  /* enum ct_state */
	__u16 flags;	  /* CT_F_ */
	__u16 nat_id;	  /* what translates it; of two, of the answers the source's; 0: none */
};

/* An entry's key is the tuple of the packets that come in, its value the tuple
 * they leave with. With a 16-byte key an element of a preallocated hash is 128
 * bytes, two cache lines: the header and the key, and this.
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

#define NEXTHOP_DEVICES 2048 /* for each zone: devices are counted by their index modulo this */

#define CROWD_COUNT 16	/* of sources that have more half-open connections than their share */
#define CROWD_SLOTS 256 /* connections of each that are remembered */
#define CROWD_WORDS 5	/* of a struct tuple */

/* Who has how much of what all need: connections by source, see share.h and openshare.h; next hops
 * by device, see nexthop.h.
 */
struct shares {
	__u32 seed;	/* of the hash of sources */
	__u32 capacity; /* connections that each family has room for; 0: there are no shares */
	__u32 total[2]; /* by family, IPv4 first */
	__u32 count[SHARE_SOURCES];
	__u32 nexthop_total; /* in use, or not free yet */
	__u32 nexthop_count[2 * NEXTHOP_DEVICES];

	__u32 half_capacity; /* half-open connections that are shared; 0: there are no shares */
	__u32 half_slots;    /* CROWD_SLOTS, or less where the table is small */
	__u32 half_tick;     /* as of when loxilightd has seen all of them */
	__u32 half_total[2];
	__u32 half_count[SHARE_SOURCES];
	__u64 crowd[CROWD_COUNT * CROWD_SLOTS *
		    CROWD_WORDS]; /* words, not structs: compared at start */
};
