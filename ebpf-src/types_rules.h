/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_rules.h - keys and values of the maps of compiled rule sets. */
#pragma once

#include "types.h"

/* The rule sets; each takes effect as a whole. */
enum rule_set {
	RULES_FIREWALL,
	RULES_DNAT,
	RULES_SNAT,
	RULES_POLICY, /* tables of network policies, see types_policy.h */
	RULES_POLICY_OTHER,
	RULES_POLICY_STATE, /* not a rule set: a hash of the policies in force, for loxilightd */
	RULE_SET_MAX,
};

#define RULE_SET_COUNT 8 /* with room for more */

/* The compiled form (image) of a rule set. */
struct rules {
	__u32 image; /* number of the ll_image_ map that contains it, from 1; 0: no rules */
	__u32 flags; /* RULES_F_ */
};

enum rules_flag {
	RULES_F_OUT = 0x1,     /* a rule matches the output device */
	RULES_F_FRAME = 0x4,   /* a rule matches VLAN or DSCP, which may differ in replies */
	RULES_F_PENDING = 0x2, /* the epoch was not increased since the change; for loxilightd */
};

/* rule_record.action and rule_record.flags for the firewall. */
#define ACTION_ALLOW  0
#define ACTION_DENY   1
#define ACTION_REJECT 2

enum rule_flag {
	RULE_F_STATELESS = 0x1, /* replies to packets that it allows are evaluated too */
	RULE_F_LOG = 0x2,
};

/* A connection of an older epoch is evaluated again, in each direction that was last seen in
 * changed_tick or earlier.
 */
enum epoch_of {
	EPOCH_RULES,	/* for all connections */
	EPOCH_SERVICES, /* new frontends: for CT_ONE_WAY without a service */
	EPOCH_PORTS,	/* the first of EPOCH_PORT_COUNT: policies, for connections of a port */
};

#define EPOCH_PORT_COUNT    8192 /* a power of two */
/* The index of the epoch of a port, as policies name it: half of the epochs for each netns. */
#define EPOCH_OF_PORT(port) (((port) & (EPOCH_PORT_COUNT / 2 - 1)) | (port) >> 31 << 12)
#define EPOCH_COUNT	    (EPOCH_PORTS + EPOCH_PORT_COUNT)

struct epoch {
	__u32 count; /* number of changes so far */
	__u32 changed_tick;
	/* In EPOCH_RULES, as above: of the last change of any port. */
	__u32 port_count;
	__u32 port_changed_tick;
};

struct rule_record {
	__u32 id; /* key of ll_rule_name; 0: nothing is counted */
	__u8 action;
	__u8 flags;
	__u16 pad;
	__u32 rank; /* of several matching rules, the one with the lowest rank applies */
};

/* The fields of packets that rules match, in the order in which they are folded, and the tries in
 * which they are looked up: as in datapath/classify.
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

/* The header of an image. Offsets are in bytes from its start. */
struct rules_header {
	__u32 magic;
	__u32 rule_count;
	__u32 size_bytes;
	__u32 rules;   /* offset of the array of struct rule_record */
	__u32 chunks;  /* in a vector, the offset of its chunks: after the aggregate */
	__u32 direct;  /* 1: the only table has rule indexes plus one instead of vectors */
	__u32 regions; /* offset of a table: for each word, the words after its region; 0: none */
	__u32 pad;
	__u64 words[AGGREGATE_WORDS]; /* a bit for each word of a vector */
	__u32 root[16];		      /* by enum rules_root: trie entries */
	/* By enum rules_field: offset of the table that is indexed by the sum of the leaves so far;
	 * 0: no table, the sum continues.
	 */
	__u32 table[12];
};
_Static_assert(ROOT_COUNT <= 16 && FIELD_COUNT <= 12, "room for all");

/* An image, followed by room for reads that begin at its last bytes. */
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
#define KNOWN_LAYER4	0x1 /* dport is valid */
#define KNOWN_SPORT	0x2 /* sport is valid: TCP, UDP and SCTP */
#define KNOWN_TCP_FLAGS 0x4

/* The fields of a packet for the evaluation of rules, and the result. */
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
	__u32 out_ifindex; /* 0: none, or unknown */
	struct rule_record rule;
	/* State of the search; not on the stack, where the verifier would track every value. */
	__u32 sum; /* of the leaves since the last table */
	__u32 vector_count;
	__u64 words[AGGREGATE_WORDS]; /* words in which all vectors may have a bit */
	__u32 vector[16];	      /* offsets of the vectors */
	__s32 found;		      /* index of the best rule so far; -1: none */
	__u32 pad;
};
_Static_assert(sizeof(struct classify_key) == 184, "no holes");

struct rule_hits {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
	__u64 connection_count;
};

#define RULE_NAME_MAX 256

/* The name of a rule, by which loxilightd finds the id of the rule again. */
struct rule_name {
	__u8 name[RULE_NAME_MAX]; /* padded with zeros */
};
