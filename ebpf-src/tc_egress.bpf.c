/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tc_egress.bpf.c - the program on the egress hook of every port.
 *
 * It sees packets that the ingress hook has passed or redirected, after the kernel has chosen their
 * output device; packets of the node itself; and packets that arrived on devices that are not
 * ports.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "clock.h"
#include "parse.h"
#include "tun_forged.h"
#include "nat_snat_egress.h"
#include "nh_learn.h"
#include "fw_bridge_egress.h"
#include "reply_reject.h"
#include "ct_slowpath.h"

/* Reports whether a packet is a copy that ll_mirror_send has not handled, because another program
 * has detached ll_mirror_send. Such a copy must not be sent: it is neither cut nor encapsulated.
 */
static __always_inline int egress_is_lost_copy(struct __sk_buff *skb, __u32 word)
{
	return (word & ~TC_INDEX_MIRROR) == TC_INDEX_COPY && skb->mark == MARK_COPY;
}

/* Reports whether the word of a redirected packet was set by one of our programs: a packet from a
 * device that is not a port may have arrived with it. A copy may be of such a packet.
 */
static __always_inline int egress_tracked(struct __sk_buff *skb)
{
	struct device *device;
	__u32 in;

	if (skb->mark == MARK_OURS) {
		skb->mark = 0;
		return 1;
	}
	in = skb->ingress_ifindex;
	if (!in || skb->mark == MARK_COPY)
		return 1;
	device = device_find(in);
	return device && device->flags & DEVICE_F_PORT;
}

/* Sends a rewritten packet, from the node itself or from a client behind a device that is not a
 * port, to its new destination.
 */
static __always_inline int send_routed(struct pkt *p, struct work *w, __u32 index)
{
	struct nexthop *nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;
	__u32 out = nexthop ? nexthop_device(nexthop) : 0;
	/* If another program has set a mark, ours cannot be set. */
	int believed = !p->skb->ingress_ifindex || !p->skb->mark;

	if (nexthop && out && believed && track_fits(p, nexthop->mtu_bytes) &&
	    ticks_since(p->now_tick, nexthop->checked_tick) <= config_confirm_ticks) {
		int ret = frame_address(p, nexthop->dmac, nexthop->smac);

		if (ret != LL_NEXT)
			return ret;
		tracked_word(p->skb);
		p->action = bpf_redirect(out, 0);
		return LL_REDIRECT;
	}
	out = route_out(p, &p->saddr, &p->daddr);
	if (!out)
		return -DROP_NO_ROUTE;
	p->skb->tc_index = TC_INDEX_LEARN | TC_INDEX_TRANSLATED;
	/* Not route_redirect: see there. */
	p->action = bpf_redirect_neigh(out, NULL, 0, 0);
	return LL_REDIRECT;
}

static __noinline int send(struct pkt *p, struct work *w)
{
	struct addr daddr = p->daddr;
	int ret;

	track_prepare(p, w);
	/* The packet was sized for the path to its original destination. */
	if (!(w->conn.meta.flags & CT_F_LOCAL) && !addr_equal(&daddr, &w->rewrite.daddr) &&
	    track_too_big(p, &w->rewrite)) {
		p->refused = DROP_TOO_BIG;
		return LL_REFUSE;
	}
	ret = nat_rewrite(p, &w->rewrite);
	if (ret != LL_NEXT)
		return ret;
	p->verdict = VERDICT_LOCAL;
	if (w->conn.meta.flags & CT_F_LOCAL)
		return route_back(p);
	if (addr_equal(&daddr, &p->daddr))
		return LL_STACK;
	return send_routed(p, w, w->conn.meta.nexthop);
}

/* Handles a packet whose word contains the index of a peer. It leaves either to the peer, by the
 * route that the kernel chose, or to the other netns, with the word for the hook at the other end.
 */
static __always_inline int underlay_leaves(struct __sk_buff *skb, __u32 word)
{
	__u32 index = word & TC_INDEX_PEER;
	struct peer *peer = bpf_map_lookup_elem(&ll_peer, &index);

	if (!peer)
		return TC_ACT_UNSPEC;
	if (skb->ifindex == (config_netns ? peer->link_switch_ifindex : peer->link_host_ifindex)) {
		skb->tc_index = word;
		return TC_ACT_UNSPEC;
	}
	if (!config_netns && (word & TC_INDEX_INNER) == TC_INDEX_UNDERLAY)
		underlay_learn(skb, index);
	return handled(skb, 1);
}

