/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* local_in.h - local in: replies to the node from one of its own addresses; see local_out.h. */
#pragma once

#include "local_out.h"

/* Reports whether p, rewritten by r, is a reply to a client on the node with a source that the node
 * accepts only on the loopback.
 */
static __always_inline int loopback_answers(const struct pkt *p, __u16 flags,
					    const struct rewrite *r)
{
	const __u16 both = CT_F_REPLY | CT_F_FROM_NODE;

	return (flags & both) == both && r->translate && !p->vid && firewall_is_local(&r->saddr);
}

/* Sends p, already rewritten, to the node through the loopback. */
static __always_inline int loopback_redirect(struct pkt *p)
{
	__u8 none[6] = {};
	int ret = frame_address(p, none, none);

	if (ret != LL_NEXT)
		return ret;
	p->skb->tc_index = 0;
	p->action = bpf_redirect(LOOPBACK_IFINDEX, BPF_F_INGRESS);
	return LL_REDIRECT;
}
