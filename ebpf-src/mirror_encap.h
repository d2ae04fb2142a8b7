/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror_encap.h - encapsulates copies for peers: whole Ethernet frames in VXLAN, Geneve or GRE. */
#pragma once

#include "clock.h"
#include "mirror_send.h"
#include "tun_encap.h"

#define MIRROR_TAGS 2

/* Offsets of the VNI in the header of a packet to a peer: behind the UDP header and half of the VXLAN
 * or Geneve header.
 */
#define TUNNEL_VNI_OVER4 (TUNNEL_L4_OVER4 + 12)
#define TUNNEL_VNI_OVER6 (TUNNEL_L4_OVER6 + 12)

/* Moves the VLAN tags that the kernel keeps outside the frame to tag, which has room for MIRROR_TAGS.
 * Returns their length in bytes; negative: there are more.
 */
static __always_inline int mirror_untag(struct __sk_buff *skb, __be16 *tag)
{
	int len = 0;

	for (int i = 0; i < MIRROR_TAGS && skb->vlan_present; i++) {
		tag[2 * i] = skb->vlan_proto;
		tag[2 * i + 1] = bpf_htons(skb->vlan_tci);
		if (bpf_skb_vlan_pop(skb))
			return -1;
		len += VLAN_TAG_LEN;
	}
	return skb->vlan_present ? -1 : len;
}

/* Makes room for the outer headers and the tags in front of a copy. The kernel marks the copy as
 * encapsulated only if it is an IP packet that the kernel does not consider encapsulated already (as
 * it does a packet that was just decapsulated). All other copies only get the room: they must not be
 * GSO packets, and skb->protocol stays unchanged.
 */
static __always_inline int mirror_room(struct __sk_buff *skb, const struct mirror *m, __u32 tags,
				       __u32 room)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
		      BPF_F_ADJ_ROOM_ENCAP_L2((__u64)ETH_HLEN + tags);

	flags |= m->flags & MIRROR_F_IPV6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
					  : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	flags |= m->flags & MIRROR_F_UDP ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP
					 : BPF_F_ADJ_ROOM_ENCAP_L4_GRE;
	if (!bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, flags))
		return 0;
	return skb->gso_size ? -1 : bpf_skb_change_head(skb, room, 0);
}

/* Fills in the fields of the outer headers that depend on the packet. As in tunnel_header, the UDP
 * checksum stays zero. The traffic class is zero too: copies have no priority.
 */
static __always_inline int mirror_outer(struct __sk_buff *skb, __u32 flags, __be16 source_port)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 len = skb->len - ETH_HLEN, l4_len;
	__be16 *l4, wire_len;

	if (flags & MIRROR_F_IPV6) {
		if (data + 62 > end)
			return -1;
		l4_len = len - sizeof(struct ipv6hdr);
		*(__be16 *)(data + TUNNEL_IP6_LEN) = l4_len > 0xffff ? 0 : bpf_htons(l4_len);
		l4 = data + TUNNEL_L4_OVER6;
	} else {
		__u16 *sum = data + TUNNEL_IP4_SUM;

		if (data + 42 > end)
			return -1;
		l4_len = len - sizeof(struct iphdr);
		wire_len = len > 0xffff ? 0 : bpf_htons(len); /* GSO: of all segments together */
		*(__be16 *)(data + TUNNEL_IP4_LEN) = wire_len;
		*sum = csum_apply(*sum, wire_len);
		l4 = data + TUNNEL_L4_OVER4;
	}
	if (flags & MIRROR_F_UDP) {
		l4[0] = source_port;
		l4[2] = l4_len > 0xffff ? 0 : bpf_htons(l4_len);
	}
	return 0;
}

/* Returns the MTU of the path to a peer, including the outer headers. */
static __always_inline __u32 mirror_path_mtu(struct peer *peer, __u32 index)
{
	struct device_key key = { .ifindex = peer->out_ifindex };
	struct device *device = bpf_map_lookup_elem(&ll_device, &key);
	struct peer_pmtu *path = bpf_map_lookup_elem(&ll_peer_pmtu, &index);
	__u32 mtu_bytes = device ? device->mtu_bytes : 0xffff;

	if (path && path->mtu_bytes && path->mtu_bytes < mtu_bytes &&
	    ticks_since(clock_tick(), path->heard_tick) <= PATH_MTU_TICKS)
		return path->mtu_bytes;
	return mtu_bytes;
}

/* Reports whether the outer packet of m is still for this peer: the index may have been reused. */
static __always_inline int mirror_is_for(const struct mirror *m, const struct peer *peer)
{
	const __be32 *remote = peer->remote.word;
	const __u16 *at;

	if (!(m->flags & MIRROR_F_IPV6)) {
		at = (const __u16 *)&m->header[30];
		return addr_is4(&peer->remote) && (at[0] | (__u32)at[1] << 16) == remote[3];
	}
	at = (const __u16 *)&m->header[38];
	for (int i = 0; i < 4; i++) {
		if ((at[2 * i] | (__u32)at[2 * i + 1] << 16) != remote[i])
			return 0;
	}
	return 1;
}

/* Reports whether a packet that crosses from the switch's to the host's netns, to be sent to a peer, is
 * an encapsulated copy: its VNI is not the VNI of the peer's tunnel, or, in GRE, it contains Ethernet.
 */
