/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fastpath_xdp.h - the frame operations of fastpath.h for XDP; see fastpath_skb.h. */
#pragma once

#include <stddef.h>

#include "count.h"
#include "csum.h"
#include "parse.h"

#define FRAME struct xdp_md

/* The device that this copy of the program serves: connections contain its index. A program
 * attached to a bond runs on the devices of the bond.
 */
volatile const __u32 config_ifindex = 0;
volatile const __u32 config_mac_high = 0; /* the first four bytes, as in a frame */
volatile const __u16 config_mac_low = 0;

/* The flag of next hops that permits sending by XDP: NEXTHOP_F_XDP_XMIT or NEXTHOP_F_NO_QDISC. */
volatile const __u32 config_leave = NEXTHOP_F_XDP_XMIT;

/* The device can send packets back (XDP_TX), whatever the flags of its next hops. */
volatile const __u8 config_turn = 0;

/* Generic XDP: packets are those of the kernel (sk_buff), not necessarily single frames. */
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

/* Reports whether the layer-4 checksum is complete. A packet that comes from a socket behind a veth
 * or from a virtual machine, or was joined by GRO, may contain only the sum of its pseudo header,
 * which the kernel completes because of metadata outside the frame. XDP would send it incomplete.
 * One of 65535 complete checksums looks the same: such packets are left to tc.
 */
static __always_inline int frame_is_whole(FRAME *f, __u8 proto, __u32 l4_off, __u32 end)
{
	void *data = (void *)(long)f->data;
	__u32 off = csum_offset(proto, l4_off);

	if (data + off + 2 > (void *)(long)f->data_end)
		return 0;
	if (proto == IPPROTO_UDP && !*(__be16 *)(data + off))
		return !config_generic; /* GRO may have joined such packets undetectably */
	return !csum_may_be_begun(data, proto, l4_off, end);
}

static __always_inline int frame_csum_is_begun(FRAME *f, void *data, __u8 proto, __u32 l4_off,
					       __u32 end)
{
	return 0; /* it is complete */
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
	count_verdict(VERDICT_FAST);
	return out == config_ifindex ? XDP_TX : bpf_redirect(out, 0);
}
