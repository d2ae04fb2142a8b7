/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror_conn.h - the Service and the FirewallRule of a packet, for mirrors. */
#pragma once

#include "clock.h"
#include "ct_conn.h"
#include "fragment.h"
#include "fw.h"
#include "l2_domain.h"
#include "lb.h"
#include "parse.h"

/* What mirrors match besides the headers of a packet. */
struct mirror_conn {
	__u32 service_id; /* of its connection; 0: none */
	__u32 rule_id;	  /* that allows its connection; 0: none, or unknown */
	__u32 reply;	  /* it goes to the client */
	__s32 parsed;	  /* the result of parsing */
};

/* Finds the entry of p's connection in w->conn, under w->tuple. A packet that leaves is translated
 * already: its tuple, reversed, is the tuple of the packets in the other direction. Returns 0 if there
 * is none.
 */
static __always_inline int mirror_find(struct pkt *p, struct work *w, struct mirror_conn *c)
{
	struct backend_entry *entry;
	__u32 is_reply;

	tuple_of(&w->tuple, p);
	if (p->egress)
		tuple_turn(&w->tuple);
	if (!conn_find(w, &w->tuple, &w->conn))
		return 0;
	is_reply = !!(w->conn.meta.flags & CT_F_REPLY);
	c->reply = is_reply ^ p->egress;
	entry = w->conn.meta.flags & CT_F_SERVICE ? backend_at(w->conn.more.backend_id) : NULL;
	c->service_id = entry ? entry->backend.service_id : 0;
	return 1;
}

/* Returns the id of the Service to which the first packet of a connection is sent; 0: none. */
static __always_inline __u32 mirror_service(struct pkt *p, struct work *w)
{
	struct service *service;

	w->service_key.addr = p->daddr;
	w->service_key.port = p->dport;
	w->service_key.proto = p->proto;
	w->service_key.pad = 0;
	service = bpf_map_lookup_elem(&ll_service, &w->service_key);
	if (!service)
		return 0;
	w->service = *service;
	if (w->service.divert_set_id)
		lb_divert();
	return w->service.id;
}

/* Fills w->classify_key for the connection that mirror_find has found, as if its first packet arrived
 * now; see firewall_again. Returns 0 if a property of that packet is unknown.
 */
static __always_inline int mirror_first(struct pkt *p, struct work *w, const struct mirror_conn *c,
					const struct rules *rules)
{
	__u16 flags = w->conn.meta.flags;
	__u32 in = p->skb->ifindex;
	__u8 hook = HOOK_FORWARD;

	if (c->reply && rules->flags & RULES_F_FRAME)
		return 0;
	if (flags & CT_F_REPLY) {
		/* The key of the other direction is the tuple with which its packets arrive. */
		tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
		if (!conn_find(w, &w->twin_tuple, &w->twin))
			return 0;
		in = firewall_port(w);
		firewall_key(p, w, &w->twin_tuple);
	} else {
		if (p->egress)
			in = device_find(w->conn.meta.in_port) ? w->conn.meta.in_port : 0;
		firewall_key(p, w, &w->tuple);
	}
	if (flags & CT_F_FROM_NODE)
		hook = HOOK_OUTPUT;
	else if (!in)
		return 0;
	else if (!p->bridged && firewall_is_local(&w->classify_key.daddr))
		hook = HOOK_INPUT;
	w->classify_key.tcp_flags = TCP_SYN;
	if (p->proto == IPPROTO_ICMP)
		w->classify_key.dport = bpf_htons(ICMP_ECHO << 8);
	else if (p->proto == IPPROTO_ICMPV6)
		w->classify_key.dport = bpf_htons(ICMPV6_ECHO << 8);
	w->classify_key.hook = hook;
	w->classify_key.in_ifindex = hook == HOOK_OUTPUT ? 0 : in;
	if (rules->flags & RULES_F_OUT && hook != HOOK_INPUT) {
		if (c->reply || p->egress)
			w->classify_key.out_ifindex = p->skb->ifindex;
		else if (!p->bridged)
			w->classify_key.out_ifindex =
				route_out(p, &w->classify_key.saddr, &w->classify_key.daddr);
	}
	return 1;
}

/* Fills w->classify_key for a packet without a connection; see firewall_packet. Returns 0 if rules are
 * not evaluated for it.
 */
static __always_inline int mirror_single(struct pkt *p, struct work *w, const struct rules *rules)
{
	__u8 hook;

	if (firewall_is_exempt(p) || p->needs_first & FRAGMENT_UNKNOWN)
		return 0;
	hook = p->to_group && !p->bridge_port ? HOOK_INPUT : firewall_hook(p);
	if (!hook)
		return 0;
	tuple_of(&w->tuple, p);
	firewall_key(p, w, &w->tuple);
	firewall_way(p, w, hook, firewall_in(p), rules);
	return 1;
}

/* Returns the id of the rule that allows the connection of a packet, or the packet; 0: none, or
 * unknown.
 */
static __noinline __u32 mirror_rule(struct pkt *p, struct work *w, struct mirror_conn *c, int found)
{
	const struct rules *rules = firewall_rules();

	if (!rules)
		return 0;
	if (!(found ? mirror_first(p, w, c, rules) : mirror_single(p, w, rules)))
		return 0;
	if (classify(RULES_FIREWALL, &w->classify_key) <= 0)
		return 0;
	return w->classify_key.rule.action == ACTION_ALLOW ? w->classify_key.rule.id : 0;
}

/* Finds the Service of p, and its FirewallRule if rule is set. */
static __noinline void mirror_connection(struct pkt *p, struct mirror_conn *c, int rule)
{
	struct work *w = work_get();
	int ret = c->parsed, found = 0;

	if (!w || (ret != LL_NEXT && ret != LL_UNTRACKED))
		return;
	p->now_tick = clock_tick();
	p->to_group = p->skb->pkt_type == PACKET_BROADCAST || p->skb->pkt_type == PACKET_MULTICAST;
	if (ret == LL_NEXT && p->fragment == FRAGMENT_LATER)
		ret = fragment_learn(p);
	if (!p->egress && domain_ingress(p) < 0)
		return; /* forged */
	if (ret == LL_NEXT && !p->icmp_error) {
		found = mirror_find(p, w, c);
		if (!found && !p->egress)
			c->service_id = mirror_service(p, w);
	}
	if (rule)
		c->rule_id = mirror_rule(p, w, c, found);
}
