/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_rules.h - rules, and what they are asked: keys and values of maps. */
#pragma once

#include "types.h"

/* The sets of rules; each is in force as a whole. */
enum rule_set {
	RULES_FIREWALL,
	RULES_DNAT,
	RULES_SNAT,
	RULE_SET_MAX,
};

#define RULE_SET_COUNT 8 /* with room for more */

/* Which image is a set's. */
struct rules {
	__u32 image; /* in which of the maps ll_image_ it is, from 1 on; 0: there are no rules */
	__u32 flags; /* RULES_F_ */
};

#define RULES_F_OUT	0x1 /* a rule names the device that packets leave by */
#define RULES_F_FRAME	0x4 /* a rule names a VLAN or DSCP, of which answers may have another */
#define RULES_F_PENDING 0x2 /* the epoch has not been raised since it changed; for loxilightd */

/* rule_record.action of the firewall, and flags. */
#define ACTION_ALLOW  0
#define ACTION_DENY   1
#define ACTION_REJECT 2

#define RULE_F_STATELESS 0x1 /* the answers to what it allows are asked about, too */
#define RULE_F_LOG	 0x2

/* What was allowed by the rules of another epoch is asked about again: each direction of
 * a connection that was last seen in changed_tick, or before.
 */
struct epoch {
	__u32 count; /* of changes so far */
	__u32 changed_tick;
};

struct rule_record {
	__u32 id; /* of ll_rule_name; 0: nothing is counted */
	__u8 action;
	__u8 flags;
	__u16 pad;
	__u32 rank; /* of two rules that match the one of the lower rank decides */
};

/* The fields of packets that rules match, in the order in which they are folded, and
 * the tries that they are looked up in: as in datapath/classify.
 */
enum rules_field {
	FIELD_HOOK,
	FIELD_DSCP,
	FIELD_TCP_FLAGS,
	FIELD_VLAN,
	FIELD_IN,
	FIELD_OUT,
	FIELD_SOURCE_PORT,
	FIELD_LAYER4,
	FIELD_SOURCE,
	FIELD_DESTINATION,
	FIELD_COUNT,
};

enum rules_root {
	ROOT_HOOK,
	ROOT_DSCP,
	ROOT_TCP_FLAGS,
	ROOT_NO_TCP_FLAGS,
	ROOT_VLAN,
	ROOT_IN,
	ROOT_OUT,
	ROOT_SOURCE_PORT,
	ROOT_NO_SOURCE_PORT,
	ROOT_LAYER4,
	ROOT_NO_LAYER4,
	ROOT_SOURCE4,
	ROOT_SOURCE6,
	ROOT_DESTINATION4,
	ROOT_DESTINATION6,
	ROOT_COUNT,
};

#define AGGREGATE_WORDS 5

/* The beginning of an image. Places are in bytes from there. */
struct rules_header {
	__u32 magic;
	__u32 rule_count;
	__u32 size_bytes;
	__u32 rules;   /* where struct rule_record are */
	__u32 chunks;  /* where in a vector its chunks are: behind the aggregate */
	__u32 direct;  /* 1: the only table has the place of the rule in the vectors, plus one */
	__u32 regions; /* for each word, where those behind its region are; 0: there are none */
	__u32 pad;
	__u64 words[AGGREGATE_WORDS]; /* a bit for each word of a vector */
	__u32 root[16];		      /* by enum rules_root: entries of tries */
	__u32 table[12]; /* by enum rules_field: where, by the sum of the leaves so far; 0: go on */
};
_Static_assert(ROOT_COUNT <= 16 && FIELD_COUNT <= 12, "room for all");

/* An image, with room behind it for what is read of its last bytes. */
#define IMAGE_SLACK 4096

struct image_128k {
	__u8 bytes[(1 << 17) + IMAGE_SLACK];
};
struct image_1m {
	__u8 bytes[(1 << 20) + IMAGE_SLACK];
};
struct image_8m {
	__u8 bytes[(1 << 23) + IMAGE_SLACK];
};
struct image_64m {
	__u8 bytes[(1 << 26) + IMAGE_SLACK];
};

#define HOOK_FORWARD 1
#define HOOK_INPUT   2
#define HOOK_OUTPUT  4

/* classify_key.known */
#define KNOWN_LAYER4	0x1 /* dport */
#define KNOWN_SPORT	0x2 /* sport: of TCP, UDP and SCTP */
#define KNOWN_TCP_FLAGS 0x4

/* What rules are asked about, and what they say. */
struct classify_key {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport; /* ICMP and ICMPv6: type, then code */
	__u8 proto;
	__u8 family; /* 4 or 6 */
	__u8 known;  /* KNOWN_ */
	__u8 tcp_flags;
	__u8 dscp;
	__u8 hook;  /* HOOK_ */
	__u16 vlan; /* 0: none */
	__u32 in_ifindex;
	__u32 out_ifindex; /* 0: none, or not known */
	struct rule_record rule;
	/* Of the search; not on the stack, where the verifier would follow each of them. */
	__u32 sum; /* of the leaves since the last table */
	__u32 vector_count;
	__u64 words[AGGREGATE_WORDS]; /* that all vectors may have a bit in */
	__u32 vector[16];	      /* where they are */
	__s32 found;		      /* place of the best rule so far; -1: none */
	__u32 pad;
};
_Static_assert(sizeof(struct classify_key) == 184, "no holes");

struct rule_hits {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
	__u64 connection_count;
};

#define RULE_NAME_MAX 256

/* For loxilightd, which finds the ids of its rules again by it. */
struct rule_name {
	__u8 name[RULE_NAME_MAX]; /* padded with zeros */
};
