/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_nat.h - translation: keys and values of maps. */
#pragma once

#include "types.h"

/* --- translation --- */

enum nat_type {
	NAT_SNAT,
	NAT_DNAT,
	NAT_MASQUERADE,
};

#define NAT_F_ONE_TO_ONE 0x1  /* prefix to prefix, by ll_nat_pair; ports stay */
#define NAT_F_MAPPING	 0x2  /* one outer port for an inner one, whatever the remote */
#define NAT_F_OPEN	 0x4  /* strangers may use a mapping */
#define NAT_F_EACH_PORT	 0x8  /* DNAT: port by port from match_port on to range_first[0] on */
#define NAT_F_REPLACED	 0x10 /* not in force any more: about to go */

#define NAT_RANGES     8
#define NAT_PORT_TRIES 64 /* ports looked at in all, or in each block */
#define NAT_BLOCKS_MAX 4  /* of one inner address */

/* What a rule of translation does, by four times its id, and the two lowest bits of the
 * flags of its record in the classifier: 1 changes with the rule, 2 is not used.
 */
struct nat_rule {
	__u16 id;
	__u8 type;	     /* enum nat_type */
	__u8 flags;	     /* NAT_F_ */
	__u32 pool_first[2]; /* of ll_nat_pool, by family, IPv4 first */
	__u32 pool_count[2];
	__u32 port_count;  /* of all ranges; DNAT, 0: ports stay */
	__u32 port_stride; /* has no divisor in common with port_count */
	__u16 block_size;  /* ports, all ranges are multiples of it; 0: no blocks */
	__u16 match_port;  /* host order */
	__u16 range_first[NAT_RANGES];
	__u16 range_size[NAT_RANGES];
};
_Static_assert(sizeof(struct nat_rule) == 64, "one cache line");

/* What is translated to: addr, and from the address that is translated or from a hash
 * the bits that host has.
 */
struct nat_prefix {
	struct addr addr;
	struct addr host;
};

struct nat_pair_key {
	__u32 prefix_len; /* bits, 32 of slot included */
	__u32 slot;	  /* key of ll_nat_rule */
	struct addr addr;
};

/* An address and port, inner or outer, that is mapped whatever the remote. */
struct mapping_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 zone;
	__u32 nat_id; /* of an inner one, and above it a hash of the outer address; else 0 */
};
_Static_assert(sizeof(struct mapping_key) == 24, "layout is pinned");

struct mapping {
	struct addr addr; /* the other side */
	__be16 port;
	__u16 nat_id;
	__u32 pad;
	__u32 created_tick;
	__u32 used_tick;
};
_Static_assert(sizeof(struct mapping) == 32, "layout is pinned");

/* Ports of an outer address that one inner address has. */
struct block_key {
	struct addr inner;
	__u16 nat_id;
	__u8 nth;
	__u8 zone;
};

struct block {
	struct addr outer;
	__u16 first; /* host order */
	__u16 size;
	__u32 next; /* offset of the port that is tried next */
	__u32 created_tick;
	__u32 used_tick;
};
_Static_assert(sizeof(struct block) == 32, "layout is pinned");

struct block_owner_key {
	struct addr outer;
	__u16 first;
	__u8 zone;
	__u8 pad;
};

/* Addresses that are the node's without being on a device, of its neighbours by the device
 * that has their network, and for all of them by ifindex 0; the longest prefix decides.
 */
struct announce_key {
	__u32 prefix_len; /* bits, 64 of ifindex and zone included */
	__u32 ifindex;
	__u32 zone;
	struct addr addr;
};
_Static_assert(sizeof(struct announce_key) == 28, "layout is pinned");

#define ANNOUNCED_F_NOT 0x1 /* somebody else's, amid others */
#define ANNOUNCED_F_FOR 0x2 /* of a pod behind a peer; for user space */

struct announced {
	__u32 flags;  /* ANNOUNCED_F_ */
	__u32 nat_id; /* whose it is; 0: no translation's */
};

/* Counters of translation, per CPU. */
struct nat_stats {
	__u64 connection_count;
	__u64 drop_count[4];	   /* by enum nat_drop */
	__u64 reused_packet_count; /* of connections whose tuple or port a new one has taken */
	__u64 reused_byte_count;
};

enum nat_drop {
	NAT_DROP_NO_PORT,
	NAT_DROP_NO_ADDRESS,
	NAT_DROP_NO_CONNECTION,
	NAT_DROP_OTHER,
};

#define NAT_NAME_MAX 256

/* For loxilightd, which finds its ids again by it. */
struct nat_name {
	char name[NAT_NAME_MAX]; /* padded with zeros */
};

/* --- source ports --- */

#define SNAT_PORT_MAX 65536

/* Ports are given out towards each target one after the other. */
struct snat_target {
	struct addr saddr;
	struct addr daddr;
	__be16 dport;
	__u8 proto;
	__u8 zone;
};
