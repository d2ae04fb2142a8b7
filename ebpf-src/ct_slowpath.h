/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_slowpath.h - the slow path: for packets whose connection is not established, or that may
 * change its state.
 */
#pragma once

#include "fw.h"
#include "policy_open.h"
#include "tun_forged.h"
#include "fragment.h"
#include "source_guard_addr.h"
#include "icmp.h"
#include "local_out.h"
#include "nh.h"
#include "ct_open_service.h"
#include "nh_resolve.h"

/* gso_size of a packet whose segments are in a fragment list, such as SCTP (GSO_BY_FRAGS). */
#define LL_GSO_BY_FRAGS 0xffff

/* Reports whether the packet fits an MTU. A GSO packet is segmented before it leaves, so its
 * segments must fit. Only the kernel knows the lengths of segments in a fragment list, and checks
 * them itself.
 */
static __always_inline int track_fits(struct pkt *p, __u32 mtu_bytes)
{
	__u32 len = p->skb->len - p->l3_off;

	if (len <= mtu_bytes || p->skb->gso_size == LL_GSO_BY_FRAGS)
		return 1;
	return p->skb->gso_size &&
	       p->skb->gso_size + (p->l4_off - p->l3_off) + p->l4_header_len <= mtu_bytes;
}

#define IP_DONT_FRAGMENT 0x4000
#define MTU_LEAST	 576 /* packets up to this size are never too big */

/* Reports whether p, rewritten by r, exceeds the MTU of its path and must not be fragmented; if so,
 * p->mtu_bytes is that MTU.
 */
static __noinline int track_too_big(struct pkt *p, const struct rewrite *r)
{
	struct work *w = work_get();
	__be16 frag_off = bpf_htons(IP_DONT_FRAGMENT);
	struct device *device;
	__u32 out;

	if (!w || track_fits(p, MTU_LEAST) || p->fragment == FRAGMENT_LATER)
		return 0;
	if (p->family == 4 &&
	    bpf_skb_load_bytes(p->skb, p->l3_off + offsetof(struct iphdr, frag_off), &frag_off,
			       sizeof(frag_off)))
		return 0;
	if (!(frag_off & bpf_htons(IP_DONT_FRAGMENT)))
		return 0;
	out = route_out(p, &r->saddr, &r->daddr);
	device = out ? device_find(out) : NULL;
	if (!device)
		return 0;
	p->mtu_bytes = w->fib.mtu_result ? w->fib.mtu_result : device->mtu_bytes;
	return !track_fits(p, p->mtu_bytes);
}

/* Reports whether the connection w->conn must be opened again: it is unanswered, has no service,
 * and a service exists by now.
 */
static __always_inline int track_opens_anew(struct pkt *p, struct work *w)
{
	const struct ct_meta *meta = &w->conn.meta;

	if (meta->flags & CT_F_REPLY)
		return 0;
	if (meta->flags & CT_F_SERVICE)
		return 0;
	if ((meta->state != CT_NEW && meta->state != CT_ONE_WAY) || !lb_service(p, &w->service_key))
		return 0;
	if (meta->state == CT_ONE_WAY) { /* its entries are lasting */
		tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
		conn_remove(&w->twin_tuple);
		conn_remove(&w->tuple);
	}
	return 1;
}

/* Reports whether p is a reply that arrives on another bridge port than earlier replies, and rules
 * match output ports: its connection was not evaluated for this port.
 */
static __always_inline int track_answers_elsewhere(const struct pkt *p, const struct ct_meta *meta)
{
	return meta->flags & CT_F_REPLY && meta->in_port != p->in_port && firewall_asks_leaving(p);
}

/* Reports whether p arrives on a port other than the guarded port on which its connection was
 * opened. Only that port may send for it, so p is left to the kernel untracked.
 */
static __always_inline int track_is_stolen(const struct pkt *p, const struct ct_meta *meta)
{
	__u16 in_port = meta->in_port;

	return !p->egress && in_port != p->in_port && guard_may_be_on(in_port);
}

/* Reports whether to look up the next hop for p: its connection belongs to a service and has no
 * next hop in this direction, and p does not open another connection.
 */
static __always_inline int track_may_resolve(const struct pkt *p, const struct ct_meta *meta)
{
	return !meta->nexthop && meta->flags & CT_F_SERVICE && !p->egress &&
	       ct_event_of(p) != EVENT_OPEN && (!meta->in_port || meta->in_port == p->in_port);
}

/* Returns the ends of w->conn, found under w->tuple. */
static __always_inline struct conn_ends work_ends(const struct work *w)
{
	return (struct conn_ends){ .from = &w->tuple.saddr, .to = &w->conn.daddr };
}

/* Reports whether rules and policies must be evaluated again for the connection of p: since one of
 * them has changed, or since p arrives or leaves through another port than before.
 */
static __always_inline int track_is_outdated(const struct pkt *p, const struct work *w)
{
	const struct ct_meta *meta = &w->conn.meta;
	__u32 of = EPOCH_RULES;
	const struct epoch *epoch;

	if (firewall_has_changed(meta, p->skb->ifindex, work_ends(w)))
		return 1;
	if (p->egress ? policy_is_at(p->skb->ifindex)
		      : policy_word() && meta->in_port != p->in_port)
		return 1;
	if (!p->egress && meta->nexthop)
		return 0;
	/* The port through which its packets leave is unknown: any port may have changed. */
	epoch = bpf_map_lookup_elem(&ll_epoch, &of);
	return epoch && epoch->port_count &&
	       (__s32)(meta->last_seen_tick - epoch->port_changed_tick) <= 0;
}

