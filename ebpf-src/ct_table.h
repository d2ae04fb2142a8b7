/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_table.h - the connection table: where an entry is, and how it is found.
 *
 * The table of a family has up to CT_SEGMENTS segments; a segment is an array of blocks, a block
 * has CT_BLOCK places for entries. A keyed hash of the arriving tuple selects the home of an entry:
 * one place in one block of one segment. The entry is at its home or, if that place is taken,
 * elsewhere in the same block. Then the chain of the home has a link to it: the exclusive or of
 * both places. If the block is full, the entry is in a second block of the segment, where another
 * bit of the hash selects another home; CHAIN_ELSEWHERE in the chain of the first home says so. So
 * a look-up reads one cache line, or rarely two or three, and a look-up for a tuple without entry
 * usually reads one.
 *
 * The index of a place has its block in the upper bits, then its segment, then its place in the
 * block.
 *
 * loxilightd doubles and halves the number of segments, a power of two, whose lowest bits of the
 * hash select one. While it moves entries, ct_size has both numbers: an entry that is not where it
 * belongs is where it belonged before. Block and place depend on other bits, and do not change. A
 * table with a directory of buckets that double is known as extendible hashing (Fagin, Nievergelt,
 * Pippenger and Strong, ACM TODS 4(3), 1979); here all segments double at once, so the directory is
 * a number.
 *
 * The hash is Multilinear-HM (Lemire and Kaser, "Strongly universal string hashing is fast", The
 * Computer Journal 57(11), 2014) with random keys, and a finaliser that spreads sequences of
 * addresses and ports, to which that hash is linear. A sender that does not know the keys cannot
 * choose tuples with the same home.
 */
#pragma once

#include "maps.h"
#include "pkt.h"

#define CT_NOWHERE (~0U)

#define CT_SEGMENT_SHIFT 6
#define CT_SEGMENT_BITS	 ((CT_SEGMENTS - 1) << CT_SEGMENT_SHIFT)
#define CT_BLOCK_SHIFT	 12
_Static_assert(CT_BLOCK == 1 << CT_SEGMENT_SHIFT && CT_BLOCK * CT_SEGMENTS == 1 << CT_BLOCK_SHIFT,
	       "the parts of an index");

#define CHAIN_LINKS	5
#define CHAIN_LINK_BITS 6 /* 0: no link */
#define CHAIN_LINK_MASK 0x3fffffffU
#define CHAIN_ELSEWHERE 0x80000000U

/* In ll_ct_size, at the address that the programs contain: so reading it is no look-up. */
struct ct_size table_size SEC(".data.ct_size");

/* The keys of the hash, and the number of blocks of a segment of IPv4 and of IPv6. loxilightd sets
 * them; these are for tests.
 */
volatile const __u64 config_ct_hash[CT_HASH_KEYS] = {
	0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89,
	0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917,
	0x9216d5d98979fb1b, 0xd1310ba698dfb5ac, 0x2ffd72dbd01adfb7,
};
volatile const __u32 config_ct_blocks[2] = { 128, 128 };

static __always_inline __u64 ct_hash_words(__u64 h, __u64 words, int i)
{
	return h +
	       ((words & 0xffffffff) + config_ct_hash[i]) * ((words >> 32) + config_ct_hash[i + 1]);
}

static __always_inline __u64 ct_hash_end(__u64 h)
{
	h ^= h >> 32;
	return h * 0x9fb21c651e98df25ULL;
}

static __always_inline __u64 ct4_hash(const struct ct4_key *key)
{
	const key_word *word = (const key_word *)key;
	__u64 h = config_ct_hash[0];

	h = ct_hash_words(h, word[0], 1);
	h = ct_hash_words(h, word[1], 3);
	return ct_hash_end(h);
}

static __always_inline __u64 ct6_hash(const struct ct6_key *key)
{
	const key_word *word = (const key_word *)key;
	__u64 h = config_ct_hash[0];

	for (int i = 0; i < 5; i++) {
		h = ct_hash_words(h, word[i], 1 + 2 * i);
		asm volatile(""
			     : "+r"(h)); /* else all products are computed first, and need stack */
	}
	return ct_hash_end(h);
}

static __always_inline __u32 ct_segments(__u32 family)
{
	return *(volatile __u32 *)&table_size.segments[family == 6];
}

/* Returns the bits in which the segment of the tuple with hash h differs from the one before the change
 * of size that is under way.
 */
static __always_inline __u32 ct_moves(__u64 h, __u32 segments)
{
	return h & (segments ^ segments >> 16) & CT_SEGMENT_BITS;
}

/* Returns the first home of the tuple with hash h in the first segment of the table of a family. */
static __always_inline __u32 ct_place(__u64 h, __u32 family)
{
	return ((h >> 32) * config_ct_blocks[family == 6] >> 32) << CT_BLOCK_SHIFT |
	       (h & (CT_BLOCK - 1));
}

/* Returns the second one. */
static __always_inline __u32 ct_place_elsewhere(__u64 h, __u32 family)
{
	return ct_place(ct_hash_end(h), family);
}

