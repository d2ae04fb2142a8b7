/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_twin.h - the entry of the other direction of a connection. */
#pragma once

#include "ct_conn.h"
#include "ct_tcp_scale.h"

/* Reports whether w->twin, found under w->twin_tuple, is the other direction of the connection of
 * w->tuple: its packets leave as replies to packets with w->tuple.
 */
static __always_inline int ct_is_twin(const struct work *w)
{
	return w->twin.sport == w->tuple.dport && w->twin.dport == w->tuple.sport &&
	       addr_equal(&w->twin.saddr, &w->tuple.daddr) &&
	       addr_equal(&w->twin.daddr, &w->tuple.saddr);
}

/* Initialises the missing entry of the other direction of w->conn. */
static __always_inline void ct_twin_begin(struct work *w)
{
	w->twin = w->conn;
	w->twin.saddr = w->tuple.daddr;
	w->twin.daddr = w->tuple.saddr;
	w->twin.sport = w->tuple.dport;
	w->twin.dport = w->tuple.sport;
	w->twin.meta.flags ^= CT_F_REPLY;
	w->twin.meta.flags &= ~(CT_F_FIN | CT_F_RST);
	if (!(w->twin.meta.flags & CT_F_REPLY)) /* the client's: not counted yet */
		w->twin.meta.flags &= ~CT_F_LASTING;
	if (w->conn.meta.state == CT_ONE_WAY)
		w->twin.meta.state = CT_NEW;
	w->twin.meta.nexthop = 0;
	w->twin.meta.in_port = 0;
	w->twin.meta.packet_count = 0;
	w->twin.meta.packet_count_high = 0;
	w->twin.meta.byte_count = 0;
	w->twin.meta.tcp_ack = 0;
	w->twin.meta.tcp_scale = TCP_SCALE_MAX;
}

/* Finds the entry of the other direction of w->conn, or restores it if only that entry was evicted.
 * Returns its common part in the map, or NULL; w->lost is then set if another connection has taken
 * its place. An unanswered connection in its place is removed: a reply opens such a connection if
 * the entry of the replies is missing.
 */
static __noinline struct ct_meta *ct_twin(struct work *w)
{
	struct ct_meta *twin;

	w->lost = 0;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	twin = conn_peek(w, &w->twin_tuple, &w->twin);
	if (twin && ct_is_twin(w))
		return twin;
	if (twin) {
		if (w->conn.meta.flags & CT_F_REPLY || w->twin.meta.state != CT_NEW ||
		    w->twin.meta.flags & CT_F_LASTING) {
			w->lost = 1;
			return NULL;
		}
		conn_remove(&w->twin_tuple);
	}
	conn_read_more(w->tuple.family != 4, &w->conn);
	ct_twin_begin(w);
	w->last_put = w->conn.index; /* not to be evicted by its other entry */
	if (conn_put(&w->twin_tuple, &w->twin, BPF_ANY))
		return NULL;
	return conn_peek(w, &w->twin_tuple, &w->twin);
}

/* Reports whether w->twin_tuple is free for the replies of w->conn, which arrived as w->tuple. An
 * entry left over from this very connection, whose other entry was evicted, is deleted. A global
 * function, so that the verifier walks it once.
 */
__noinline int twin_is_free(void)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	if (!conn_peek(w, &w->twin_tuple, &w->twin))
		return 1;
	if (!ct_is_twin(w))
		return 0;
	if (!w->reopen)
		conn_remove(&w->twin_tuple);
	return 1;
}
