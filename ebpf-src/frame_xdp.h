/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* frame_xdp.h - as frame_skb.h, in XDP. */
#pragma once

#include <stddef.h>

#include "count.h"
#include "csum.h"
#include "parse.h"

#define FRAME struct xdp_md

/* Of the device that this copy of the program is for. By its index its connections know it;
 * a program that is attached to a bond runs on what that consists of.
 */
volatile const __u32 config_ifindex = 0;
volatile const __u32 config_mac_high = 0; /* the first four bytes, as they are in a frame */
volatile const __u16 config_mac_low = 0;

/* Of what next hops are for packets to be sent there: NEXTHOP_F_FRAMES or NEXTHOP_F_UNQUEUED. */
volatile const __u32 config_leave = NEXTHOP_F_FRAMES;

/* Packets can be sent back by the device, whatever its next hops are. */
volatile const __u8 config_turn = 0;

/* The kernel's own packets come by here, not only frames: generic XDP. */
volatile const __u8 config_generic = 0;

static __always_inline __u32 frame_in(FRAME *f)
{
	return config_ifindex;
}

static __always_inline __u32 frame_len(FRAME *f)
{
	return (__u32)(f->data_end - f->data);
}

static __always_inline int frame_tagged(FRAME *f)
{
	return 0; /* tags are in the frame */
}

static __always_inline int frame_is_own(FRAME *f)
{
	void *data = (void *)(long)f->data;

	return data + 6 <= (void *)(long)f->data_end && *(__u32 *)data == config_mac_high &&
	       *(__u16 *)(data + 4) == config_mac_low;
}

static __always_inline int frame_is_others(FRAME *f)
{
	void *data = (void *)(long)f->data;

	return data + 6 <= (void *)(long)f->data_end && !(*(__u8 *)data & 1);
}

/* What comes from a socket behind a veth, from a virtual machine, or from GRO may have a
 * checksum of the pseudo header alone, which somebody is to finish who is told by what is
 * not in the frame. Who sends it on as a frame would make it wrong for good. One of 65535
 * other packets looks like that, too: it takes the way of tc.
 */
static __always_inline int frame_is_whole(FRAME *f, __u8 proto, __u32 l4_off, __u32 end)
{
	void *data = (void *)(long)f->data;
	__u32 off = csum_offset(proto, l4_off);

	if (data + off + 2 > (void *)(long)f->data_end)
		return 0;
	if (proto == IPPROTO_UDP && !*(__be16 *)(data + off))
		return !config_generic; /* of GRO, such packets cannot be told from one */
	return !csum_may_be_begun(data, proto, l4_off, end);
}

static __always_inline int frame_csum_is_begun(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					       __u32 end)
{
	return 0; /* it is whole */
}

static __always_inline int frame_fits(FRAME *f, __u8 proto, const void *l4, __u32 l3_len,
				      __u32 mtu_bytes)
{
	return frame_len(f) - sizeof(struct ethhdr) <= mtu_bytes;
}

static __always_inline int frame_may_leave(FRAME *f, const struct nexthop *nexthop, __u32 out)
{
	return nexthop->flags & config_leave || (config_turn && out == config_ifindex);
}

static __always_inline int frame_l4_csum(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					 __u64 addr_diff, __u64 port_diff, int begun)
{
	csum_change(data + csum_offset(proto, l4_off), proto, addr_diff + port_diff);
	return 0;
}

static __always_inline int frame_send(FRAME *f, __u32 len, __u32 nexthop_flags, __u32 out)
{
	int more = len - frame_len(f);

	if (more && bpf_xdp_adjust_tail(f, more))
		return -DROP_REWRITE;
	count_verdict(VERDICT_TRACKED);
	return out == config_ifindex ? XDP_TX : bpf_redirect(out, 0);
}
