/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_port_share.h - outer ports that a source may not use, so that other sources find a free one:
 * however many connections a source opens, it gets at most 15 of 16 ports towards a remote. The
 * forbidden ports depend only on the source's address, so nothing is counted. If many ports are
 * taken, other sources try the ports that are forbidden to the holder of the taken ones.
 */
#pragma once

#include "ct.h"

/* One of this many ports is forbidden to a source: 4096 ports in all. */
#define SHARE_PARTS 16
#define SHARE_PORTS (65536 / SHARE_PARTS)

/* The number of ports tried in order, before ports forbidden to the holder of a taken port. */
#define SHARE_TRIES 8

/* If there are fewer ports, none is forbidden. */
#define SHARE_MIN 4096

/* An odd number and its inverse modulo 2^16: multiplying by the first permutes the ports, and
 * multiplying by the second reverses that.
 */
#define SHARE_MULTIPLIER 0x9e37
#define SHARE_INVERSE	 0x7787

/* Returns the next number for w->snat_target: numbers are assigned consecutively, from a random
 * start.
 */
static __always_inline __u32 ports_turn(struct work *w)
{
	__u32 begin, *next = bpf_map_lookup_elem(&ll_snat_next, &w->snat_target);

	if (!next) {
		begin = bpf_get_prandom_u32() >> 1;
		bpf_map_update_elem(&ll_snat_next, &w->snat_target, &begin, BPF_NOEXIST);
		next = bpf_map_lookup_elem(&ll_snat_next, &w->snat_target);
		if (!next)
			return begin;
	}
	return __sync_fetch_and_add(next, 1);
}

/* The mixing step of a hash; as in lb.h. */
static __always_inline __u32 ports_hash(const struct addr *a)
{
	__u32 h = 0x10c112;

	for (int i = 0; i < 4; i++) {
		h ^= a->word[i];
		h ^= h >> 16;
		h *= 0x85ebca6b;
		h ^= h >> 13;
		h *= 0xc2b2ae35;
		h ^= h >> 16;
	}
	return h;
}

/* Begins the choice of a port for w->conn, out of port_count ports. */
static __always_inline void share_begin(struct work *w, __u32 port_count)
{
	w->port_source = port_count < SHARE_MIN ? 0 : 1 << 16 | (ports_hash(&w->tuple.saddr) >> 16);
	w->port_holder = 0;
}

/* Reports whether a port, in host byte order, is forbidden to the source of w->conn. */
static __always_inline int share_forbids(const struct work *w, __u16 port)
{
	return w->port_source && (__u16)((port ^ w->port_source) * SHARE_MULTIPLIER) < SHARE_PORTS;
}

/* Reports whether the next port to try must be one forbidden to the holder of the last port. */
static __always_inline int share_turns(const struct work *w, __u32 tries)
{
	return tries >= SHARE_TRIES && w->port_source && w->port_holder &&
	       w->port_holder != w->port_source;
}

/* Returns a port that is forbidden to the holder of the last one, in host byte order. */
static __always_inline __u16 share_other(const struct work *w)
{
	__u16 number = bpf_get_prandom_u32() % SHARE_PORTS;

	return (__u16)(number * SHARE_INVERSE) ^ w->port_holder;
}

/* Reports whether a port, in host byte order, is forbidden to the holder of the last one. */
static __always_inline int share_is_other(const struct work *w, __u16 port)
{
	return (__u16)((port ^ w->port_holder) * SHARE_MULTIPLIER) < SHARE_PORTS;
}

static __always_inline void share_held_by(struct work *w, const struct addr *source)
{
	w->port_holder = 1 << 16 | (ports_hash(source) >> 16);
}

/* Records the holder of the port that was tried for w->conn: w->twin is the entry of its
 * replies.
 */
static __always_inline void share_note(struct work *w)
{
	if ((w->twin.meta.flags & (CT_F_REPLY | CT_F_SNAT)) == (CT_F_REPLY | CT_F_SNAT))
		share_held_by(w, &w->twin.daddr);
}
