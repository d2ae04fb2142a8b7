/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tun_encap.h - encapsulation: VXLAN, Geneve and GRE, over IPv4 and IPv6. */
#pragma once

#include "tun_underlay.h"

#define TUNNEL_IP4_TOS	15 /* offsets in the frame */
#define TUNNEL_IP4_LEN	16
#define TUNNEL_IP4_SUM	24
#define TUNNEL_IP6_LEN	18
#define TUNNEL_L4_OVER4 34
#define TUNNEL_L4_OVER6 54

#define ECN_MASK 3
#define ECN_NONE 0
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE	 3

/* In linux/bpf.h since Linux 6.3. */
#define LL_ROOM_DECAP_IPV4 (1ULL << 7)
#define LL_ROOM_DECAP_IPV6 (1ULL << 8)

/* Returns the peer with the longest prefix that contains addr; 0: none. */
static __noinline __u32 tunnel_peer_of(const struct addr *addr)
{
	struct peer_prefix_key key = { .prefix_len = 128, .addr = *addr };
	__u32 *index = bpf_map_lookup_elem(&ll_peer_prefix, &key);

	return index && !(*index & (PREFIX_F_HERE | PREFIX_F_ROUTED)) ? *index : 0;
}

/* Reports whether addr belongs to a pod on this node or behind a peer; routed: includes prefixes
 * that the underlay routes.
 */
static __always_inline int tunnel_is_inside(const struct addr *addr, int routed)
{
	struct peer_prefix_key key = { .prefix_len = 128, .addr = *addr };
	__u32 *index = bpf_map_lookup_elem(&ll_peer_prefix, &key);

	return index && (routed || !(*index & PREFIX_F_ROUTED));
}

/* Returns the hash of the addresses for tunnel_flow_port, which returns the outer source port: the
 * same for all packets of a flow, and in the range of RFC 7348. The argument ports of
 * tunnel_flow_port has the source port in the upper half and the destination port in the lower
 * half; it is 0 for all fragments, including the first.
 */
static __always_inline __u32 tunnel_hash(const struct addr *saddr, const struct addr *daddr)
{
	__u32 hash = 0;

	for (int i = 0; i < 4; i++)
		hash = (hash ^ saddr->word[i]) * 0x9e3779b1 + daddr->word[i];
	return hash;
}

static __always_inline __be16 tunnel_flow_port(__u32 hash, __u32 ports, __u8 proto, __u32 seed)
{
	hash ^= ports;
	hash = (hash ^ proto ^ hash >> 15 ^ seed) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35; /* makes the upper bits depend on the whole seed */
	return bpf_htons(0xc000 | hash >> 18);
}

static __always_inline __be16 tunnel_source_port(const struct pkt *p, __u32 seed)
{
	__u32 hash = tunnel_hash(&p->saddr, &p->daddr), ports = 0;

	if (p->fragment == FRAGMENT_NONE)
		ports = (__u32)p->sport << 16 | p->dport;
	asm volatile("" : "+r"(hash)); /* one register is enough for the code below */
	return tunnel_flow_port(hash, ports, p->proto, seed);
}

/* Returns the traffic class of the IP packet at off: DSCP and ECN. */
static __always_inline int tunnel_class(struct __sk_buff *skb, __u32 off, int family)
{
	__u8 bytes[2];

	if (bpf_skb_load_bytes(skb, off, bytes, sizeof(bytes)))
		return -DROP_REWRITE;
	return family == 4 ? bytes[1] : (bytes[0] & 15) << 4 | bytes[1] >> 4;
}

/* Fills in the fields of the prepended header that depend on the packet. The UDP checksum stays
 * zero (RFC 6935): the inner packet has its own, and the outer one cannot be computed for segments
 * that a device creates later.
 */
static __always_inline int tunnel_header(struct __sk_buff *skb, const struct peer *peer,
					 __u32 class, __be16 source_port, __be16 inner)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 len = skb->len - ETH_HLEN, l4_len;
	__be16 *l4, wire_len;

	if (addr_is4(&peer->remote)) {
		__u16 *sum = data + TUNNEL_IP4_SUM;

		if (data + 42 > end)
			return -DROP_REWRITE;
		l4_len = len - sizeof(struct iphdr);
		wire_len = len > 0xffff ? 0 : bpf_htons(len); /* GSO: of all segments together */
		*(__u8 *)(data + TUNNEL_IP4_TOS) = class;
		*(__be16 *)(data + TUNNEL_IP4_LEN) = wire_len;
		*sum = csum_apply(*sum, (__u64)wire_len + bpf_htons(class));
		l4 = data + TUNNEL_L4_OVER4;
	} else {
		if (data + 62 > end)
			return -DROP_REWRITE;
		l4_len = len - sizeof(struct ipv6hdr);
		*(__be16 *)(data + ETH_HLEN) = bpf_htons(0x6000 | class << 4);
		*(__be16 *)(data + TUNNEL_IP6_LEN) = l4_len > 0xffff ? 0 : bpf_htons(l4_len);
		l4 = data + TUNNEL_L4_OVER6;
	}
	if (peer->type == TUNNEL_GRE) {
		l4[1] = inner;
		return LL_NEXT;
	}
	l4[0] = source_port;
	l4[2] = l4_len > 0xffff ? 0 : bpf_htons(l4_len);
	return bpf_skb_store_bytes(skb, peer->header_len - 2, &inner, sizeof(inner), 0)
		       ? -DROP_REWRITE
		       : LL_NEXT;
}

