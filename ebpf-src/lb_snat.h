/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* lb_snat.h - chooses the source address and port that the backend of a new connection sees. */
#pragma once

#include "l2_domain.h"
#include "lb.h"
#include "nat_port_share.h"
#include "fib.h"
#include "tun_encap.h"
#include "ct_twin.h"

#define SNAT_TRIES 64 /* source ports tried for one connection */

/* Tries the next source port towards the backend for w->conn; i: the number of earlier tries. 1:
 * w->conn has the port; 0: the port cannot be used; negative: no port exists. A global function, so
 * that the verifier walks it once.
 */
__noinline int snat_attempt(__u32 i)
{
	struct work *w = work_get();
	__u32 index = 0; /* of the count, then of the port */
	__u16 *port = bpf_map_lookup_elem(&ll_snat_ports, &index);

	if (!w || !port || !*port)
		return -DROP_NO_PORT;
	if (!i)
		share_begin(w, *port);
	index = 1 + ports_turn(w) % *port;
	port = bpf_map_lookup_elem(&ll_snat_ports, &index);
	if (!port)
		return -DROP_NO_PORT;
	if (share_forbids(w, *port) || (share_turns(w, i) && !share_is_other(w, *port)))
		return 0;
	w->conn.sport = bpf_htons(*port);
	if (w->tuple.proto == IPPROTO_ICMP || w->tuple.proto == IPPROTO_ICMPV6)
		w->conn.dport = w->conn.sport; /* both ports are the identifier */
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	if (w->fresh)
		conn_fetch(w, &w->twin_tuple);
	if (!conn_peek(w, &w->twin_tuple, &w->twin))
		return 1;
	share_note(w);
	return 0;
}

/* Allocates a source port towards the backend for w->conn. Ports are tried in order, from a random
 * start for each target, so that a port is reused as late as possible; the first free port is
 * taken. A global function, so that the verifier walks it once.
 */
__noinline int snat_port(void)
{
	struct work *w = work_get();
	struct snat_target *target;

	if (!w)
		return -DROP_NO_PORT;
	target = &w->snat_target;
	if (w->reopen && w->old.meta.flags & CT_F_SNAT && w->old.dport == w->conn.dport &&
	    addr_equal(&w->old.daddr, &w->conn.daddr) &&
	    addr_equal(&w->old.saddr, &w->conn.saddr)) {
		/* For the backend, the same client opens the connection again. */
		w->conn.sport = w->old.sport;
		tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
		return LL_NEXT;
	}
	target->saddr = w->conn.saddr;
	target->daddr = w->conn.daddr;
	target->dport = w->conn.dport;
	target->proto = w->tuple.proto;
	target->netns = config_netns;
	for (int i = 0; i < SNAT_TRIES; i++) {
		int ret = snat_attempt(i);

		if (ret)
			return ret > 0 ? LL_NEXT : ret;
	}
	return -DROP_NO_PORT;
}

/* Returns the index of the device through which packets to w->conn's destination leave: the device
 * of the ended connection if it had the same destination and no source of this node, else the device
 * of the kernel's route. The former may be a port of the bridge that is the latter: it has no
 * address, and source_turns does not recognise it.
 */
static __always_inline __u32 open_route(struct pkt *p, struct work *w)
{
	__u32 index = w->old.meta.nexthop;
	struct nexthop *nexthop;
	__u32 out;

	if (w->reopen && index && !(w->old.meta.flags & CT_F_SNAT) &&
	    addr_equal(&w->old.daddr, &w->conn.daddr)) {
		nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
		out = nexthop ? nexthop_device(nexthop) : 0;
		if (out)
			return out;
	}
	w->routed = route_out(p, &w->conn.saddr, &w->conn.daddr);
	return w->routed;
}

/* Reports whether the bridge of this port is flat: replies that it delivers directly to the sender
 * of the packet are translated. A global function, so that the verifier walks it once.
 */
__noinline int source_is_flat(struct __sk_buff *skb, __u32 bridge_port, __u32 vid)
{
	struct bridge_port *s = bridge_port ? bridge_port_find(skb->ifindex, vid) : NULL;

	return s && s->flags & BRIDGE_PORT_F_FLAT;
}

/* Reports whether the backend is behind a peer, and the client, which arrived on the device in, is
 * neither on this node nor behind a peer: the backend's node would send replies by its own route. A
 * global function, so that the verifier walks it once.
 */
__noinline int source_is_strange(const struct addr *client, const struct addr *backend, __u32 in)
{
	struct device *device = device_find(in);

	if (!client || !backend || !device || !(device->flags & DEVICE_F_UPLINK))
		return 0;
	return tunnel_peer_of(backend) && !tunnel_peer_of(client);
}

/* Reports whether replies from w->conn's destination, behind the device out, would bypass this
 * node.
 */
static __always_inline int source_turns(struct pkt *p, struct work *w, __u32 out)
{
	if (out && source_is_strange(&p->saddr, &w->conn.daddr, p->skb->ifindex))
		return 1;
	if (!out || out != route_in(p))
		return 0;
	return addr_equal(&w->conn.daddr, &p->saddr) ||
	       !source_is_flat(p->skb, p->bridge_port, p->vid);
}

/* Chooses the source that the backend sees. w->conn contains the destination. */
static __noinline int open_source(struct pkt *p, struct work *w, const struct service *s)
{
	int snat = s->source == SOURCE_SNAT || p->egress;
	struct device *device;
	__u32 out;

	w->conn.saddr = p->saddr;
	w->conn.sport = p->sport;
	if (s->source != SOURCE_KEEP) {
		out = open_route(p, w);
		if (s->source == SOURCE_AUTO && source_turns(p, w, out))
			snat = 1;
		/* Replies from a backend on the node pass our hook in any case. */
		if (!snat || (!out && !p->egress))
			goto keep;
		if (!out && p->egress) {
			/* From the node to itself: the source is the frontend's address, which the
			 * node does not have, so that replies return to our hook.
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
			/* The source is the node's own address already, with a port of the node. */
			if (p->egress && addr_equal(&w->conn.saddr, &p->saddr))
				goto keep;
		}
		w->conn.meta.flags |= CT_F_SNAT;
		w->routed = 0; /* that route is for another source */
		return snat_port();
	}
keep:
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	if (!conn_peek(w, &w->twin_tuple, &w->twin))
		return LL_NEXT;
	if (ct_is_twin(w))
		return LL_NEXT; /* left over from an earlier connection: it is overwritten */
	/* The client already has this connection through another frontend: only another source port
	 * distinguishes the replies.
	 */
	w->conn.meta.flags |= CT_F_SNAT;
	return snat_port();
}
