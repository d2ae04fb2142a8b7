/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_open_share.h - limits the half-open connections of one source. The half-open table evicts the
 * oldest entries of all sources: a source that opens connections endlessly would evict the new
 * connections of others. So if a source has used up its share, each of its new connections replaces
 * an earlier one of its crowd. Nothing is refused, and connections that are answered soon are
 * hardly affected.
 *
 * A source that has used up its share belongs to a crowd, selected by netns and the hash of
 * ct_share.h. Each crowd stores the last connections that its sources opened in a ring, and a new
 * connection replaces the oldest in the ring. A quarter of the table is for the crowds; the other
 * three quarters are the shared size.
 */
#pragma once

#include "ct.h"
#include "count.h"
#include "ct_share.h"

#define HALF_FACTOR	 32   /* as SHARE_FACTOR: a single source gets 84 % of the shared size */
#define HALF_LEAST	 16   /* half-open connections that a source may always have */
#define HALF_STALE_TICKS 2236 /* after 5 minutes without loxilightd, shares do not apply */

/* Reports whether the source counted at index has used up its share of the half-open connections.
 * If many sources fill the table, and none has many more connections than the others, the oldest
 * entries are evicted, as without shares.
 */
static __always_inline int half_is_crowd(const struct shares *s, __u32 index, int six)
{
	__u32 count = share_count(s->half_count[index]), total = share_count(s->half_total[six]);

	if (count < HALF_LEAST || count < total / (SHARE_SOURCES / 8))
		return 0;
	return share_is_taken(count, total, s->half_capacity, HALF_FACTOR);
}

/* Returns the crowd of the source counted at index. Each netns has its own crowds. */
static __always_inline __u32 half_crowd(const struct shares *s, __u32 index)
{
	__u32 crowds = s->half_crowds ? s->half_crowds : 1;

	return config_first_entry(CROWD_COUNT / 2) + index % crowds % (CROWD_COUNT / 2);
}

/* Removes the half-open connection of the client's tuple w->old_tuple, unless it has changed. */
static __always_inline void half_remove(struct work *w)
{
	if (!conn_find(w, &w->old_tuple, &w->old, 1) || !w->old.half_open ||
	    w->old.meta.flags & CT_F_REPLY)
		return;
	tuple_reply(&w->spare_tuple, &w->old, &w->old_tuple);
	conn_remove(&w->old_tuple, 1);
	if (conn_find(w, &w->spare_tuple, &w->old, 1) && w->old.half_open &&
	    w->old.dport == w->old_tuple.sport && w->old.sport == w->old_tuple.dport &&
	    addr_equal(&w->old.daddr, &w->old_tuple.saddr) &&
	    addr_equal(&w->old.saddr, &w->old_tuple.daddr))
		conn_remove(&w->spare_tuple, 1);
}

/* Counts the new connection w->tuple; if its source has used up its share, the connection replaces
 * another one. A global function, so that the verifier walks it once.
 */
__noinline int half_opened(void)
{
	struct work *w = work_get();
	__u32 zero = 0, index, crowd, slot;
	struct shares *s = bpf_map_lookup_elem(&ll_shares, &zero);
	int six;

	if (!w || !s || !s->half_capacity ||
	    w->conn.meta.created_tick - s->half_tick > HALF_STALE_TICKS)
		return 0;
	six = w->tuple.family == 6;
	index = share_index(s, &w->tuple.saddr);
	if (!half_is_crowd(s, index, six)) {
		__sync_fetch_and_add(&s->half_count[index], 1);
		__sync_fetch_and_add(&s->half_total[six], 1);
		return 0;
	}
	count_verdict(VERDICT_CROWDED);
	crowd = half_crowd(s, index);
	slot = __sync_fetch_and_add(&s->crowd_next[crowd], 1);
	slot = slot % (s->half_slots ? s->half_slots : 1) % CROWD_SLOTS;
	asm volatile("" : "+r"(slot)); /* as in config_first_entry */
	slot += crowd * CROWD_SLOTS;
	__builtin_memcpy(&w->old_tuple, &s->crowd[slot * CROWD_WORDS], sizeof(w->old_tuple));
	__builtin_memcpy(&s->crowd[slot * CROWD_WORDS], &w->tuple, sizeof(w->tuple));
	/* Two CPUs may have written the slot at once: then the tuple may be of another crowd. */
	if (w->old_tuple.family && half_crowd(s, share_index(s, &w->old_tuple.saddr)) == crowd)
		half_remove(w);
	return 0;
}

/* Counts a connection of the source at index, now established, as no longer half-open. */
static __always_inline void half_established(struct shares *s, __u32 index, int six)
{
	if (s->half_count[index])
		__sync_fetch_and_add(&s->half_count[index], -1);
	if (s->half_total[six])
		__sync_fetch_and_add(&s->half_total[six], -1);
}
