/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* csum.h - checksums, changed and not computed anew (RFC 1624). */
#pragma once

#include <stddef.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/if_ether.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

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

/* Where a frame has the checksum of layer 4, of TCP or UDP. */
static __always_inline __u32 csum_offset(__u8 proto, __u32 l4_off)
{
	return l4_off + (proto == IPPROTO_UDP ? offsetof(struct udphdr, check)
					      : offsetof(struct tcphdr, check));
}

/* Whether the checksum of layer 4 may be that of the pseudo header alone, which a device is
 * to finish (CHECKSUM_PARTIAL): then it is the sum of that, not inverted. One of 65535
 * others looks like that, too. end is where the IP packet ends.
 */
static __always_inline int csum_may_be_begun(const void *data, __u8 proto, __u32 l4_off, __u32 end)
{
	__u16 check = *(const __u16 *)(data + csum_offset(proto, l4_off));
	__u64 sum = bpf_htons(end - l4_off) + bpf_htons(proto) + (__u32)(__u16)~check;
	const __u32 *addr;

	if (l4_off == sizeof(struct ethhdr) + sizeof(struct iphdr)) {
		addr = data + l4_off - 8;
		sum += (__u64)addr[0] + addr[1];
	} else {
		addr = data + l4_off - 32;
		for (int i = 0; i < 8; i++)
			sum += addr[i];
	}
	return csum_is_zero(sum);
}

/* The checksum that results when the data it covers changes by diff. */
static __always_inline __u16 csum_apply(__u16 csum, __u64 diff)
{
	return csum_fold16(diff + (__u16)~csum);
}

/* The checksum of TCP or UDP follows when the data it covers changes by diff. A UDP checksum
 * of 0 means "none": it stays, and none is made.
 */
static __always_inline void csum_change(__u16 *check, __u8 proto, __u64 diff)
{
	if (proto == IPPROTO_UDP && !*check)
		return;
	*check = csum_apply(*check, diff);
	if (proto == IPPROTO_UDP && !*check)
		*check = 0xffff;
}