/* Answers the node's own ARP request or neighbour solicitation for an address that only services
 * use.
 */
static __always_inline int announce_to_self(struct __sk_buff *skb, struct pkt *p, int ret)
{
	if (ret == LL_PASS && skb->protocol == bpf_htons(ETH_P_ARP))
		return announce_arp(skb, 1);
	if (ret == LL_UNTRACKED && p->icmp_type == ND_SOLICITATION && p->proto == IPPROTO_ICMPV6)
		return announce_nd(skb, 1);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int ll_tc_egress(struct __sk_buff *skb)
{
	__u32 word = skb->tc_index;
	struct work *w;
	struct pkt p;
	int ret, translated, forged;

	if (word) {
		skb->tc_index = 0;
		if (egress_is_lost_copy(skb, word))
			return TC_ACT_SHOT; /* counted by the program that made the copy */
		if ((word == TC_INDEX_TRACKED || word & TC_INDEX_UNDERLAY) && !egress_tracked(skb))
			word = 0;
	}
	if (word == TC_INDEX_DONE_EGRESS && handled_before(skb, 0))
		return TC_ACT_UNSPEC;
	if (word == TC_INDEX_TRACKED)
		return handled(skb, 1);
	if (word & TC_INDEX_UNDERLAY)
		return underlay_leaves(skb, word);
	if (skb->ifindex == LOOPBACK_IFINDEX && !loopback_may(skb))
		return TC_ACT_UNSPEC;
	__builtin_memset(&p, 0, sizeof(p)); /* not earlier: most packets return above */
	p.egress = 1;
	p.loopback = skb->ifindex == LOOPBACK_IFINDEX;
	ret = parse_packet(skb, &p);
	p.skb = skb;
	if (p.loopback && !loopback_follows(&p, ret))
		return TC_ACT_UNSPEC;
	if (!skb->ingress_ifindex) {
		int sent = announce_to_self(skb, &p, ret);

		if (sent != TC_ACT_UNSPEC)
			return sent;
		p.skb = skb;
	}
	if (ret == LL_PASS)
		return TC_ACT_UNSPEC;
	p.now_tick = clock_tick();
	w = work_get();
	if (!w)
		return TC_ACT_UNSPEC;
	domain_egress(&p);
	translated = word == (TC_INDEX_LEARN | TC_INDEX_TRANSLATED) ||
		     word == (TC_INDEX_ASK | TC_INDEX_TRANSLATED);
	if (translated)
		word &= ~TC_INDEX_TRANSLATED;
	if (word == TC_INDEX_ASK) {
		int allowed = leaving_ask(&p, w);

		if (allowed != LL_NEXT)
			return finish(&p, allowed);
		word = TC_INDEX_LEARN;
	}
	if (ret == LL_NEXT && word == TC_INDEX_LEARN) {
		if (!translated)
			ret = late_translate(&p, w);
		if (ret != LL_NEXT)
			return finish(&p, ret);
	}
	forged = forged_has_ends(p.proto) && forged_leaves(skb, &p);
	p.skb = skb;
	if (forged)
		return finish(&p, -DROP_TUNNEL_FORGED);
	if (ret == LL_NEXT && word == TC_INDEX_LEARN) {
		int learnt = nexthop_learn(&p, w);

		if (learnt)
			return learnt < 0 ? finish(&p, learnt) : handled(skb, 1);
	}
	if (ret == LL_NEXT && p.fragment == FRAGMENT_LATER)
		ret = fragment_learn(&p);
	if (ret == LL_NEXT)
		ret = track_find_allowed(&p, w);
	if (ret == LL_UNTRACKED || ret == LL_UNCLEAR)
		ret = firewall_rest(&p, w, ret);
	if (ret == LL_NEXT)
		ret = send(&p, w);
	return refuse_or_finish(&p, ret);
}

char _license[] SEC("license") = "Dual BSD/GPL";
