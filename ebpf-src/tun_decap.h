/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tun_decap.h - decapsulation: packets from tunnels, their peer, and where they are processed. */
#pragma once

#include "clock.h"
#include "fastpath_full.h"

#define GENEVE_CONTROL	0x80
#define GENEVE_CRITICAL 0x40
#define VXLAN_HAS_VNI	0x08
#define GRE_HAS_KEY	0x2000
#define ETH_P_INNER	0x6558 /* Ethernet, as the payload of Geneve */

/* The parts of the outer packet that are still needed. */
struct decap {
	struct tunnel_key key;
	__u32 inner_off; /* of the inner IP header */
	__u8 head[16];	 /* UDP and the tunnel header, or GRE */
	__be16 inner;	 /* EtherType of the inner packet */
	__u16 pad;
};

/* Ingress hook, for a packet whose word contains a peer. Reports whether the packet is encapsulated
 * and must be sent to that peer. Otherwise p->peer becomes the peer from whose tunnel the packet
 * came, or stays 0 if the word is not trusted on this device.
 */
static __always_inline int decap_crosses(struct pkt *p, __u32 word)
{
	struct peer *peer = underlay_peer(p->skb, word & TC_INDEX_PEER);

	if (!peer)
		return 0;
	if ((word & TC_INDEX_INNER) != TC_INDEX_INNER)
		return !config_netns && p->skb->ifindex == peer->link_host_ifindex;
	p->early = config_netns && p->skb->ifindex == peer->link_switch_ifindex;
	if (p->early || p->skb->ifindex == peer->device_ifindex) {
		p->peer = word & TC_INDEX_PEER;
		p->in_port = IN_PORT_PEER | p->peer;
	}
	return 0;
}

/* Finds the start of the inner packet. LL_NEXT: found; LL_PASS: not a packet of a tunnel, or in
 * a format that is left to the kernel.
 */
static __always_inline int decap_look(struct __sk_buff *skb, struct pkt *p, struct decap *d)
{
	struct tunnel_gate *gate;
	__u8 *head = d->head;
	__u32 zero = 0;

	gate = bpf_map_lookup_elem(&ll_tunnel_gate, &zero);
	if (!gate)
		return LL_PASS;
	if (p->proto == IPPROTO_UDP) {
		int known = 0;

		for (int i = 0; i < TUNNEL_PORTS; i++)
			known |= gate->port[i] == p->dport;
		if (!known || !p->dport)
			return LL_PASS;
		if (bpf_skb_load_bytes(skb, p->l4_off, head, 16))
			return LL_PASS;
		d->key.port = p->dport;
		d->key.vni = head[12] << 16 | head[13] << 8 | head[14];
		d->inner_off = p->l4_off + 16;
	} else {
		if (!gate->gre || bpf_skb_load_bytes(skb, p->l4_off, head, 8))
			return LL_PASS;
		if (*(__be16 *)head & ~bpf_htons(GRE_HAS_KEY))
			return LL_PASS;
		d->key.keyed = *(__be16 *)head != 0;
		d->key.vni = d->key.keyed ? bpf_ntohl(*(__be32 *)&head[4]) : 0;
		d->inner_off = p->l4_off + (d->key.keyed ? 8 : 4);
		d->inner = *(__be16 *)&head[2];
	}
	d->key.local = p->daddr;
	d->key.proto = p->proto;
	return LL_NEXT;
}

/* Skips the VXLAN or Geneve header, according to type, and the inner Ethernet header. LL_PASS: as
 * in decap_look.
 */
static __always_inline int decap_ethernet(struct __sk_buff *skb, struct decap *d, __u32 type)
{
	__u8 flags = d->head[9];
	__be16 mac[7];

	if (type == TUNNEL_VXLAN) {
		if (!(d->head[8] & VXLAN_HAS_VNI))
			return LL_PASS;
	} else {
		if (d->head[8] >> 6 || flags & GENEVE_CONTROL)
			return LL_PASS;
		if (flags & GENEVE_CRITICAL || d->head[10] != ETH_P_INNER >> 8 ||
		    d->head[11] != (ETH_P_INNER & 0xff))
			return -DROP_TUNNEL_MALFORMED;
		d->inner_off += (d->head[8] & 0x3f) * 4;
	}
	if (bpf_skb_load_bytes(skb, d->inner_off, mac, sizeof(mac)))
		return -DROP_TUNNEL_MALFORMED;
	d->inner = mac[6];
	d->inner_off += ETH_HLEN;
	return LL_NEXT;
}

