/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_event.h - the events of connections, and the table of state transitions. */
#pragma once

#include "pkt.h"

#define SCTP_INIT	       1
#define SCTP_ABORT	       6
#define SCTP_SHUTDOWN	       7
#define SCTP_SHUTDOWN_COMPLETE 14

enum ct_event {
	EVENT_DATA,
	EVENT_OPEN,   /* SYN without ACK, INIT */
	EVENT_ANSWER, /* SYN-ACK */
	EVENT_CLOSE,  /* FIN, SHUTDOWN */
	EVENT_CLOSED, /* SHUTDOWN COMPLETE: both sides have closed */
	EVENT_RESET,  /* RST, ABORT */
};

/* Returns the event of a packet. A global function, so that the verifier follows the code after it
 * once, not for each event.
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

/* Returns the state after event. flags are the flags of the direction of event, twin_flags of the
 * other direction. A pure function, which contains the whole table of transitions. A global
 * function, so that the verifier walks it once.
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
	/* A side that has reset a connection sends nothing more, so the reset was forged. */
	if (state == CT_CLOSED && flags & CT_F_RST)
		return CT_ESTABLISHED;
	return state;
}
