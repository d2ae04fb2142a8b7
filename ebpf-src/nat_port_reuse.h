/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nat_port_reuse.h - reuses the outer ports of ended connections when no free port is found. */
#pragma once

#include "ct_conn.h"
#include "count.h"
#include "nat_port_share.h"
#include "ct_twin.h"

/* Number of ports tried before the port of an ended connection is reused. */
#define PORTS_FREE_TRIES 8

/* Records the holder of the outer port that was tried for w->conn, and the port itself if the
 * connection of the holder has ended and is the oldest such connection seen.
 */
static __always_inline void ports_note_ended(struct work *w)
{
	struct ct_meta *meta = conn_find(w, &w->twin_tuple, &w->twin);

	if (!meta)
		return;
	share_note(w);
	if (w->twin.meta.state < CT_TIME_WAIT || !w->twin.more.nat_id ||
	    (w->twin.meta.flags & (CT_F_REPLY | CT_F_SNAT)) != (CT_F_REPLY | CT_F_SNAT))
		return;
	if (w->spare_port && (__s32)(w->twin.meta.last_seen_tick - w->spare_tick) >= 0)
		return;
	w->spare_port = w->conn.sport;
	w->spare_tick = w->twin.meta.last_seen_tick;
}

/* Gives w->conn the port w->spare_port of an ended connection, and removes that connection. A
 * remote that still remembers it accepts the new one by its sequence number or timestamp (RFC 9293,
 * section 3.10.7.4; RFC 6191). A global function, so that the verifier walks it once.
 */
__noinline int ports_take_spare(void)
{
	struct work *w = work_get();
	struct ct_meta *meta;

	if (!w)
		return -DROP_NO_PORT;
	w->conn.sport = w->spare_port;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	meta = conn_find(w, &w->twin_tuple, &w->twin);
	if (!meta)
		return LL_NEXT;
	/* The ended connection was revived, or another CPU has taken its port. */
	if (meta->state < CT_TIME_WAIT || conn_remove(&w->twin_tuple))
		return -DROP_NO_PORT;
	count_reused(&w->twin.meta, &w->twin.more);
	tuple_reply(&w->spare_tuple, &w->twin, &w->twin_tuple);
	if (!conn_find(w, &w->spare_tuple, &w->twin) || w->twin.sport != w->conn.sport ||
	    !addr_equal(&w->twin.saddr, &w->conn.saddr))
		return LL_NEXT;
	count_reused(&w->twin.meta, &w->twin.more);
	conn_remove(&w->spare_tuple);
	return LL_NEXT;
}
