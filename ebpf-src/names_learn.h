/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* names_learn.h - learns the addresses of names in network policies from DNS responses to an Endpoint,
 * before the Endpoint gets them.
 *
 * Only responses in connections that the Endpoint opened to a resolver of its network are learnt: a name
 * in its policies is compared with the name in the question. So who can answer for a name decides about
 * its addresses, whatever other records a response contains. A malformed response passes unlearnt.
 */
#pragma once

#include "ct_conn.h"
#include "names_message.h"
#include "policy_conn.h"

#define NS_PER_S 1000000000ULL

/* Deletes an address that expired more than keep_ticks ago, or that belongs to a name of no
 * policy.
 */
struct name_sweep {
	__u32 now_tick;
	__u32 keep_ticks;
};

static long name_sweep_step(void *map, struct learned_key *key, struct learned *learned,
			    struct name_sweep *s)
{
	struct learned_key copy = *key;
	struct name_stats *stats;
	__u32 name = copy.name;

	stats = bpf_map_lookup_elem(&ll_name_stats, &name);
	if (stats && (__s32)(s->now_tick - learned->expiry_tick) <= (__s32)s->keep_ticks)
		return 0;
	if (!bpf_map_delete_elem(&ll_learned, &copy) && stats)
		__sync_fetch_and_add(&stats->addr_count, -1);
	return 0;
}

/* Deletes all addresses that expired more than keep_ticks ago, or whose name is in no policy. A
 * global function, so that the verifier walks it once.
 */
__noinline int names_sweep(__u32 now_tick, __u32 keep_ticks)
{
	struct name_sweep s = { .now_tick = now_tick, .keep_ticks = keep_ticks };

	bpf_for_each_map_elem(&ll_learned, name_sweep_step, &s, 0);
	return 0;
}

#define NAMES_SWEEP_TICKS 8 /* about a second */

/* Makes room by deleting all expired addresses, unless this was done just now. */
static __always_inline int names_make_room(struct dns_work *w)
{
	if (w->swept && ticks_since(w->now_tick, w->swept_tick) < NAMES_SWEEP_TICKS)
		return 0;
	w->swept = 1;
	w->swept_tick = w->now_tick;
	names_sweep(w->now_tick, 0);
	return 1;
}

/* Inserts the address in w->key. Returns 1, or 0 if there is no room. */
static __always_inline int name_insert(struct dns_work *w, struct name_stats *stats)
{
	struct learned learned = { .expiry_tick = w->expiry_tick };
	struct learned_key key = w->key;
	long ret;

	if (__sync_fetch_and_add(&stats->addr_count, 1) < NAME_ADDR_MAX) {
		ret = bpf_map_update_elem(&ll_learned, &key, &learned, BPF_NOEXIST);
		if (!ret)
			return 1;
	} else {
		ret = -E2BIG;
	}
	__sync_fetch_and_add(&stats->addr_count, -1);
	return ret == -EEXIST; /* another CPU has just inserted it, from a like response */
}

/* Learns the address in w->key for the name at index i of those that match the question. */
static long name_learn_step(__u32 i, void *unused)
{
	struct dns_work *w = dns_work_get();
	struct name_stats *stats;
	struct learned *learned;
	struct learned_key key;

	if (!w)
		return 1;
	w->key.name = w->id[DNS_BELOW(i, NAME_SIZE / 2)];
	key = w->key;
	learned = bpf_map_lookup_elem(&ll_learned, &key);
	if (learned) {
		if ((__s32)(w->expiry_tick - learned->expiry_tick) > 0)
			learned->expiry_tick = w->expiry_tick;
		return 0;
	}
	stats = bpf_map_lookup_elem(&ll_name_stats, &key.name);
	if (!stats)
		return 0; /* no policy has the name any more */
	if (name_insert(w, stats) || (names_make_room(w) && name_insert(w, stats)))
		return 0;
	__sync_fetch_and_add(&stats->refused_count, 1);
	stats->refused_tick = w->now_tick;
	return 0;
}

/* Learns the address at an offset of the message. A global function, so that the verifier walks
 * it once.
 */
__noinline int name_learn(__u32 at, __u32 type, __u32 ttl_s)
{
	struct dns_work *w = dns_work_get();
	__u64 usable_ns;
	__be32 *word;

	if (!w)
		return 0;
	usable_ns = ((__u64)ttl_s + w->grace_s) * NS_PER_S;
	w->expiry_tick = w->now_tick + (__u32)(usable_ns >> TICK_SHIFT) + 1;
	w->key.network = w->network;
	word = w->key.addr.word;
	if (type == DNS_A) {
		addr_from4(&w->key.addr, bpf_htonl(dns_u32(w, at)));
	} else {
		for (int i = 0; i < 4; i++)
			word[i] = bpf_htonl(dns_u32(w, at + 4 * i));
	}
	bpf_loop(w->id_count, name_learn_step, NULL, 0);
	return 0;
}

