/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* track.h - the tracked path: what a packet of a known connection goes through. */
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

/* Whether packets of this direction leave with an IPv4 address of the node itself, that
 * of its SNAT or that of the frontend: to the stack such a source, coming in, is a
 * martian. Answers to a client on the node itself end at its stack all the same.
 */
static __noinline int track_is_martian(struct pkt *p, __u16 flags, __be32 saddr)
{
	if (p->family != 4 || p->saddr.word[3] == saddr)
		return 0;
	if (!(flags & CT_F_REPLY))
		return !!(flags & CT_F_SNAT);
	if (flags & CT_F_FROM_NODE)
		return 0;
	return route_is_local4(p->skb, saddr);
}

/* Sends such a packet, rewritten and with its TTL lowered, by the stack's routes and
 * neighbours, but not through the stack.
 */
static __noinline int track_send_routed(struct pkt *p)
{
	__u32 out = route_out(p, &p->saddr, &p->daddr);

	if (!out)
		return -DROP_NO_ROUTE;
	p->skb->tc_index = TC_INDEX_LEARN;
	p->action = bpf_redirect_neigh(out, NULL, 0, 0);
	p->verdict = VERDICT_SLOW;
	return LL_REDIRECT;
}

/* Rewrites a packet of connection meta as r says and sends it on: by the short cut
 * where its next hop is known and nothing speaks against it, else by the kernel.
 */
static __always_inline int track_forward(struct pkt *p, __u32 index, __u16 flags, struct rewrite *r)
{
	struct nexthop *nexthop;
	__u32 out;
	int ret;

	nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;
	out = nexthop ? nexthop_device(nexthop) : 0;
	if (!nexthop || !out || p->tagged || p->ttl <= 1 || !track_fits(p, nexthop))
		goto slow;
	if (ticks_since(p->now_tick, nexthop->checked_tick) > config_confirm_ticks) {
		/* One packet goes by the kernel's neighbour table, which so learns
		 * that the neighbour is in use and finds out whether it lives.
		 */
		nexthop->checked_tick = p->now_tick;
		r->dec_ttl = 1;
		ret = nat_rewrite(p, r);
		if (ret != LL_NEXT)
			return ret;
		p->skb->tc_index = TC_INDEX_LEARN;
		p->action = bpf_redirect_neigh(out, NULL, 0, 0);
		p->verdict = VERDICT_SLOW;
		return LL_REDIRECT;
	}
	r->dec_ttl = 1;
	ret = nat_rewrite(p, r);
	if (ret != LL_NEXT)
		return ret;
	p->verdict = VERDICT_TRACKED;
	return nexthop_send(p, nexthop, out);
slow:
	p->martian = track_is_martian(p, flags, r->saddr.word[3]);
	if (p->martian) {
		/* The stack tells the sender: it knows where the packet was to go. */
		if (p->ttl <= 1)
			return LL_STACK;
		r->dec_ttl = 1;
	}
	ret = nat_rewrite(p, r);
	if (ret != LL_NEXT)
		return ret;
	if (p->martian)
		return track_send_routed(p);
	p->skb->tc_index = TC_INDEX_LEARN;
	p->verdict = VERDICT_SLOW;
	return LL_STACK;
}

/* Whether the packet can change its connection's state. Data does not, but before
 * both sides have spoken and after a reset. Not for TCP's own events, TCP_EVENTS.
 */
static __always_inline int track_is_event(const struct pkt *p, const struct ct_meta *meta)
{
	return meta->state < CT_ESTABLISHED || meta->state == CT_CLOSED ||
	       (p->proto == IPPROTO_SCTP && ct_event_of(p) != EVENT_DATA);
}

/* An established IPv4 connection. LL_NEXT: there is none, or its state may change. */
static __always_inline int track_ipv4(struct pkt *p)
{
	struct ct4_key key = {
		.saddr = p->saddr.word[3],
		.daddr = p->daddr.word[3],
		.sport = p->sport,
		.dport = p->dport,
		.proto = p->proto,
		.zone = config_zone,
	};
	struct ct4_val *v;
	struct rewrite r = {};

	if (p->tcp_flags & TCP_EVENTS)
		return LL_NEXT;
	v = bpf_map_lookup_elem(&ll_ct4, &key);
	p->half_open = !v;
	if (!v || track_is_event(p, &v->meta))
		return LL_NEXT;
	track_count(p, &v->meta);
	addr_from4(&r.saddr, v->saddr);
	addr_from4(&r.daddr, v->daddr);
	r.sport = v->sport;
	r.dport = v->dport;
	return track_forward(p, v->meta.nexthop, v->meta.flags, &r);
}

static __always_inline int track_ipv6(struct pkt *p)
{
	struct ct6_key key = {
		.saddr = p->saddr,
		.daddr = p->daddr,
		.sport = p->sport,
		.dport = p->dport,
		.proto = p->proto,
		.zone = config_zone,
	};
	struct ct6_val *v;
	struct rewrite r = {};

	if (p->tcp_flags & TCP_EVENTS)
		return LL_NEXT;
	v = bpf_map_lookup_elem(&ll_ct6, &key);
	p->half_open = !v;
	if (!v || track_is_event(p, &v->meta))
		return LL_NEXT;
	track_count(p, &v->meta);
	r.saddr = v->saddr;
	r.daddr = v->daddr;
	r.sport = v->sport;
	r.dport = v->dport;
	return track_forward(p, v->meta.nexthop, v->meta.flags, &r);
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
	/* A connection that was refused is chosen anew: a backend may be there. */
	if (!meta || (w->conn.meta.service_id && !w->conn.meta.backend_id &&
		      !(w->conn.meta.flags & CT_F_REPLY)))
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
}
