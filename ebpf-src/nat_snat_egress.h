/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_snat_egress.h - SNAT at egress: translates the source of a connection on the egress hook,
 * after the kernel has forwarded the packet untranslated.
 */
#pragma once

#include "fragment.h"
#include "rewrite.h"
#include "nat_rules.h"

/* Decides whether to translate the source of w->conn, which the ingress hook inserted untranslated
 * under w->tuple. LL_NEXT: it is translated from now on, in its entries too. LL_PASS: it stays
 * untranslated.
 */
static __noinline int late_decide(struct pkt *p, struct work *w)
{
	__u32 slot = translate_ask(p, w, RULES_SNAT, p->skb->ifindex);
	int ret;

	w->reopen = 0; /* set by an earlier packet: track_lookup was not called for this one */
	if (!slot)
		return LL_PASS;
	p->nat_id = slot >> 2;
	tuple_reply(&w->old_tuple, &w->conn, &w->tuple);
	ret = translate_source(slot, p->skb->ifindex);
	if (ret != LL_NEXT)
		return ret;
	w->conn.meta.flags |= CT_F_SNAT_AT_EGRESS | CT_F_NAT_ASKED;
	w->conn.more.nat_id = slot >> 2;
	w->conn.meta.flags &= ~CT_F_LASTING;
	w->twin = w->conn;
	w->twin.meta.flags |= CT_F_REPLY;
	w->twin.meta.packet_count = 0;
	w->twin.meta.packet_count_high = 0;
	w->twin.meta.byte_count = 0;
	w->twin.meta.in_port = 0;
	w->twin.meta.tcp_ack = 0;
	w->twin.saddr = w->tuple.daddr;
	w->twin.daddr = w->tuple.saddr;
	w->twin.sport = w->tuple.dport;
	w->twin.dport = w->tuple.sport;
	if (conn_put(&w->twin_tuple, &w->twin, BPF_NOEXIST))
		return -DROP_NO_PORT;
	if (conn_put(&w->tuple, &w->conn, BPF_ANY)) {
		conn_remove(&w->twin_tuple);
		return -DROP_TABLE_FULL;
	}
	conn_remove(&w->old_tuple);
	translate_count(slot >> 2);
	return LL_NEXT;
}

/* Translates the source of p, which the ingress hook saw and the kernel forwarded, if a rule
 * matches. LL_NEXT: p is in its final form.
 */
static __noinline int late_translate(struct pkt *p, struct work *w)
{
	struct rewrite *r = &w->rewrite;
	struct ct_meta *meta;

	if (p->icmp_error || p->bridged ||
	    (p->fragment == FRAGMENT_LATER && fragment_learn(p) != LL_NEXT))
		return LL_NEXT;
	tuple_of(&w->tuple, p);
	meta = conn_find(w, &w->tuple, &w->conn);
	if (!meta || w->conn.meta.flags & CT_F_REPLY)
		return LL_NEXT;
	if (!(w->conn.meta.flags & CT_F_SNAT_AT_EGRESS)) {
		int ret = LL_PASS;

		if (w->conn.meta.state != CT_NEW ||
		    w->conn.meta.flags & (CT_F_NAT_ASKED | CT_F_DNAT | CT_F_SNAT))
			return LL_NEXT;
		if (p->fragment != FRAGMENT_LATER)
			ret = late_decide(p, w);
		if (ret == LL_PASS) {
			ct_flags_set(meta, CT_F_NAT_ASKED);
			return LL_NEXT;
		}
		if (ret != LL_NEXT)
			return ret;
	}
	p->nat_id = w->conn.more.nat_id;
	if (p->fragment == FRAGMENT_FIRST)
		fragment_teach(p);
	r->saddr = w->conn.saddr;
	r->daddr = w->conn.daddr;
	r->sport = w->conn.sport;
	r->dport = w->conn.dport;
	r->dec_ttl = 0;
	r->translate = 1;
	return nat_rewrite(p, r);
}
