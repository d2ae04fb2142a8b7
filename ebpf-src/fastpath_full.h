/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fastpath_full.h - the fast path for packets of established connections that fastpath.h does not
 * handle.
 */
#pragma once

#include "l2_domain.h"
#include "local_in.h"
#include "ct_slowpath.h"
#include "tun_encap.h"

/* Gives the frame the VLAN tag of its next hop. */
static __noinline int nexthop_tag(struct pkt *p, __u16 vid)
{
	if (p->vid && bpf_skb_vlan_pop(p->skb))
		return -DROP_REWRITE;
	if (vid && bpf_skb_vlan_push(p->skb, bpf_htons(ETH_P_8021Q), vid))
		return -DROP_REWRITE;
	return LL_NEXT;
}

/* Sends a rewritten packet on the fast path through the device out. */
static __always_inline int nexthop_send(struct pkt *p, const struct nexthop *nexthop, __u32 out)
{
	int ret = LL_NEXT;

	if (nexthop->flags & NEXTHOP_F_TUNNEL)
		return tunnel_send(p, nexthop->peer);
	if (!(nexthop->flags & NEXTHOP_F_BRIDGED))
		ret = frame_address(p, nexthop->dmac, nexthop->smac);
	if (ret == LL_NEXT && p->vid != nexthop->vid)
		ret = nexthop_tag(p, nexthop->vid);
	if (ret != LL_NEXT)
		return ret;
	if (nexthop->flags & NEXTHOP_F_PEER) {
		p->action = bpf_redirect_peer(out, 0);
		return LL_REDIRECT;
	}
	tracked_word(p->skb);
	p->action = bpf_redirect(out, 0);
	return LL_REDIRECT;
}

/* Reports whether packets of this direction leave with an IPv4 address of the node itself as
 * source, from SNAT or a frontend. The stack would drop such a packet on arrival as a martian.
 * Replies to a client on the node itself are excluded, since they are not forwarded.
 */
static __noinline int track_is_martian(struct pkt *p, __u16 flags, __be32 saddr)
{
	if (p->family != 4 || p->saddr.word[3] == saddr)
		return 0;
	if (!(flags & CT_F_REPLY))
		return !!(flags & CT_F_SNAT);
	if (flags & CT_F_FROM_NODE)
		return 0;
	return route_is_local4(p->skb, saddr);
}

/* Returns the tc_index word for a packet rewritten by r, from which the egress hook must learn. */
static __always_inline __u32 learn_word(const struct rewrite *r)
{
	return TC_INDEX_LEARN | (r->translate ? TC_INDEX_TRANSLATED : 0);
}

/* Sends a martian packet, already rewritten and with its TTL decremented, according to the kernel's
 * routes and neighbours, but not through the stack.
 */
static __noinline int track_send_routed(struct pkt *p)
{
	__u32 out = route_out(p, &p->saddr, &p->daddr);

	if (!out)
		return -DROP_NO_ROUTE;
	p->skb->tc_index = TC_INDEX_LEARN | TC_INDEX_TRANSLATED;
	p->action = route_redirect(out);
	p->verdict = VERDICT_SLOW;
	return LL_REDIRECT;
}

/* Rewrites p according to r and sends it to the node itself through the loopback. */
static __noinline int loopback_send(struct pkt *p, struct rewrite *r)
{
	int ret;

	r->dec_ttl = 0;
	ret = nat_rewrite(p, r);
	if (ret != LL_NEXT)
		return ret;
	p->verdict = VERDICT_LOCAL;
	return loopback_redirect(p);
}

/* Reports whether the packet itself may take the fast path. */
static __always_inline int track_may_short_cut(struct pkt *p, const struct nexthop *nexthop)
{
	if (p->tagged || p->slow || !track_fits(p, nexthop->mtu_bytes))
		return 0;
	if (!(nexthop->flags & NEXTHOP_F_BRIDGED))
		return p->ttl > 1;
	return frame_is_for(p, nexthop->dmac);
}

/* Reports whether the kernel would now route p, rewritten by r, to a device other than nexthop's,
 * or nowhere. If so, the next hop is invalidated, since other connections may be affected as well
 * and nothing else detects that without a daemon. If not, work's fib contains the route, for
 * route_redirect.
 */
