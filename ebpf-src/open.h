/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* open.h - the first packet of a connection to a service. */
#pragma once

#include "ctstate.h"
#include "firewall.h"
#include "fragment.h"
#include "lb.h"
#include "nexthop.h"
#include "route.h"

#define SNAT_TRIES 32 /* source ports looked at for one connection */

/* Takes the next source port towards the backend for w->conn. Ports go out in
 * order, each target starting at a place of its own, so that one is given out
 * again as late as can be; the first that no connection holds is taken.
 */
static __noinline int snat_port(struct pkt *p, struct work *w)
{
	struct snat_target *target = &w->snat_target;
	__u32 index = 0, *next; /* first where the count is, then where to begin */
	__u16 *port_count = bpf_map_lookup_elem(&ll_snat_ports, &index);

	if (w->reopen && w->old.meta.flags & CT_F_SNAT && w->old.dport == w->conn.dport &&
	    addr_equal(&w->old.daddr, &w->conn.daddr) &&
	    addr_equal(&w->old.saddr, &w->conn.saddr)) {
		/* To the backend it is what it is to us: the client again. */
		w->conn.sport = w->old.sport;
		tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
		return LL_NEXT;
	}
	if (!port_count || !*port_count)
		return -DROP_NO_PORT;
	target->saddr = w->conn.saddr;
	target->daddr = w->conn.daddr;
	target->dport = w->conn.dport;
	target->proto = p->proto;
	target->zone = config_zone;
	next = bpf_map_lookup_elem(&ll_snat_next, target);
	if (!next) {
		index = bpf_get_prandom_u32();
		bpf_map_update_elem(&ll_snat_next, target, &index, BPF_NOEXIST);
		next = bpf_map_lookup_elem(&ll_snat_next, target);
		if (!next)
			return -DROP_NO_PORT;
	}
	for (int i = 0; i < SNAT_TRIES; i++) {
		__u16 *port;

		index = 1 + __sync_fetch_and_add(next, 1) % *port_count;
		port = bpf_map_lookup_elem(&ll_snat_ports, &index);
		if (!port)
			return -DROP_NO_PORT;
		w->conn.sport = bpf_htons(*port);
		tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
		if (!conn_exists(&w->twin_tuple))
			return LL_NEXT;
	}
	return -DROP_NO_PORT;
}

/* Returns the index of the device that packets to w->conn's destination leave by: as
 * the connection that ended left, if it went to the same, else by the kernel's routes.
 */
static __always_inline __u32 open_route(struct pkt *p, struct work *w)
{
	__u32 index = w->old.meta.nexthop;
	struct nexthop *nexthop;
	__u32 out;

	if (w->reopen && index && addr_equal(&w->old.daddr, &w->conn.daddr)) {
		nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
		out = nexthop ? nexthop_device(nexthop) : 0;
		if (out)
			return out;
	}
	w->routed = route_out(p, &w->conn.saddr, &w->conn.daddr);
	return w->routed;
}

