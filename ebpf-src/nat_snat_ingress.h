/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_snat_ingress.h - SNAT at ingress: translates the source of a connection when its first packet
 * arrives, if the kernel would only route the packet and its routes and neighbours are known. The
 * packet then takes the fast path. All other packets pass unchanged, and nat_snat_egress.h decides.
 */
#pragma once

#include "reply_reject.h"
#include "l2_domain.h"
#include "ct_insert.h"
#include "nh_resolve.h"
#include "nat_rules.h"

/* Reports whether an address is link-local. */
static __always_inline int early_is_link(const struct addr *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Reports whether the kernel would only route the first packet p of a connection, without an ICMP
 * error to its sender.
 */
static __always_inline int early_may(struct pkt *p)
{
	__u32 set = RULES_SNAT, netns = config_netns;
	enum ct_event event = ct_event_of(p);
	struct rules *rules = bpf_map_lookup_elem(&ll_rules, &set);
	__u32 *netfilter = bpf_map_lookup_elem(&ll_netfilter, &netns);

	if (!rules || !rules->image || !netfilter || *netfilter & NETFILTER_F_ROUTED)
		return 0;
	if (event != EVENT_OPEN &&
	    (event != EVENT_DATA || p->proto == IPPROTO_TCP || p->proto == IPPROTO_SCTP))
		return 0;
	return !(config_shadow | p->tagged | p->slow | p->bridged | p->stateless | p->to_group) &&
	       p->ttl > 1 && p->fragment == FRAGMENT_NONE && !p->skb->mark &&
	       answer_is_host(&p->saddr, p->family) && answer_is_host(&p->daddr, p->family) &&
	       !early_is_link(&p->saddr) && !early_is_link(&p->daddr) &&
	       (!p->bridge_port || bridge_has_seen(p));
}

/* Returns the index of the device of arrival of p, as the kernel's routes see it. */
static __always_inline __u32 early_in(struct pkt *p)
{
	__u32 in = p->skb->ifindex;
	struct bridge_port *s;

	asm volatile("" : "+r"(in)); /* two reads, not one at a variable offset */
	if (!p->bridge_port)
		return in;
	s = bridge_port_find(in, p->vid);
	return s ? s->bridge : in;
}

/* Finds the next hop of p and the rule that translates it; out: the output device. Returns a key of
 * ll_nat_rule; 0: no rule translates it, or the kernel has to decide.
 */
static __noinline __u32 early_ask(struct pkt *p, struct work *w, __u32 in, __u32 out)
{
	if (!out || out == in)
		return 0;
	w->nexthop = nexthop_of_route(&p->daddr, out, p->now_tick);
	if (!w->nexthop)
		return 0;
	translate_question(p, w, out);
	w->classify_key.in_ifindex = in;
	return translate_slot_of(w, RULES_SNAT);
}

/* Enters the connection w->conn of a NAT if ret is LL_NEXT, and counts it for the NAT. */
static __always_inline int open_translated(struct pkt *p, struct work *w, int ret, __u32 nat_id)
{
	if (ret == LL_NEXT)
		ret = open_enter(p, w);
	if (ret == LL_NEXT)
		translate_count(nat_id);
	return ret;
}

/* Opens the connection of the arriving packet p with SNAT at ingress. LL_OPEN: its source is not
 * translated, or not here. If replies would not return to the device of arrival, the kernel
 * decides: it may check sources (rp_filter), and is never stricter than this check.
 */
static __noinline int open_early(struct pkt *p, struct work *w)
{
	__u32 how = p->proto | (p->family == 4 ? ROUTE_IPV4 : 0), in, out, slot;
	int ret;

	if (!early_may(p))
		return LL_OPEN;
	in = early_in(p);
	out = route_find(p->skb, &p->saddr, &p->daddr, how, in);
	slot = early_ask(p, w, in, out);
	if (!slot || route_find(p->skb, &p->daddr, &p->saddr, how, out) != in)
		goto later;
	w->twin_nexthop = names_come_from(&p->saddr, p->dport)
				  ? 0
				  : nexthop_of_route(&p->saddr, in, p->now_tick);
	open_begin(p, w);
	p->nat_id = slot >> 2;
	w->conn.more.nat_id = slot >> 2;
	w->conn.meta.flags = CT_F_SNAT_AT_EGRESS | CT_F_NAT_ASKED;
	ret = translate_source(slot, out);
	if (ret == LL_PASS) {
		p->nat_id = 0;
		goto later;
	}
	return open_translated(p, w, ret, slot >> 2);
later:
	w->nexthop = 0;
	w->twin_nexthop = 0;
	return LL_OPEN;
}

/* Translates the source of w->conn, which the egress hook will not translate, if a rule for the
 * output device matches; the kernel's routes determine that device. backend: rules match the
 * translated destination, not the original destination of p.
 */
static __noinline int open_by_rule(struct pkt *p, struct work *w, int backend)
{
	__u32 out = w->routed, slot, nat_id = p->nat_id;
	int ret;

	if (w->conn.meta.flags & CT_F_SNAT || p->egress || !translate_has(RULES_SNAT))
		return LL_NEXT;
	if (!out && w->reopen) /* the device was taken over from the ended connection */
		out = route_out(p, &w->conn.saddr, &w->conn.daddr);
	if (!out)
		return LL_NEXT;
	translate_question(p, w, out);
	if (backend) {
		w->classify_key.daddr = w->conn.daddr;
		w->classify_key.dport = w->conn.dport;
	}
	slot = translate_slot_of(w, RULES_SNAT);
	if (!slot)
		return LL_NEXT;
	p->nat_id = slot >> 2;
	w->source_nat_id = slot >> 2;
	ret = translate_source(slot, out);
	w->routed = 0; /* the route is for another source */
	if (ret == LL_PASS) {
		w->source_nat_id = 0;
		ret = LL_NEXT;
	}
	if (ret == LL_NEXT)
		p->nat_id = nat_id;
	return ret;
}