/* Reports whether the inner packet is IP and contains at least the fixed part of the header. */
static __always_inline int decap_inner_is_ip(const struct __sk_buff *skb, const struct decap *d)
{
	if (d->inner == bpf_htons(ETH_P_IP))
		return skb->len >= d->inner_off + sizeof(struct iphdr);
	return d->inner == bpf_htons(ETH_P_IPV6) &&
	       skb->len >= d->inner_off + sizeof(struct ipv6hdr);
}

/* Applies the ECN field of the outer packet to the inner packet (RFC 6040, figure 4). */
static __always_inline int decap_ecn(struct __sk_buff *skb, const struct pkt *p,
				     const struct decap *d)
{
	int outer = tunnel_class(skb, p->l3_off, p->family);
	int inner_family = d->inner == bpf_htons(ETH_P_IP) ? 4 : 6;
	int inner = tunnel_class(skb, d->inner_off, inner_family);
	int ecn = outer & ECN_MASK;
	__u8 bytes[2];

	if (outer < 0 || inner < 0)
		return -DROP_TUNNEL_MALFORMED;
	if (ecn == ECN_CE && !(inner & ECN_MASK))
		return -DROP_TUNNEL_ECN;
	if (ecn != ECN_CE && !(ecn == ECN_ECT1 && (inner & ECN_MASK) == ECN_ECT0))
		return LL_NEXT;
	if ((inner & ECN_MASK) == ecn)
		return LL_NEXT;
	ecn |= inner & ~ECN_MASK;
	if (bpf_skb_load_bytes(skb, d->inner_off, bytes, sizeof(bytes)))
		return -DROP_TUNNEL_MALFORMED;
	if (inner_family == 4) {
		if (bpf_l3_csum_replace(skb, d->inner_off + 10, bpf_htons(inner), bpf_htons(ecn),
					2))
			return -DROP_REWRITE;
		bytes[1] = ecn;
	} else {
		bytes[1] = (bytes[1] & 15) | ecn << 4;
	}
	return bpf_skb_store_bytes(skb, d->inner_off, bytes, sizeof(bytes), 0) ? -DROP_REWRITE
									       : LL_NEXT;
}

/* Removes the outer headers. LL_STACK: the kernel does not know the family of the inner packet yet;
 * it determines the family when the packet arrives on a device again.
 */
static __always_inline int decap_strip(struct __sk_buff *skb, const struct pkt *p,
				       const struct decap *d)
{
	__s32 room = d->inner_off - ETH_HLEN;
	int same = d->inner == (p->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6));
	__u64 flags = p->family == 6 ? LL_ROOM_DECAP_IPV4 : LL_ROOM_DECAP_IPV6;
	struct ethhdr eth = {
		.h_dest = { 0x02, 0x4c, 0x4c, 0, 0, 0x01 },
		.h_source = { 0x02, 0x4c, 0x4c, 0, 0, 0x02 },
		.h_proto = d->inner,
	};
	__u32 len = skb->len - room, least = ETH_HLEN + sizeof(struct ipv6hdr);
	int ret = LL_NEXT;

	if (same ||
	    bpf_skb_adjust_room(skb, -room, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO | flags)) {
		/* Kernels before 6.3 do not have these flags, and do not shrink a packet below the
		 * length of an IPv6 header, so a shorter IPv4 packet is padded for the call.
		 */
		int is_short = !same && p->family == 6 && len < least;

		if (is_short && bpf_skb_change_tail(skb, room + least, 0))
			return -DROP_REWRITE;
		if (bpf_skb_adjust_room(skb, -room, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
			return -DROP_REWRITE;
		if (is_short)
			bpf_skb_change_tail(skb, len, 0); /* if this fails, the padding stays */
		ret = same ? LL_NEXT : LL_STACK;
	}
	if (bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0))
		return -DROP_REWRITE;
	return ret;
}

