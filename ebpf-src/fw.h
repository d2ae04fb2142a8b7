/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fw.h - evaluates the firewall rules for the first packet of a connection, for its next packet
 * after the rules have changed, and for every packet without a connection.
 *
 * Rules are evaluated for packets as they arrive, before any translation. If rules exist, packets
 * that cannot be classified are dropped.
 */
#pragma once

#include "fw_classify.h"
#include "ct_conn.h"
#include "fib.h"
#include "fastpath_checks.h"
#include "policy_conn.h"

/* Returns a rule set, or NULL if it has no rules. */
static __always_inline const struct rules *rules_of(__u32 set)
{
	const struct rules *rules = bpf_map_lookup_elem(&ll_rules, &set);

	return rules && rules->image ? rules : NULL;
}

static __always_inline const struct rules *firewall_rules(void)
{
	return rules_of(RULES_FIREWALL);
}

/* Reports whether an address belongs to the node itself. */
static __always_inline int firewall_is_local(const struct addr *addr)
{
	struct local_key key = { .addr = *addr, .netns = config_netns };

	return bpf_map_lookup_elem(&ll_local, &key) != NULL;
}

/* Returns the index of the device on which p arrived; 0: the node itself sends p. */
static __always_inline __u32 firewall_in(struct pkt *p)
{
	__u32 in = p->skb->ifindex;

	asm volatile("" : "+r"(in)); /* two reads, not one at a variable offset */
	if (p->egress)
		in = p->skb->ingress_ifindex;
	return in;
}

/* Fills the classification key from tuple t and the other fields of p. */
static __always_inline void firewall_key(struct pkt *p, struct work *w, const struct tuple *t)
{
	struct classify_key *key = &w->classify_key;

	key->saddr = t->saddr;
	key->daddr = t->daddr;
	key->sport = t->sport;
	key->dport = t->dport;
	key->proto = t->proto;
	key->family = t->family;
	key->known = 0;
	key->tcp_flags = p->tcp_flags;
	key->dscp = p->dscp;
	key->vlan = p->vlan;
	key->in_ifindex = 0;
	key->out_ifindex = 0;
	if (p->needs_first & FRAGMENT_UNKNOWN)
		return;
	if (t->proto == IPPROTO_ICMP || t->proto == IPPROTO_ICMPV6) {
		key->known = KNOWN_LAYER4;
		key->sport = 0;
		key->dport = bpf_htons((__u16)p->icmp_type << 8 | p->icmp_code);
		if (p->fragment == FRAGMENT_LATER)
			key->dport = bpf_htons(p->tcp_window);
	} else if (t->proto == IPPROTO_TCP || t->proto == IPPROTO_UDP || t->proto == IPPROTO_SCTP) {
		key->known = KNOWN_LAYER4 | KNOWN_SPORT;
		if (t->proto == IPPROTO_TCP && p->fragment != FRAGMENT_LATER)
			key->known |= KNOWN_TCP_FLAGS;
	}
}

/* Reports whether the rules must be evaluated again when p leaves: a rule matches the output
 * device, and p is bridged, so only the bridge knows that device.
 */
static __always_inline int firewall_asks_leaving(const struct pkt *p)
{
	const struct rules *rules;

	if (!p->bridged || p->egress)
		return 0;
	rules = firewall_rules();
	return rules && rules->flags & RULES_F_OUT;
}

/* Fills the hook and the input device, and the output device if a rule matches output devices: for
 * a bridged packet it is unknown until the packet leaves.
 */
static __always_inline void firewall_way(struct pkt *p, struct work *w, __u8 hook, __u32 in,
					 const struct rules *rules)
{
	struct classify_key *key = &w->classify_key;

	key->hook = hook;
	key->in_ifindex = in;
	if (p->egress)
		key->out_ifindex = p->skb->ifindex;
	else if (hook == HOOK_FORWARD && !p->bridged && rules->flags & RULES_F_OUT)
		key->out_ifindex = route_out(p, &key->saddr, &key->daddr);
}

/* Evaluates the rules for w->classify_key. LL_NEXT: p is allowed; LL_PASS: p is allowed by a
 * stateless rule, so replies are evaluated too. Otherwise returns the verdict on p. again: the
 * connection or packet was evaluated before, so if p is allowed, it is not counted again.
 */
