/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_ports.h - SNAT port allocation: two connections to the same remote never have the same outer
 * port, and ports of the node or of a service are never used.
 */
#pragma once

#include "nat_port_reuse.h"

/* Returns the i-th port of the ranges of a rule; i is less than port_count. */
static __always_inline __u16 ports_at(const struct nat_rule *rule, __u32 i)
{
	for (int r = 0; r < NAT_RANGES; r++) {
		if (i < rule->range_size[r])
			return rule->range_first[r] + i;
		i -= rule->range_size[r];
	}
	return 0;
}

static __always_inline int ports_taken(__u16 port)
{
	__u32 word = port >> 6;
	__u64 *bits = bpf_map_lookup_elem(&ll_port_taken, &word);

	return !bits || *bits >> (port & 63) & 1;
}

/* Takes the next block of the outer address w->conn.saddr as the block of w->block_key. 1: taken;
 * 0: another inner address has that block; negative: none is available. A global function, so that
 * the verifier walks it once.
 */
__noinline int ports_try_block(const struct nat_rule *rule)
{
	struct work *w = work_get();
	__u32 block_count, number;

	if (!rule || !w)
		return -DROP_NO_PORT;
	block_count = rule->port_count / (rule->block_size ?: 1);
	if (!block_count)
		return -DROP_NO_PORT;
	number = ports_turn(w) % block_count;
	w->block_owner_key.first = ports_at(rule, number * rule->block_size);
	if (bpf_map_update_elem(&ll_block_owner, &w->block_owner_key, &w->block_key, BPF_NOEXIST))
		return 0;
	w->block.outer = w->conn.saddr;
	w->block.first = w->block_owner_key.first;
	w->block.size = rule->block_size;
	w->block.next = bpf_get_prandom_u32();
	w->block.created_tick = w->now_tick;
	w->block.used_tick = w->now_tick;
	/* Another CPU may have inserted one first; the sweep frees the block that is not used. */
	return bpf_map_update_elem(&ll_block, &w->block_key, &w->block, BPF_NOEXIST) ? -DROP_NO_PORT
										     : 1;
}

/* Takes a block of the outer address w->conn.saddr as the nth block of the inner address. */
static __always_inline int ports_take_block(struct work *w, const struct nat_rule *rule)
{
	__builtin_memset(&w->snat_target, 0, sizeof(w->snat_target));
	w->snat_target.saddr = w->conn.saddr;
	w->snat_target.netns = config_netns;
	__builtin_memset(&w->block_owner_key, 0, sizeof(w->block_owner_key));
	w->block_owner_key.outer = w->conn.saddr;
	w->block_owner_key.netns = config_netns;
	for (int i = 0; i < NAT_PORT_TRIES; i++) {
		int ret = ports_try_block(rule);

		if (ret)
			return ret > 0 ? LL_NEXT : ret;
	}
	return -DROP_NO_PORT;
}

/* Returns a port of the nth block of the inner address. 0: try again; negative: the block does not
 * exist, and none is available.
 */
static __noinline int ports_of_block(struct work *w, const struct nat_rule *rule, __u32 nth)
{
	struct block *block;
	__u16 port;

	w->block_key.inner = w->tuple.saddr;
	w->block_key.nat_id = rule->id;
	w->block_key.nth = nth;
	w->block_key.netns = config_netns;
	block = bpf_map_lookup_elem(&ll_block, &w->block_key);
	if (!block) {
		if (ports_take_block(w, rule) != LL_NEXT)
			return -DROP_NO_PORT;
		block = bpf_map_lookup_elem(&ll_block, &w->block_key);
		if (!block)
			return -DROP_NO_PORT;
	}
	if (!addr_equal(&block->outer, &w->conn.saddr))
		return 0; /* its outer address has changed since: the sweep will free it */
	block->used_tick = w->now_tick;
	port = block->first + (__sync_fetch_and_add(&block->next, 1) & (block->size - 1));
	return ports_taken(port) ? 0 : port;
}

