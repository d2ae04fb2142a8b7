/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* twin.h - the entry of the other direction of a connection. */
#pragma once

#include "conntrack.h"
#include "tcpscale.h"

/* Whether w->twin, found under w->twin_tuple, is the other direction of the connection of
 * w->tuple: its packets leave as that one's answers.
 */
static __always_inline int ct_is_twin(const struct work *w)
{
	return w->twin.sport == w->tuple.dport && w->twin.dport == w->tuple.sport &&
	       addr_equal(&w->twin.saddr, &w->tuple.daddr) &&
	       addr_equal(&w->twin.daddr, &w->tuple.saddr);
}

/* Begins the other direction of w->conn, of which there is no entry. */
static __always_inline void ct_twin_begin(struct work *w)
{
	w->twin = w->conn;
	w->twin.saddr = w->tuple.daddr;
	w->twin.daddr = w->tuple.saddr;
	w->twin.sport = w->tuple.dport;
	w->twin.dport = w->tuple.sport;
	w->twin.meta.flags ^= CT_F_REPLY;
	w->twin.meta.flags &= ~(CT_F_FIN | CT_F_RST);
	w->twin.meta.nexthop = 0;
	w->twin.meta.in_port = 0;
	w->twin.meta.packet_count = 0;
	w->twin.meta.byte_count = 0;
	w->twin.meta.tcp_ack = 0;
	w->twin.meta.tcp_scale = TCP_SCALE_MAX;
}

/* Finds the other direction's entry of w->conn, or puts one back that was evicted
 * alone. Returns its shared part in the map, or NULL; then w->lost says that another
 * connection has taken its place. One that nothing has answered yet makes room: where the
 * entry of the answers is missing, an answer opens such a connection.
 */
static __noinline struct ct_meta *ct_twin(struct work *w)
{
	struct ct_meta *twin;

	w->lost = 0;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	twin = conn_find(w, &w->twin_tuple, &w->twin, w->conn.half_open);
	if (twin && ct_is_twin(w))
		return twin;
	if (twin) {
		if (w->conn.meta.flags & CT_F_REPLY || w->twin.meta.state != CT_NEW) {
			w->lost = 1;
			return NULL;
		}
		conn_remove(&w->twin_tuple, w->twin.half_open);
	}
	ct_twin_begin(w);
	if (conn_put(&w->twin_tuple, &w->twin, BPF_ANY))
		return NULL;
	return conn_find(w, &w->twin_tuple, &w->twin, w->conn.half_open);
}

/* Reports whether w->twin_tuple is free for the answers of w->conn, which came as w->tuple. An
 * entry that is left over from this very connection is deleted: its other half was evicted. A
 * global function, so that the verifier walks it once.
 */
__noinline int twin_is_free(void)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	if (!conn_find(w, &w->twin_tuple, &w->twin, 0))
		return 1;
	if (!ct_is_twin(w))
		return 0;
	if (!w->reopen)
		conn_remove(&w->twin_tuple, w->twin.half_open);
	return 1;
}
