/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_port_reuse.h - reuses the outer ports of ended and expired connections when no free port is found. */
#pragma once

#include "ct_conn.h"
#include "count.h"
#include "nat_port_share.h"
#include "ct_twin.h"

/* Number of ports tried before the port of an ended connection is reused. */
#define PORTS_FREE_TRIES 8

/* Records the holder of the outer port that was tried for w->conn, and the port itself if the
 * connection of the holder has ended or, if none has, expired, and is the oldest such connection seen.
 */
static __always_inline void ports_note_ended(struct work *w)
{
	struct ct_meta *meta = conn_find(w, &w->twin_tuple, &w->twin);
	int ended;

	if (!meta)
		return;
	share_note(w);
	if (!w->twin.more.nat_id ||
	    (w->twin.meta.flags & (CT_F_REPLY | CT_F_SNAT)) != (CT_F_REPLY | CT_F_SNAT))
		return;
	ended = w->twin.meta.state >= CT_TIME_WAIT;
	if (w->spare_port && w->spare_ended > ended)
		return;
	if (w->spare_port && w->spare_ended == ended &&
	    (__s32)(w->twin.meta.last_seen_tick - w->spare_tick) >= 0)
		return;
	if (!ended && (!ct_has_expired(&w->twin.meta, &w->twin.more, w->now_tick) ||
		       !ct_twin_expired(w->twin_tuple.family != 4, conn_index(w, &w->twin_tuple),
					w->now_tick)))
		return;
	w->spare_port = w->conn.sport;
	w->spare_tick = w->twin.meta.last_seen_tick;
	w->spare_ended = ended;
}

/* Gives w->conn the port w->spare_port of an ended or expired connection, and removes that connection. A
 * remote that still remembers it accepts the new one by its sequence number or timestamp (RFC 9293,
 * section 3.10.7.4; RFC 6191). A global function, so that the verifier walks it once.
 */
__noinline int ports_take_spare(void)
{
	struct work *w = work_get();

	if (!w)
		return -DROP_NO_PORT;
	w->conn.sport = w->spare_port;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	if (!conn_find(w, &w->twin_tuple, &w->twin))
		return LL_NEXT;
	if (w->spare_ended && w->twin.meta.state < CT_TIME_WAIT) /* it was revived */
		return -DROP_NO_PORT;
	w->room_best = ROOM_EXPIRED;
	w->room_tick = w->now_tick;
	w->room_young = w->spare_ended;
	return ct_evict(w->twin_tuple.family != 4, conn_index(w, &w->twin_tuple)) ? -DROP_NO_PORT
										  : LL_NEXT;
}