/* Reports whether a port is in the ranges of a rule. */
static __always_inline int ports_has(const struct nat_rule *rule, __u16 port)
{
	for (int r = 0; r < NAT_RANGES; r++)
		if ((__u16)(port - rule->range_first[r]) < rule->range_size[r])
			return 1;
	return 0;
}

/* Returns the i-th port to try for w->conn. 0: try the next i; negative: no more ports. */
static __always_inline int ports_candidate(struct work *w, const struct nat_rule *rule, __u32 i)
{
	__u32 index;
	__u16 port;

	if (!rule->port_count)
		return -DROP_NO_PORT;
	if (rule->block_size)
		return i < NAT_BLOCKS_MAX * NAT_PORT_TRIES
			       ? ports_of_block(w, rule, i / NAT_PORT_TRIES)
			       : -DROP_NO_PORT;
	if (i >= NAT_PORT_TRIES)
		return -DROP_NO_PORT;
	if (share_turns(w, i)) {
		port = share_other(w);
		return !ports_has(rule, port) || share_forbids(w, port) || ports_taken(port) ? 0
											     : port;
	}
	__builtin_memset(&w->snat_target, 0, sizeof(w->snat_target));
	w->snat_target.saddr = w->conn.saddr;
	if (!(rule->flags & NAT_F_MAPPING)) {
		w->snat_target.daddr = w->conn.daddr;
		w->snat_target.dport = w->echo ? 0 : w->conn.dport;
	}
	w->snat_target.proto = w->tuple.proto;
	w->snat_target.netns = config_netns;
	index = (__u64)ports_turn(w) * rule->port_stride % rule->port_count;
	port = ports_at(rule, index);
	return share_forbids(w, port) || ports_taken(port) ? 0 : port;
}

/* Sets the outer port of w->conn. */
static __always_inline void ports_use(struct work *w, __be16 port)
{
	w->conn.sport = port;
	if (w->echo)
		w->conn.dport = port;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
}

/* Keeps the outer port that a reopened connection had towards the same remote: to the remote it is
 * the same connection, opened again.
 */
static __always_inline int ports_keep(struct work *w, const struct nat_rule *rule)
{
	const struct conn *old = &w->old;

	if (!w->reopen || old->more.nat_id != rule->id || !(old->meta.flags & CT_F_SNAT) ||
	    rule->block_size || !addr_equal(&old->saddr, &w->conn.saddr) ||
	    !addr_equal(&old->daddr, &w->conn.daddr) || old->dport != w->conn.dport ||
	    !ports_has(rule, bpf_ntohs(old->sport)) || ports_taken(bpf_ntohs(old->sport)))
		return 0;
	w->conn.sport = old->sport;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	return 1;
}

/* Reports whether a mapping still has w->conn's outer address and a port in the rule's ranges. */
static __always_inline int ports_is_usable(const struct work *w, const struct nat_rule *rule,
					   const struct mapping *mapping)
{
	return addr_equal(&mapping->addr, &w->conn.saddr) &&
	       ports_has(rule, bpf_ntohs(mapping->port));
}

