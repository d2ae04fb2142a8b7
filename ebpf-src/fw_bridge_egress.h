/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fw_bridge_egress.h - evaluates rules that match the output port when a bridge sends a frame. */
#pragma once

#include "fw.h"
#include "fragment.h"

/* Egress hook: evaluates p, which was allowed on arrival, for the bridge port through which it
 * leaves. Replies are not evaluated. LL_NEXT: p is allowed. Refused frames are dropped silently,
 * since the bridge may have sent them to other ports as well.
 */
static __noinline int leaving_ask(struct pkt *p, struct work *w)
{
	const struct rules *rules = firewall_rules();
	int ret;

	if (!rules)
		return LL_NEXT;
	if (p->fragment == FRAGMENT_LATER)
		fragment_learn(p); /* if that fails, p is evaluated without ports */
	tuple_of(&w->tuple, p);
	if (!p->icmp_error && conn_find(w, &w->tuple, &w->conn)) {
		if (w->conn.meta.flags & CT_F_REPLY)
			return LL_NEXT;
		ret = firewall_again(p, w);
	} else {
		firewall_key(p, w, &w->tuple);
		firewall_way(p, w, HOOK_FORWARD, firewall_in(p), rules);
		ret = firewall_ask(p, w, 1);
	}
	return ret == LL_REFUSE ? -DROP_FIREWALL : ret;
}
