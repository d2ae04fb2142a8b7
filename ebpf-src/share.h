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

/* A count that is a little below zero until loxilightd sets it: connections that have ended, or
 * moved, and were not counted.
 */
static __always_inline __u32 share_count(__u32 n)
{
	return (__s32)n < 0 ? 0 : n;
}

/* Whether a source has its share: count of total connections, in a table for capacity of them. */
static __always_inline int share_is_taken(__u32 count, __u32 total, __u32 capacity, __u32 factor)
{
	__s64 left = (__s64)capacity - share_count(total);

	return left <= 0 || share_count(count) >= (__u64)left * left * factor / capacity;
}

/* Whether the client whose connections are counted at index has its share of the established ones
 * of a family.
 */
static __always_inline int share_is_full(const struct shares *s, __u32 index, int six)
{
	return s->capacity &&
	       share_is_taken(s->count[index], s->total[six], s->capacity, SHARE_FACTOR);
}
