/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_rules.h - evaluates NAT rules: which rule translates a connection's source or destination,
 * and to what address and port.
 *
 * The destination is decided on the ingress hook, for packets of the node itself on the egress
 * hook. The source of a connection without DNAT is decided on the egress hook, after the kernel has
 * chosen the output device and netfilter has seen the original packet, unless nat_snat_ingress.h
 * decides it on arrival.
 */
#pragma once

#include "fw.h"
#include "lb.h"
#include "nat_ports.h"
#include "fib.h"

/* Reports whether a rule set has any rules. */
static __always_inline int translate_has(__u32 set)
{
	const struct rules *rules = bpf_map_lookup_elem(&ll_rules, &set);

	return rules && rules->image;
}

/* Fills the inputs of port allocation other than w->conn. */
static __always_inline void translate_begin(const struct pkt *p, struct work *w)
{
	w->now_tick = p->now_tick;
	w->echo = p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6;
}

/* Fills the classification key for p; out: the output device, if known. */
static __noinline void translate_question(struct pkt *p, struct work *w, __u32 out)
{
	tuple_of(&w->tuple, p);
	firewall_key(p, w, &w->tuple);
	w->classify_key.hook = HOOK_FORWARD;
	w->classify_key.in_ifindex = firewall_in(p);
	w->classify_key.out_ifindex = out;
	translate_begin(p, w);
}

/* Evaluates a rule set for w->classify_key. Returns a key of ll_nat_rule; 0: no rule matches. */
static __always_inline __u32 translate_slot_of(struct work *w, __u32 set)
{
	if (classify(set, &w->classify_key) != 1)
		return 0;
	return w->classify_key.rule.id << 2 | (w->classify_key.rule.flags & 3);
}

/* Evaluates a rule set for p. Returns a key of ll_nat_rule; 0: no rule matches. */
static __always_inline __u32 translate_ask(struct pkt *p, struct work *w, __u32 set, __u32 out)
{
	if (!translate_has(set)) {
		translate_begin(p, w);
		return 0;
	}
	translate_question(p, w, out);
	return translate_slot_of(w, set);
}

/* Replaces the bits of addr outside prefix->host with the bits of prefix, and the other bits with
 * the hash unless it is 0.
 */
static __always_inline void translate_bits(struct addr *addr, const struct nat_prefix *prefix,
					   __u32 hash)
{
	for (int i = 0; i < 4; i++) {
		__u32 rest = hash ? hash : addr->word[i];

		addr->word[i] = prefix->addr.word[i] | (rest & prefix->host.word[i]);
		if (hash)
			hash = hash * 0x85ebca6b + 1;
	}
}

/* Chooses an address from the pool of a rule by a hash. LL_PASS: the pool lacks this family. */
static __always_inline int translate_pool(const struct nat_rule *rule, __u32 family, __u32 hash,
					  struct addr *addr)
{
	__u32 which = family == 4 ? 0 : 1, index;
	struct nat_prefix *prefix;

	if (!rule->pool_count[which])
		return LL_PASS; /* none of this family */
	index = rule->pool_first[which] + hash % rule->pool_count[which];
	prefix = bpf_map_lookup_elem(&ll_nat_pool, &index);
	if (!prefix)
		return -DROP_NO_ADDRESS;
	translate_bits(addr, prefix, hash * 0xc2b2ae35 | 1);
	return LL_NEXT;
}

/* Translates addr to the address with the same host bits in the other prefix of the pair. */
static __always_inline int translate_pair(struct work *w, __u32 slot, struct addr *addr)
{
	struct nat_prefix *prefix;

	w->pair_key.prefix_len = 8 * (sizeof(__u32) + sizeof(struct addr));
	w->pair_key.slot = slot;
	w->pair_key.addr = *addr;
	prefix = bpf_map_lookup_elem(&ll_nat_pair, &w->pair_key);
	if (!prefix)
		return -DROP_NO_ADDRESS;
	translate_bits(addr, prefix, 0);
	return LL_NEXT;
}

/* Chooses the source of w->conn according to a rule, and fills w->twin_tuple. The connection
 * arrives as w->tuple and leaves through the device out; out 0: it returns to another client behind
 * the same outer address. LL_PASS: the source stays unchanged. A global function, so that the
 * verifier walks it once.
 */
