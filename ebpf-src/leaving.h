/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* leaving.h - the firewall's rules that name the port of a bridge by which frames leave. */
#pragma once

#include "firewall.h"
#include "fragment.h"

/* Egress hook: asks about p, which the rules allowed where it came in, and a bridge sends by
 * this port. The answers to a connection are not asked about. LL_NEXT: p is allowed. Nobody
 * is told that it is not: others may have got it, where the bridge sends it to several.
 */
static __noinline int leaving_ask(struct pkt *p, struct work *w)
{
	const struct rules *rules = firewall_rules();
	int ret;

	if (!rules)
		return LL_NEXT;
	if (p->fragment == FRAGMENT_LATER)
		fragment_learn(p); /* if not, it is asked about without ports */
	tuple_of(&w->tuple, p);
	if (!p->icmp_error && conn_find(w, &w->tuple, &w->conn, 0)) {
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
