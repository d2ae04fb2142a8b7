/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_insert.h - inserts both directions of a new connection. */
#pragma once

#include "ct_state.h"
#include "fw.h"
#include "fragment.h"
#include "lb_snat.h"

static __always_inline int open_same_way(const struct conn *a, const struct conn *b)
{
	return addr_equal(&a->saddr, &b->saddr) && addr_equal(&a->daddr, &b->daddr) &&
	       a->sport == b->sport && a->dport == b->dport;
}

/* Restarts w->old, an ended connection, as w->conn if both have the same leaving tuple: the entries
 * are reset and keep their next hops. Else deletes the old entries. Reports whether the connection
 * was restarted. The traffic of the old entries is counted in both cases. A global function, so
 * that the verifier walks it once.
 */
__noinline int open_reopen(void)
{
	struct work *w = work_get();
	struct ct_meta *meta, *twin;
	int same;

	if (!w)
		return 0;
	same = open_same_way(&w->old, &w->conn);
	tuple_reply(&w->old_tuple, &w->old, &w->tuple);
	meta = conn_find(w, &w->tuple, &w->old);
	if (meta)
		count_reused(&w->old.meta, &w->old.more);
	twin = conn_find(w, &w->old_tuple, &w->old);
	if (twin)
		count_reused(&w->old.meta, &w->old.more);
	if (meta && twin && same) {
		w->conn.meta.nexthop = w->nexthop;
		if (!w->nexthop)
			w->conn.meta.nexthop =
				policy_nexthop(&w->conn.daddr, w->conn.sport, meta->nexthop);
		w->twin.meta.nexthop = w->twin_nexthop;
		if (!w->twin_nexthop)
			w->twin.meta.nexthop =
				policy_nexthop(&w->twin.daddr, w->twin.sport, twin->nexthop);
		w->twin.meta.in_port = twin->in_port;
		return !conn_put(&w->tuple, &w->conn, BPF_ANY) &&
		       !conn_put(&w->twin_tuple, &w->twin, BPF_ANY);
	}
	conn_remove(&w->old_tuple);
	conn_remove(&w->tuple);
	return 0;
}

/* Fetches the places of both entries of w->conn, a new connection that arrives as w->tuple: see
 * ct_fetch. Its destination is known; its source is assumed to stay unchanged. A global function,
 * so that the verifier walks it once.
 */
__noinline int open_fetch(void)
{
	struct work *w = work_get();

	if (!w || !w->fresh)
		return 0;
	w->conn.saddr = w->tuple.saddr;
	w->conn.sport = w->tuple.sport;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	conn_fetch(w, &w->tuple);
	conn_fetch(w, &w->twin_tuple);
	return 0;
}

/* Inserts c, in work, under t, and replaces an entry that has come meanwhile, unless its source is
 * translated: -EEXIST.
 */
static __always_inline int open_put_one(const struct work *w, const struct tuple *t,
					const struct conn *c)
{
	int ret = w->fresh ? conn_add(t, c) : -EEXIST;

	if (ret == -EEXIST && (!w->fresh || !(w->conn.meta.flags & CT_F_SNAT)))
		ret = conn_put(t, c, BPF_ANY);
	return ret;
}

/* Inserts the direction of w->conn in which its first packet goes. LL_NEXT: it is inserted, or
 * another CPU has just inserted the same connection. -EEXIST: another connection with this key
 * exists, and w->conn becomes that one. -EAGAIN: two CPUs inserted at once, and both gave way.
 * -E2BIG: no room. A global function, so that the verifier walks it once.
 */
__noinline int open_put_forth(void)
{
	struct work *w = work_get();
	int ret;

	if (!w)
		return -E2BIG;
	ret = open_put_one(w, &w->tuple, &w->conn);
	if (ret != -EEXIST)
		return ret ? -E2BIG : LL_NEXT;
	w->old = w->conn;
	if (conn_find(w, &w->tuple, &w->conn))
		return open_same_way(&w->old, &w->conn) ? LL_NEXT : -EEXIST;
	w->conn = w->old;
	return -EAGAIN;
}

/* Inserts the direction of the replies to w->conn. 0, -EEXIST or -E2BIG. A global function, so that
 * the verifier walks it once.
 */
