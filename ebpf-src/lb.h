/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* lb.h - services: selects a backend for a frontend. */
#pragma once

#include "ct_conn.h"
#include "count.h"

#define LEAST_CONNECTIONS_MAX 64 /* backends compared for one connection */

/* A 32-bit mixing step (Murmur3's finaliser, Appleby, public domain). */
static __always_inline __u32 hash_mix(__u32 h, __u32 v)
{
	h ^= v;
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	h ^= h >> 16;
	return h;
}

static __always_inline __u32 hash_addr(__u32 h, const struct addr *a)
{
	for (int i = 0; i < 4; i++)
		h = hash_mix(h, a->word[i]);
	return h;
}

/* Returns the hash of a packet for backend selection. It is the same on every node, so that all
 * nodes select the same backend.
 */
static __always_inline __u32 lb_hash(const struct pkt *p, const struct service *s)
{
	__u32 h = hash_addr(0x10c111, &p->saddr);

	if (s->algorithm == ALG_SOURCE_HASH)
		return h;
	h = hash_addr(h, &p->daddr);
	h = hash_mix(h, (__u32)p->sport << 16 | p->dport);
	return hash_mix(h, p->proto);
}

/* Returns part of the selection table with that id, which contains size bytes at an offset that is a
 * multiple of size: 1, 2 or 4. NULL: there is no such part.
 */
static __always_inline void *lb_table_at(__u32 table_id, __u32 offset, __u32 size)
{
	struct slot_key key = { .table_id = table_id, .chunk = offset / sizeof(struct slot_chunk) };
	struct slot_chunk *chunk = bpf_map_lookup_elem(&ll_slot, &key);

	offset %= sizeof(*chunk);
	/* Linux 6.1 does not know the range of a remainder, and the compiler does. */
	asm volatile("" : "+r"(offset));
	if (!chunk || offset > sizeof(*chunk) - size)
		return NULL;
	return (void *)chunk + offset;
}

/* Returns the backend id in a slot; 0: none. A global function, so that the verifier walks it once,
 * not for each iteration of a loop.
 */
__noinline __u32 lb_slot(__u32 table_id, __u32 member_count, __u32 slot)
{
	__u32 *id;

	if (member_count > MEMBERS_PER_BYTE) {
		__u16 *index = lb_table_at(table_id, 4 * member_count + 2 * slot, 2);

		if (!index)
			return 0;
		slot = *index;
	} else if (member_count) {
		__u8 *index = lb_table_at(table_id, 4 * member_count + slot, 1);

		if (!index)
			return 0;
		slot = *index;
	}
	id = lb_table_at(table_id, 4 * slot, 4);
	return id ? *id : 0;
}

/* Returns the load of the backend in a slot of a table without a list: connections per unit of weight
 * in the upper half, backend id in the lower half; all ones without a backend. A global function, as
 * lb_slot.
 */
__noinline __u64 lb_load(__u32 table_id, __u32 slot)
{
	__u32 id = lb_slot(table_id, 0, slot);
	struct backend_entry *entry = backend_at(id);
	__u64 share;

	if (!id || !entry || !entry->backend.weight)
		return ~0ULL;
	share = ((__u64)entry->load << 16) / entry->backend.weight;
	if (share > 0xfffffffe)
		share = 0xfffffffe;
	return share << 32 | id;
}

/* Returns the id of the backend with the fewest connections per unit of weight among at most
 * LEAST_CONNECTIONS_MAX slots, from a random slot on; 0: none. A global function, so that the
 * verifier walks it once.
 */
__noinline __u32 lb_least(__u32 table_id, __u32 slot_count)
{
	__u64 best = ~0ULL;
	__u32 start;

	if (!slot_count)
		return 0;
	start = bpf_get_prandom_u32() % slot_count;
	for (int i = 0; i < LEAST_CONNECTIONS_MAX && i < slot_count; i++) {
		__u64 load = lb_load(table_id, (start + i) % slot_count);

		best = load < best ? load : best;
	}
	return best == ~0ULL ? 0 : (__u32)best;
}

static __always_inline __u32 lb_turn(const struct service *s)
{
	__u32 key = s->table_id % 4096;
	__u32 *turn = bpf_map_lookup_elem(&ll_turn, &key);

	return turn ? __sync_fetch_and_add(turn, 1) : 0;
}

