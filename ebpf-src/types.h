/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types.h - keys and values of maps, shared with Go by bpf2go: common parts, fragments, drops and
 * samples. The others are in types_*.h.
 *
 * All fields have fixed width and natural alignment; padding is explicit and zeroed; no bitfields,
 * no unions. __be16 and __be32 are in network byte order, __u16 and __u32 in host order.
 * These layouts are pinned. The next version copies entries by field name: a name never gets
 * another meaning, new enum values are appended, and any other change requires a new
 * LAYOUT_VERSION.
 */
#pragma once

#include <linux/types.h>

#include "drop.h"

/* Protocols with idle times of their own. */
enum idle_of {
	IDLE_TCP,
	IDLE_UDP,
	IDLE_SCTP,
	IDLE_ECHO, /* ICMP and ICMPv6 */
	IDLE_MAX,
};

#define LAYOUT_VERSION 1

/* Times in maps are in ticks of 2^27 ns (134 ms) of CLOCK_MONOTONIC. */
#define TICK_SHIFT 27

/* IPv4 addresses in 16-byte fields are IPv4-mapped: ::ffff:a.b.c.d. */
struct addr {
	__be32 word[4];
};

/* --- fragments --- */

struct fragment_key {
	struct addr saddr;
	struct addr daddr;
	__be32 id;
	__u8 proto;
	__u8 netns;
	__u16 pad;
};

struct fragment {
	__be16 sport; /* ICMP: the identifier */
	__be16 dport; /* ICMP: type and code */
	__u32 seen_tick;
};

/* --- drops --- */

struct port_drop_key {
	__u32 ifindex;
	__u32 netns;
	enum drop_reason reason;
};

/* --- samples --- */

enum sample_type {
	SAMPLE_DROP,
	SAMPLE_OPENED,
	SAMPLE_ALLOWED, /* by a rule with logging */
	SAMPLE_POLICY,	/* allowed by a network policy with logging */
};

struct sample {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 type;   /* enum sample_type */
	__u8 reason; /* enum drop_reason */
	__u8 egress; /* 1: seen on the egress hook */
	__u32 ifindex;
	__u32 netns;
	__u32 service_id;
	__u32 len_bytes; /* of the frame */
	__u32 rule_id;
	__u32 nat_id; /* 0: none */
	/* By direction of the traffic: the rule of network policies that decided, 0: none; and the
	 * port of its Endpoint. For a drop, only the direction that was denied.
	 */
	__u32 policy_rule[2];
	__u32 policy_port[2];
};
_Static_assert(sizeof(struct sample) == 80, "layout is pinned");