/* Records that the name with hash owner is an alias for the name at an offset. Returns 0 if the
 * record is malformed.
 */
static __always_inline int dns_alias(struct dns_work *w, __u64 owner, __u32 at, __u32 end,
				     __u32 ttl_s)
{
	struct dns_alias *a;
	__u32 n = w->alias_count;

	if (!dns_name(at, 0) || w->end != end || n >= DNS_ALIASES_MAX)
		return 0;
	a = &w->alias[DNS_BELOW(n, DNS_ALIASES_MAX)];
	a->owner = owner;
	a->target = w->hash;
	a->ttl_s = ttl_s;
	w->alias_count = n + 1;
	return 1;
}

/* Returns the time for which an address in a record with name w->hash may be used; -1: the name does
 * not belong to the question.
 */
static __always_inline __s32 dns_usable(__u32 ttl_s)
{
	int linked_s = dns_linked();

	return linked_s < 0 || (__u32)linked_s < ttl_s ? linked_s : (__s32)ttl_s;
}

/* Begins with the parameters of an HTTPS record. Returns 0 if it is malformed. */
static __always_inline int dns_https(struct dns_work *w, __u32 at, __u32 end, __u32 ttl_s)
{
	w->hint_ttl_s = dns_usable(ttl_s);
	if (!dns_name(at + 2, 0) || w->end > end)
		return 0;
	w->hint_at = w->end;
	w->hint_end = end;
	w->hint_left = 0;
	return 1;
}

/* Reads a parameter of an HTTPS record, or one address in it, or ends the record. Returns 0 if it is
 * malformed.
 */
static __always_inline int dns_param(struct dns_work *w)
{
	__u32 at = w->hint_at, key, len, size;

	if (w->hint_left) {
		size = w->hint_type == DNS_A ? 4 : 16;
		w->hint_at = at + size;
		w->hint_left -= size;
		if (w->hint_ttl_s >= 0)
			name_learn(at, w->hint_type, w->hint_ttl_s);
		return 1;
	}
	if (at == w->hint_end) {
		w->hint_at = 0;
		w->record_count++;
		return 1;
	}
	key = dns_u16(w, at);
	len = dns_u16(w, at + 2);
	at += 4;
	if (at > w->hint_end || len > w->hint_end - at)
		return 0;
	w->hint_at = at + len;
	if (key != DNS_IPV4HINT && key != DNS_IPV6HINT)
		return 1;
	w->hint_type = key == DNS_IPV4HINT ? DNS_A : DNS_AAAA;
	if (!len || len & (key == DNS_IPV4HINT ? 3 : 15))
		return 0;
	if (w->learns) {
		w->hint_at = at;
		w->hint_left = len;
	}
	return 1;
}

/* Reads a record of the answer. Returns 0 if it is malformed. */
static __always_inline int dns_record(struct dns_work *w)
{
	__u32 at, type, ttl_s, len;
	__u64 owner;

	if (!dns_name(w->pos, 0))
		return 0;
	owner = w->hash;
	at = w->end + DNS_RECORD;
	if (at > w->len)
		return 0;
	type = dns_u16(w, w->end);
	ttl_s = dns_ttl(dns_u32(w, w->end + 4));
	len = dns_u16(w, w->end + 8);
	w->pos = at + len;
	if (w->pos > w->len)
		return 0;
	if (dns_u16(w, at - DNS_RECORD + 2) == DNS_IN) {
		if (type == DNS_HTTPS)
			return dns_https(w, at, at + len, ttl_s);
		if ((type == DNS_A && len != 4) || (type == DNS_AAAA && len != 16))
			return 0;
		if (type == DNS_CNAME && !w->learns && !dns_alias(w, owner, at, at + len, ttl_s))
			return 0;
		if (w->learns && (type == DNS_A || type == DNS_AAAA)) {
			__s32 usable_s = dns_usable(ttl_s);

			if (usable_s >= 0)
				name_learn(at, type, usable_s);
		}
	}
	w->record_count++;
	return 1;
}

