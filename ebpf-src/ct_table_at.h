/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_table_at.h - the fields of the entry of the connection table at an index. The functions work on
 * the table of IPv6 if six is not 0.
 */
#pragma once

#include "ct_table.h"

/* Returns slot times size. Linux 6.1 knows the range of a product only if the second factor is a
 * constant; the compiler changes the order of factors.
 */
static __always_inline __u64 ct_times(__u64 slot, __u64 size)
{
	asm volatile("%0 *= %1" : "+r"(slot) : "r"(size));
	return slot;
}

/* Returns a field of the entry at index: at offset6 of the block if six is not 0, else at offset4, plus
 * the slot times the upper or lower half of sizes.
 */
static __always_inline void *ct_field(__u32 six, __u32 index, __u32 offset4, __u32 offset6,
				      __u32 sizes)
{
	if (six) {
		struct ct6_block *b = ct6_block_at(index);

		return b ? (void *)b + ct_times(index % CT_BLOCK, sizes >> 16) + offset6 : NULL;
	} else {
		struct ct4_block *b = ct4_block_at(index);

		return b ? (void *)b + ct_times(index % CT_BLOCK, sizes & 0xffff) + offset4 : NULL;
	}
}

/* As ct_field, for functions that are not the eighth of a chain of calls. The time to load a program
 * grows with the number of its look-ups times the number of its instructions.
 */
static __noinline void *ct_field_far(__u32 six, __u32 index, __u32 offset4, __u32 offset6,
				     __u32 sizes)
{
	return ct_field(six, index, offset4, offset6, sizes);
}

#define CT_FIELD(far, six, index, field)                                                    \
	ct_field##far(six, index, offsetof(struct ct4, field), offsetof(struct ct6, field), \
		      sizeof(struct ct6) << 16 | sizeof(struct ct4))
#define CT_BLOCK_FIELD(far, six, index, field, size)                 \
	ct_field##far(six, index, offsetof(struct ct4_block, field), \
		      offsetof(struct ct6_block, field), (size) << 16 | (size))

/* The fields of the entry at an index. ct_tail: the last word of its key; 0: it is not in use. */
#define CT_FIELDS(far)                                                                 \
	static __always_inline struct ct4 *ct4_at##far(__u32 index)                    \
	{                                                                              \
		return CT_FIELD(far, 0, index, key);                                   \
	}                                                                              \
                                                                                       \
	static __always_inline struct ct6 *ct6_at##far(__u32 index)                    \
	{                                                                              \
		return CT_FIELD(far, 1, index, key);                                   \
	}                                                                              \
                                                                                       \
	static __always_inline struct ct_meta *ct_meta_at##far(__u32 six, __u32 index) \
	{                                                                              \
		return CT_FIELD(far, six, index, meta);                                \
	}                                                                              \
                                                                                       \
	static __always_inline __u32 *ct_chain_at##far(__u32 six, __u32 index)         \
	{                                                                              \
		return CT_FIELD(far, six, index, chain);                               \
	}                                                                              \
                                                                                       \
	static __always_inline key_word *ct_tail_at##far(__u32 six, __u32 index)       \
	{                                                                              \
		return CT_FIELD(far, six, index, key.sport);                           \
	}                                                                              \
                                                                                       \
	static __always_inline struct ct_more *ct_more_at##far(__u32 six, __u32 index) \
	{                                                                              \
		return CT_BLOCK_FIELD(far, six, index, more, sizeof(struct ct_more));  \
	}                                                                              \
                                                                                       \
	static __always_inline __u64 *ct_used_at##far(__u32 six, __u32 index)          \
	{                                                                              \
		return CT_BLOCK_FIELD(far, six, index, used, 0);                       \
	}

CT_FIELDS()
CT_FIELDS(_far)
