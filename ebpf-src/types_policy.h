/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_policy.h - keys and values of the maps of network policies, which datapath/policy compiles.
 *
 * What depends on addresses and ports has two values, one for each side. One byte says which side
 * is in force: the image of RULES_POLICY in ll_rules. A change writes the other side, and then this
 * byte: so it takes effect at one moment, for all addresses, Endpoints and directions. The rest is in
 * an image, like a rule set, but only its unused parts are written.
 */
#pragma once

#include "types.h"

/* The image of RULES_POLICY in ll_rules; 0: no policies. */
#define POLICY_IMAGE 0x07 /* number of the ll_image_ map, from 1 */
#define POLICY_SLOT  0x08 /* the image is at RULES_POLICY_OTHER in that map, not at RULES_POLICY */
#define POLICY_SIDE  0x10 /* the second side is in force */
#define POLICY_HERE  0x20 /* policies apply to this node itself */

enum policy_direction {
	POLICY_INGRESS, /* to the Endpoint */
	POLICY_EGRESS,
};

#define POLICY_NO_CLASS 0xffffffff /* the class follows from the prefixes */

/* An address of an Entity. */
struct policy_addr {
	__u32 class[2]; /* by side */
	__u32 port[2];	/* by side: of the Endpoint of this node that has the address; 0: none */
};

/* A port is named by its ifindex, with this bit in the switch netns. */
#define POLICY_PORT_SWITCH 0x80000000
/* This node itself, whose packets come from sockets. No device has this ifindex. */
#define POLICY_PORT_HERE   0x7fffffff

/* The port of an Endpoint. */
struct policy_port {
	/* By side and direction: offset of the table, in units of 4 bytes. A table contains the
	 * offset of the row of each class, in the same units. 0: no policy applies.
	 */
	__u32 table[2][2];
	/* By side: the network in which names are learnt for the Endpoint. 0: none of its policies has
	 * names, or its network has no resolvers.
	 */
	__u32 network[2];
};

#define POLICY_MAGIC 0x4c4c5001

/* At the start of the image. */
struct policy_header {
	__u32 magic;
	__u32 node_class[2]; /* by side: of this node's own traffic */
	/* By side: the tries of prefixes, with classes; for entries see fw_classify.h. */
	__u32 root4[2];
	__u32 root6[2];
	__u32 pad;
};

/* Tries of ports, with the offsets of cells, in units of 4 bytes. */
struct policy_row {
	__u32 other; /* protocols without ports */
	__u32 tcp;
	__u32 udp;
	__u32 sctp;
};

#define ACTION_UNKNOWN 3 /* as ACTION_DENY, counted as DROP_POLICY_UNKNOWN */

/* In action[0] of a cell: names are looked up before its verdict applies. The cell is followed by their
 * number, and by as many struct policy_name.
 */
#define POLICY_HAS_NAMES 0x80

/* For traffic with others, and of the Endpoint with itself. */
struct policy_cell {
	__u8 action[2]; /* ACTION_ */
	__u8 staged[2]; /* as if staged policies were in force */
	__u32 rule[2];	/* that decides: RULE_LOGGED, and a key of ll_policy_hits; 0: none */
	/* The rule of a staged policy that would decide: likewise. 0: an enforced one, or none. */
	__u32 staged_rule[2];
};

/* In the number of a rule: its policy logs its decisions. */
#define RULE_LOGGED 0x80000000

/* A name in a rule that allows, before the rule that decides in the cell. The first that has the
 * address of the peer decides.
 */
struct policy_name {
	__u32 name; /* key of ll_name_stats, and part of the keys of ll_learned */
	__u32 rule; /* as in struct policy_cell */
	__u32 flags;
};
#define NAME_DECIDES(self) \
	(1 << (self)) /* by traffic with others, or of the Endpoint with itself */
#define NAME_DECIDES_STAGED(self) (4 << (self)) /* as if staged policies were in force */
#define NAME_OF_STAGED		  0x10		/* its policy is staged */

/* The decisions of a rule. Of a staged policy: the decisions that it would make. */
struct policy_hits {
	__u64 connection_count; /* new connections that it allowed */
	__u64 packet_count;	/* that opened connections, were denied, or belong to none */
	__u64 byte_count;	/* of whole frames */
	__u32 last_tick;
	__u32 pad;
};

/* What a rule is known by, across restarts. */
struct policy_rule {
	__u8 id[16];	/* a hash of its policy, direction and identity */
	__u64 since_ns; /* when it was first counted, of the wall clock */
};

/* A question, and its answer. */
struct policy_query {
	struct addr peer;
	__be16 port; /* destination port */
	__u8 proto;
	__u8 family; /* of the peer: 4 or 6 */
	__u8 direction;
	__u8 node; /* 1: the peer is this node itself */
	__u8 pad[2];
	__u32 endpoint; /* its port */
	__u32 word;	/* of ll_rules: which image and side are in force */
	__u32 table;
	__u32 network; /* as in struct policy_port */
	__u32 running; /* 1: the connection exists, so the peer's address may have expired */
	/* The answer. */
	__u32 self;	 /* 1: the peer is the Endpoint itself */
	__u32 names;	 /* offset of the list of names after the cell */
	__u32 undecided; /* NAME_DECIDES: what no name has decided yet */
	__u32 now_tick;
	struct policy_cell cell;
};
_Static_assert(sizeof(struct policy_query) == 80, "no holes");