static __noinline int track_is_rerouted(struct pkt *p, const struct rewrite *r,
					struct nexthop *nexthop)
{
	__u32 how = p->proto | (p->family == 4 ? ROUTE_IPV4 : 0);

	if (route_find(p->skb, &r->saddr, &r->daddr, how, route_in(p)) == nexthop_device(nexthop))
		return 0;
	nexthop->ifindex = 0;
	return 1;
}

/* Rewrites a packet according to r and forwards it: on the fast path if its next hop is known and
 * no check fails, else through the kernel.
 */
static __always_inline int track_forward(struct pkt *p, __u32 index, __u16 flags, struct rewrite *r)
{
	struct nexthop *nexthop;
	__u32 out;
	int ret;

	nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;
	out = nexthop ? nexthop_device(nexthop) : 0;
	if (!nexthop || !out || !track_may_short_cut(p, nexthop))
		goto slow;
	if (ticks_since(p->now_tick, nexthop->checked_tick) > config_confirm_ticks) {
		/* One packet goes through the kernel's neighbour table, so that the kernel sees
		 * that the neighbour is in use, and verifies that it is reachable.
		 */
		nexthop->checked_tick = p->now_tick;
		if (nexthop->flags & (NEXTHOP_F_BRIDGED | NEXTHOP_F_MEMBER))
			goto slow; /* the kernel's bridge confirms it */
		if (track_is_rerouted(p, r, nexthop))
			goto slow;
		r->dec_ttl = 1;
		ret = nat_rewrite(p, r);
		if (ret != LL_NEXT)
			return ret;
		p->skb->tc_index = learn_word(r);
		p->action = route_redirect(out);
		p->verdict = VERDICT_SLOW;
		return LL_REDIRECT;
	}
	r->dec_ttl = !(nexthop->flags & NEXTHOP_F_BRIDGED);
	ret = nat_rewrite(p, r);
	if (ret != LL_NEXT)
		return ret;
	p->verdict = VERDICT_FAST;
	return nexthop_send(p, nexthop, out);
slow:
	if (loopback_answers(p, flags, r))
		return loopback_send(p, r);
	if ((flags & (CT_F_SNAT_AT_EGRESS | CT_F_REPLY)) == CT_F_SNAT_AT_EGRESS)
		r->translate = 0; /* the egress hook translates */
	p->martian = r->translate && track_is_martian(p, flags, r->saddr.word[3]);
	/* The stack's ICMP error would quote the translated packet, which the sender does not know,
	 * and from which icmp_translate could not determine the connection. The kernel's bridge
	 * forwards packets with any TTL.
	 */
	if (r->translate && p->ttl <= 1 && (p->martian || !p->bridged) &&
	    !firewall_is_local(&r->daddr)) {
		p->refused = DROP_TTL;
		return LL_REFUSE;
	}
	if (p->martian) {
		if (p->ttl <= 1)
			return LL_STACK;
		r->dec_ttl = 1;
	}
	/* For packets with the node's address as source, the stack would send the ICMP error to the
	 * node itself, if at all.
	 */
	if ((p->martian || (p->family == 6 && !addr_equal(&p->saddr, &r->saddr) &&
			    firewall_is_local(&r->saddr))) &&
	    track_too_big(p, r)) {
		p->refused = DROP_TOO_BIG;
		return LL_REFUSE;
	}
	ret = nat_rewrite(p, r);
	if (ret != LL_NEXT)
		return ret;
	if (p->martian)
		return track_send_routed(p);
	p->skb->tc_index = learn_word(r);
	if (!(flags & CT_F_REPLY) && firewall_asks_leaving(p))
		p->skb->tc_index |= TC_INDEX_ASK;
	p->verdict = VERDICT_SLOW;
	return LL_STACK;
}

/* Reports whether the packet can change the state of its connection. TCP_EVENTS are not checked here.
 */
static __always_inline int track_is_event(const struct pkt *p, const struct ct_meta *meta)
{
	return !conn_is_settled(meta) || (p->proto == IPPROTO_SCTP && ct_event_of(p) != EVENT_DATA);
}

static __always_inline __u32 track_nexthop(struct pkt *p, const struct ct_meta *meta)
{
	if (p->bridge_port && (meta->last_seen_tick ^ p->now_tick) >> BRIDGE_SEES_SHIFT &&
	    !bridge_has_seen(p))
		return 0;
	return meta->nexthop;
}

