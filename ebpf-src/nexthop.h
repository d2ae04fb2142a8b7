/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nexthop.h - sending a packet to a neighbour that was learnt before. */
#pragma once

#include "conntrack.h"
#include "count.h"
#include "nat.h"

/* skb->tc_index carries a word from our ingress hook to our egress hook; both
 * clear it, so that it says nothing to anybody else.
 */
#define TC_INDEX_TRACKED	0x4c01	/* redirected: nothing left to do */
#define TC_INDEX_LEARN		0x4c02	/* rewritten: learn where it goes */

/* Sends a rewritten packet by the short cut. LL_STACK: the kernel must. TTL is
 * already lowered unless p says otherwise.
 */
static __always_inline int nexthop_send(struct pkt *p, struct nexthop *nexthop)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;

	if (data + 14 > end)
		return -DROP_REWRITE;
	__builtin_memcpy(data, nexthop->dmac, 6);
	__builtin_memcpy(data + 6, nexthop->smac, 6);
	if (nexthop->flags & NEXTHOP_F_PEER) {
		p->action = bpf_redirect_peer(nexthop->ifindex, 0);
		return LL_REDIRECT;
	}
	p->skb->tc_index = TC_INDEX_TRACKED;
	p->action = bpf_redirect(nexthop->ifindex, 0);
	return LL_REDIRECT;
}
