/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_table_put.h - adds entries to the connection table and removes them, without locks.
 *
 * A bit of the block says that a place is taken. Whoever sets the bit owns the place: it fills in
 * the entry, writes the last word of the key, from which on the entry can be found at its home, and
 * adds the link to the chain of the home. Then it looks for another entry with the same key: of two
 * that are added at once, the later one finds the earlier one and is removed again.
 *
 * An entry is removed by clearing the last word of its key, then the bit. If possible, its place is
 * not taken again for CT_REST_TICKS, since another CPU may still be processing a packet with this
 * entry.
 *
 * The functions of this file work on the table of IPv6 if six is not 0. The key is in work.
 */
#pragma once

#include <linux/errno.h>

#include "clock.h"
#include "ct.h"
#include "ct_lasting.h"

#define CT_REST_TICKS 2
#define CHAIN_TRIES   8
#define CLAIM_TRIES   16
#define CT_BLOCK_BUSY 56 /* places: from then on, the emptier one of two blocks is used */

/* Writes the homes of the key in work to work. */
static __always_inline void ct_homes(struct work *w, __u32 six)
{
	__u64 h = six ? ct6_hash(&w->key6) : ct4_hash(&w->key4);
	__u32 family = six ? 6 : 4, segments = ct_segments(family);

	w->home = ct_home(h, family, segments);
	w->home_elsewhere = ct_home_elsewhere(h, family, segments);
	w->home_moves = ct_moves(h, segments);
}

/* Returns the index of the entry, other than except, that is at a home or linked there; CT_NOWHERE: none.
 * Writes the chain of the home to work.
 */
