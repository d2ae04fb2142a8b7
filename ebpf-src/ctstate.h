/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ctstate.h - how a packet changes the state of its connection (RFC 9293, with
 * the window check of RFC 5961 for resets; RFC 9260 for SCTP).
 *
 * A connection moves from the half-open table to the established one when the
 * client has spoken again after the answer: neither a SYN nor a SYN-ACK can do it, a FIN
 * can. UDP has only the answer to go by.
 */
#pragma once

#include "conntrack.h"
#include "count.h"
#include "parse.h"

#define SCTP_INIT	       1
#define SCTP_ABORT	       6
#define SCTP_SHUTDOWN	       7
#define SCTP_SHUTDOWN_COMPLETE 14

enum ct_event {
	EVENT_DATA,
	EVENT_OPEN,   /* SYN without ACK, INIT */
	EVENT_ANSWER, /* SYN-ACK */
	EVENT_CLOSE,  /* FIN, SHUTDOWN */
	EVENT_CLOSED, /* SHUTDOWN COMPLETE: both sides are done */
	EVENT_RESET,  /* RST, ABORT */
};

/* A global function, so that the verifier follows what comes after it once and not
 * for each event.
 */
__noinline enum ct_event ct_event(__u32 proto, __u32 tcp_flags, __u32 sctp_chunk)
{
	if (proto == IPPROTO_TCP) {
		if (tcp_flags & TCP_RST)
			return EVENT_RESET;
		if (tcp_flags & TCP_SYN)
			return tcp_flags & TCP_ACK ? EVENT_ANSWER : EVENT_OPEN;
		return tcp_flags & TCP_FIN ? EVENT_CLOSE : EVENT_DATA;
	}
	if (proto == IPPROTO_SCTP) {
		switch (sctp_chunk) {
		case SCTP_INIT:
			return EVENT_OPEN;
		case SCTP_ABORT:
			return EVENT_RESET;
		case SCTP_SHUTDOWN:
			return EVENT_CLOSE;
		case SCTP_SHUTDOWN_COMPLETE:
			return EVENT_CLOSED;
		}
	}
	return EVENT_DATA;
}

static __always_inline enum ct_event ct_event_of(const struct pkt *p)
{
	return ct_event(p->proto, p->tcp_flags, p->sctp_chunk);
}

/* Whether a reset can be genuine: its sequence number lies in the window that the
 * other side, twin, last announced (RFC 5961, section 3.2).
 */
static __always_inline int ct_reset_in_window(const struct pkt *p, const struct ct_meta *twin)
{
	__u32 window = (__u32)twin->tcp_window << (twin->tcp_scale & 15);

	if (p->proto != IPPROTO_TCP || !twin->tcp_ack)
		return 1;
	return p->tcp_seq - twin->tcp_ack <= (window ? window : 1);
}

#define TCP_OPTIONS_MAX	 40 /* bytes */
#define TCP_OPTION_END	 0
#define TCP_OPTION_NOP	 1
#define TCP_OPTION_SCALE 3 /* RFC 7323, section 2.2 */
#define TCP_SCALE_MAX	 14

/* The shift of windows that the SYN whose TCP header, header_len bytes, is at off announces;
 * -1: none.
 * A global function, so that the verifier walks it once.
 */
__noinline int tcp_scale_of(struct __sk_buff *skb, __u32 off, __u32 header_len)
{
	struct work *w = work_get();
	__u64 len = header_len - sizeof(struct tcphdr);

	if (!w || off > L4_OFF_MAX || len > TCP_OPTIONS_MAX)
		return -1;
	asm volatile("" : "+r"(len)); /* two comparisons: the verifier follows no single one */
	if (len < 4 || bpf_skb_load_bytes(skb, off + sizeof(struct tcphdr), w->tcp_options, len))
		return -1;
	w->tcp_at = 0;
	for (int i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 at = *(volatile __u32 *)&w->tcp_at;
		const __u8 *option = &w->tcp_options[at & 63];

		if (at + 3 > len)
			return -1;
		if (option[0] == TCP_OPTION_SCALE)
			return option[2] > TCP_SCALE_MAX ? TCP_SCALE_MAX : option[2];
		if (option[0] == TCP_OPTION_END || (option[0] != TCP_OPTION_NOP && option[1] < 2))
			return -1;
		at += option[0] == TCP_OPTION_NOP ? 1 : option[1];
		*(volatile __u32 *)&w->tcp_at = at;
	}
	return -1;
}

/* The answer to a SYN: windows are scaled only if both sides asked for it. */
static __noinline void ct_agree_scale(struct pkt *p, struct ct_meta *meta, struct ct_meta *twin)
{
	int scale = tcp_scale_of(p->skb, p->l4_off, p->l4_header_len);

	if (!meta || !twin)
		return;
	meta->tcp_scale = scale > 0 ? scale : 0;
	if (scale < 0)
		twin->tcp_scale = 0;
}

/* Whether a half-open connection is to move to the established table, now that event, in the
 * direction of meta, has brought it into state. One side may have closed before the client
 * spoke again, or with that: what the other one sends may take as long as any.
 */
static __always_inline int ct_is_lasting(enum ct_state state, enum ct_event event,
					 const struct ct_meta *meta, const struct ct_meta *twin)
{
	if (state != CT_FIN)
		return state == CT_ESTABLISHED;
	return !(meta->flags & CT_F_REPLY) && twin->packet_count &&
	       (event == EVENT_DATA || event == EVENT_CLOSE);
}

/* Moves both entries to the established table. Where that is full they stay what
 * they are: usable, but the oldest of their kind make room.
 */