/* Return the first and the second home of the tuple with hash h. */
static __always_inline __u32 ct_home(__u64 h, __u32 family, __u32 segments)
{
	return ct_place(h, family) | (h & segments & CT_SEGMENT_BITS);
}

static __always_inline __u32 ct_home_elsewhere(__u64 h, __u32 family, __u32 segments)
{
	return ct_place_elsewhere(h, family) | (h & segments & CT_SEGMENT_BITS);
}

static __always_inline int ct4_is(const struct ct4 *e, const struct ct4_key *key)
{
	const volatile key_word *a = (const key_word *)&e->key;
	const key_word *b = (const key_word *)key;

	return a[1] == b[1] && a[0] == b[0];
}

static __always_inline int ct6_is(const struct ct6 *e, const struct ct6_key *key)
{
	const volatile key_word *a = (const key_word *)&e->key;
	const key_word *b = (const key_word *)key;

	return a[4] == b[4] && a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* Hides from the compiler that a pointer was checked: else it may add to it before the check, which
 * the verifier refuses.
 */
#define CT_CHECKED(b) asm volatile("" : "+r"(b))

/* The functions of both families: the block of an index; the entry of a key at or linked to a slot of a
 * block; the entry of a key that is not in the block of its first home; and the entry of a key.
 */
#define CT_FIND(family)                                                                         \
	static __always_inline struct ct##family##_block *ct##family##_block_at(__u32 index)    \
	{                                                                                       \
		__u32 segment = index >> CT_SEGMENT_SHIFT & (CT_SEGMENTS - 1);                  \
		__u32 block = index >> CT_BLOCK_SHIFT;                                          \
		void *s = bpf_map_lookup_elem(&ll_ct##family, &segment);                        \
		struct ct##family##_block *b = s ? bpf_map_lookup_elem(s, &block) : NULL;       \
                                                                                                \
		if (b)                                                                          \
			CT_CHECKED(b);                                                          \
		return b;                                                                       \
	}                                                                                       \
                                                                                                \
	static __always_inline struct ct##family *ct##family##_find_linked(                     \
		struct ct##family##_block *b, const struct ct##family##_key *key, __u32 slot,   \
		__u32 chain)                                                                    \
	{                                                                                       \
		for (int i = 0; i < CHAIN_LINKS; i++) {                                         \
			__u32 link = chain >> (i * CHAIN_LINK_BITS) & (CT_BLOCK - 1);           \
			struct ct##family *e = &b->entry[(slot ^ link) % CT_BLOCK];             \
                                                                                                \
			if (link && ct##family##_is(e, key))                                    \
				return e;                                                       \
		}                                                                               \
		return NULL;                                                                    \
	}                                                                                       \
                                                                                                \
	static __noinline struct ct##family *ct##family##_find_further(                         \
		const struct ct##family##_key *key)                                             \
	{                                                                                       \
		__u64 h = ct##family##_hash(key);                                               \
		__u32 segments = ct_segments(family), moves = ct_moves(h, segments);            \
		__u32 home = ct_home(h, family, segments);                                      \
		__u32 elsewhere = ct_home_elsewhere(h, family, segments);                       \
                                                                                                \
		for (int i = 1; i < 4; i++) {                                                   \
			__u32 at = (i & 1 ? elsewhere : home) ^ (i > 1 ? moves : 0);            \
			struct ct##family##_block *b = ct##family##_block_at(at);               \
			struct ct##family *e;                                                   \
                                                                                                \
			if (!b)                                                                 \
				return NULL;                                                    \
			e = &b->entry[at % CT_BLOCK];                                           \
			if (ct##family##_is(e, key))                                            \
				return e;                                                       \
			e = ct##family##_find_linked(b, key, at, *(volatile __u32 *)&e->chain); \
			if (e || !moves)                                                        \
				return e;                                                       \
		}                                                                               \
		return NULL;                                                                    \
	}                                                                                       \
                                                                                                \
	static __always_inline struct ct##family *ct##family##_find(                            \
		const struct ct##family##_key *key)                                             \
	{                                                                                       \
		__u64 h = ct##family##_hash(key);                                               \
		__u32 home = ct_home(h, family, ct_segments(family));                           \
		struct ct##family##_block *b = ct##family##_block_at(home);                     \
		struct ct##family *e;                                                           \
		__u32 chain;                                                                    \
                                                                                                \
		if (!b)                                                                         \
			return NULL;                                                            \
		e = &b->entry[home % CT_BLOCK];                                                 \
		if (ct##family##_is(e, key))                                                    \
			return e;                                                               \
		chain = *(volatile __u32 *)&e->chain;                                           \
		if (chain & CHAIN_LINK_MASK) {                                                  \
			e = ct##family##_find_linked(b, key, home, chain);                      \
			if (e)                                                                  \
				return e;                                                       \
		}                                                                               \
		if (chain & CHAIN_ELSEWHERE || ct_moves(CT_SEGMENT_BITS, ct_segments(family)))  \
			return ct##family##_find_further(key);                                  \
		return NULL;                                                                    \
	}

CT_FIND(4)
CT_FIND(6)