#define CT_SEARCH(family)                                                                          \
	static __always_inline __u32 ct##family##_search(struct work *w, __u32 home, __u32 except) \
	{                                                                                          \
		struct ct##family##_block *b = ct##family##_block_at(home);                        \
		__u32 chain;                                                                       \
                                                                                                   \
		if (!b)                                                                            \
			return CT_NOWHERE;                                                         \
		chain = *(volatile __u32 *)&b->entry[home % CT_BLOCK].chain;                       \
		w->chain = chain;                                                                  \
		if (home != except &&                                                              \
		    ct##family##_is(&b->entry[home % CT_BLOCK], &w->key##family))                  \
			return home;                                                               \
		for (int i = 0; i < CHAIN_LINKS; i++) {                                            \
			__u32 link = chain >> (i * CHAIN_LINK_BITS) & (CT_BLOCK - 1);              \
                                                                                                   \
			if (link && (home ^ link) != except &&                                     \
			    ct##family##_is(&b->entry[(home ^ link) % CT_BLOCK], &w->key##family)) \
				return home ^ link;                                                \
		}                                                                                  \
		return CT_NOWHERE;                                                                 \
	}

CT_SEARCH(4)
CT_SEARCH(6)

/* Returns the index of the entry of the key, other than except, or CT_NOWHERE. Writes the homes of the
 * key to work. A global function, so that the verifier walks it once.
 */
__noinline __u32 ct_locate(__u32 six, __u32 except)
{
	struct work *w = work_get();
	__u32 index;

	if (!w)
		return CT_NOWHERE;
	ct_homes(w, six);
	for (int i = 0; i < 4; i++) {
		__u32 home = i & 1 ? w->home_elsewhere : w->home;

		if (i > 1)
			home ^= w->home_moves;
		index = six ? ct6_search(w, home, except) : ct4_search(w, home, except);
		if (index != CT_NOWHERE || (!w->home_moves && (i || !(w->chain & CHAIN_ELSEWHERE))))
			return index;
	}
	return CT_NOWHERE;
}

/* Reports whether a chain has room for another link. */
static __always_inline int chain_has_room(__u32 chain)
{
	for (int i = 0; i < CHAIN_LINKS; i++)
		if (!(chain >> (i * CHAIN_LINK_BITS) & (CT_BLOCK - 1)))
			return 1;
	return 0;
}

/* For each value of the upper 6 bits of the product of DE_BRUIJN and 2^n: n (Leiserson, Prokop and
 * Randall, "Using de Bruijn sequences to index a 1 in a computer word", 1998).
 */
#define DE_BRUIJN 0x03f79d71b4cb0a89ULL
static const __u8 ct_bit_number[64] = {
	0,  1,	48, 2,	57, 49, 28, 3,	61, 58, 50, 42, 38, 29, 17, 4,	62, 55, 59, 36, 53, 51,
	43, 22, 45, 39, 33, 30, 24, 18, 12, 5,	63, 47, 56, 27, 60, 41, 37, 16, 54, 35, 52, 21,
	44, 32, 23, 11, 46, 26, 40, 15, 34, 20, 31, 10, 25, 14, 19, 9,	13, 8,	7,  6,
};

/* Returns the number of the lowest bit that is set in x, which is not 0. */
static __always_inline __u32 ct_lowest_bit(__u64 x)
{
	return ct_bit_number[(x & -x) * DE_BRUIJN >> 58];
}

/* Returns the number of bits that are set in x. */
static __always_inline __u32 ct_bits(__u64 x)
{
	return __builtin_popcountll(x);
}

/* Takes a free place in the block of a home, the home itself if it is free; rested: no place of an
 * entry that was removed just now, of the CLAIM_TRIES places that follow the home. Returns its index,
 * or CT_NOWHERE. A global function, so that the verifier walks it once.
 */
__noinline __u32 ct_claim(__u32 six, __u32 home, __u32 rested)
{
	__u32 now_tick = clock_tick(), slot = home % CT_BLOCK, chain, size;
	__u64 *used, free;
	void *seen; /* last_seen_tick of the first entry */

	if (six) {
		struct ct6_block *b = ct6_block_at(home);

		if (!b)
			return CT_NOWHERE;
		used = &b->used;
		chain = b->entry[slot].chain;
		seen = &b->entry[0].meta.last_seen_tick;
		size = sizeof(struct ct6);
	} else {
		struct ct4_block *b = ct4_block_at(home);

		if (!b)
			return CT_NOWHERE;
		used = &b->used;
		chain = b->entry[slot].chain;
		seen = &b->entry[0].meta.last_seen_tick;
		size = sizeof(struct ct4);
	}
	free = ~*(volatile __u64 *)used;
	free = free >> slot | free << (CT_BLOCK - slot) % CT_BLOCK; /* bit 0: the home */
	if (!chain_has_room(chain))
		free &= 1;
	for (int i = 0; i < CLAIM_TRIES && free; i++) {
		__u32 place = (slot + ct_lowest_bit(free)) % CT_BLOCK;
		__u32 seen_tick = *(volatile __u32 *)(seen + ct_times(place, size));
		__u64 bit = 1ULL << place;

		if ((!rested || (__s32)(now_tick - seen_tick) >= CT_REST_TICKS) &&
		    !(__sync_fetch_and_or(used, bit) & bit))
			return home - slot + place;
		free &= free - 1;
	}
	return CT_NOWHERE;
}

/* Returns chain with a link added; 0: it has no room. */
static __always_inline __u32 chain_add(__u32 chain, __u32 link)
{
	for (int i = 0; i < CHAIN_LINKS; i++)
		if (!(chain >> (i * CHAIN_LINK_BITS) & (CT_BLOCK - 1)))
			return chain | link << (i * CHAIN_LINK_BITS);
	return 0;
}

/* Adds the entry at index, which is filled in, to the chain of the home in its block. Returns 0 or a
 * negative errno. A global function, so that the verifier walks it once.
 */
__noinline int ct_link(__u32 six, __u32 index, __u32 home)
{
	__u32 *chain = ct_chain_at(six, home);

	if (index == home)
		return 0;
	for (int i = 0; chain && i < CHAIN_TRIES; i++) {
		__u32 old = *(volatile __u32 *)chain, new = chain_add(old, index ^ home);

		if (!new)
			return -E2BIG;
		if (__sync_val_compare_and_swap(chain, old, new) == old)
			return 0;
	}
	return -E2BIG;
}

/* Takes a link, which only the caller removes, out of a chain. Without branches: the verifier would
 * try each.
 */
static __always_inline void chain_remove(__u32 *chain_at, __u32 link)
{
	__u32 chain = *(volatile __u32 *)chain_at, mask = 0;

	for (int i = 0; i < CHAIN_LINKS; i++) {
		__u32 other = (chain >> (i * CHAIN_LINK_BITS) & (CT_BLOCK - 1)) ^ link;

		/* else the compiler makes branches, and needs much stack */
		asm volatile("" : "+r"(other), "+r"(mask));
		mask |= ((other - 1) >> 31) * (CT_BLOCK - 1) << (i * CHAIN_LINK_BITS);
	}
	__sync_fetch_and_and(chain_at, ~mask);
}

/* Returns the link from a home in the first segment to an index in the same block; 0: none. */
static __always_inline __u32 chain_link(__u32 home, __u32 index)
{
	__u32 link = (home ^ index) & ~CT_SEGMENT_BITS;

	return link < CT_BLOCK ? link : 0;
}

/* Removes the entry at index. Returns 0, or -ENOENT if it was removed already. Global functions, so that
 * the verifier walks each once.
 */
#define CT_REMOVE(family)                                                                        \
	__noinline int ct##family##_remove(__u32 index)                                          \
	{                                                                                        \
		struct ct##family##_block *b = ct##family##_block_at(index);                     \
		__u32 slot = index % CT_BLOCK, link, elsewhere;                                  \
		struct ct##family *e;                                                            \
		__u64 h;                                                                         \
                                                                                                 \
		if (!b)                                                                          \
			return -ENOENT;                                                          \
		e = &b->entry[slot];                                                             \
		e->meta.last_seen_tick = clock_tick();                                           \
		h = ct##family##_hash(&e->key);                                                  \
		link = chain_link(ct_place(h, family), index);                                   \
		elsewhere = chain_link(ct_place_elsewhere(h, family), index);                    \
		if (!__sync_lock_test_and_set((key_word *)&e->key.sport, 0))                     \
			return -ENOENT;                                                          \
		if (link)                                                                        \
			chain_remove(&b->entry[(slot ^ link) % CT_BLOCK].chain, link);           \
		if (elsewhere)                                                                   \
			chain_remove(&b->entry[(slot ^ elsewhere) % CT_BLOCK].chain, elsewhere); \
		__sync_fetch_and_and(&b->used, ~(1ULL << slot));                                 \
		return 0;                                                                        \
	}

CT_REMOVE(4)
CT_REMOVE(6)

static __always_inline int ct_remove(__u32 six, __u32 index)
{
	ct_leave(six, index);
	return six ? ct6_remove(index) : ct4_remove(index);
}

/* Adds the entry at index, which is filled in and whose homes are in work, so that it can be found.
 * Returns 0, -EEXIST if the key has another entry, or -E2BIG.
 */
static __always_inline int ct_add(struct work *w, __u32 six, __u32 index)
{
	__u32 *chain;
	int ret = -E2BIG;

	if ((w->home ^ index) < CT_BLOCK)
		ret = ct_link(six, index, w->home);
	if (ret && (w->home_elsewhere ^ index) < CT_BLOCK) {
		ret = ct_link(six, index, w->home_elsewhere);
		chain = ct_chain_at_far(six, w->home);
		if (!ret && chain)
			__sync_fetch_and_or(chain, CHAIN_ELSEWHERE);
	}
	if (!ret && ct_locate(six, index) != CT_NOWHERE)
		ret = -EEXIST;
	if (ret)
		ct_remove(six, index);
	return ret;
}
