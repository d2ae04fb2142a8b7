/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_nat.h - keys and values of the NAT maps. */
#pragma once

#include "types.h"

/* --- NAT --- */

enum nat_type {
	NAT_SNAT,
	NAT_DNAT,
	NAT_MASQUERADE,
};

enum nat_flag {
	NAT_F_ONE_TO_ONE = 0x1, /* prefix to prefix, by ll_nat_pair; ports are kept */
	NAT_F_MAPPING = 0x2,	/* endpoint-independent: one outer port for all remotes */
	NAT_F_OPEN = 0x4,	/* any remote may connect through a mapping */
	NAT_F_EACH_PORT = 0x8,	/* DNAT: port match_port + n becomes range_first[0] + n */
	NAT_F_REPLACED = 0x10,	/* not in force yet, or no longer: look-ups by id skip it */
};

#define NAT_RANGES     8
#define NAT_PORT_TRIES 64 /* ports tried in total, or in each block */
#define NAT_BLOCKS_MAX 4  /* of one inner address */
#define NAT_VARIANTS   4  /* of one rule: the old version and the new one, in each rule set */

/* The action of a NAT rule. The key is four times its id, plus the variant: the two lowest bits of
 * the flags of its record in the compiled rule set. A new version of a rule has another variant.
 */
struct nat_rule {
	__u16 id;
	__u8 type;	     /* enum nat_type */
	__u8 flags;	     /* NAT_F_ */
	__u32 pool_first[2]; /* first key in ll_nat_pool, by family, IPv4 first */
	__u32 pool_count[2];
	__u32 port_count;  /* of all ranges; DNAT: 0 keeps ports */
	__u32 port_stride; /* coprime to port_count */
	__u16 block_size;  /* ports, divides the size of each range; 0: no blocks */
	__u16 match_port;  /* host order */
	__u16 range_first[NAT_RANGES];
	__u16 range_size[NAT_RANGES];
};
_Static_assert(sizeof(struct nat_rule) == 64, "one cache line");

/* A prefix to translate to. The bits set in host come from the original address or from a hash, the
 * others from addr.
 */
struct nat_prefix {
	struct addr addr;
	struct addr host;
};

struct nat_pair_key {
	__u32 prefix_len; /* bits, including the 32 of slot */
	__u32 slot;	  /* key of ll_nat_rule */
	struct addr addr;
};

/* An inner or outer address and port of an endpoint-independent mapping. */
struct mapping_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 netns;
	__u32 nat_id; /* inner: also a hash of the outer address, in the upper half; outer: 0 */
};
_Static_assert(sizeof(struct mapping_key) == 24, "layout is pinned");

struct mapping {
	struct addr addr; /* the other side: outer for an inner key, inner for an outer key */
	__be16 port;
	__u16 nat_id;
	__u32 pad;
	__u32 created_tick;
	__u32 used_tick;
};
_Static_assert(sizeof(struct mapping) == 32, "layout is pinned");

/* A port block of an outer address; it belongs to one inner address. */
struct block_key {
	struct addr inner;
	__u16 nat_id;
	__u8 nth;
	__u8 netns;
};

struct block {
	struct addr outer;
	__u16 first; /* first port, host order */
	__u16 size;
	__u32 next; /* offset of the port to try next */
	__u32 created_tick;
	__u32 used_tick;
};
_Static_assert(sizeof(struct block) == 32, "layout is pinned");

struct block_owner_key {
	struct addr outer;
	__u16 first;
	__u8 netns;
	__u8 pad;
};

/* Addresses that the node announces although no device has them: under the device that answers for
 * them, and under ifindex 0 if NAT uses them. The longest prefix decides.
 */
struct announce_key {
	__u32 prefix_len; /* bits, including the 64 of ifindex and netns */
	__u32 ifindex;
	__u32 netns;
	struct addr addr;
};
_Static_assert(sizeof(struct announce_key) == 28, "layout is pinned");

enum announced_flag {
	ANNOUNCED_F_NOT = 0x1, /* excluded: an address in an announced prefix that a host has */
	ANNOUNCED_F_FOR = 0x2, /* of a pod behind a peer; only for user space */
};

struct announced {
	__u32 flags;  /* ANNOUNCED_F_ */
	__u32 nat_id; /* the NAT that uses it; 0: none */
};

/* Counters of a NAT, per CPU. */
struct nat_stats {
	__u64 connection_count;
	__u64 drop_count[4];	   /* by enum nat_drop */
	__u64 reused_packet_count; /* of connections whose tuple or port a new one took over */
	__u64 reused_byte_count;
};

enum nat_drop {
	NAT_DROP_NO_PORT,
	NAT_DROP_NO_ADDRESS,
	NAT_DROP_NO_CONNECTION,
	NAT_DROP_OTHER,
};

#define NAT_NAME_MAX 256

/* The name by which loxilightd finds the id of a NAT again. */
struct nat_name {
	char name[NAT_NAME_MAX]; /* padded with zeros */
};

/* --- source ports --- */

#define SNAT_PORT_MAX 65536

/* A target of SNAT; ports are assigned one after the other for each target. */
struct snat_target {
	struct addr saddr;
	struct addr daddr;
	__be16 dport;
	__u8 proto;
	__u8 netns;
};
