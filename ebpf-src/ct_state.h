/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_state.h - how a packet changes the state of its connection (RFC 9293, with the window check of
 * RFC 5961 for resets and FINs; RFC 9260 for SCTP).
 *
 * A connection moves from the half-open table to the established one when the client sends again
 * after the answer: a FIN counts, a SYN or SYN-ACK does not. A TCP client must acknowledge the
 * SYN-ACK, whose sequence number a sender with a forged source address does not learn.
 */
#pragma once

#include "ct.h"
#include "count.h"
#include "ct_event.h"
#include "ct_open_share.h"
#include "parse.h"
#include "fastpath_checks.h"
#include "ct_tcp_scale.h"
#include "ct_twin.h"

/* Reports whether a packet that resets or closes its connection in the direction of meta can be
 * genuine. TCP: the sequence number of the reset or FIN lies in the window that the other side,
 * twin, last advertised (RFC 5961, section 3.2). SCTP: the packet has the verification tag of its
 * direction or, reflected, of the other direction (RFC 9260, section 8.5.1).
 */
static __always_inline int ct_is_genuine(const struct segment *s, const struct ct_meta *meta,
					 const struct ct_meta *twin)
{
	__u32 window;

	if (s->proto == IPPROTO_SCTP)
		return !meta->tcp_ack || s->ack == meta->tcp_ack ||
		       (twin->tcp_ack && s->ack == twin->tcp_ack);
	if (s->proto != IPPROTO_TCP || !twin->tcp_ack)
		return 1;
	window = (__u32)twin->tcp_window << (twin->tcp_scale & 15);
	return s->end - twin->tcp_ack <= (window ? window : 1);
}

/* Reports whether a packet proves that the client has received the answer to its first packet. */
static __always_inline int ct_is_proof(const struct segment *s, const struct ct_meta *meta)
{
	if (s->proto != IPPROTO_TCP || !meta->tcp_ack)
		return 1;
	return s->tcp_flags & TCP_ACK && s->ack - meta->tcp_ack <= 0xffff;
}

/* Stores the window scale of the answer to a SYN: windows are scaled only if both sides offered
 * scaling.
 */
static __noinline void ct_agree_scale(struct pkt *p, struct ct_meta *meta, struct ct_meta *twin)
{
	int scale = tcp_scale_of(p->skb, p->l4_off, p->l4_header_len);

	if (!meta || !twin)
		return;
	meta->tcp_scale = scale > 0 ? scale : 0;
	if (scale < 0)
		twin->tcp_scale = 0;
}

/* Reports whether a half-open connection must move to the established table, now that event, in the
 * direction of meta, has changed its state. One side may close before the client sends again, or
 * with that packet; the other side may then still send indefinitely.
 */
static __always_inline int ct_is_lasting(enum ct_state state, enum ct_event event,
					 const struct ct_meta *meta, const struct ct_meta *twin)
{
	if (state != CT_FIN)
		return state == CT_ESTABLISHED;
	return !(meta->flags & CT_F_REPLY) && twin->packet_count &&
	       (event == EVENT_DATA || event == EVENT_CLOSE);
}

/* Moves both entries to the established table. If that table is full, or their source has used up
 * its share of it, they stay half-open: usable, but evicted when they are the oldest.
 */
static __always_inline void ct_promote(struct work *w)
{
	__u32 zero = 0, index;
	struct shares *s = bpf_map_lookup_elem(&ll_shares, &zero);
	int six = w->tuple.family == 6;

	if (!s)
		return;
	index = share_index(s, w->conn.meta.flags & CT_F_REPLY ? &w->conn.daddr : &w->tuple.saddr);
	if (share_is_full(s, index, six)) {
		count_verdict(VERDICT_OVER_SHARE);
		return;
	}
	w->conn.half_open = 0;
	w->twin.half_open = 0;
	if (conn_put(&w->tuple, &w->conn, BPF_ANY))
		goto full;
	if (conn_put(&w->twin_tuple, &w->twin, BPF_ANY)) {
		conn_remove(&w->tuple, 0);
		goto full;
	}
	conn_remove(&w->tuple, 1);
	conn_remove(&w->twin_tuple, 1);
	__sync_fetch_and_add(&s->count[index], 1);
	__sync_fetch_and_add(&s->total[six], 1);
	half_established(s, index, six);
	return;
full:
	count_verdict(VERDICT_TABLE_FULL);
}

/* Counts the packet in its entry, and stores the data for the checks of resets and FINs. */
static __always_inline void track_count(struct pkt *p, struct ct_meta *meta)
{
	meta->packet_count++;
	meta->byte_count += p->skb->len;
	if (p->proto == IPPROTO_TCP && (p->tcp_flags & (TCP_ACK | TCP_RST)) == TCP_ACK &&
	    p->fragment != FRAGMENT_LATER)
		ct_note_ack(meta, p->tcp_ack, p->tcp_window);
	if (p->proto == IPPROTO_SCTP && !meta->tcp_ack && p->sctp_chunk != SCTP_INIT)
		meta->tcp_ack = p->tcp_ack;
}

/* Records p in the direction of meta, as ct_seen does, and reports whether neither entry of the
 * connection is being deleted.
 */
static __always_inline int ct_stays(struct pkt *p, struct ct_meta *meta, const struct ct_meta *twin)
{
	__sync_lock_test_and_set(&meta->last_seen_tick, p->now_tick);
	return *(const volatile __u8 *)&meta->state != CT_ENDING &&
	       (!twin || *(const volatile __u8 *)&twin->state != CT_ENDING);
}

/* Records a reset in the direction of meta that can be genuine. An endpoint challenges a reset
 * whose sequence number is not exactly the expected one, and keeps the connection (RFC 5961,
 * section 3.2): after such a reset, traffic from either side revives the connection.
 */