static __noinline int firewall_ask(struct pkt *p, struct work *w, int again)
{
	struct rule_record *rule = &w->classify_key.rule;
	int ret;

	rule->id = 0;
	ret = classify(RULES_FIREWALL, &w->classify_key);
	if (!ret)
		return LL_NEXT;
	if (ret < 0)
		return -DROP_FIREWALL;
	if (again && rule->action == ACTION_ALLOW)
		return LL_NEXT;
	p->rule_id = rule->id;
	count_rule(rule->id, p->skb->len,
		   rule->action == ACTION_ALLOW && !(rule->flags & RULE_F_STATELESS));
	if (rule->flags & RULE_F_LOG && rule->action == ACTION_ALLOW)
		sample_send(p, SAMPLE_ALLOWED, 0);
	switch (rule->action) {
	case ACTION_ALLOW:
		return rule->flags & RULE_F_STATELESS ? LL_PASS : LL_NEXT;
	case ACTION_REJECT:
		p->refused = DROP_FIREWALL;
		return LL_REFUSE;
	}
	return -DROP_FIREWALL;
}

/* Reports whether p is exempt from rules: neighbour discovery or group membership within one link,
 * which every link needs (RFC 4890, section 4.4.1). The hop limits of these packets prove that they
 * come from this link (RFC 4861, section 7.1; RFC 3810, section 5), and they are never forwarded to
 * another link.
 */
static __always_inline int firewall_is_exempt(const struct pkt *p)
{
	__u32 first = bpf_ntohl(p->daddr.word[0]);

	if (p->proto != IPPROTO_ICMPV6 || p->fragment != FRAGMENT_NONE)
		return 0;
	if (p->icmp_type >= 133 && p->icmp_type <= 137) {
		if (p->ttl != 255)
			return 0;
	} else if ((p->icmp_type < 130 || p->icmp_type > 132) && p->icmp_type != 143) {
		return 0;
	} else if (p->ttl != 1) {
		return 0;
	}
	return p->bridged || p->to_group || (p->egress && !p->skb->ingress_ifindex) ||
	       first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6 || firewall_is_local(&p->daddr);
}

/* Returns the hook for a packet without a connection. 0: it was evaluated already, on arrival. */
static __always_inline __u8 firewall_hook(struct pkt *p)
{
	struct device *device;

	if (!p->egress)
		return p->bridged || !firewall_is_local(&p->daddr) ? HOOK_FORWARD : HOOK_INPUT;
	if (!p->skb->ingress_ifindex)
		return HOOK_OUTPUT;
	device = device_find(p->skb->ingress_ifindex);
	return device && device->flags & DEVICE_F_PORT ? 0 : HOOK_FORWARD;
}

/* Evaluates the rules for the first packet of a connection, or for a packet without one. Returns
 * the results of firewall_ask.
 */
static __noinline int firewall_packet(struct pkt *p, struct work *w)
{
	const struct rules *rules = firewall_rules();
	__u8 hook;
	int ret;

	if (!rules || firewall_is_exempt(p))
		return LL_NEXT;
	hook = p->to_group && !p->bridge_port ? HOOK_INPUT : firewall_hook(p);
	if (!hook)
		return LL_NEXT;
	tuple_of(&w->tuple, p);
	firewall_key(p, w, &w->tuple);
	firewall_way(p, w, hook, firewall_in(p), rules);
	ret = firewall_ask(p, w, 0);
	if (firewall_asks_leaving(p)) {
		p->slow = 1;
		p->skb->tc_index = TC_INDEX_ASK;
	}
	return ret;
}

/* Returns the index of the device on which packets of w->twin arrive; 0: unknown. w->conn is the
 * reply direction of that connection. The entry contains only the lower half of the index, the next
 * hop of the replies all of it.
 */
static __always_inline __u32 firewall_port(struct work *w)
{
	__u32 index = w->conn.meta.nexthop;
	struct nexthop *nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;

	if (nexthop && ((__u16)nexthop->ifindex == w->twin.meta.in_port ||
			(nexthop->flags & NEXTHOP_F_TUNNEL &&
			 w->twin.meta.in_port == (IN_PORT_PEER | nexthop->peer))))
		return nexthop->ifindex;
	return device_find(w->twin.meta.in_port) ? w->twin.meta.in_port : 0;
}

