/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* names_part.h - collects DNS responses that arrive in several packets: segments of TCP, or fragments.
 *
 * A response has one of few places, which its flow determines. If the place is in use, the newer
 * response takes it, and the older one passes unlearnt.
 */
#pragma once

#include "fragment.h"
#include "names_message.h"

#define PART_COUNT  64
#define PART_LENGTH (DNS_PART_TEXT - 2) /* where the length in a TCP connection begins */
#define PART_CHUNK  256
#define PART_TRIES  64 /* while another CPU uses the place */

enum part_result {
	PART_WAITS, /* bytes are missing */
	PART_WHOLE, /* the message is in dns_work */
	PART_LONG,  /* it is longer than DNS_PART_SIZE */
	PART_LOST,
};

/* Bytes of a frame that are copied to a part. */
struct part_copy {
	struct __sk_buff *skb;
	struct dns_part *part;
	__u32 off; /* in the frame */
	__u32 pos; /* in the part */
	__u32 len;
	__u32 failed;
};

static long part_copy_step(__u32 i, struct part_copy *c)
{
	__u32 done = i * PART_CHUNK, left;
	__u8 *to;

	if (done >= c->len)
		return 1;
	left = c->len - done;
	to = &c->part->bytes[DNS_BELOW(c->pos + done, DNS_PART_SIZE)];
	if (left >= PART_CHUNK) {
		c->failed |= !!bpf_skb_load_bytes(c->skb, c->off + done, to, PART_CHUNK);
		return 0;
	}
	c->failed |= !!bpf_skb_load_bytes(c->skb, c->off + done, to, DNS_LENGTH(left, PART_CHUNK));
	return 1;
}

/* The message of a part that is copied to dns_work. */
struct part_read {
	struct dns_work *work;
	const struct dns_part *part;
};

static long part_read_step(__u32 i, struct part_read *r)
{
	__u64 at = DNS_BELOW(i * 8, DNS_PART_SIZE);
	const __u64 *from = (const void *)&r->part->bytes[DNS_PART_TEXT + at];

	*(__u64 *)&r->work->message[at] = *from;
	return 0;
}

static __always_inline __u32 part_place(const struct dns_flow *flow, __u32 seq)
{
	__u32 h = flow->endpoint.word[3] ^ flow->endpoint.word[2] ^ flow->id * 0x9e3779b1 ^ seq;

	h = (h ^ h >> 16) * 0x85ebca6b;
	return (h ^ h >> 13) % PART_COUNT;
}

static __always_inline int flow_equal(const struct dns_flow *a, const struct dns_flow *b)
{
	return addr_equal(&a->resolver, &b->resolver) && addr_equal(&a->endpoint, &b->endpoint) &&
	       a->network == b->network && a->id == b->id && a->proto == b->proto;
}

/* Returns the place of the response that begins at seq, reserved for this CPU, or NULL. */
static __always_inline struct dns_part *part_open(struct dns_work *w, __u32 seq)
{
	__u32 place = part_place(&w->flow, seq);
	struct dns_part *part = bpf_map_lookup_elem(&ll_dns_part, &place);
	int i;

	if (!part)
		return NULL;
	for (i = 0; i < PART_TRIES; i++)
		if (!__sync_val_compare_and_swap(&part->busy, 0, 1))
			break;
	if (i == PART_TRIES)
		return NULL;
	if (!flow_equal(&part->flow, &w->flow) || part->seq != seq ||
	    ticks_since(w->now_tick, part->seen_tick) > FRAGMENT_TICKS) {
		part->flow = w->flow;
		part->seq = seq;
		part->seen_tick = w->now_tick;
		part->have = w->flow.proto == IPPROTO_TCP ? PART_LENGTH : 0;
		part->from = 0;
		part->to = 0;
		part->checked = 0;
	}
	return part;
}

/* Records that a part has the bytes from pos to end. Returns 0 if they cannot be recorded. Segments may
 * overlap, since TCP sends again; fragments of one datagram must not.
 */
static __always_inline int part_cover(struct dns_part *part, __u32 pos, __u32 end)
{
	int overlap = part->flow.proto == IPPROTO_TCP;

	if (pos <= part->have) {
		if (pos < part->have && !overlap)
			return 0;
		if (end > part->have)
			part->have = end;
	} else if (!part->to) {
		part->from = pos;
		part->to = end;
	} else if (pos == part->to) {
		part->to = end;
	} else if (end == part->from) {
		part->from = pos;
	} else {
		return overlap;
	}
	if (part->to && part->from <= part->have) {
		if (part->from < part->have && !overlap)
			return 0;
		if (part->to > part->have)
			part->have = part->to;
		part->from = 0;
		part->to = 0;
	}
	return 1;
}

/* Reports whether a part is whole, and sets w->total. */
static __always_inline int part_is_whole(struct dns_work *w, const struct dns_part *part)
{
	int stream = w->flow.proto == IPPROTO_TCP;
	const __u8 *len = &part->bytes[stream ? PART_LENGTH : 4];

	if (part->have < DNS_PART_TEXT)
		return PART_WAITS;
	w->total = ((__u32)len[0] << 8 | len[1]) + (stream ? DNS_PART_TEXT : 0);
	if (w->total > DNS_PART_SIZE)
		return PART_LONG;
	if (w->total < DNS_PART_TEXT)
		return PART_LOST;
	if (part->have < w->total || !(stream || part->checked))
		return PART_WAITS;
	return PART_WHOLE;
}

/* Adds the packet's bytes, without the first skip bytes, to the response that begins at seq, at pos. A
 * global function, so that the verifier walks it once.
 */
__noinline int part_add(struct __sk_buff *skb, __u32 seq, __u32 pos, __u32 skip)
{
	struct dns_work *w = dns_work_get();
	struct part_copy c = { .skb = skb };
	struct dns_part *part;
	int ret = PART_LOST;

	if (!w || pos >= DNS_PART_SIZE || skip >= w->size)
		return PART_LOST;
	part = part_open(w, seq);
	if (!part)
		return PART_LOST;
	c.part = part;
	c.pos = pos;
	c.off = w->off + skip;
	c.len = w->size - skip;
	if (c.len > DNS_PART_SIZE - pos)
		c.len = DNS_PART_SIZE - pos;
	bpf_loop(DNS_PART_SIZE / PART_CHUNK, part_copy_step, &c, 0);
	part->checked |= w->checked;
	if (!c.failed && part_cover(part, pos, pos + c.len))
		ret = part_is_whole(w, part);
	if (ret == PART_WHOLE) {
		struct part_read r = { w, part };

		w->len = w->total - DNS_PART_TEXT;
		bpf_loop((w->len + 7) / 8, part_read_step, &r, 0);
	}
	if (ret != PART_WAITS)
		part->flow.proto = 0;
	__sync_val_compare_and_swap(&part->busy, 1, 0);
	return ret;
}
