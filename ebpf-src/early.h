/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* early.h - the source of a connection translated where its first packet comes in: where
 * nobody else has a say, and the kernel's routes and neighbours tell all that its path
 * would. The packet is sent on by the short cut then. Everything else goes up as it came,
 * and late.h decides.
 */
#pragma once

#include "refuse.h"
#include "domain.h"
#include "enter.h"
#include "resolve.h"
#include "translate.h"

/* In which ticks, one of 64 (every 8.6 s), a bridge sees what comes in by its ports. */
#define EARLY_BRIDGE_TICKS 63

/* Whether an address is of one link only. */
static __always_inline int early_is_link(const struct addr *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Whether the kernel would do nothing with the first packet p of a connection but route
 * it, and tell its sender nothing.
 */
static __always_inline int early_may(struct pkt *p)
{
	__u32 set = RULES_SNAT, zone = config_zone;
	enum ct_event event = ct_event_of(p);
	struct rules *rules = bpf_map_lookup_elem(&ll_rules, &set);
	__u32 *netfilter = bpf_map_lookup_elem(&ll_netfilter, &zone);

	if (!rules || !rules->image || !netfilter || *netfilter & NETFILTER_F_ROUTED)
		return 0;
	/* Now and then the kernel's bridge is to see a station, which it forgets else. */
	if (p->bridge_port && !(p->now_tick & EARLY_BRIDGE_TICKS))
		return 0;
	if (event != EVENT_OPEN &&
	    (event != EVENT_DATA || p->proto == IPPROTO_TCP || p->proto == IPPROTO_SCTP))
		return 0;
	return !(config_first | p->tagged | p->slow | p->bridged | p->stateless | p->to_group) &&
	       p->ttl > 1 && p->fragment == FRAGMENT_NONE && !p->skb->mark &&
	       answer_is_host(&p->saddr, p->family) && answer_is_host(&p->daddr, p->family) &&
	       !early_is_link(&p->saddr) && !early_is_link(&p->daddr);
}

/* Index of the device that what comes in like p came by, as the kernel's routes have it. */
static __always_inline __u32 early_in(struct pkt *p)
{
	__u32 in = p->skb->ifindex;
	struct station *s;

	asm volatile("" : "+r"(in)); /* two reads, not one of a place that depends */
	if (!p->bridge_port)
		return in;
	s = domain_station(in, p->vid);
	return s ? s->bridge : in;
}

/* Finds the way of p and the rule that translates it, which it asks about the device that p
 * leaves by, out. Returns a key of ll_nat_rule; 0: none does, or the kernel has to say more.
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

/* Enters the connection w->conn of a NAT, unless ret says that it is not to be, and counts it
 * there.
 */
static __always_inline int open_translated(struct pkt *p, struct work *w, int ret, __u32 nat_id)
{
	if (ret == LL_NEXT)
		ret = open_enter(p, w);
	if (ret == LL_NEXT)
		translate_count(nat_id);
	return ret;
}

/* Opens the connection of p, which came in, if its source is to be translated and this can
 * be said here. LL_OPEN: it is not, or cannot. Where the answers would not go back to where
 * p came from the kernel decides: it may check sources, and is never stricter than that.
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
	w->twin_nexthop = nexthop_of_route(&p->saddr, in, p->now_tick);
	open_begin(p, w);
	p->nat_id = slot >> 2;
	w->conn.meta.nat_id = slot >> 2;
	w->conn.meta.flags = CT_F_SNAT_LATE | CT_F_NAT_ASKED;
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
