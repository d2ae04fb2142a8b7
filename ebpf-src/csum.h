/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* csum.h - checksums, changed and not computed anew (RFC 1624). */
#pragma once

#include "types.h"

/* A ones' complement sum in the making; folded only at the end. */
static __always_inline __u64 csum_diff32(__u64 diff, __u32 from, __u32 to)
{
	return diff + (__u32)~from + to;
}

static __always_inline __u64 csum_diff_addr(__u64 diff, const struct addr *from,
					    const struct addr *to)
{
	for (int i = 0; i < 4; i++)
		diff = csum_diff32(diff, from->word[i], to->word[i]);
	return diff;
}

static __always_inline __u32 csum_fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

static __always_inline __u16 csum_fold16(__u64 sum)
{
	sum = csum_fold32(sum);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Whether a sum is zero to ones' complement arithmetic of 16 bits: a multiple of 65535. Those
 * are what the inverse of it modulo 2^64 takes to the least numbers.
 */
static __always_inline int csum_is_zero(__u64 sum)
{
	return sum * 0xfffefffefffeffff <= ~0ull / 0xffff;
}

/* The checksum that results when the data it covers changes by diff. */
static __always_inline __u16 csum_apply(__u16 csum, __u64 diff)
{
	return csum_fold16(diff + (__u16)~csum);
}
