/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nh_learn.h - learns next hops from packets that the slow path sends. */
#pragma once

#include "l2_domain.h"
#include "nh.h"
#include "fib.h"
#include "tun_encap.h"
#include "policy_conn.h"

/* Fills the bridge domain of a packet that is about to leave: if it arrived on a port of the same
 * bridge, it was bridged.
 */
static __noinline void domain_egress(struct pkt *p)
{
	struct bridge_port *in, *out;

	if (!domain_may_bridge(p->skb->ifindex)) {
		if (p->vid)
			p->tagged = 1;
		return;
	}
	out = bridge_port_find(p->skb->ifindex, p->vid);
	in = p->skb->ingress_ifindex ? bridge_port_find(p->skb->ingress_ifindex, 0) : NULL;
	if (!out || !in || in->bridge != out->bridge)
		return;
	p->bridged = 1;
	p->domain = out->flags & BRIDGE_PORT_F_FLAT ? 0 : out->domain;
}

/* Reports whether a MAC can be behind a bridge port: a pod has one MAC, whatever destination MACs
 * other hosts use.
 */
static __always_inline int domain_has_station(__u32 ifindex, const __u8 *mac)
{
	struct bridge_port *s = bridge_port_find(ifindex, 0);

	return !s || !(s->flags & BRIDGE_PORT_F_GUARDED) ||
	       (*(__u16 *)&s->guard[0] == *(const __u16 *)&mac[0] &&
		*(__u16 *)&s->guard[2] == *(const __u16 *)&mac[2] &&
		*(__u16 *)&s->guard[4] == *(const __u16 *)&mac[4]);
}

/* Returns the path MTU of p, which the kernel has routed: the MTU of its route if that is lower
 * than the MTU of the device, mtu_bytes.
 */
static __noinline __u32 route_mtu(struct pkt *p, __u32 mtu_bytes)
{
	struct work *w = work_get();
	__u32 out = route_out(p, &p->saddr, &p->daddr);

	if (!w || !out || !w->fib.mtu_result || w->fib.mtu_result > mtu_bytes)
		return mtu_bytes;
	return w->fib.mtu_result;
}

/* Returns the reason why no next hop is learnt from a bridged packet of meta. It alternates with
 * the packet count, so that nexthop_of_frame detects the same packet on a second port.
 */
static __always_inline enum slowpath_reason nexthop_one_way(const struct ct_meta *meta)
{
	return meta->packet_count & 1 ? SLOWPATH_ONE_WAY_1 : SLOWPATH_ONE_WAY;
}

/* Egress hook, when a frame of meta is about to be sent: returns the index of its next hop, which
 * the kernel has just used. If none is learnt, returns 0 and the reason in why. twin is the entry
 * of the replies.
 */
static __noinline __u32 nexthop_of_frame(struct pkt *p, const struct ct_meta *meta,
					 const struct ct_meta *twin, enum slowpath_reason *why)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	struct nexthop_key key = {
		.ifindex = p->skb->ifindex,
		.netns = config_netns,
		.vid = p->vid,
		.bridged = p->bridged,
	};
	struct device *device = device_find(key.ifindex);

	if (!device || !meta || !twin || !why || data + 12 > end)
		return 0;
	/* A bridge floods frames to a MAC that it has not learnt, or has forgotten. So only the
	 * port on which replies arrived is correct, and not even that port if the same packet was
	 * seen on another port.
	 */
	*why = nexthop_one_way(meta);
	if (device->flags & DEVICE_F_MEMBER &&
	    (twin->in_port != (__u16)key.ifindex ||
	     (meta->flags & CT_SLOWPATH_MASK) >> CT_SLOWPATH_SHIFT == *why))
		return 0;
	__builtin_memcpy(key.dmac, data, 6);
	if (p->bridged && !domain_has_station(key.ifindex, key.dmac))
		return 0;
	*why = SLOWPATH_FULL;
	key.mtu_bytes = device->mtu_bytes;
	if (!p->bridged) {
		__builtin_memcpy(key.smac, data + 6, 6);
		key.mtu_bytes = route_mtu(p, device->mtu_bytes);
	}
	if (device->flags & DEVICE_F_TUNNEL) {
		__u32 peer = tunnel_peer_of(&p->daddr);

		*why = SLOWPATH_UNKNOWN;
		if (!peer)
			return 0;
		nexthop_key_of_peer(&key, peer);
	}
	return nexthop_enter(&key, device, p->now_tick);
}

