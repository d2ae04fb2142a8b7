/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* count.h - counters, samples and rate limits. */
#pragma once

#include "ct.h"
#include "maps.h"
#include "pkt.h"

static __always_inline void count_verdict(__u32 verdict)
{
	__u64 *n = bpf_map_lookup_elem(&ll_verdicts, &verdict);

	if (n)
		*n += 1;
}

/* Returns the entry of a backend. NULL: no backend has had this id. */
static __always_inline struct backend_entry *backend_at(__u32 id)
{
	__u32 segment = id / BACKENDS_PER_SEGMENT, at = id % BACKENDS_PER_SEGMENT;
	void *s = bpf_map_lookup_elem(&ll_backend, &segment);

	return s ? bpf_map_lookup_elem(s, &at) : NULL;
}

/* Counts the traffic of a connection whose entry is reused or replaced, for its backend and its
 * NAT.
 */
static __always_inline void count_reused(const struct ct_meta *meta, const struct ct_more *more)
{
	__u32 nat_id = more->nat_id;
	__u64 packet_count = meta->packet_count | (__u64)meta->packet_count_high << 32;
	struct backend_entry *b = backend_at(more->backend_id);
	struct nat_stats *s = nat_id ? bpf_map_lookup_elem(&ll_nat_stats, &nat_id) : NULL;

	if (s) {
		s->reused_packet_count += packet_count;
		s->reused_byte_count += meta->byte_count;
	}
	if (!b)
		return;
	__sync_fetch_and_add(&b->total.reused.packet_count, packet_count);
	__sync_fetch_and_add(&b->total.reused.byte_count, meta->byte_count);
}

/* Reports whether another event is allowed: at most limit events per tick and CPU. */
static __always_inline int rate_allows(__u32 which, __u32 now_tick, __u64 limit)
{
	struct rate_bucket *b = bpf_map_lookup_elem(&ll_rate, &which);

	if (!b)
		return 0;
	if (b->tick != now_tick) {
		b->tick = now_tick;
		b->used = 0;
	}
	if (b->used >= limit)
		return 0;
	b->used++;
	return 1;
}

#define SAMPLES_PER_TICK 16

static __always_inline int is_policy_drop(enum sample_type type, __u8 reason)
{
	return type == SAMPLE_DROP && (reason == DROP_POLICY || reason == DROP_POLICY_LIMITED ||
				       reason == DROP_POLICY_UNKNOWN);
}

static __noinline void sample_fill(struct sample *s, const struct pkt *p, enum sample_type type,
				   __u8 reason)
{
	struct work *w = work_get();

	s->saddr = p->saddr;
	s->daddr = p->daddr;
	s->sport = p->sport;
	s->dport = p->dport;
	s->proto = p->proto;
	s->type = type;
	s->reason = reason;
	s->egress = p->egress;
	s->ifindex = p->skb->ifindex;
	s->netns = config_netns;
	s->service_id = p->service_id;
	s->rule_id = p->rule_id;
	s->len_bytes = p->skb->len;
	s->nat_id = p->nat_id;
	for (int i = 0; i < 2; i++) {
		int known = w && (type == SAMPLE_POLICY || is_policy_drop(type, reason));

		s->policy_rule[i] = known ? w->decided[i].rule : 0;
		s->policy_port[i] = known ? w->decided[i].port : 0;
	}
}

/* Reports whether a policy logs the packet of a sample. */
static __always_inline int sample_is_logged(enum sample_type type, __u8 reason)
{
	struct work *w;

	if (type != SAMPLE_POLICY && !is_policy_drop(type, reason))
		return 0;
	w = work_get();
	return w && (w->decided[0].rule | w->decided[1].rule) & RULE_LOGGED;
}

static __noinline void sample_send(struct pkt *p, enum sample_type type, __u8 reason)
{
	int logged = sample_is_logged(type, reason);
	struct sample *s = NULL;

	if (rate_allows(logged		      ? RATE_SAMPLE_LOGGED
			: type == SAMPLE_DROP ? RATE_SAMPLE_DROP
					      : RATE_SAMPLE_OPENED,
			p->now_tick, SAMPLES_PER_TICK))
		s = bpf_ringbuf_reserve(&ll_samples, sizeof(*s), 0);
	if (!s) {
		if (logged)
			count_verdict(VERDICT_UNLOGGED);
		return;
	}
	sample_fill(s, p, type, reason);
	bpf_ringbuf_submit(s, 0);
}

static __noinline void count_service_drop(__u32 service_id, __u32 reason)
{
	struct service_stats *s = bpf_map_lookup_elem(&ll_service_stats, &service_id);
	__u32 which = SERVICE_DROP_OTHER;

	if (!s)
		return;
	if (reason == DROP_NO_BACKEND || reason == DROP_NO_BACKEND_LIMITED ||
	    reason == DROP_NO_BACKEND_SILENT)
		which = SERVICE_DROP_NO_BACKEND;
	else if (reason == DROP_SOURCE_RANGE)
		which = SERVICE_DROP_SOURCE_RANGE;
	else if (reason == DROP_NO_PORT)
		which = SERVICE_DROP_NO_PORT;
	s->drop_count[which & 3] += 1;
}

/* Counts a drop for a NAT. A global function, so that the verifier walks it once. */
__noinline int count_nat_drop(__u32 nat_id, __u32 reason)
{
	struct nat_stats *s = bpf_map_lookup_elem(&ll_nat_stats, &nat_id);
	__u32 which = NAT_DROP_OTHER;

	if (!s)
		return 0;
	if (reason == DROP_NO_PORT)
		which = NAT_DROP_NO_PORT;
	else if (reason == DROP_NO_ADDRESS)
		which = NAT_DROP_NO_ADDRESS;
	else if (reason == DROP_NO_CONNECTION)
		which = NAT_DROP_NO_CONNECTION;
	s->drop_count[which & 3] += 1;
	return 0;
}

/* Counts a drop for the node and for the device at which it occurred. */
static __noinline void count_drop_at(__u32 ifindex, __u32 reason)
{
	struct port_drop_key key = {
		.ifindex = ifindex,
		.netns = config_netns,
		.reason = reason,
	};
	__u64 one = 1, *n = bpf_map_lookup_elem(&ll_drops, &reason);

	if (n)
		*n += 1;
	n = bpf_map_lookup_elem(&ll_port_drops, &key);
	if (n)
		*n += 1;
	else
		bpf_map_update_elem(&ll_port_drops, &key, &one, BPF_NOEXIST);
}

static __always_inline void count_drop(struct pkt *p, __u32 reason)
{
	count_drop_at(p->skb->ifindex, reason);
	if (p->service_id)
		count_service_drop(p->service_id, reason);
	if (p->nat_id)
		count_nat_drop(p->nat_id, reason);
	sample_send(p, SAMPLE_DROP, reason);
}

/* Converts the result of the last stage into a TC action, and counts a drop. */
static __always_inline int finish(struct pkt *p, int ret)
{
	if (ret < 0) {
		count_drop(p, -ret);
		return TC_ACT_SHOT;
	}
	if (p->verdict)
		count_verdict(p->verdict);
	if (ret == LL_REDIRECT)
		return p->action;
	return p->verdict ? handled(p->skb, p->egress) : TC_ACT_UNSPEC;
}
