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

#define MIRROR_SEGMENT_HEADERS 40 /* the least that a segment of a GSO packet has: IPv4 and TCP */

/* Reports whether a copy, with room for more bytes, fits an MTU. The exact length of the segments of
 * a GSO packet is unknown here: their sender has seen to the MTU of the port where it was copied.
 */
static __always_inline int mirror_fits(struct __sk_buff *skb, __u32 room, __u32 mtu_bytes)
{
	__u32 len = skb->gso_size ? skb->gso_size + MIRROR_SEGMENT_HEADERS : skb->len - ETH_HLEN;

	return len + room <= mtu_bytes;
}

/* Reports whether a copy fits the device that is about to send it. */
static __always_inline int mirror_fits_device(struct __sk_buff *skb)
{
	struct device *device = device_find(skb->ifindex);

	return !device || mirror_fits(skb, 0, device->mtu_bytes);
}