/* Chooses the source that the backend sees. w->conn has the destination. */
static __always_inline int open_source(struct pkt *p, struct work *w, const struct service *s)
{
	int snat = s->source == SOURCE_SNAT || p->egress;
	struct device *device;
	__u32 out;

	w->conn.saddr = p->saddr;
	w->conn.sport = p->sport;
	if (s->source != SOURCE_KEEP) {
		out = open_route(p, w);
		if (s->source == SOURCE_AUTO && out == p->skb->ifindex)
			snat = 1;
		/* A backend on the node answers by our hook in any case. */
		if (!snat || (!out && !p->egress))
			goto keep;
		if (!out && p->egress) {
			/* Node to itself: the frontend's address is one that
			 * comes back to our hook and is not the node's own.
			 */
			w->conn.saddr = p->daddr;
			w->conn.meta.flags |= CT_F_LOCAL;
		} else {
			device = device_find(out);
			if (!device)
				return -DROP_NO_ADDRESS;
			w->conn.saddr = p->family == 4 ? device->addr4 : device->addr6;
			if (!addr_is_set(&w->conn.saddr))
				return -DROP_NO_ADDRESS;
			/* The node's own address already: its port is the node's too. */
			if (p->egress && addr_equal(&w->conn.saddr, &p->saddr))
				goto keep;
		}
		w->conn.meta.flags |= CT_F_SNAT;
		w->routed = 0; /* that was from another source */
		return snat_port(p, w);
	}
keep:
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	if (!conn_find(w, &w->twin_tuple, &w->twin, 0))
		return LL_NEXT;
	if (addr_equal(&w->twin.saddr, &p->daddr) && addr_equal(&w->twin.daddr, &p->saddr) &&
	    w->twin.sport == p->dport && w->twin.dport == p->sport)
		return LL_NEXT; /* left over from this very tuple */
	/* The client has this connection already, by another frontend: only
	 * another port can tell the answers apart.
	 */
	w->conn.meta.flags |= CT_F_SNAT;
	return snat_port(p, w);
}

static __always_inline int open_same_way(const struct conn *a, const struct conn *b)
{
	return addr_equal(&a->saddr, &b->saddr) && addr_equal(&a->daddr, &b->daddr) &&
	       a->sport == b->sport && a->dport == b->dport;
}

/* w->conn takes the place of w->old, a connection that ended, where it goes the same
 * way: both entries stay and begin anew, with the next hops that they have. Returns
 * whether it did; if not, the old entries are gone. What they carried is counted. A
 * global function, so that the verifier walks it once.
 */
__noinline int open_reopen(void)
{
	struct work *w = work_get();
	struct ct_meta *meta, *twin;
	__u32 half_open, same;

	if (!w)
		return 0;
	half_open = w->old.half_open;
	same = open_same_way(&w->old, &w->conn);
	tuple_reply(&w->old_tuple, &w->old, &w->tuple);
	meta = conn_find(w, &w->tuple, &w->old, 0);
	if (meta)
		count_reused(&w->old.meta);
	twin = conn_find(w, &w->old_tuple, &w->old, 0);
	if (twin)
		count_reused(&w->old.meta);
	if (meta && twin && same) {
		w->conn.meta.nexthop = meta->nexthop;
		w->twin.meta.nexthop = twin->nexthop;
		w->twin.meta.in_port = twin->in_port;
		*meta = w->conn.meta;
		*twin = w->twin.meta;
		w->conn.half_open = half_open;
		return 1;
	}
	conn_remove(&w->old_tuple, half_open);
	conn_remove(&w->tuple, half_open);
	return 0;
}

/* Enters both directions of w->conn as half-open. */
static __always_inline int open_enter(struct pkt *p, struct work *w)
{
	int scale = ct_event_of(p) == EVENT_OPEN && p->proto == IPPROTO_TCP
			    ? tcp_scale_of(p->skb, p->l4_off)
			    : 0;

	w->conn.half_open = 1;
	w->twin = w->conn;
	w->conn.meta.in_port = p->egress ? 0 : p->skb->ifindex;
	w->conn.meta.tcp_scale = scale > 0 ? scale : 0;
	w->twin.meta.flags |= CT_F_REPLY;
	w->twin.saddr = p->daddr;
	w->twin.sport = p->dport;
	w->twin.daddr = p->saddr;
	w->twin.dport = p->sport;
	track_count(p, &w->conn.meta);
	if (w->reopen && open_reopen())
		return LL_NEXT;
	if (conn_put(&w->twin_tuple, &w->twin, BPF_ANY) || conn_put(&w->tuple, &w->conn, BPF_ANY))
		return -DROP_TABLE_FULL;
	return LL_NEXT;
}

/* Whether p opens a connection that we follow though it is no service's: one through the
 * node; where there are rules, for its answers' sake any one that they were asked about.
 */
