/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror_send.h - a copy on the egress hook of its target: cuts it, and checks its size. */
#pragma once

#include "fib.h"
#include "maps.h"
#include "mirror_copy.h"
#include "pkt.h"

/* Lengths to which a copy is cut if the kernel refuses a shorter one: it keeps the layer-4 checksum
 * that a device has yet to compute.
 */
#define MIRROR_LEN_NEXT 128
#define MIRROR_LEN_LAST 256

/* Cuts a copy. A GSO packet becomes one frame. Returns 0 if the kernel refuses. */
static __noinline int mirror_cut(struct __sk_buff *skb, __u32 len)
{
	if (skb->vlan_present)
		len -= VLAN_TAG_LEN;
	if (skb->len <= len)
		return 1;
	if (!bpf_skb_change_tail(skb, len, 0))
		return 1;
	if (skb->len <= MIRROR_LEN_NEXT || !bpf_skb_change_tail(skb, MIRROR_LEN_NEXT, 0))
		return 1;
	return skb->len <= MIRROR_LEN_LAST || !bpf_skb_change_tail(skb, MIRROR_LEN_LAST, 0);
}

/* Returns the bytes of the headers of IP and layer 4 in each segment of a GSO packet without tags. */
static __always_inline __u32 mirror_segment_headers(struct __sk_buff *skb)
{
	int is4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 l4 = sizeof(struct ipv6hdr);
	__u8 first = 0, proto = 0, words = 5;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &first, 1) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + (is4 ? 9 : 6), &proto, 1))
		return l4;
	if (is4)
		l4 = (first & 15) * 4;
	if (proto != IPPROTO_TCP)
		return l4 + (proto == IPPROTO_UDP ? 8 : 12);
	if (!bpf_skb_load_bytes(skb, ETH_HLEN + l4 + 12, &words, 1))
		words >>= 4;
	return l4 + words * 4;
}

/* Reports whether a copy, with room for more bytes, fits an MTU. */
static __always_inline int mirror_fits(struct __sk_buff *skb, __u32 room, __u32 mtu_bytes)
{
	__u32 len = skb->len - ETH_HLEN;

	if (skb->gso_size)
		len = skb->gso_size + mirror_segment_headers(skb);
	return len + room <= mtu_bytes;
}

/* Reports whether a copy fits the device that is about to send it. */
static __always_inline int mirror_fits_device(struct __sk_buff *skb)
{
	struct device *device = device_find(skb->ifindex);

	return !device || mirror_fits(skb, 0, device->mtu_bytes);
}