/* Reads a part of the answer. Returns 1 at its end, or if it is malformed: see bad. */
static long dns_item_step(__u32 i, void *unused)
{
	struct dns_work *w = dns_work_get();

	if (!w || (!w->hint_at && w->record_count >= dns_u16(w, 6)))
		return 1;
	if (w->hint_at)
		w->bad = !dns_param(w);
	else
		w->bad = !dns_record(w);
	return w->bad;
}

/* Reads all records of the answer, from an offset on. Returns 0 if one is malformed. */
static __always_inline int dns_records(struct dns_work *w, __u32 at, __u32 learns)
{
	w->pos = at;
	w->record_count = 0;
	w->bad = 0;
	w->hint_at = 0;
	w->learns = learns;
	bpf_loop(DNS_ITEMS_MAX, dns_item_step, NULL, 0);
	return !w->bad && !w->hint_at && w->record_count == dns_u16(w, 6);
}

/* Looks up the part of the question's name that begins at w->label. */
static long dns_suffix_step(__u32 i, void *unused)
{
	struct dns_work *w = dns_work_get();
	const struct name_ids *ids;
	__u32 label, id;

	if (!w || w->id_count >= NAME_SIZE / 2)
		return 1;
	label = DNS_BELOW(w->label, NAME_SIZE);
	if (!w->text[label])
		return 1;
	ids = bpf_map_lookup_elem(&ll_name, &w->text[label]);
	id = !ids ? 0 : label ? ids->below : ids->exact;
	if (id) {
		w->id[DNS_BELOW(w->id_count, NAME_SIZE / 2)] = id;
		w->id_count++;
	}
	w->label = label + 1 + w->text[label];
	return 0;
}

/* Learns from the message in w. A global function, so that the verifier walks it once. */
__noinline int names_learn_message(void)
{
	struct dns_work *w = dns_work_get();
	__u64 question;
	__u32 answer;

	/* A response to a standard query, with one question, and without error. */
	if (!w)
		return 0;
	w->steps = 0;
	if (w->len < DNS_HEADER || (dns_u16(w, 2) & 0xf80f) != 0x8000 || dns_u16(w, 4) != 1 ||
	    !dns_u16(w, 6))
		return 0;
	__builtin_memset(w->text, 0, sizeof(w->text));
	if (!dns_name(DNS_HEADER, 1) || w->end + 4 > w->len)
		return 0;
	question = w->hash;
	answer = w->end + 4;
	if (dns_u16(w, answer - 2) != DNS_IN)
		return 0;
	w->label = 0;
	w->id_count = 0;
	bpf_loop(NAME_SIZE / 2, dns_suffix_step, NULL, 0);
	w->alias_count = 0;
	if (!w->id_count || !dns_records(w, answer, 0))
		return 0;
	dns_follow(w, question);
	dns_records(w, answer, 1);
	return 1;
}

/* Reports whether the Endpoint on the port of p has opened the connection of p, a packet to it. */
static __always_inline int names_is_answer(struct pkt *p, struct work *w)
{
	const struct ct_meta *meta;

	tuple_of(&w->tuple, p);
	tuple_turn(&w->tuple);
	meta = conn_peek(w, &w->tuple, &w->conn);
	return meta && !(meta->flags & (CT_F_REPLY | CT_F_DENIED)) &&
	       meta->in_port == (__u16)p->skb->ifindex;
}

/* Returns the network in which names are learnt for the Endpoint on a port; 0: they are not. */
static __always_inline __u32 names_network(__u32 ifindex)
{
	__u32 word = policy_word(), endpoint = policy_port_here(ifindex);
	const struct policy_port *port;

	port = word ? bpf_map_lookup_elem(&ll_policy_port, &endpoint) : NULL;
	return port ? port->network[!!(word & POLICY_SIDE)] : 0;
}

/* Prepares for the responses in p, which comes from a resolver. */
static __always_inline void names_begin_packet(struct pkt *p, struct dns_work *dns,
					       const struct resolver *resolver, __u32 network)
{
	__u32 header = p->l4_off + p->l4_header_len;

	dns->flow.resolver = p->saddr;
	dns->flow.endpoint = p->daddr;
	dns->flow.network = network;
	dns->flow.proto = p->proto;
	dns->network = network;
	dns->grace_s = resolver->grace_s;
	dns->now_tick = clock_tick();
	dns->off = header;
	dns->size = p->l4_len - p->l4_header_len;
	if (p->skb->gso_size)
		dns->size = p->skb->len - header;
	if (p->l4_len < p->l4_header_len && !p->skb->gso_size)
		dns->size = 0;
}
