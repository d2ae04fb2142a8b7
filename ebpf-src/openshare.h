/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* openshare.h - how many half-open connections one source may have. Their table makes room by
 * itself, whoever has filled it: a source that opens connections without end would push out those
 * that others are opening. So of a source that has its share each new connection takes the place
 * of an earlier one of its own. Nothing is refused: what is answered soon is hardly concerned.
 *
 * Sources that have their shares are CROWD_COUNT crowds, by zone and by the hash of share.h. Each remembers
 * the last connections that they have opened: a new one takes the place of any of them. The table
 * has a quarter more room than what is shared, for these.
 */
#pragma once

#include "conntrack.h"
#include "count.h"
#include "share.h"

#define HALF_FACTOR	 32   /* as SHARE_FACTOR: one source alone gets 84 % of what is shared */
#define HALF_LEAST	 16   /* connections that a source may always have */
#define HALF_STALE_TICKS 2236 /* 5 minutes: loxilightd does not run, the oldest make room */

/* Whether the source counted at index has its share of the half-open connections. Where many
 * sources have all, so that none has much more than the others, the oldest make room, as they
 * would without shares.
 */
static __always_inline int half_is_crowd(const struct shares *s, __u32 index, int six)
{
	__u32 count = share_count(s->half_count[index]), total = share_count(s->half_total[six]);

	if (count < HALF_LEAST || count < total / (SHARE_SOURCES / 8))
		return 0;
	return share_is_taken(count, total, s->half_capacity, HALF_FACTOR);
}

/* The crowd of the source counted at index: a tuple is of one zone. */
static __always_inline __u32 half_crowd(__u32 index)
{
	return index % (CROWD_COUNT / 2) + (config_zone & 1) * (CROWD_COUNT / 2);
}

/* Removes the half-open connection w->old_tuple of a client, as it was when it was remembered. */
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

/* Counts the connection w->tuple, which was just opened, and lets it take the place of another one
 * where its source has its share. A global function, so that the verifier walks it once.
 */
__noinline int half_opened(void)
{
	struct work *w = work_get();
	__u32 zero = 0, index, slot;
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
	slot = bpf_get_prandom_u32() % (s->half_slots ? s->half_slots : 1) % CROWD_SLOTS;
	slot += half_crowd(index) * CROWD_SLOTS;
	__builtin_memcpy(&w->old_tuple, &s->crowd[slot * CROWD_WORDS], sizeof(w->old_tuple));
	__builtin_memcpy(&s->crowd[slot * CROWD_WORDS], &w->tuple, sizeof(w->tuple));
	/* Two CPUs may have written it at once: then it may be of another crowd. */
	if (w->old_tuple.family &&
	    half_crowd(share_index(s, &w->old_tuple.saddr)) == half_crowd(index))
		half_remove(w);
	return 0;
}

/* Counts that a half-open connection of the source at index is established. */
static __always_inline void half_established(struct shares *s, __u32 index, int six)
{
	if (s->half_count[index])
		__sync_fetch_and_add(&s->half_count[index], -1);
	if (s->half_total[six])
		__sync_fetch_and_add(&s->half_total[six], -1);
}
