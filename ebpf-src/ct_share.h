/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_share.h - limits the established connections of one source: the limit shrinks as the table
 * fills. If a fraction f of the table is free, a source may have SHARE_FACTOR * f^2 of the table.
 * So a single source gets at most 95 %, and after n sources have each taken all that they can get,
 * about 1/(512 n) of the table is free for sources with few connections. Thresholds that depend on
 * the free space are known from packet switches (Choudhury and Hahne, "Dynamic queue length
 * thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998).
 *
 * Connections are counted per hash of their source address. A connection above the share of its
 * source stays half-open: it works, but is evicted if other connections need the room. A connection
 * is counted while it has CT_F_LASTING: until both sides have closed, it is reset, or it is
 * removed.
 */
#pragma once

#include "maps.h"

#define SHARE_FACTOR 512

/* Returns the index at which the connections of a source are counted. */
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
	asm volatile("" : "+r"(h)); /* keeps the mask last: only then does Linux 6.1 bound h */
	return h % SHARE_SOURCES;
}

static __always_inline void share_add(struct shares *s, const struct addr *source, int six, __s32 n)
{
	__sync_fetch_and_add(&s->count[share_index(s, source)], n);
	__sync_fetch_and_add(&s->total[!!six], n);
}

/* Returns a count; 0 if it is negative. It may be negative until loxilightd corrects it, since
 * connections that were not counted have ended or moved.
 */
static __always_inline __u32 share_count(__u32 n)
{
	return (__s32)n < 0 ? 0 : n;
}

/* Reports whether one user of a table has its share: it has count of the total entries, in a table
 * of size capacity.
 */
static __always_inline int share_is_taken(__u32 count, __u32 total, __u32 capacity, __u32 factor)
{
	__s64 left = (__s64)capacity - share_count(total);

	return left <= 0 || share_count(count) >= (__u64)left * left * factor / capacity;
}

/* Reports whether the client whose connections are counted at index has its share of the
 * established connections of a family.
 */
static __always_inline int share_is_full(const struct shares *s, __u32 index, int six)
{
	__u32 capacity = s->capacity_of[six];

	return capacity && share_is_taken(s->count[index], s->total[six], capacity, SHARE_FACTOR);
}
