/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* share.h - how many established connections one source may have: the fewer, the less room is
 * left in the table for all. Where a part f of it is free, a source may have SHARE_FACTOR * f^2
 * of it. So one source alone gets 95 %, and after n sources, each of which took what it could
 * get, about 1/(512 n) of the table is free for those who have few connections. Thresholds that
 * follow what is free are known from switches with shared memory (Choudhury and Hahne, "Dynamic
 * queue length thresholds", IEEE/ACM Transactions on Networking 6(2), 1998).
 *
 * Sources are counted by a hash of their addresses. What is above its share stays half-open: it
 * works, but makes room for others.
 */
#pragma once

#include "maps.h"

#define SHARE_FACTOR 512

/* Where the connections of a source are counted. */
static __always_inline __u32 share_index(const struct shares *s, const struct addr *source)
{
	__u32 h = s->seed;

	for (int i = 0; i < 4; i++) {
		h ^= source->word[i];
		h *= 0x85ebca6b;
		h ^= h >> 13;
		h *= 0xc2b2ae35;
		h ^= h >> 16;
	}
	return h % SHARE_SOURCES;
}

/* Returns where the connections of the client of w->conn, found under w->tuple, are counted, or
 * NULL where it has its share already. total: where all of its family are.
 */
static __always_inline __u32 *share_of(const struct work *w, __u32 **total)
{
	__u32 zero = 0;
	__s64 left;
	struct shares *s = bpf_map_lookup_elem(&ll_shares, &zero);
	__u32 *count;

	if (!s)
		return NULL;
	*total = &s->total[w->tuple.family == 6];
	count = &s->count[share_index(s, w->conn.meta.flags & CT_F_REPLY ? &w->conn.daddr
									 : &w->tuple.saddr)];
	if (!s->capacity)
		return count;
	left = (__s64)s->capacity - **total;
	if (left <= 0 || *count >= (__u64)left * left * SHARE_FACTOR / s->capacity)
		return NULL;
	return count;
}
