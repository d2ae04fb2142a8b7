/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fastpath_skb.h - the frame operations of fastpath.h for the tc hooks. */
#pragma once

#include <stddef.h>

#include "count.h"
#include "csum.h"
#include "parse.h"

/* The context of a program. */
#define FRAME struct __sk_buff

static __always_inline __u32 frame_in(FRAME *f)
{
	return f->ifindex;
}

static __always_inline __u32 frame_len(FRAME *f)
{
	return f->len;
}

/* Reports whether the frame has a VLAN tag, which is outside the frame data. */
static __always_inline int frame_tagged(FRAME *f)
{
	return f->vlan_present;
}

/* Reports whether the frame is for the MAC of the device of arrival; frame_is_others: for the MAC
 * of another host.
 */
static __always_inline int frame_is_own(FRAME *f)
{
	return f->pkt_type == PACKET_HOST;
}

static __always_inline int frame_is_others(FRAME *f)
{
	return f->pkt_type == PACKET_OTHERHOST;
}

/* Reports whether the layer-4 checksum is complete, or the kernel knows that it is not. */
static __always_inline int frame_is_whole(FRAME *f, __u8 proto, __u32 l4_off, __u32 end)
{
	return 1;
}

/* Reports whether the packet, or each of its segments, fits the MTU; as track_fits. */
static __always_inline int frame_fits(FRAME *f, __u8 proto, const void *l4, __u32 l3_len,
				      __u32 mtu_bytes)
{
	__u32 l4_len = proto == IPPROTO_UDP ? 8 : (((const __u8 *)l4)[12] >> 4) * 4;

	if (f->len - sizeof(struct ethhdr) <= mtu_bytes)
		return 1;
	return f->gso_size && f->gso_size + l3_len + l4_len <= mtu_bytes;
}

/* Reports whether the packet can be sent through out, the device of nexthop. */
static __always_inline int frame_may_leave(FRAME *f, const struct nexthop *nexthop, __u32 out)
{
	return 1;
}

/* Reports whether the layer-4 checksum may be incomplete, so that a device must complete it. Must
 * be called before the addresses change. The sum of a GSO packet may not include the length.
 */
static __always_inline int frame_csum_is_begun(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					       __u32 end)
{
	return f->gso_size || csum_may_be_begun(data, proto, l4_off, end);
}

/* Updates the layer-4 checksum, after the ports have been written. If it may be incomplete, the
 * kernel updates it, as in nat_l4_csum, and data is invalid afterwards. Each helper call costs more
 * than all other code here.
 */
static __always_inline int frame_l4_csum(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					 __u64 addr_diff, __u64 port_diff, int begun)
{
	__u64 flags = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 off = csum_offset(proto, l4_off);

	if (!begun) {
		csum_change(data + off, proto, addr_diff + port_diff);
		/* A device's checksum over the whole packet (CHECKSUM_COMPLETE). In IPv6, whose
		 * header has no checksum, the changes to the addresses and to the layer-4 checksum
		 * cancel out.
		 */
		if (l4_off == sizeof(struct ethhdr) + sizeof(struct iphdr))
			bpf_csum_update(f, ~csum_fold32(addr_diff));
		return 0;
	}
	if (bpf_l4_csum_replace(f, off, 0, csum_fold32(addr_diff), flags | BPF_F_PSEUDO_HDR))
		return -1;
	if (l4_off == sizeof(struct ethhdr) + sizeof(struct ipv6hdr))
		bpf_csum_update(f, csum_fold32(addr_diff));
	if (port_diff && bpf_l4_csum_replace(f, off, 0, csum_fold32(port_diff), flags))
		return -1;
	return 0;
}

/* Sends the first len bytes of the packet through the device out. */
static __always_inline int frame_send(FRAME *f, __u32 len, __u32 nexthop_flags, __u32 out)
{
	/* As nat_trim. */
	if (f->len != len && !f->gso_size && bpf_skb_change_tail(f, len, 0))
		return -DROP_REWRITE;
	count_verdict(VERDICT_FAST);
	if (nexthop_flags & NEXTHOP_F_PEER)
		return bpf_redirect_peer(out, 0);
	tracked_word(f);
	return bpf_redirect(out, 0);
}