/* Takes port as the outer port of w->conn if it is free. */
static __always_inline int ports_try(struct work *w, const struct nat_rule *rule, __u16 port)
{
	struct mapping *mapping;

	ports_use(w, bpf_htons(port));
	if (w->fresh)
		conn_fetch(w, &w->twin_tuple);
	if (conn_exists(w, &w->twin_tuple)) {
		if (!(rule->flags & NAT_F_MAPPING))
			ports_note_ended(w);
		return 0;
	}
	if (!(rule->flags & NAT_F_MAPPING))
		return 1;
	__builtin_memset(&w->mapping, 0, sizeof(w->mapping));
	__builtin_memset(&w->mapping_outer_key, 0, sizeof(w->mapping_outer_key));
	w->mapping_outer_key.addr = w->conn.saddr;
	w->mapping_outer_key.port = w->conn.sport;
	w->mapping_outer_key.proto = w->tuple.proto;
	w->mapping_outer_key.netns = config_netns;
	w->mapping.addr = w->tuple.saddr;
	w->mapping.port = w->tuple.sport;
	w->mapping.nat_id = rule->id;
	w->mapping.created_tick = w->now_tick;
	w->mapping.used_tick = w->now_tick;
	if (bpf_map_update_elem(&ll_mapping_outer, &w->mapping_outer_key, &w->mapping,
				BPF_NOEXIST)) {
		mapping = bpf_map_lookup_elem(&ll_mapping_outer, &w->mapping_outer_key);
		if (mapping)
			share_held_by(w, &mapping->addr);
		return 0;
	}
	w->mapping.addr = w->conn.saddr;
	w->mapping.port = w->conn.sport;
	if (!bpf_map_update_elem(&ll_mapping, &w->mapping_key, &w->mapping, BPF_NOEXIST))
		return 1;
	mapping = bpf_map_lookup_elem(&ll_mapping, &w->mapping_key);
	if (!mapping || !ports_is_usable(w, rule, mapping))
		return !bpf_map_update_elem(&ll_mapping, &w->mapping_key, &w->mapping, BPF_ANY);
	/* Another CPU has just inserted a mapping: use it, since all remotes share one mapping. */
	bpf_map_delete_elem(&ll_mapping_outer, &w->mapping_outer_key);
	ports_use(w, mapping->port);
	return 1;
}

/* Uses the mapping of w->conn's inner address and port if it exists and its outer address and port
 * are still valid for the rule; else returns 0, and w->mapping_key is the key for a new mapping.
 */
static __noinline int ports_mapped(struct work *w, const struct nat_rule *rule)
{
	struct mapping *mapping;

	w->mapping_key.addr = w->tuple.saddr;
	w->mapping_key.port = w->tuple.sport;
	w->mapping_key.proto = w->tuple.proto;
	w->mapping_key.netns = config_netns;
	w->mapping_key.nat_id = rule->id | ports_hash(&w->conn.saddr) << 16;
	mapping = bpf_map_lookup_elem(&ll_mapping, &w->mapping_key);
	if (!mapping || !ports_is_usable(w, rule, mapping))
		return 0;
	mapping->used_tick = w->now_tick;
	ports_use(w, mapping->port);
	return twin_is_free() ? 1 : -DROP_NO_PORT;
}

/* Tries the i-th port of a rule. 1: w->conn has it; 0: try the next i; negative: no more ports. A
 * global function, so that the verifier walks it once.
 */
__noinline int ports_attempt(const struct nat_rule *rule, __u32 i)
{
	struct work *w = work_get();
	int port;

	if (!rule || !w)
		return -DROP_NO_PORT;
	port = ports_candidate(w, rule, i);
	return port > 0 ? ports_try(w, rule, port) : port;
}

/* Assigns an outer port to w->conn, whose outer address is w->conn.saddr, and fills w->twin_tuple.
 */
static __always_inline int ports_choose(struct work *w, __u32 slot, const struct nat_rule *rule)
{
	int kept = rule->flags & NAT_F_MAPPING ? ports_mapped(w, rule) : ports_keep(w, rule);

	if (kept)
		return kept > 0 ? LL_NEXT : kept;
	w->spare_port = 0;
	if (w->fresh)
		conn_fetch(w, &w->tuple);
	share_begin(w, rule->block_size ? 0 : rule->port_count);
	for (int i = 0; i < NAT_BLOCKS_MAX * NAT_PORT_TRIES; i++) {
		int ret = ports_attempt(rule, i);

		if (ret > 0)
			return LL_NEXT;
		if (ret < 0 || (w->spare_port && i + 1 >= PORTS_FREE_TRIES))
			break;
	}
	return w->spare_port ? ports_take_spare() : -DROP_NO_PORT;
}
