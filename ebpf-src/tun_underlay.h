/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tun_underlay.h - sends encapsulated packets to peers, in the host netns. */
#pragma once

#include "clock.h"
#include "nh.h"
#include "fib.h"

/* Sends an encapsulated packet to the peer at index: by its learnt next hop, or by the kernel's
 * routes and neighbours, from which the egress hook learns. Does not use p->skb, since it is a
 * global function, so that the verifier walks it once.
 */
__noinline int underlay_send(struct __sk_buff *skb, struct pkt *p, __u32 index)
{
	struct peer *peer = bpf_map_lookup_elem(&ll_peer, &index);
	__u32 *way = bpf_map_lookup_elem(&ll_peer_nexthop, &index);
	struct nexthop *nexthop;
	__u32 hop, out;

	if (!p || !peer || !way || !peer->tunnel_id)
		return -DROP_TUNNEL_NO_PEER;
	hop = *way;
	nexthop = hop ? bpf_map_lookup_elem(&ll_nexthop, &hop) : NULL;
	out = nexthop ? nexthop_device(nexthop) : 0;
	if (nexthop && out &&
	    ticks_since(p->now_tick, nexthop->checked_tick) <= config_confirm_ticks) {
		void *data = (void *)(long)skb->data;
		void *end = (void *)(long)skb->data_end;

		if (data + ETH_HLEN > end)
			return -DROP_REWRITE;
		__builtin_memcpy(data, nexthop->dmac, 6);
		__builtin_memcpy(data + 6, nexthop->smac, 6);
		if (nexthop->flags & NEXTHOP_F_PEER) {
			p->action = bpf_redirect_peer(out, 0);
			return LL_REDIRECT;
		}
		tracked_word(skb);
		p->action = bpf_redirect(out, 0);
		return LL_REDIRECT;
	}
	if (nexthop && out)
		nexthop->checked_tick = p->now_tick; /* one packet is enough to confirm it */
	out = route_find(skb, &peer->local, &peer->remote,
			 (peer->type == TUNNEL_GRE ? IPPROTO_GRE : IPPROTO_UDP) |
				 (addr_is4(&peer->remote) ? ROUTE_IPV4 : 0),
			 skb->ifindex);
	if (!out)
		out = peer->out_ifindex;
	if (!out)
		return -DROP_TUNNEL_NO_ROUTE;
	skb->tc_index = TC_INDEX_UNDERLAY | (index & TC_INDEX_PEER);
	/* By the route of the node's own packets, as with a tunnel device of the kernel. */
	p->action = bpf_redirect_neigh(out, NULL, 0, 0);
	return LL_REDIRECT;
}

/* Returns the peer at index, or NULL. */
static __always_inline struct peer *underlay_peer(struct __sk_buff *skb, __u32 index)
{
	struct peer *peer = bpf_map_lookup_elem(&ll_peer, &index);

	return peer && peer->tunnel_id ? peer : NULL;
}

/* Egress hook, when the kernel is about to send an encapsulated packet to the peer at index: stores
 * the next hop for later packets. A global function, so that the verifier walks it once.
 */
__noinline int underlay_learn(struct __sk_buff *skb, __u32 index)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct nexthop_key key = { .ifindex = skb->ifindex, .netns = config_netns };
	__u32 *way = bpf_map_lookup_elem(&ll_peer_nexthop, &index);
	struct device *device = device_find(key.ifindex);

	if (!way || !device || data + 12 > end || skb->vlan_present)
		return 0;
	__builtin_memcpy(key.dmac, data, 6);
	__builtin_memcpy(key.smac, data + 6, 6);
	key.mtu_bytes = device->mtu_bytes;
	*way = nexthop_enter(&key, device, clock_tick());
	return 0;
}