/* The slow path for connections that are half-open or change state. LL_NEXT: p is counted, and
 * w->conn contains its leaving tuple. LL_OPEN: p has no connection, or one that must be opened
 * again. The caller calls open_connection, since nested calls share 512 bytes of stack.
 */
static __noinline int track_lookup(struct pkt *p, struct work *w)
{
	struct ct_meta *meta;

	w->reopen = 0;
	w->routed = 0;
	w->nexthop = 0;
	w->twin_nexthop = 0;
	tuple_of(&w->tuple, p);
	if (p->missed == MISSED_NONE && !p->domain)
		meta = NULL;
	else
		meta = conn_peek(w, &w->tuple, &w->conn);
	w->fresh = !meta;
	if (meta && track_is_stolen(p, meta))
		return LL_UNTRACKED;
	if (!meta || track_opens_anew(p, w))
		return LL_OPEN;
	if (firewall_has_changed(&w->conn.meta, p->skb->ifindex, work_ends(w))) {
		struct __sk_buff *skb = p->skb;
		int forged = forged_before(skb, p);

		p->skb = skb;
		if (forged)
			return -DROP_TUNNEL_FORGED;
	}
	if (track_is_outdated(p, w) || track_answers_elsewhere(p, &w->conn.meta)) {
		int ret = firewall_again(p, w);

		if (!p->egress)
			count_verdict(VERDICT_EVALUATED);
		if (ret != LL_NEXT)
			return ret;
		if (meta->nexthop) {
			w->conn.meta.nexthop =
				policy_nexthop(&w->conn.daddr, w->conn.sport, meta->nexthop);
			meta->nexthop = w->conn.meta.nexthop;
		}
	}
	if (track_may_resolve(p, meta)) {
		w->conn.meta.nexthop = nexthop_resolve(p, w, 0);
		meta->nexthop = w->conn.meta.nexthop;
	}
	return ct_advance(p, w, meta);
}

/* Reports whether a shadow program may treat p as the first packet of a connection, although the
 * other program may know its connection: for TCP and SCTP if p opens a connection, for other
 * protocols if no rules exist. Otherwise the other program decides.
 */
static __always_inline int track_may_open_first(const struct pkt *p)
{
	if (p->proto == IPPROTO_TCP || p->proto == IPPROTO_SCTP)
		return ct_event_of(p) == EVENT_OPEN;
	return !firewall_rules() && !policy_word();
}

/* Finds the connection of p, or opens one, and counts p. LL_NEXT: w->conn contains the leaving
 * tuple of p.
 */
static __always_inline int track_find(struct pkt *p, struct work *w)
{
	int ret;

	w->resolved = 0;
	ret = p->icmp_error ? icmp_translate(p, w) : track_lookup(p, w);
	if (ret != LL_OPEN)
		return ret;
	if (p->fragment == FRAGMENT_LATER)
		return LL_UNTRACKED;
	if (p->loopback && !loopback_opens(p, w))
		return LL_PASS;
	if (config_shadow && !track_may_open_first(p))
		return LL_PASS;
	ret = firewall_packet(p, w);
	if (ret != LL_NEXT && ret != LL_PASS)
		return ret;
	p->stateless = ret == LL_PASS;
	policy_begin(p, w);
	ret = open_connection(p, w);
	if (ret == LL_NEXT && w->judged)
		policy_note(p, 0, 1);
	else if (ret == LL_PASS && w->judged && !config_shadow) /* allowed, but not tracked */
		policy_note(p, policy_port_here(p->skb->ifindex), 0);
	return ret;
}

/* As track_find, and drops forged packets of connections to the tunnel ends of peers. If such a
 * packet has just opened its connection, the entry stays half-open, since it is never answered.
 */
static __always_inline int track_find_allowed(struct pkt *p, struct work *w)
{
	struct __sk_buff *skb = p->skb;
	int ret = track_find(p, w), forged;

	if (ret != LL_NEXT || p->proto != IPPROTO_UDP || !forged_has_ends(IPPROTO_UDP))
		return ret;
	forged = forged_sends(skb, p);
	p->skb = skb;
	return forged ? -DROP_TUNNEL_FORGED : ret;
}

/* Returns the result for a packet that no stage could track; ret: the result of the last stage.
 * Fragments of protocols with ports or a type are evaluated with the ports or type of their first
 * fragment, other fragments by addresses and protocol.
 */
static __always_inline int firewall_rest(struct pkt *p, struct work *w, int ret)
{
	if (config_shadow)
		return LL_PASS;
	if (firewall_rules()) {
		int allowed;

		if (ret == LL_UNCLEAR)
			return -DROP_UNCLEAR;
		if (p->needs_first & FRAGMENT_UNKNOWN)
			return -DROP_FRAGMENT;
		allowed = firewall_packet(p, w);
		if (allowed != LL_NEXT && allowed != LL_PASS)
			return allowed;
	}
	return policy_rest(p, w, ret);
}

/* Fills w->rewrite for a packet of a connection that track_find found or opened; for both hooks. */
static __always_inline void track_prepare(struct pkt *p, struct work *w)
{
	struct rewrite *r = &w->rewrite;

	if (p->opened) /* p is still in its original form */
		sample_send(p, SAMPLE_OPENED, 0);
	if (p->fragment == FRAGMENT_FIRST)
		fragment_teach(p);
	r->saddr = w->conn.saddr;
	r->daddr = w->conn.daddr;
	r->sport = w->conn.sport;
	r->dport = w->conn.dport;
	r->dec_ttl = 0;
	r->translate = !!(w->conn.meta.flags & (CT_F_DNAT | CT_F_SNAT));
}
