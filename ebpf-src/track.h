/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* track.h - the long way: what a packet goes through whose connection is not established,
 * or may change.
 */
#pragma once

#include "fragment.h"
#include "icmp.h"
#include "nexthop.h"
#include "open.h"

/* Whether the packet, as large as it is, fits where the next hop leads. A GSO
 * packet is cut into pieces on its way out.
 */
static __always_inline int track_fits(struct pkt *p, const struct nexthop *nexthop)
{
	__u32 len = p->skb->len - p->l3_off;

	if (len <= nexthop->mtu_bytes)
		return 1;
	return p->skb->gso_size &&
	       p->skb->gso_size + (p->l4_off - p->l3_off) + 60 <= nexthop->mtu_bytes + 40;
}

/* Whether the connection w->conn, from which nothing has come back yet, is to be opened
 * anew: there may be a backend for one that was refused by now, and a service for one
 * that was none's.
 */
static __always_inline int track_opens_anew(struct pkt *p, struct work *w)
{
	const struct ct_meta *meta = &w->conn.meta;

	if (meta->flags & CT_F_REPLY)
		return 0;
	if (meta->service_id)
		return !meta->backend_id;
	return meta->state == CT_NEW && lb_service(p, &w->service_key);
}

/* The long way: connections that are half-open or change. LL_NEXT: p is counted, and
 * w->conn is what it is to become. LL_OPEN: there is none, or one that ended;
 * open_connection is not called from here, for what functions call each other share 512
 * bytes of stack.
 */
static __noinline int track_lookup(struct pkt *p, struct work *w)
{
	struct ct_meta *meta;

	w->reopen = 0;
	w->routed = 0;
	tuple_of(&w->tuple, p);
	meta = conn_find(w, &w->tuple, &w->conn, p->half_open);
	if (!meta || track_opens_anew(p, w))
		return LL_OPEN;
	return ct_advance(p, w, meta);
}

/* Finds the connection of p, or opens one, and counts p. LL_NEXT: w->conn is what p is to
 * become.
 */
static __always_inline int track_find(struct pkt *p, struct work *w)
{
	int ret = p->icmp_error ? icmp_translate(p, w) : track_lookup(p, w);

	return ret == LL_OPEN ? open_connection(p, w) : ret;
}

/* Tells what open_connection did, while p is still as it came. */
static __always_inline void track_tell(struct pkt *p)
{
	if (p->opened)
		sample_send(p, SAMPLE_OPENED, 0);
	else if (p->refused)
		count_drop(p, DROP_NO_BACKEND);
}

/* What both hooks do with a packet of a connection that track_find found or opened:
 * fills w->rewrite.
 */
static __always_inline void track_prepare(struct pkt *p, struct work *w)
{
	struct rewrite *r = &w->rewrite;

	track_tell(p);
	if (p->fragment == FRAGMENT_FIRST)
		fragment_teach(p);
	r->saddr = w->conn.saddr;
	r->daddr = w->conn.daddr;
	r->sport = w->conn.sport;
	r->dport = w->conn.dport;
	r->dec_ttl = 0;
	r->translate = !!(w->conn.meta.flags & (CT_F_DNAT | CT_F_SNAT));
}