/* Records in the entry of t whether rules or policies deny the connection, and which rule decided. A global
 * function, so that the verifier walks it once.
 */
__noinline int firewall_mark(const struct tuple *t, __u32 denied, __u32 rule_id, __u32 now_tick)
{
	struct work *w = work_get();
	struct ct_meta *meta;
	struct ct_more *more;

	if (!t || !w)
		return 0;
	meta = conn_peek(w, t, &w->twin);
	if (!meta)
		return 0;
	more = ct_more_at(t->family != 4, w->twin.index);
	if (more)
		more->rule_id = rule_id;
	if (denied) {
		ct_flags_set(meta, CT_F_DENIED);
		meta->last_seen_tick = now_tick;
	} else {
		ct_flags_clear(meta, CT_F_DENIED);
	}
	return 0;
}

/* Evaluates rules and policies again for w->conn, the connection of p found under w->tuple, as if its first
 * packet arrived now. The entry of a denied connection is kept as long as packets arrive for it, so
 * that packets from the other side do not open a new connection.
 */
static __noinline int firewall_again(struct pkt *p, struct work *w)
{
	const struct rules *rules = firewall_rules();
	__u16 flags = w->conn.meta.flags;
	__u32 in = firewall_in(p);
	__u32 rule_id = 0;
	__u16 denied;
	__u8 hook;
	int ret;

	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	if (!rules) {
		ret = LL_NEXT;
		goto out;
	}
	if (flags & CT_F_REPLY) {
		/* A reply may lack the properties of the first packet that these rules match; then
		 * the next packet of the client decides.
		 */
		if (rules->flags & RULES_F_FRAME ||
		    (rules->flags & RULES_F_OUT && (p->egress || flags & CT_F_FROM_NODE)))
			goto undecided;
		/* The key of the other direction is the tuple with which its packets arrive. */
		if (!conn_peek(w, &w->twin_tuple, &w->twin))
			goto undecided;
		in = firewall_port(w);
		if (!in && !(flags & CT_F_FROM_NODE))
			goto undecided;
		firewall_key(p, w, &w->twin_tuple);
	} else {
		firewall_key(p, w, &w->tuple);
	}
	if (flags & CT_F_FROM_NODE)
		hook = HOOK_OUTPUT;
	else if (!p->bridged && firewall_is_local(&w->classify_key.daddr))
		hook = HOOK_INPUT;
	else
		hook = HOOK_FORWARD;
	w->classify_key.tcp_flags = TCP_SYN;
	if (w->tuple.proto == IPPROTO_ICMP)
		w->classify_key.dport = bpf_htons(ICMP_ECHO << 8);
	else if (w->tuple.proto == IPPROTO_ICMPV6)
		w->classify_key.dport = bpf_htons(ICMPV6_ECHO << 8);
	firewall_way(p, w, hook, hook == HOOK_OUTPUT ? 0 : in, rules);
	if (p->bridged && !p->egress && flags & CT_F_REPLY)
		w->classify_key.out_ifindex = p->skb->ifindex;
	ret = firewall_ask(p, w, 1);
	rule_id = w->classify_key.rule.id;
out:
	if (ret == LL_NEXT)
		ret = policy_follow(p, w);
	denied = ret == LL_NEXT ? 0 : CT_F_DENIED;
	if (!(flags & CT_F_REPLY) && firewall_asks_leaving(p)) {
		p->slow = 1;
		denied = CT_F_DENIED; /* until the egress hook has evaluated it */
	}
	conn_read_more(w->tuple.family != 4, &w->conn);
	if (!denied && !(flags & CT_F_DENIED) && rule_id == w->conn.more.rule_id)
		return LL_NEXT;
	firewall_mark(&w->twin_tuple, denied, rule_id, p->now_tick);
	firewall_mark(&w->tuple, denied, rule_id, p->now_tick);
	w->conn.meta.flags = (flags & ~CT_F_DENIED) | denied;
	return ret;
undecided: /* by rules: a denied connection stays so until the other direction is evaluated */
	return flags & CT_F_DENIED ? -DROP_FIREWALL : policy_follow(p, w);
}