static __always_inline int mirror_crosses(struct __sk_buff *skb)
{
	struct peer *peer = underlay_peer(skb, skb->tc_index & TC_INDEX_PEER);
	__be16 got[4] = {};
	const __be16 *own;
	int is4;

	if (config_netns || !peer || (skb->tc_index & TC_INDEX_INNER) != TC_INDEX_UNDERLAY ||
	    peer->link_host_ifindex != skb->ifindex)
		return 0;
	is4 = addr_is4(&peer->remote);
	if (peer->type == TUNNEL_GRE)
		return !bpf_skb_load_bytes(skb, is4 ? TUNNEL_L4_OVER4 : TUNNEL_L4_OVER6, got, 4) &&
		       got[1] == bpf_htons(ETH_P_TEB);
	own = (const __be16 *)&peer->header[is4 ? TUNNEL_VNI_OVER4 : TUNNEL_VNI_OVER6];
	if (bpf_skb_load_bytes(skb, is4 ? TUNNEL_VNI_OVER4 : TUNNEL_VNI_OVER6, got, 4))
		return 0;
	return got[0] != own[0] || got[1] != own[1];
}

/* Encapsulates a copy for the peer of m. Returns 0 on success. */
static __always_inline int mirror_encapsulate(struct __sk_buff *skb, const struct mirror *m,
					      struct peer *peer)
{
	/* Addresses of the frame, then its tags, then its type. */
	__be16 tag[2 * MIRROR_TAGS] = {}, source_port;
	__u32 len = m->header_len, at;
	__u8 head[ETH_HLEN];
	int tags;

	source_port = bpf_htons(0xc000 | bpf_get_hash_recalc(skb) >> 18);
	tags = mirror_untag(skb, tag);
	if (tags < 0 || bpf_skb_load_bytes(skb, 0, head, sizeof(head)) ||
	    !mirror_fits(skb, len + tags, mirror_path_mtu(peer, m->peer)) ||
	    mirror_room(skb, m, tags, len + tags))
		return -1;
	asm volatile("" : "+r"(len)); /* so that the verifier sees the next line */
	if (len < ETH_HLEN || len > TUNNEL_HEADER_MAX)
		return -1;
	at = len;
	if (bpf_skb_store_bytes(skb, 0, m->header, len, 0) ||
	    bpf_skb_store_bytes(skb, at, head, 12, 0))
		return -1;
	at += 12;
	if (tags && bpf_skb_store_bytes(skb, at, tag, VLAN_TAG_LEN, 0))
		return -1;
	if (tags > VLAN_TAG_LEN &&
	    bpf_skb_store_bytes(skb, at + VLAN_TAG_LEN, tag + 2, VLAN_TAG_LEN, 0))
		return -1;
	if (bpf_skb_store_bytes(skb, at + tags, head + 12, 2, 0))
		return -1;
	return mirror_outer(skb, m->flags, source_port);
}

/* Sends an encapsulated copy on the egress hook of the host, as underlay_send on the ingress hook. */
static __always_inline int mirror_underlay(struct __sk_buff *skb, struct peer *peer, __u32 index)
{
	__u32 *way = bpf_map_lookup_elem(&ll_peer_nexthop, &index), now_tick = clock_tick(), hop,
	      out;
	/* Whether the kernel knows the type of the outer packet; see mirror_room. */
	int is_known = skb->protocol ==
		       (addr_is4(&peer->remote) ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6));
	struct nexthop *nexthop;
	struct work *w;

	hop = way ? *way : 0;
	nexthop = hop ? bpf_map_lookup_elem(&ll_nexthop, &hop) : NULL;
	out = nexthop ? nexthop_device(nexthop) : 0;
	if (out && ticks_since(now_tick, nexthop->checked_tick) <= config_confirm_ticks) {
		if (bpf_skb_store_bytes(skb, 0, nexthop->dmac, 6, 0) ||
		    bpf_skb_store_bytes(skb, 6, nexthop->smac, 6, 0))
			return TC_ACT_SHOT;
		skb->tc_index = TC_INDEX_TRACKED;
		return bpf_redirect(out, 0);
	}
	if (out && is_known)
		nexthop->checked_tick = now_tick; /* one packet is enough to confirm it */
	out = route_find(skb, &peer->local, &peer->remote,
			 (peer->type == TUNNEL_GRE ? IPPROTO_GRE : IPPROTO_UDP) | ROUTE_EGRESS |
				 (addr_is4(&peer->remote) ? ROUTE_IPV4 : 0),
			 skb->ifindex);
	if (!out)
		out = peer->out_ifindex;
	if (is_known) {
		skb->tc_index = TC_INDEX_UNDERLAY | (index & TC_INDEX_PEER);
		return bpf_redirect_neigh(out, NULL, 0, 0);
	}
	/* The kernel resolves neighbours only for packets whose type it knows. */
	w = work_get();
	if (!w || !(w->fib.dmac[0] | w->fib.dmac[1] | w->fib.dmac[2] | w->fib.dmac[3] |
		    w->fib.dmac[4] | w->fib.dmac[5]))
		return TC_ACT_SHOT;
	if (bpf_skb_store_bytes(skb, 0, w->fib.dmac, 6, 0) ||
	    bpf_skb_store_bytes(skb, 6, w->fib.smac, 6, 0))
		return TC_ACT_SHOT;
	skb->tc_index = TC_INDEX_TRACKED;
	return bpf_redirect(out, 0);
}

/* Encapsulates a copy for the peer of m and sends it: on the link to the host, where the ingress hook
 * continues with it, or to the underlay.
 */
static __always_inline int mirror_send_peer(struct __sk_buff *skb, const struct mirror *m)
{
	__u32 index = m->peer;
	struct peer *peer = underlay_peer(skb, index);

	if (!peer || !mirror_is_for(m, peer) || mirror_encapsulate(skb, m, peer))
		return TC_ACT_SHOT;
	if (!config_netns)
		return mirror_underlay(skb, peer, index);
	skb->tc_index = TC_INDEX_UNDERLAY | (index & TC_INDEX_PEER);
	return TC_ACT_UNSPEC;
}