/* Returns the slow-path reason of a connection; SLOWPATH_UNKNOWN: the fast path is allowed. A
 * connection without a service is excluded if netfilter may decide differently about its next
 * packet, or if the packet has a mark that another program may evaluate.
 */
static __always_inline enum slowpath_reason nexthop_why_not(struct pkt *p,
							    const struct ct_meta *meta)
{
	__u32 netns = config_netns;
	__u32 *netfilter;

	if (p->tagged)
		return SLOWPATH_TAG;
	if (names_come_from(&p->daddr, p->sport))
		return SLOWPATH_NAMES;
	if (meta->flags & CT_F_SERVICE)
		return SLOWPATH_UNKNOWN;
	netfilter = bpf_map_lookup_elem(&ll_netfilter, &netns);
	if (netfilter && *netfilter & (p->bridged ? NETFILTER_F_BRIDGED : NETFILTER_F_ROUTED))
		return SLOWPATH_NETFILTER;
	return p->skb->mark ? SLOWPATH_MARK : SLOWPATH_UNKNOWN;
}

/* Invalidates the next hop at index: a packet of one of its connections has left through another
 * next hop. Its other connections may have moved too, and without a daemon only its next
 * confirmation would detect that. So all of them learn their next hop again.
 */
static __always_inline void nexthop_invalidate(__u32 index)
{
	struct nexthop *nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);

	if (nexthop)
		nexthop->ifindex = 0;
}

/* Egress hook, for a packet that our ingress hook saw and the kernel forwarded: learns its next
 * hop. p has the leaving tuple. That tuple, reversed, is the key of the entry of the replies, whose
 * leaving tuple, reversed, is the key of the entry of p. 1: p has a connection. 0: it has none, so
 * the ingress hook did not see p. Or a drop reason.
 */
static __noinline int nexthop_learn(struct pkt *p, struct work *w)
{
	struct ct_meta *meta, *twin;
	enum slowpath_reason why;
	__u32 index = 0;

	if (!w || p->icmp_error || p->fragment == FRAGMENT_LATER)
		return 1;
	tuple_of(&w->twin_tuple, p);
	tuple_turn(&w->twin_tuple);
	twin = conn_peek(w, &w->twin_tuple, &w->twin);
	if (!twin)
		return 0;
	tuple_reply(&w->tuple, &w->twin, &w->twin_tuple);
	meta = conn_peek(w, &w->tuple, &w->conn);
	if (!meta || meta->flags & CT_F_DENIED)
		return 0;
	if (policy_is_at(p->skb->ifindex)) {
		/* It may leave through another port than its address says. */
		int ret = policy_follow(p, w);

		if (ret != LL_NEXT)
			return ret == LL_REFUSE ? -DROP_POLICY : ret;
	}
	why = nexthop_why_not(p, meta);
	if (why == SLOWPATH_UNKNOWN)
		index = nexthop_of_frame(p, meta, twin, &why);
	if ((meta->flags & CT_SLOWPATH_MASK) != why << CT_SLOWPATH_SHIFT) {
		ct_flags_clear(meta, CT_SLOWPATH_MASK);
		ct_flags_set(meta, why << CT_SLOWPATH_SHIFT);
	}
	if (index && meta->nexthop && meta->nexthop != index)
		nexthop_invalidate(meta->nexthop);
	meta->nexthop = index;
	return 1;
}