static __always_inline void ct_reset(const struct segment *s, struct ct_meta *meta,
				     struct ct_meta *twin)
{
	meta->flags |= CT_F_RST;
	if (s->proto == IPPROTO_TCP && twin->tcp_ack && s->end != twin->tcp_ack)
		twin->flags |= CT_F_RST;
}

/* Records that p arrives on a different device than before. Packets to its sender must learn the
 * new next hop too.
 */
static __always_inline void ct_move(const struct pkt *p, struct work *w, struct ct_meta *meta,
				    struct ct_meta *twin)
{
	if (meta->in_port) {
		twin->nexthop = 0;
		meta->nexthop = 0;
		w->conn.meta.nexthop = 0;
	}
	meta->in_port = p->in_port;
}

/* Sets the new state of both entries. One side may close on another CPU while the other closes on
 * this one.
 */
static __always_inline void ct_set_state(const struct segment *s, struct ct_meta *meta,
					 struct ct_meta *twin, __u8 state)
{
	meta->state = state;
	twin->state = state;
	if (s->event != EVENT_CLOSE || state != CT_FIN)
		return;
	__sync_lock_test_and_set(&meta->last_seen_tick, s->now_tick); /* a barrier */
	if (*(const volatile __u16 *)&twin->flags & CT_F_FIN) {
		meta->state = CT_TIME_WAIT;
		twin->state = CT_TIME_WAIT;
	}
}

/* Applies the packet w->segment, in the direction of meta, to the state of w->conn. A global
 * function, so that the verifier walks it once.
 */
__noinline int ct_change(struct ct_meta *meta, struct ct_meta *twin)
{
	struct work *w = work_get();
	const struct segment *s;
	__u8 state;

	if (!w || !meta || !twin)
		return 0;
	s = &w->segment;
	if (s->event >= EVENT_CLOSE && !ct_is_genuine(s, meta, twin))
		return 0;
	if (w->conn.meta.state == CT_ANSWERED && !(meta->flags & CT_F_REPLY) &&
	    !ct_is_proof(s, &w->conn.meta))
		return 0;
	if (s->event == EVENT_RESET)
		ct_reset(s, meta, twin);
	if (s->event == EVENT_ANSWER && meta->flags & CT_F_REPLY && meta->state < CT_ESTABLISHED)
		twin->tcp_ack = s->end + 1; /* the client must acknowledge this number */
	if (s->event == EVENT_CLOSE)
		meta->flags |= CT_F_FIN;
	state = ct_next(w->conn.meta.state, s->event, meta->flags, twin->flags);
	if (w->conn.meta.state == CT_CLOSED && state == CT_ESTABLISHED) {
		meta->flags &= ~CT_F_RST;
		twin->flags &= ~CT_F_RST;
		if (w->conn.half_open) /* as before the reset: it was not established */
			state = meta->flags & CT_F_REPLY ? CT_ANSWERED : CT_NEW;
	}
	ct_set_state(s, meta, twin, state);
	/* On hooks that this copy has not taken over yet, another generation may use the same
	 * half-open table but a different established table.
	 */
	if (!config_shadow && w->conn.half_open && ct_is_lasting(state, s->event, meta, twin)) {
		w->conn.meta = *meta;
		w->twin.meta = *twin;
		ct_promote(w);
	}
	return 0;
}

/* Fills w->segment from p. */
static __always_inline void ct_segment(const struct pkt *p, struct work *w, enum ct_event event)
{
	struct segment *s = &w->segment;

	s->event = event;
	s->proto = p->proto;
	s->tcp_flags = p->tcp_flags;
	s->now_tick = p->now_tick;
	s->ack = p->tcp_ack;
	s->end = p->tcp_seq;
	if (event == EVENT_CLOSE && p->l4_len > p->l4_header_len)
		s->end += p->l4_len - p->l4_header_len; /* the FIN follows the data */
}

/* Counts packet p of connection w->conn, found under w->tuple, and applies p to the state; meta is
 * the common part of the entry in the map. LL_OPEN: p opens a new connection; with w->reopen, it
 * has the tuple of this connection, which has ended and is in w->old.
 */
static __noinline int ct_advance(struct pkt *p, struct work *w, struct ct_meta *meta)
{
	enum ct_event event = ct_event_of(p);
	struct ct_meta *twin;

	if (!meta || !w)
		return LL_OPEN;
	if (!ct_stays(p, meta, NULL))
		return -DROP_ENDING;
	w->conn.meta.state = *(const volatile __u8 *)&meta->state;
	if (w->conn.meta.state == CT_ENDING)
		return -DROP_ENDING; /* marked in the meantime */
	if (event == EVENT_OPEN && !(w->conn.meta.flags & CT_F_REPLY) &&
	    w->conn.meta.state >= CT_TIME_WAIT) {
		w->old = w->conn;
		w->reopen = 1;
		return LL_OPEN;
	}
	twin = ct_twin(w);
	if (!twin) {
		if (!w->lost || w->conn.meta.flags & CT_F_REPLY)
			return LL_NEXT;
		conn_remove(&w->tuple, w->conn.half_open);
		w->fresh = 1;
		return LL_OPEN;
	}
	if (!ct_stays(p, meta, twin))
		return -DROP_ENDING;
	track_count(p, meta);
	if (!p->egress && meta->in_port != p->in_port)
		ct_move(p, w, meta, twin);
	if (event == EVENT_ANSWER && meta->flags & CT_F_REPLY && meta->state < CT_ESTABLISHED)
		ct_agree_scale(p, meta, twin);
	ct_segment(p, w, event);
	ct_change(meta, twin);
	return LL_NEXT;
}
