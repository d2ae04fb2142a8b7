/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* frame_skb.h - what fast.h has to know of a frame, and to do to it, on the hooks of tc. */
#pragma once

#include <stddef.h>

#include "count.h"
#include "csum.h"
#include "parse.h"

/* What a program is told about a frame. */
#define FRAME struct __sk_buff

static __always_inline __u32 frame_in(FRAME *f)
{
	return f->ifindex;
}

static __always_inline __u32 frame_len(FRAME *f)
{
	return f->len;
}

/* Whether it has a VLAN tag, which is not in the frame. */
static __always_inline int frame_tagged(FRAME *f)
{
	return f->vlan_present;
}

/* Whether it is for the device that it came in by; for another station. */
static __always_inline int frame_is_own(FRAME *f)
{
	return f->pkt_type == PACKET_HOST;
}

static __always_inline int frame_is_others(FRAME *f)
{
	return f->pkt_type == PACKET_OTHERHOST;
}

/* Whether it is one packet, whose checksum of layer 4 is what it is to be on the wire, or
 * the kernel knows that it is not.
 */
static __always_inline int frame_is_whole(FRAME *f, __u8 proto, __u32 l4_off, __u32 end)
{
	return 1;
}

/* Whether a packet that is larger than the MTU is cut into pieces that are not; as
 * track_fits.
 */
static __always_inline int frame_fits(FRAME *f, __u8 proto, const void *l4, __u32 l3_len,
				      __u32 mtu_bytes)
{
	__u32 l4_len = proto == IPPROTO_UDP ? 8 : (((const __u8 *)l4)[12] >> 4) * 4;

	if (f->len - sizeof(struct ethhdr) <= mtu_bytes)
		return 1;
	return f->gso_size && f->gso_size + l3_len + l4_len <= mtu_bytes;
}

/* Whether it can be sent by the device out, to which nexthop leads. */
static __always_inline int frame_may_leave(FRAME *f, const struct nexthop *nexthop, __u32 out)
{
	return 1;
}

/* Whether the checksum of layer 4 may be one that a device is to finish: asked while the
 * addresses are what they were. That of segments may be without a length.
 */
static __always_inline int frame_csum_is_begun(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					       __u32 end)
{
	return f->gso_size || csum_may_be_begun(data, proto, l4_off, end);
}

/* The checksum of layer 4 follows what has changed, the ports written already. Where it may
 * be begun, the kernel does it, as by nat_l4_csum: it knows, and data is not valid
 * afterwards. Each of its helpers costs more than all else here.
 */
static __always_inline int frame_l4_csum(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					 __u64 addr_diff, __u64 port_diff, int begun)
{
	__u64 flags = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 off = csum_offset(proto, l4_off);

	if (!begun) {
		csum_change(data + off, proto, addr_diff + port_diff);
		/* A device's checksum over the whole packet (CHECKSUM_COMPLETE): the header
		 * of IPv6 has no checksum, and so makes up for this one.
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

/* Sends it by out, and of it the first len bytes. */
static __always_inline int frame_send(FRAME *f, __u32 len, __u32 nexthop_flags, __u32 out)
{
	/* As nat_trim. */
	if (f->len != len && !f->gso_size && bpf_skb_change_tail(f, len, 0))
		return -DROP_REWRITE;
	count_verdict(VERDICT_TRACKED);
	if (nexthop_flags & NEXTHOP_F_PEER)
		return bpf_redirect_peer(out, 0);
	tracked_word(f);
	return bpf_redirect(out, 0);
}
