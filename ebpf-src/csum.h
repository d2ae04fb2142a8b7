/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* csum.h - incremental updates of checksums (RFC 1624). */
#pragma once

#include <stddef.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/if_ether.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

#include "types.h"

/* Adds a change to a ones' complement sum, which is folded only at the end. */
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

/* Reports whether a sum is zero in 16-bit ones' complement arithmetic: a multiple of 65535. The
 * multiplication by the inverse of 65535 modulo 2^64 maps exactly the multiples to the smallest
 * numbers.
 */
static __always_inline int csum_is_zero(__u64 sum)
{
	return sum * 0xfffefffefffeffff <= ~0ull / 0xffff;
}

/* Returns the offset of the TCP or UDP checksum in the frame. */
static __always_inline __u32 csum_offset(__u8 proto, __u32 l4_off)
{
	return l4_off + (proto == IPPROTO_UDP ? offsetof(struct udphdr, check)
					      : offsetof(struct tcphdr, check));
}

/* Reports whether the layer-4 checksum may be incomplete (CHECKSUM_PARTIAL): it is then the sum of
 * the pseudo header, not inverted, and a device must complete it. One in 65535 complete checksums
 * looks the same. end: the end of the IP packet.
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

/* Returns the checksum after the data that it covers has changed by diff. */
static __always_inline __u16 csum_apply(__u16 csum, __u64 diff)
{
	return csum_fold16(diff + (__u16)~csum);
}

/* Updates the TCP or UDP checksum after the data that it covers has changed by diff. A UDP checksum
 * of 0 means "none": it stays 0, and no other becomes 0.
 */
static __always_inline void csum_change(__u16 *check, __u8 proto, __u64 diff)
{
	if (proto == IPPROTO_UDP && !*check)
		return;
	*check = csum_apply(*check, diff);
	if (proto == IPPROTO_UDP && !*check)
		*check = 0xffff;
}
