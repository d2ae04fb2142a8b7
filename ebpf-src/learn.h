/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* learn.h - neighbours, learnt from where the slow path sent a packet. */
#pragma once

#include "nexthop.h"

/* Egress hook, where the frame is about to be sent: the index of the neighbour that
 * it is sent to, which the kernel has just used.
 */
static __noinline __u32 nexthop_of_frame(struct pkt *p)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	struct nexthop_key key = { .ifindex = p->skb->ifindex, .zone = config_zone };

	if (data + 12 > end)
		return 0;
	__builtin_memcpy(key.dmac, data, 6);
	__builtin_memcpy(key.smac, data + 6, 6);
	return nexthop_enter(&key, p->now_tick);
}

/* A connection is sent elsewhere than to the neighbour at index now. The others that
 * are sent there may be concerned as well, and nobody but the next packet to be
 * confirmed would tell them while there is no daemon: they all learn anew.
 */
static __always_inline void nexthop_doubt(__u32 index)
{
	struct nexthop *nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);

	if (nexthop)
		nexthop->ifindex = 0;
}

/* Egress hook, after our ingress hook rewrote the packet and the kernel routed it:
 * p is the tuple that it leaves with, so the answers' entry is that turned round,
 * and what the answers leave with is our entry's key, turned round.
 */
static __noinline void nexthop_learn(struct pkt *p, struct work *w)
{
	struct ct_meta *meta;
	__u32 index;

	if (!w || p->tagged || p->icmp_error || p->fragment == FRAGMENT_LATER)
		return;
	tuple_of(&w->twin_tuple, p);
	tuple_turn(&w->twin_tuple);
	if (!conn_find(w, &w->twin_tuple, &w->twin, 0))
		return;
	tuple_reply(&w->tuple, &w->twin, p->proto, p->family);
	meta = conn_find(w, &w->tuple, &w->conn, 0);
	if (!meta)
		return;
	index = nexthop_of_frame(p);
	if (index && meta->nexthop && meta->nexthop != index)
		nexthop_doubt(meta->nexthop);
	meta->nexthop = index;
}
