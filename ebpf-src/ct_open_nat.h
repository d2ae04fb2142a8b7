/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_open_nat.h - opens connections that NAT rules translate. */
#pragma once

#include "l2_responder.h"
#include "ct_open_plain.h"
#include "nat_rules.h"
#include "policy_open.h"

/* Chooses the source of a connection whose destination, w->conn.daddr, was translated: an address
 * of the node if replies would otherwise bypass the node, else according to a rule.
 */
static __always_inline int open_second(struct pkt *p, struct work *w)
{
	int ret;

	w->service.source = SOURCE_AUTO;
	ret = open_source(p, w, &w->service);
	if (!addr_equal(&w->conn.saddr, &p->saddr))
		w->conn.meta.flags |= CT_F_DEVICE;
	return ret == LL_NEXT ? open_by_rule(p, w, 0) : ret;
}

/* Opens a connection whose destination a rule may translate. LL_OPEN: the rule does not. */
static __noinline int open_destination(struct pkt *p, struct work *w, __u32 slot)
{
	int ret;

	open_begin(p, w);
	p->nat_id = slot >> 2;
	w->conn.more.nat_id = slot >> 2;
	w->conn.meta.flags = CT_F_DNAT | CT_F_NAT_ASKED | open_from_node(p);
	ret = translate_destination(slot);
	if (ret == LL_PASS) {
		p->nat_id = 0;
		return LL_OPEN;
	}
	if (ret == LL_NEXT)
		ret = policy_open(p->skb, 0);
	if (ret == LL_NEXT)
		ret = open_second(p, w);
	return open_translated(p, w, ret, slot >> 2);
}

/* Opens an inbound connection through a mapping that is open to all remotes. A client behind the
 * same outer address gets its own mapping as source (RFC 4787, REQ-9).
 */
static __noinline int open_inward(struct pkt *p, struct work *w, struct mapping *mapping)
{
	__u32 slot, out;
	int ret;

	if (!mapping)
		return LL_OPEN;
	open_begin(p, w);
	p->nat_id = mapping->nat_id;
	mapping->used_tick = p->now_tick;
	w->conn.more.nat_id = p->nat_id;
	w->conn.meta.flags |= CT_F_DNAT | CT_F_NAT_ASKED;
	w->conn.daddr = mapping->addr;
	w->conn.dport = mapping->port;
	ret = policy_open(p->skb, 0);
	if (ret != LL_NEXT)
		return ret;
	out = route_out(p, &w->conn.saddr, &w->conn.daddr);
	slot = out && out == route_in(p) ? translate_slot(p->nat_id) : 0;
	if (slot) {
		ret = translate_source(slot, 0);
	} else {
		w->service.source = SOURCE_KEEP;
		ret = open_source(p, w, &w->service);
	}
	return open_translated(p, w, ret, p->nat_id);
}

/* Opens the connection of a packet that arrived on a device that is not a port and is about to
 * leave, if a rule translates its source. LL_OPEN: no rule does.
 */
static __noinline int open_leaving(struct pkt *p, struct work *w)
{
	__u32 slot;
	int ret;

	if (p->tagged || p->bridged || !p->skb->ingress_ifindex || firewall_is_local(&p->saddr))
		return LL_OPEN;
	slot = translate_ask(p, w, RULES_SNAT, p->skb->ifindex);
	if (!slot)
		return LL_OPEN;
	p->nat_id = slot >> 2;
	if (!open_may(p))
		return p->proto == IPPROTO_TCP ? -DROP_NO_CONNECTION : LL_OPEN;
	open_begin(p, w);
	w->conn.more.nat_id = slot >> 2;
	w->conn.meta.flags = CT_F_SNAT_AT_EGRESS | CT_F_NAT_ASKED;
	ret = translate_source(slot, p->skb->ifindex);
	if (ret == LL_PASS) {
		p->nat_id = 0;
		return LL_OPEN;
	}
	return open_translated(p, w, ret, slot >> 2);
}

/* Opens a connection without a service. */
static __always_inline int open_other(struct pkt *p, struct work *w)
{
	int ret = LL_OPEN;
	__u32 slot;

	w->source_nat_id = 0;
	if (p->egress && p->skb->ingress_ifindex) {
		ret = policy_open(p->skb, 1);
		if (ret != LL_NEXT)
			return ret;
		ret = open_leaving(p, w);
	} else if (!p->bridged && open_may(p)) {
		slot = translate_ask(p, w, RULES_DNAT, 0);
		ret = slot ? open_destination(p, w, slot) : LL_OPEN;
		if (ret == LL_OPEN && !p->egress && !w->echo && ct_event_of(p) <= EVENT_OPEN)
			ret = open_inward(p, w, translate_mapping(p, w));
	}
	if (ret != LL_OPEN)
		return ret;
	ret = announce_lost(p);
	if (ret != LL_NEXT)
		return ret;
	ret = policy_open(p->skb, 1);
	if (ret != LL_NEXT)
		return ret;
	ret = LL_OPEN;
	if (!p->egress && open_may(p))
		ret = open_early(p, w);
	return ret == LL_OPEN ? open_plain(p, w) : ret;
}
