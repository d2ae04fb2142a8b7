/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_state.h - how a packet changes the state of its connection (RFC 9293, with the window check of
 * RFC 5961 for resets and FINs; RFC 9260 for SCTP).
 *
 * A connection is half-open, and may be removed to make room for others, until the client sends again
 * after the answer: a FIN counts, a SYN or SYN-ACK does not. A TCP client must acknowledge the
 * SYN-ACK, whose sequence number a sender with a forged source address does not learn. The connection
 * of a UDP client that continues to send without an answer becomes lasting too, unless lasting
 * connections use more than half of the table.
 */
#pragma once

#include "ct_conn.h"
#include "count.h"
#include "ct_event.h"
#include "ct_share.h"
#include "parse.h"
#include "fastpath_checks.h"
#include "ct_tcp_scale.h"
#include "ct_twin.h"

#define ONE_WAY_PACKETS 3
#define ONE_WAY_TICKS	15 /* 2 s */

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

/* Reports whether a half-open connection must become lasting, now that event, in the direction of
 * meta, has changed its state. One side may close before the client sends again, or
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

/* Returns the address of the client. */
static __always_inline const struct addr *ct_client(const struct work *w)
{
	return w->conn.meta.flags & CT_F_REPLY ? &w->conn.daddr : &w->tuple.saddr;
}

/* Makes a connection lasting, and reports whether it is. If its source has used up its share of the
 * table, it stays half-open: usable, but removed if other connections need the room. Connections in
 * one direction together get half of the table, since a sender with forged sources can open them.
 */
static __always_inline int ct_promote(struct work *w, struct ct_meta *meta, struct ct_meta *twin,
				      int one_way)
{
	__u32 zero = 0;
	struct shares *s = bpf_map_lookup_elem(&ll_shares, &zero);
	int six = w->tuple.family == 6;

	if (!s)
		return 0;
	if (share_is_full(s, share_index(s, ct_client(w)), six) ||
	    (one_way && s->capacity_of[six] &&
	     share_count(s->total[six]) > s->capacity_of[six] / 2)) {
		count_verdict(VERDICT_OVER_SHARE);
		return 0;
	}
	w->conn.meta.flags |= CT_F_LASTING;
	w->twin.meta.flags |= CT_F_LASTING;
	if (ct_begins_lasting(meta) | ct_begins_lasting(twin))
		share_add(s, ct_client(w), six, 1);
	return 1;
}

/* Makes a connection half-open again: it has ended, or the server has answered one that was CT_ONE_WAY. */
static __always_inline void ct_demote(struct work *w, struct ct_meta *meta, struct ct_meta *twin)
{
	__u32 zero = 0;
	struct shares *s = bpf_map_lookup_elem(&ll_shares, &zero);
	int counted = ct_ends_lasting(meta) | ct_ends_lasting(twin);

	w->conn.meta.flags &= ~CT_F_LASTING;
	w->twin.meta.flags &= ~CT_F_LASTING;
	if (counted && s)
		share_add(s, ct_client(w), w->tuple.family == 6, -1);
}

/* Handles a packet in the direction of meta if the client sends without answers; reports whether the
 * packet changes nothing else.
 */
static __always_inline int ct_one_way(struct work *w, struct ct_meta *meta, struct ct_meta *twin)
{
	__u8 state = w->conn.meta.state;

	if (w->segment.proto != IPPROTO_UDP)
		return 0;
	if (meta->flags & CT_F_REPLY) {
		if (twin->state == CT_ONE_WAY)
			ct_demote(w, meta, twin);
		return 0;
	}
	if (state == CT_NEW && meta->packet_count >= ONE_WAY_PACKETS) {
		conn_read_more(w->tuple.family != 4, &w->conn);
		if (ticks_since(w->segment.now_tick, w->conn.more.created_tick) >= ONE_WAY_TICKS &&
		    ct_promote(w, meta, twin, 1))
			meta->state = CT_ONE_WAY;
	}
	return state == CT_ONE_WAY || meta->state == CT_ONE_WAY;
}

/* Counts the packet in its entry, and stores the data for the checks of resets and FINs. */
static __always_inline void track_count(struct pkt *p, struct ct_meta *meta)
{
	ct_count(meta, p->skb->len);
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
	ct_flags_set(meta, CT_F_RST);
	if (s->proto == IPPROTO_TCP && twin->tcp_ack && s->end != twin->tcp_ack)
		ct_flags_set(twin, CT_F_RST);
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

/* Sets the new state of both entries. Both sides may close at the same time, on different CPUs. */
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
	if (ct_one_way(w, meta, twin))
		return 0;
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
		ct_flags_set(meta, CT_F_FIN);
	state = ct_next(w->conn.meta.state, s->event, meta->flags, twin->flags);
	if (w->conn.meta.state == CT_CLOSED && state == CT_ESTABLISHED) {
		ct_flags_clear(meta, CT_F_RST);
		ct_flags_clear(twin, CT_F_RST);
		/* Its place may be needed by now, and the client may have been forged. */
		state = meta->flags & CT_F_REPLY ? CT_ANSWERED : CT_NEW;
	}
	ct_set_state(s, meta, twin, state);
	if (*(volatile __u8 *)&meta->state >= CT_TIME_WAIT)
		ct_demote(w, meta, twin);
	else if (conn_is_half_open(&w->conn) && ct_is_lasting(state, s->event, meta, twin))
		ct_promote(w, meta, twin, 0);
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

/* Reports whether w->conn, found under w->tuple, has ended or expired, so that the client may open
 * another connection with the same tuple.
 */
static __always_inline int ct_may_reopen(const struct pkt *p, struct work *w)
{
	if (w->conn.meta.flags & CT_F_REPLY)
		return 0;
	conn_read_more(w->tuple.family != 4, &w->conn);
	if (w->conn.meta.state >= CT_TIME_WAIT)
		return 1;
	return ct_has_expired(&w->conn.meta, &w->conn.more, p->now_tick) &&
	       ct_twin_expired(w->tuple.family != 4, w->conn.index, p->now_tick);
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
	if (event == EVENT_OPEN && ct_may_reopen(p, w)) {
		w->old = w->conn;
		w->reopen = 1;
		return LL_OPEN;
	}
	twin = ct_twin(w);
	if (!twin) {
		if (!w->lost || w->conn.meta.flags & CT_F_REPLY)
			return LL_NEXT;
		conn_remove(&w->tuple);
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