static __always_inline void ct_promote(struct work *w)
{
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
	return;
full:
	count_verdict(VERDICT_TABLE_FULL);
}

/* The state after event in the direction of flags, where the other direction has
 * twin_flags. Pure: the whole table of transitions is here. A global function, so that
 * the verifier walks it once.
 */
__noinline enum ct_state ct_next(enum ct_state state, enum ct_event event, __u32 flags,
				 __u32 twin_flags)
{
	int reply = flags & CT_F_REPLY;

	switch (event) {
	case EVENT_RESET:
		return CT_CLOSED;
	case EVENT_CLOSED:
		return CT_TIME_WAIT;
	case EVENT_CLOSE:
		if (state == CT_CLOSED)
			return CT_CLOSED;
		return twin_flags & CT_F_FIN ? CT_TIME_WAIT : CT_FIN;
	case EVENT_OPEN:
		return state;
	case EVENT_ANSWER:
		return state == CT_NEW && reply ? CT_ANSWERED : state;
	case EVENT_DATA:
		break;
	}
	if (state == CT_NEW && reply)
		return CT_ANSWERED;
	if (state == CT_ANSWERED && !reply)
		return CT_ESTABLISHED;
	/* Who resets a connection does not go on with it: the reset was forged. */
	if (state == CT_CLOSED && flags & CT_F_RST)
		return CT_ESTABLISHED;
	return state;
}

/* Finds the other direction's entry of w->conn, or puts one back that was evicted
 * alone. Returns its shared part in the map, or NULL.
 */
static __noinline struct ct_meta *ct_twin(struct work *w)
{
	struct ct_meta *twin;

	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	twin = conn_find(w, &w->twin_tuple, &w->twin, w->conn.half_open);
	if (twin)
		return twin;
	w->twin = w->conn;
	w->twin.saddr = w->tuple.daddr;
	w->twin.daddr = w->tuple.saddr;
	w->twin.sport = w->tuple.dport;
	w->twin.dport = w->tuple.sport;
	w->twin.meta.flags ^= CT_F_REPLY;
	w->twin.meta.flags &= ~(CT_F_FIN | CT_F_RST);
	w->twin.meta.nexthop = 0;
	w->twin.meta.packet_count = 0;
	w->twin.meta.byte_count = 0;
	w->twin.meta.tcp_ack = 0;
	if (conn_put(&w->twin_tuple, &w->twin, BPF_ANY))
		return NULL;
	return conn_find(w, &w->twin_tuple, &w->twin, 0);
}

/* Counts the packet in its entry. */
static __always_inline void track_count(struct pkt *p, struct ct_meta *meta)
{
	meta->packet_count++;
	meta->byte_count += p->skb->len;
	if (meta->last_seen_tick != p->now_tick)
		meta->last_seen_tick = p->now_tick;
	if (p->proto == IPPROTO_TCP && p->tcp_flags & TCP_ACK && p->fragment != FRAGMENT_LATER) {
		meta->tcp_ack = p->tcp_ack;
		meta->tcp_window = p->tcp_window;
	}
}

/* Counts packet p of connection w->conn, found under w->tuple and with its shared part
 * in the map at meta, and lets it have its effect. LL_OPEN, and w->reopen: it opens a
 * new connection with the tuple of this one, which ended: w->old.
 */
static __noinline int ct_advance(struct pkt *p, struct work *w, struct ct_meta *meta)
{
	enum ct_event event = ct_event_of(p);
	struct ct_meta *twin;
	__u8 state;

	if (!meta || !w)
		return LL_OPEN;
	if (event == EVENT_OPEN && !(w->conn.meta.flags & CT_F_REPLY) &&
	    w->conn.meta.state >= CT_TIME_WAIT) {
		w->old = w->conn;
		w->reopen = 1;
		return LL_OPEN;
	}
	track_count(p, meta);
	twin = ct_twin(w);
	if (!twin)
		return LL_NEXT;
	if (!p->egress && meta->in_port != (__u16)p->skb->ifindex) {
		/* It comes from elsewhere than before. What is sent to that station is
		 * to find its new place too.
		 */
		if (meta->in_port) {
			twin->nexthop = 0;
			meta->nexthop = 0;
			w->conn.meta.nexthop = 0;
		}
		meta->in_port = p->skb->ifindex;
	}
	if (event == EVENT_RESET) {
		if (!ct_reset_in_window(p, twin))
			return LL_NEXT;
		meta->flags |= CT_F_RST;
	}
	if (event == EVENT_ANSWER && meta->flags & CT_F_REPLY && meta->state < CT_ESTABLISHED)
		ct_agree_scale(p, meta, twin);
	if (event == EVENT_CLOSE)
		meta->flags |= CT_F_FIN;
	state = ct_next(w->conn.meta.state, event, meta->flags, twin->flags);
	if (p->proto == IPPROTO_UDP && state == CT_ANSWERED)
		state = CT_ESTABLISHED;
	if (w->conn.meta.state == CT_CLOSED && state == CT_ESTABLISHED) {
		meta->flags &= ~CT_F_RST;
		if (w->conn.half_open) /* as before the reset: it was not established */
			state = meta->flags & CT_F_REPLY ? CT_ANSWERED : CT_NEW;
	}
	meta->state = state;
	twin->state = state;
	/* The half-open table may be one that other programs use as well, which run on hooks
	 * that this copy has not come to yet; the established one may not be.
	 */
	if (!config_first && w->conn.half_open && ct_is_lasting(state, event, meta, twin)) {
		w->conn.meta = *meta;
		w->twin.meta = *twin;
		ct_promote(w);
	}
	return LL_NEXT;
}