/* Reports whether a packet that was just decapsulated must go through the tunnel's device: if it
 * cannot be forwarded at once, or if it comes from a peer other than the one behind which its
 * source is known to be.
 */
static __always_inline int track_is_early(struct pkt *p, const struct ct_meta *meta, __u32 index)
{
	struct nexthop *nexthop;

	if (!p->early)
		return 0;
	if (meta->in_port != p->in_port)
		return 1;
	nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;
	return !nexthop || !nexthop_device(nexthop) || !track_may_short_cut(p, nexthop) ||
	       ticks_since(p->now_tick, nexthop->checked_tick) > config_confirm_ticks;
}

/* Returns the index of the entry of p, or CT_NOWHERE. */
static __noinline __u32 track_index(const struct pkt *p)
{
	__u32 ports = ports_word(p->sport, p->dport);
	struct work *w = work_get();

	if (!w)
		return CT_NOWHERE;
	if (p->family == 4)
		key4_set(&w->key4, p->saddr.word[3], p->daddr.word[3], ports, p->proto, p->domain);
	else
		key6_set(&w->key6, &p->saddr, &p->daddr, ports, p->proto, p->domain);
	return ct_locate(p->family != 4, CT_NOWHERE);
}

static __always_inline struct ct4 *track_find_ipv4(const struct pkt *p)
{
	__u32 index = track_index(p);

	return index == CT_NOWHERE ? NULL : ct4_at(index);
}

static __always_inline struct ct6 *track_find_ipv6(const struct pkt *p)
{
	__u32 index = track_index(p);

	return index == CT_NOWHERE ? NULL : ct6_at(index);
}

/* Forwards a packet of an established IPv4 connection. LL_NEXT: there is no such connection, or its
 * state may change.
 */
static __noinline int track_ipv4(struct pkt *p)
{
	struct ct4 *v;
	struct rewrite r;
	__u32 index;

	if (p->tcp_flags & TCP_EVENTS)
		return LL_NEXT;
	v = track_find_ipv4(p);
	if (!v || track_is_event(p, &v->meta) || track_has_moved(p->in_port, &v->meta) ||
	    conn_is_outdated(&v->meta, p->skb->ifindex, (struct conn_ends){ .v4 = v }))
		return LL_NEXT;
	index = track_nexthop(p, &v->meta);
	if (track_is_early(p, &v->meta, index) || !ct_seen(&v->meta, p->now_tick))
		return LL_NEXT;
	track_count(p, &v->meta);
	if (p->fragment == FRAGMENT_FIRST)
		fragment_teach(p);
	__builtin_memset(&r, 0, sizeof(r));
	r.translate = !!(v->meta.flags & (CT_F_DNAT | CT_F_SNAT));
	addr_from4(&r.saddr, v->saddr);
	addr_from4(&r.daddr, v->daddr);
	r.sport = v->sport;
	r.dport = v->dport;
	return track_forward(p, index, v->meta.flags, &r);
}

static __noinline int track_ipv6(struct pkt *p)
{
	struct ct6 *v;
	struct rewrite r;
	__u32 index;

	if (p->tcp_flags & TCP_EVENTS)
		return LL_NEXT;
	v = track_find_ipv6(p);
	if (!v || track_is_event(p, &v->meta) || track_has_moved(p->in_port, &v->meta) ||
	    conn_is_outdated(&v->meta, p->skb->ifindex,
			     (struct conn_ends){ .from = &v->key.saddr, .to = &v->daddr }))
		return LL_NEXT;
	index = track_nexthop(p, &v->meta);
	if (track_is_early(p, &v->meta, index) || !ct_seen(&v->meta, p->now_tick))
		return LL_NEXT;
	track_count(p, &v->meta);
	if (p->fragment == FRAGMENT_FIRST)
		fragment_teach(p);
	__builtin_memset(&r, 0, sizeof(r));
	r.translate = !!(v->meta.flags & (CT_F_DNAT | CT_F_SNAT));
	r.saddr = v->saddr;
	r.daddr = v->daddr;
	r.sport = v->sport;
	r.dport = v->dport;
	return track_forward(p, index, v->meta.flags, &r);
}