/* Selects a backend for a new connection. Returns its id, or 0. */
static __noinline __u32 lb_choose(struct pkt *p, struct work *w)
{
	const struct service *s = &w->service;
	struct affinity *known = NULL;
	struct affinity fresh = {};
	struct backend_entry *entry;
	__u32 id = 0, slot;

	w->affinity_key.client = p->saddr;
	w->affinity_key.service_id = s->id;
	if (s->affinity_ticks) {
		known = bpf_map_lookup_elem(&ll_affinity, &w->affinity_key);
		if (known && ticks_since(p->now_tick, known->used_tick) <= s->affinity_ticks) {
			id = known->backend_id;
			entry = backend_at(id);
			/* Ids are reused: the backend may belong to another service by now. */
			if (entry && entry->backend.service_id == s->id &&
			    addr_is4(&entry->backend.addr) == (p->family == 4) &&
			    entry->backend.flags & BACKEND_F_USABLE) {
				known->used_tick = p->now_tick;
				return id;
			}
		}
		id = 0;
	}
	if (!s->slot_count)
		return 0;
	switch (s->algorithm) {
	case ALG_RANDOM:
		slot = bpf_get_prandom_u32();
		break;
	case ALG_ROUND_ROBIN:
		slot = lb_turn(s);
		break;
	case ALG_LEAST_CONNECTIONS:
		id = lb_least(s->table_id, s->slot_count);
		slot = 0;
		break;
	default:
		slot = lb_hash(p, s);
		break;
	}
	if (!id)
		id = lb_slot(s->table_id, s->member_count, slot % s->slot_count);
	if (s->affinity_ticks && id) {
		fresh.backend_id = id;
		fresh.used_tick = p->now_tick;
		bpf_map_update_elem(&ll_affinity, &w->affinity_key, &fresh, BPF_ANY);
	}
	return id;
}

/* Reports whether the client may use the service. */
static __always_inline int lb_client_allowed(const struct pkt *p, const struct service *s,
					     struct source_range_key *key)
{
	__u8 *family;

	if (!s->range_set_id)
		return 1;
	key->prefix_len = 8 * (sizeof(__u32) + sizeof(struct addr));
	key->set_id = s->range_set_id;
	key->addr = p->saddr;
	family = bpf_map_lookup_elem(&ll_source_range, key);
	return family && *family == p->family;
}

/* Replaces w->service with the service to which the client of w->tuple is diverted, if any. If that
 * service does not exist, w->service stays unchanged. A global function, so that the verifier walks
 * it once.
 */
__noinline int lb_divert(void)
{
	struct work *w = work_get();
	struct service *other;
	struct divert *divert;

	if (!w)
		return 0;
	w->source_range_key.prefix_len = 8 * (sizeof(__u32) + sizeof(struct addr));
	w->source_range_key.set_id = w->service.divert_set_id;
	w->source_range_key.addr = w->tuple.saddr;
	divert = bpf_map_lookup_elem(&ll_divert, &w->source_range_key);
	if (!divert || divert->family != w->tuple.family)
		return 0;
	w->service_id_key.id = divert->service_id;
	w->service_id_key.family = divert->family;
	other = bpf_map_lookup_elem(&ll_service_id, &w->service_id_key);
	if (other)
		w->service = *other;
	return 0;
}

/* Returns how packets to addr are treated on ports that no service has: SERVICE_ADDR_; 0: not
 * restricted. Addresses of the node itself, in the host or switch netns, are never restricted. A
 * global function, so that the verifier walks it once.
 */
__noinline __u32 lb_other_ports(const struct addr *addr)
{
	struct work *w = work_get();
	__u32 *how;

	if (!addr || !w)
		return 0;
	w->local_key.addr = *addr;
	w->local_key.netns = 0;
	how = bpf_map_lookup_elem(&ll_service_addr, &w->local_key.addr);
	if (!how)
		return 0;
	if (bpf_map_lookup_elem(&ll_local, &w->local_key))
		return 0;
	w->local_key.netns = 1;
	return bpf_map_lookup_elem(&ll_local, &w->local_key) ? 0 : *how;
}

/* Finds the service of p. */
static __always_inline struct service *lb_service(const struct pkt *p, struct service_key *key)
{
	key->addr = p->daddr;
	*(key_half *)&key->port = p->dport | (__u32)p->proto << 16;
	return bpf_map_lookup_elem(&ll_service, key);
}
