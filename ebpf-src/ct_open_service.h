/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_open_service.h - opens connections, with a backend if they are to a service. */
#pragma once

#include "lb.h"
#include "ct_open_nat.h"

static __always_inline __u16 service_idle(const struct service *s, __u8 proto)
{
	return proto == IPPROTO_TCP   ? s->idle[IDLE_TCP]
	       : proto == IPPROTO_UDP ? s->idle[IDLE_UDP]
				      : s->idle[IDLE_SCTP];
}

/* As open_connection, for a service. LL_REFUSE: it has no backend. */
static __noinline int open_service(struct pkt *p, struct work *w, const struct service *found)
{
	struct service *s = &w->service;
	struct backend_entry *entry;
	struct service_stats *stats;
	__u32 id;
	int ret;

	w->source_nat_id = 0;
	*s = *found;
	p->service_id = s->id;
	if (!lb_client_allowed(p, s, &w->source_range_key))
		return -DROP_SOURCE_RANGE;
	tuple_of(&w->tuple, p);
	if (s->divert_set_id) {
		lb_divert();
		p->service_id = s->id;
	}
	__builtin_memset(&w->conn, 0, sizeof(w->conn));
	w->conn.more.created_tick = p->now_tick;
	w->conn.more.idle = service_idle(s, p->proto);
	w->conn.meta.last_seen_tick = p->now_tick;
	w->conn.meta.flags = CT_F_DNAT | CT_F_SERVICE | open_from_node(p);
	id = lb_choose(p, w);
	entry = backend_at(id);
	if (!id || !entry || entry->backend.service_id != s->id) {
		if (s->flags & SERVICE_F_SILENT)
			return -DROP_NO_BACKEND_SILENT;
		p->refused = DROP_NO_BACKEND;
		return LL_REFUSE;
	}
	w->conn.more.backend_id = id;
	w->conn.daddr = entry->backend.addr;
	w->conn.dport = entry->backend.port;
	ret = policy_open(p->skb, 0);
	if (ret != LL_NEXT)
		return ret;
	open_fetch();
	ret = open_source(p, w, s);
	if (ret == LL_NEXT && s->source == SOURCE_AUTO)
		ret = open_by_rule(p, w, 1);
	if (ret != LL_NEXT)
		return ret;
	/* A connection that replaces an ended one keeps its next hop. */
	if (!w->reopen || w->routed)
		w->nexthop = nexthop_resolve(p, w, w->routed);
	ret = open_enter(p, w);
	if (ret != LL_NEXT)
		return ret;
	__sync_fetch_and_add(&entry->load, 1);
	__sync_fetch_and_add(&entry->total.connection_count, 1);
	stats = bpf_map_lookup_elem(&ll_service_stats, &s->id);
	if (stats)
		stats->connection_count++;
	p->opened = 1;
	return LL_NEXT;
}

/* Inserts the connection that p opens, and counts p in it. Sets w->conn to the form in which p
 * leaves. w->reopen: p has the tuple of an ended connection, w->old. LL_PASS: not tracked.
 * LL_REFUSE: no backend, an address that only services use, or a policy rejects it.
 */
static __noinline int open_connection(struct pkt *p, struct work *w)
{
	struct service *found = lb_service(p, &w->service_key);

	return found ? open_service(p, w, found) : open_other(p, w);
}