static __always_inline int open_follows(struct pkt *p)
{
	if (ct_event_of(p) > EVENT_ANSWER || p->stateless || p->to_group ||
	    (p->proto == IPPROTO_ICMP && p->icmp_type != ICMP_ECHO) ||
	    (p->proto == IPPROTO_ICMPV6 && p->icmp_type != ICMPV6_ECHO))
		return 0;
	if (firewall_rules())
		return firewall_hook(p) != 0;
	return !p->egress && !p->tagged && (p->bridged || !firewall_is_local(&p->daddr));
}

/* A connection that is no service's: it is entered as it is, and the kernel forwards it.
 * LL_PASS: none that we could follow.
 */
static __always_inline int open_plain(struct pkt *p, struct work *w)
{
	__u32 nobody = 0;
	__u64 *opened;

	if (!open_follows(p)) {
		if (p->stateless && p->fragment == FRAGMENT_FIRST)
			fragment_teach(p);
		return LL_PASS;
	}
	tuple_of(&w->tuple, p);
	__builtin_memset(&w->conn, 0, sizeof(w->conn));
	w->conn.meta.created_tick = p->now_tick;
	w->conn.meta.last_seen_tick = p->now_tick;
	if (p->egress && !p->skb->ingress_ifindex)
		w->conn.meta.flags = CT_F_FROM_NODE;
	w->conn.saddr = p->saddr;
	w->conn.daddr = p->daddr;
	w->conn.sport = p->sport;
	w->conn.dport = p->dport;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	opened = bpf_map_lookup_elem(&ll_backend_opened, &nobody);
	if (opened)
		__sync_fetch_and_add(opened, 1);
	return open_enter(p, w);
}

/* Enters the connection that p opens, p counted, with a backend where it is for a
 * service: w->conn is what p becomes. w->reopen: p has the tuple of a connection that
 * ended, w->old. LL_PASS: none that we follow. LL_REFUSE: there is no backend.
 */
static __noinline int open_connection(struct pkt *p, struct work *w)
{
	struct service *found = lb_service(p, &w->service_key), *s;
	struct backend *backend;
	struct service_stats *stats;
	__u64 *opened;
	__u32 id, *load;
	int ret;

	if (!found)
		return open_plain(p, w);
	w->service = *found;
	s = &w->service;
	p->service_id = s->id;
	if (!lb_client_allowed(p, s, &w->source_range_key))
		return -DROP_SOURCE_RANGE;
	tuple_of(&w->tuple, p);
	__builtin_memset(&w->conn, 0, sizeof(w->conn));
	w->conn.meta.service_id = s->id;
	w->conn.meta.created_tick = p->now_tick;
	w->conn.meta.last_seen_tick = p->now_tick;
	w->conn.meta.flags = CT_F_DNAT | (p->egress ? CT_F_FROM_NODE : 0);
	id = lb_choose(p, w);
	backend = bpf_map_lookup_elem(&ll_backend, &id);
	if (!id || !backend || backend->service_id != s->id) {
		p->refused = DROP_NO_BACKEND;
		return LL_REFUSE;
	}
	w->conn.meta.backend_id = id;
	w->conn.daddr = backend->addr;
	w->conn.dport = backend->port;
	ret = open_source(p, w, s);
	if (ret == LL_NEXT)
		ret = open_enter(p, w);
	if (ret != LL_NEXT)
		return ret;
	load = bpf_map_lookup_elem(&ll_backend_load, &id);
	if (load)
		__sync_fetch_and_add(load, 1);
	opened = bpf_map_lookup_elem(&ll_backend_opened, &id);
	if (opened)
		__sync_fetch_and_add(opened, 1);
	stats = bpf_map_lookup_elem(&ll_service_stats, &s->id);
	if (stats)
		stats->connection_count++;
	p->opened = 1;
	return LL_NEXT;
}