/* Sends a decapsulated packet to the device on which it is processed. */
static __always_inline int decap_send(struct __sk_buff *skb, struct pkt *p, const struct peer *peer,
				      int known)
{
	if (!peer->link_host_ifindex && known)
		return LL_INNER;
	skb->tc_index = TC_INDEX_INNER | p->peer;
	if (!peer->link_host_ifindex)
		p->action = bpf_redirect(peer->device_ifindex, BPF_F_INGRESS);
	else if (known)
		p->action = bpf_redirect_peer(peer->link_host_ifindex, 0);
	else
		p->action = bpf_redirect(peer->link_host_ifindex, 0);
	return LL_REDIRECT;
}

static __always_inline __u32 decap_peer(const struct pkt *p, __u32 tunnel_id)
{
	struct peer_key key = { .underlay = p->saddr, .tunnel_id = tunnel_id };
	__u32 *index = bpf_map_lookup_elem(&ll_peer_id, &key);

	return index ? *index : 0;
}

/* Ingress hook, in the host netns: decapsulates p. LL_NEXT: p is not a tunnel packet. LL_INNER: p
 * is decapsulated; it contains only the peer, and must be parsed again. A global function, so that
 * the verifier walks it once.
 */
__noinline int decap_underlay(struct __sk_buff *skb, struct pkt *p)
{
	struct decap d = {};
	struct tunnel *tunnel;
	struct peer *peer;
	__u32 index;
	int ret;

	/* Fragments are left to the kernel and not decapsulated: outer packets are sent with DF. */
	if (!p || p->fragment || p->slow || p->tagged || p->vid || p->to_group)
		return LL_NEXT;
	if (decap_look(skb, p, &d) != LL_NEXT)
		return LL_NEXT;
	tunnel = bpf_map_lookup_elem(&ll_tunnel, &d.key);
	if (!tunnel)
		return LL_NEXT;
	index = decap_peer(p, tunnel->id);
	peer = index ? bpf_map_lookup_elem(&ll_peer, &index) : NULL;
	if (!peer)
		return -DROP_TUNNEL_UNKNOWN_PEER;
	/* The source address proves nothing on a port on which hosts other than underlay routers
	 * may forge it.
	 */
	if (!port_is_uplink(skb->ifindex) && skb->ifindex != peer->out_ifindex) {
		tunnel_count_drop(index);
		return -DROP_TUNNEL_PORT;
	}
	ret = tunnel->type == TUNNEL_GRE ? LL_NEXT : decap_ethernet(skb, &d, tunnel->type);
	if (ret == LL_PASS)
		return LL_NEXT;
	if (ret == LL_NEXT && !decap_inner_is_ip(skb, &d))
		ret = -DROP_TUNNEL_MALFORMED;
	if (ret == LL_NEXT)
		ret = decap_ecn(skb, p, &d);
	if (ret == LL_NEXT)
		ret = decap_strip(skb, p, &d);
	if (ret < 0) {
		tunnel_count_drop(index);
		return ret;
	}
	tunnel_count(index, skb->len, 1);
	__builtin_memset(p, 0, sizeof(*p));
	p->peer = index;
	p->in_port = IN_PORT_PEER | index;
	p->early = 1;
	return decap_send(skb, p, peer, ret == LL_NEXT);
}

/* Handles a parsed packet from the tunnel of p->peer. LL_NEXT: if p was just decapsulated, only
 * the fast path may forward it; if it arrived on the tunnel's device, all stages run.
 */
static __always_inline int decap_inner(struct pkt *p)
{
	__u32 index = p->peer;

	if (p->early) {
		if (p->skb->pkt_type != PACKET_HOST && bpf_skb_change_type(p->skb, PACKET_HOST))
			return -DROP_REWRITE;
		p->now_tick = clock_tick();
		return LL_NEXT;
	}
	if (!p->family || tunnel_peer_of(&p->saddr) != index) {
		tunnel_count_drop(index);
		return -DROP_TUNNEL_SOURCE;
	}
	return LL_NEXT;
}

/* Redirects p, which was just decapsulated and cannot take the fast path, to the ingress hook of
 * the tunnel's device, where it passes through all stages as on any other port.
 */
static __always_inline int decap_to_device(struct pkt *p)
{
	struct peer *peer = underlay_peer(p->skb, p->peer);

	if (!peer)
		return -DROP_TUNNEL_UNKNOWN_PEER;
	p->skb->tc_index = TC_INDEX_INNER | p->peer;
	p->action = bpf_redirect(peer->device_ifindex, BPF_F_INGRESS);
	return LL_REDIRECT;
}