static __always_inline __u64 tunnel_room_flags(const struct peer *peer)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;

	flags |= addr_is4(&peer->remote) ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
					 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	if (peer->type == TUNNEL_GRE)
		return flags | BPF_F_ADJ_ROOM_ENCAP_L4_GRE;
	/* Only the length of the inner Ethernet header: if it included the tunnel's header,
	 * segments would be lost.
	 */
	return flags | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
	       BPF_F_ADJ_ROOM_ENCAP_L2((__u64)ETH_HLEN);
}

/* Makes room for the outer headers. The kernel does not encapsulate a packet that it takes for
 * encapsulated: an answer to a packet that left a tunnel, or a tunnel's packet of a pod. If it needs no
 * segmentation, bytes are inserted instead. Changing the protocol inserts or removes the difference.
 */
static __always_inline int tunnel_room(struct __sk_buff *skb, const struct peer *peer, __u8 family)
{
	__s32 room = peer->header_len - ETH_HLEN,
	      more = sizeof(struct ipv6hdr) - sizeof(struct iphdr);
	__u16 outer = addr_is4(&peer->remote) ? ETH_P_IP : ETH_P_IPV6;

	if (!bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, tunnel_room_flags(peer)))
		return LL_NEXT;
	if (skb->gso_size)
		return -DROP_REWRITE;
	if ((family == 4) == (outer == ETH_P_IP))
		return bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, 0) ? -DROP_REWRITE
									   : LL_NEXT;
	if (family == 4)
		more = -more;
	if (bpf_skb_adjust_room(skb, room + more, BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_change_proto(skb, bpf_htons(outer), 0))
		return -DROP_REWRITE;
	return LL_NEXT;
}

static __always_inline void tunnel_count(__u32 index, __u32 len, int received)
{
	struct peer_stats *s = bpf_map_lookup_elem(&ll_peer_stats, &index);

	if (!s)
		return;
	if (received) {
		s->received_packet_count++;
		s->received_byte_count += len;
	} else {
		s->sent_packet_count++;
		s->sent_byte_count += len;
	}
}

/* Counts a drop for a peer. A global function, so that the verifier walks it once. */
__noinline int tunnel_count_drop(__u32 index)
{
	struct peer_stats *s = bpf_map_lookup_elem(&ll_peer_stats, &index);

	if (s)
		s->drop_count++;
	return 0;
}

/* Encapsulates a rewritten packet for a peer. */
static __always_inline int tunnel_encapsulate(struct __sk_buff *skb, struct pkt *p,
					      const struct peer *peer)
{
	__be16 inner = p->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	__u32 len = peer->header_len;
	int class;

	if (p->vid) {
		if (bpf_skb_vlan_pop(skb))
			return -DROP_REWRITE;
		p->vid = 0;
	}
	if (p->l3_off != ETH_HLEN || len < ETH_HLEN)
		return -DROP_REWRITE;
	p->sport = tunnel_source_port(p, peer->seed); /* from here on, of the outer packet */
	class = tunnel_class(skb, ETH_HLEN, p->family);
	if (class < 0 || tunnel_room(skb, peer, p->family) != LL_NEXT)
		return -DROP_REWRITE;
	asm volatile("" : "+r"(len)); /* so that the verifier sees the next line */
	if (len < ETH_HLEN || len > TUNNEL_HEADER_MAX)
		return -DROP_REWRITE;
	if (bpf_skb_store_bytes(skb, 0, peer->header, len, 0))
		return -DROP_REWRITE;
	return tunnel_header(skb, peer, class, p->sport, inner);
}

/* Sends a rewritten packet through the tunnel to the peer at index. p->skb is not used: this is a
 * global function, so that the verifier walks it once.
 */
__noinline int tunnel_emit(struct __sk_buff *skb, struct pkt *p, __u32 index)
{
	struct peer *peer = bpf_map_lookup_elem(&ll_peer, &index);
	__u32 len = skb->len;
	int ret;

	if (!p || !peer || !peer->tunnel_id)
		return -DROP_TUNNEL_NO_PEER;
	ret = tunnel_encapsulate(skb, p, peer);
	if (ret != LL_NEXT) {
		tunnel_count_drop(index);
		return ret;
	}
	tunnel_count(index, len, 0);
	if (!peer->link_switch_ifindex)
		return underlay_send(skb, p, index);
	skb->tc_index = TC_INDEX_UNDERLAY | (index & TC_INDEX_PEER);
	p->action = bpf_redirect_peer(peer->link_switch_ifindex, 0);
	return LL_REDIRECT;
}

static __always_inline int tunnel_send(struct pkt *p, __u32 index)
{
	struct __sk_buff *skb = p->skb;
	int ret = tunnel_emit(skb, p, index);

	p->skb = skb;
	return ret;
}

/* Encapsulates a packet that the kernel sent through the device of a tunnel. */
static __always_inline int tunnel_send_routed(struct pkt *p)
{
	__u32 index = p->family ? tunnel_peer_of(&p->daddr) : 0;

	if (!index)
		return -DROP_TUNNEL_NO_PEER;
	return tunnel_send(p, index);
}
