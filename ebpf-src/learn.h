/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* learn.h - neighbours, learnt from where the slow path sent a packet. */
#pragma once

#include "nexthop.h"

/* Returns the index of the neighbour that the frame is about to be sent to, a new
 * one where it is not known; 0 where there is no room.
 */
static __noinline __u32 nexthop_of(struct pkt *p)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	struct device_key device_key = { .ifindex = p->skb->ifindex, .zone = config_zone };
	struct nexthop_key key = { .ifindex = p->skb->ifindex, .zone = config_zone };
	struct nexthop *nexthop;
	struct device *device;
	__u32 *known, index;

	if (data + 12 > end)
		return 0;
	__builtin_memcpy(key.dmac, data, 6);
	__builtin_memcpy(key.smac, data + 6, 6);
	device = bpf_map_lookup_elem(&ll_device, &device_key);
	if (!device)
		return 0;
	known = bpf_map_lookup_elem(&ll_nexthop_id, &key);
	if (known) {
		index = *known;
	} else {
		if (bpf_map_pop_elem(&ll_nexthop_free, &index))
			return 0;
		if (bpf_map_update_elem(&ll_nexthop_id, &key, &index, BPF_NOEXIST)) {
			/* Another CPU was first; the next packet finds its entry. */
			bpf_map_push_elem(&ll_nexthop_free, &index, 0);
			return 0;
		}
	}
	nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
	if (!nexthop)
		return 0;
	__builtin_memcpy(nexthop->dmac, key.dmac, 6);
	__builtin_memcpy(nexthop->smac, key.smac, 6);
	nexthop->mtu_bytes = device->mtu_bytes;
	nexthop->flags = device->flags & DEVICE_F_PEER ? NEXTHOP_F_PEER : 0;
	nexthop->checked_tick = p->now_tick;
	nexthop->ifindex = key.ifindex; /* last: now it is valid */
	return index;
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
	if (!conn_find(w, &w->twin_tuple, &w->twin))
		return;
	tuple_reply(&w->tuple, &w->twin, p->proto, p->family);
	meta = conn_find(w, &w->tuple, &w->conn);
	if (!meta)
		return;
	index = nexthop_of(p);
	meta->nexthop = index;
}
