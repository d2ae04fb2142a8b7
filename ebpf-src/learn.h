/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* learn.h - neighbours, learnt from where the slow path sent a packet. */
#pragma once

#include "domain.h"
#include "nexthop.h"
#include "route.h"
#include "tunnel.h"

/* Fills the domain of a packet that is about to leave: one that came in by a port of the
 * same bridge was bridged.
 */
static __noinline void domain_egress(struct pkt *p)
{
	struct station *in, *out;

	if (!domain_may_bridge(p->skb->ifindex)) {
		if (p->vid)
			p->tagged = 1;
		return;
	}
	out = domain_station(p->skb->ifindex, p->vid);
	in = p->skb->ingress_ifindex ? domain_station(p->skb->ingress_ifindex, 0) : NULL;
	if (!out || !in || in->bridge != out->bridge)
		return;
	p->bridged = 1;
	p->domain = out->flags & STATION_F_FLAT ? 0 : out->domain;
}

/* Reports whether the station with this MAC can be behind a port of a bridge: a pod has one MAC,
 * whatever those who send to it write.
 */
static __always_inline int domain_has_station(__u32 ifindex, const __u8 *mac)
{
	struct station *s = domain_station(ifindex, 0);

	return !s || !(s->flags & STATION_F_GUARDED) ||
	       (*(__u16 *)&s->guard[0] == *(const __u16 *)&mac[0] &&
		*(__u16 *)&s->guard[2] == *(const __u16 *)&mac[2] &&
		*(__u16 *)&s->guard[4] == *(const __u16 *)&mac[4]);
}

/* Returns the MTU of the path that p, which the kernel has routed, goes by: that of its
 * route where that is less than the device's, mtu_bytes.
 */
static __noinline __u32 route_mtu(struct pkt *p, __u32 mtu_bytes)
{
	struct work *w = work_get();
	__u32 out = route_out(p, &p->saddr, &p->daddr);

	if (!w || !out || !w->fib.mtu_result || w->fib.mtu_result > mtu_bytes)
		return mtu_bytes;
	return w->fib.mtu_result;
}

/* Why a packet of meta is not for that part of a bridge where it is seen. */
static __always_inline enum slow_why nexthop_one_way(const struct ct_meta *meta)
{
	return meta->packet_count & 1 ? WHY_ONE_WAY_1 : WHY_ONE_WAY;
}

/* Egress hook, where the frame, one of meta, is about to be sent: the index of the
 * neighbour that it is sent to, which the kernel has just used; 0, and why, where there is
 * none. twin is of the answers, as they are.
 */
static __noinline __u32 nexthop_of_frame(struct pkt *p, const struct ct_meta *meta,
					 const struct ct_meta *twin, enum slow_why *why)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	struct nexthop_key key = {
		.ifindex = p->skb->ifindex,
		.zone = config_zone,
		.vid = p->vid,
		.bridged = p->bridged,
	};
	struct device *device = device_find(key.ifindex);

	if (!device || !meta || !twin || !why || data + 12 > end)
		return 0;
	/* A bridge floods what is for a station that it has not heard yet, or does not know
	 * any more: only a part of it by which answers came is the right one, and not even
	 * that where the same packet was seen elsewhere.
	 */
	*why = nexthop_one_way(meta);
	if (device->flags & DEVICE_F_PART && (twin->in_port != (__u16)key.ifindex ||
					      (meta->flags & CT_WHY_MASK) >> CT_WHY_SHIFT == *why))
		return 0;
	__builtin_memcpy(key.dmac, data, 6);
	if (p->bridged && !domain_has_station(key.ifindex, key.dmac))
		return 0;
	*why = WHY_FULL;
	key.mtu_bytes = device->mtu_bytes;
	if (!p->bridged) {
		__builtin_memcpy(key.smac, data + 6, 6);
		key.mtu_bytes = route_mtu(p, device->mtu_bytes);
	}
	if (device->flags & DEVICE_F_TUNNEL) {
		__u32 peer = tunnel_peer_of(&p->daddr);

		*why = WHY_UNKNOWN;
		if (!peer)
			return 0;
		nexthop_key_of_peer(&key, peer);
	}
	return nexthop_enter(&key, device, p->now_tick);
}

/* Why a connection may not be short-cut; WHY_UNKNOWN: it may. What is no
 * service's may not where netfilter may say something else about its next packet, or has
 * set a mark for those who look at it.
 */
static __always_inline enum slow_why nexthop_why_not(struct pkt *p, const struct ct_meta *meta)
{
	__u32 zone = config_zone;
	__u32 *netfilter;

	if (p->tagged)
		return WHY_TAG;
	if (meta->service_id)
		return WHY_UNKNOWN;
	netfilter = bpf_map_lookup_elem(&ll_netfilter, &zone);
	if (netfilter && *netfilter & (p->bridged ? NETFILTER_F_BRIDGED : NETFILTER_F_ROUTED))
		return WHY_NETFILTER;
	return p->skb->mark ? WHY_MARK : WHY_UNKNOWN;
}

/* A connection is sent elsewhere than to the neighbour at index now. The others that
 * are sent there may be concerned as well, and nobody but the next packet to be
 * confirmed would tell them while there is no daemon: they all learn anew.
 */
static __always_inline void nexthop_doubt(__u32 index)
{
	struct nexthop *nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);

	if (nexthop)
		nexthop->ifindex = 0;
}

/* Egress hook, after our ingress hook saw the packet and the kernel forwarded it: p is
 * the tuple that it leaves with, so the answers' entry is that turned round, and what
 * the answers leave with is our entry's key, turned round. Returns whether p is of a
 * connection: if not, it is not what the ingress hook saw.
 */
static __noinline int nexthop_learn(struct pkt *p, struct work *w)
{
	struct ct_meta *meta, *twin;
	enum slow_why why;
	__u32 index = 0;

	if (!w || p->icmp_error || p->fragment == FRAGMENT_LATER)
		return 1;
	tuple_of(&w->twin_tuple, p);
	tuple_turn(&w->twin_tuple);
	twin = conn_find(w, &w->twin_tuple, &w->twin, 0);
	if (!twin)
		return 0;
	tuple_reply(&w->tuple, &w->twin, &w->twin_tuple);
	meta = conn_find(w, &w->tuple, &w->conn, 0);
	if (!meta || meta->flags & CT_F_DENIED)
		return 0;
	why = nexthop_why_not(p, meta);
	if (why == WHY_UNKNOWN)
		index = nexthop_of_frame(p, meta, twin, &why);
	meta->flags = (meta->flags & ~CT_WHY_MASK) | why << CT_WHY_SHIFT;
	if (index && meta->nexthop && meta->nexthop != index)
		nexthop_doubt(meta->nexthop);
	meta->nexthop = index;
	return 1;
}