__noinline int open_put_back(void)
{
	struct work *w = work_get();

	return w ? open_put_one(w, &w->twin_tuple, &w->twin) : -E2BIG;
}

/* Inserts both directions of w->conn. The entry of replies to a translated source never replaces
 * another connection; if another CPU has just inserted the same connection, w->conn becomes that
 * one. A global function, so that the verifier walks it once.
 */
__noinline int open_put(void)
{
	struct work *w = work_get();
	int ret;

	if (!w)
		return -DROP_TABLE_FULL;
	ret = open_put_back();
	if (ret == -EEXIST) /* two CPUs may have chosen the same port, and both gave way */
		ret = open_put_back();
	if (ret == -EEXIST)
		return conn_find(w, &w->tuple, &w->conn) ? LL_NEXT : -DROP_NO_PORT;
	if (ret)
		return -DROP_TABLE_FULL;
	ret = open_put_forth();
	if (ret == -EAGAIN)
		ret = open_put_forth();
	if (ret == -EAGAIN)
		ret = open_put_forth();
	if (ret == LL_NEXT)
		return LL_NEXT;
	conn_remove(&w->twin_tuple);
	return ret == -EEXIST ? LL_NEXT : -DROP_TABLE_FULL;
}

/* Inserts both directions of w->conn as half-open. */
static __always_inline int open_enter(struct pkt *p, struct work *w)
{
	int scale = TCP_SCALE_MAX; /* unknown if no SYN was seen */

	if (ct_event_of(p) == EVENT_OPEN && p->proto == IPPROTO_TCP)
		scale = tcp_scale_of(p->skb, p->l4_off, p->l4_header_len);
	w->conn.meta.tcp_scale = TCP_SCALE_MAX;
	w->conn.more.rule_id = p->rule_id;

	w->twin = w->conn;
	w->conn.meta.nexthop = w->nexthop;
	w->twin.meta.nexthop = w->twin_nexthop;
	w->conn.meta.in_port = p->egress ? 0 : p->in_port;
	w->conn.meta.tcp_scale = scale > 0 ? scale : 0;
	w->twin.meta.flags |= CT_F_REPLY;
	if (w->source_nat_id)
		w->twin.more.nat_id = w->source_nat_id;
	w->twin.saddr = p->daddr;
	w->twin.sport = p->dport;
	w->twin.daddr = p->saddr;
	w->twin.dport = p->sport;
	track_count(p, &w->conn.meta);
	if (!(w->conn.meta.flags & CT_F_SERVICE))
		count_verdict(VERDICT_NONE);
	if (w->reopen && open_reopen())
		return LL_NEXT;
	return open_put();
}

/* Reports whether a packet like p may open a connection without a service. */
static __always_inline int open_may(struct pkt *p)
{
	return ct_event_of(p) <= EVENT_ANSWER &&
	       (p->proto != IPPROTO_ICMP || p->icmp_type == ICMP_ECHO) &&
	       (p->proto != IPPROTO_ICMPV6 || p->icmp_type == ICMPV6_ECHO);
}

/* Returns CT_F_FROM_NODE if the node itself sends p. On the egress hook p may also come from a
 * client behind a device that is not a port.
 */
static __always_inline __u16 open_from_node(const struct pkt *p)
{
	return p->egress && !p->skb->ingress_ifindex ? CT_F_FROM_NODE : 0;
}

/* Initialises w->conn as an untranslated connection. */
static __always_inline void open_begin(struct pkt *p, struct work *w)
{
	tuple_of(&w->tuple, p);
	__builtin_memset(&w->conn, 0, sizeof(w->conn));
	w->conn.more.created_tick = p->now_tick;
	w->conn.more.idle = config_ct_idle[ct_idle_of(p->proto)];
	w->conn.meta.last_seen_tick = p->now_tick;
	w->conn.meta.flags = open_from_node(p);
	if (firewall_asks_leaving(p))
		w->conn.meta.flags |= CT_F_DENIED; /* until its first packet has left */
	w->conn.saddr = p->saddr;
	w->conn.daddr = p->daddr;
	w->conn.sport = p->sport;
	w->conn.dport = p->dport;
}