__noinline int translate_source(__u32 slot, __u32 out)
{
	struct nat_rule *rule = bpf_map_lookup_elem(&ll_nat_rule, &slot);
	struct work *w = work_get();
	struct device *device;
	int ret = LL_NEXT;
	__u32 lent;

	if (!rule || !w)
		return LL_PASS;
	if (rule->flags & NAT_F_ONE_TO_ONE) {
		ret = translate_pair(w, slot, &w->conn.saddr);
	} else if (rule->type == NAT_MASQUERADE) {
		device = device_find(out);
		lent = w->tuple.family == 4 ? DEVICE_F_BORROWED_ADDR4 : DEVICE_F_BORROWED_ADDR6;
		if (device && !(device->flags & lent))
			w->conn.saddr = w->tuple.family == 4 ? device->addr4 : device->addr6;
		else if (!out)
			w->conn.saddr = w->tuple.daddr;
		else
			return -DROP_NO_ADDRESS;
		if (!addr_is_set(&w->conn.saddr))
			return -DROP_NO_ADDRESS;
		w->conn.meta.flags |= CT_F_DEVICE;
	} else {
		ret = translate_pool(rule, w->tuple.family, ports_hash(&w->tuple.saddr),
				     &w->conn.saddr);
	}
	if (ret != LL_NEXT)
		return ret;
	if (addr_equal(&w->conn.saddr, &w->tuple.saddr))
		return LL_PASS;
	w->conn.meta.flags |= CT_F_SNAT;
	if (rule->flags & NAT_F_ONE_TO_ONE) {
		tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
		if (w->reopen && addr_equal(&w->old.saddr, &w->conn.saddr) &&
		    addr_equal(&w->old.daddr, &w->conn.daddr) && w->old.sport == w->conn.sport &&
		    w->old.dport == w->conn.dport)
			return LL_NEXT; /* the ended connection has that tuple */
		return twin_is_free() ? LL_NEXT : -DROP_NO_PORT;
	}
	return ports_choose(w, slot, rule);
}

/* Chooses the destination of w->conn, which arrives as w->tuple, according to a rule. LL_PASS: the
 * destination stays unchanged. A global function, so that the verifier walks it once.
 */
__noinline int translate_destination(__u32 slot)
{
	struct nat_rule *rule = bpf_map_lookup_elem(&ll_nat_rule, &slot);
	struct work *w = work_get();
	__u32 hash, offset;
	int ret = LL_NEXT;

	if (!rule || !w)
		return LL_PASS;
	w->conn.daddr = w->tuple.daddr;
	w->conn.dport = w->tuple.dport;
	hash = hash_mix(ports_hash(&w->tuple.saddr), (__u32)w->tuple.sport << 16 | w->tuple.dport);
	if (rule->flags & NAT_F_ONE_TO_ONE)
		return translate_pair(w, slot, &w->conn.daddr);
	if (rule->pool_count[0] | rule->pool_count[1])
		ret = translate_pool(rule, w->tuple.family, hash, &w->conn.daddr);
	if (ret != LL_NEXT || w->echo || !rule->port_count)
		return ret;
	offset = 0;
	if (rule->flags & NAT_F_EACH_PORT)
		offset = (__u16)(bpf_ntohs(w->tuple.dport) - rule->match_port);
	if (offset < rule->range_size[0])
		w->conn.dport = bpf_htons(rule->range_first[0] + offset);
	return ret;
}

static __always_inline int translate_in_force(__u32 slot)
{
	struct nat_rule *rule = bpf_map_lookup_elem(&ll_nat_rule, &slot);

	return rule && !(rule->flags & NAT_F_REPLACED);
}

/* Returns the key in ll_nat_rule of the rule in force for the mappings of NAT id; 0: none. */
static __always_inline __u32 translate_slot(__u32 id)
{
	for (__u32 slot = id << 2, i = 0; i < NAT_VARIANTS; slot++, i++)
		if (translate_in_force(slot))
			return slot;
	return 0;
}

/* Returns the mapping through which p connects inwards if its present rule opens it to all remotes,
 * else NULL.
 */
static __always_inline struct mapping *translate_mapping(struct pkt *p, struct work *w)
{
	struct mapping *mapping;
	struct nat_rule *rule;
	__u32 slot;

	__builtin_memset(&w->mapping_outer_key, 0, sizeof(w->mapping_outer_key));
	w->mapping_outer_key.addr = p->daddr;
	w->mapping_outer_key.port = p->dport;
	w->mapping_outer_key.proto = p->proto;
	w->mapping_outer_key.netns = config_netns;
	mapping = bpf_map_lookup_elem(&ll_mapping_outer, &w->mapping_outer_key);
	if (!mapping)
		return NULL;
	slot = translate_slot(mapping->nat_id);
	rule = bpf_map_lookup_elem(&ll_nat_rule, &slot);
	return slot && rule && rule->flags & NAT_F_OPEN ? mapping : NULL;
}

/* Counts a new connection for its NAT. */
static __always_inline void translate_count(__u32 nat_id)
{
	struct nat_stats *s = bpf_map_lookup_elem(&ll_nat_stats, &nat_id);

	if (s)
		s->connection_count++;
}
