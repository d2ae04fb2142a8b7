/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fast.h - the tracked path for packets of the commonest form: routed TCP or UDP, without
 * options and extension headers of IP, tags and fragments. What differs in anything takes
 * the tracked path of shortcut.h, which does the same to it, but keeps what it knows in
 * memory.
 */
#pragma once

#include "shortcut.h"

#define FAST_NOT (-2) /* not such a packet; nothing was done */
#define FAST_L3	 14
#define FAST_L44 34
#define FAST_L46 54

/* 0: no packet goes this way. For tests, which compare it with the other. */
volatile const __u8 config_fast = 1;

/* As parse_ipv4_sum: whether the words of a header are, in sum, a multiple of 65535. Those
 * are what its inverse modulo 2^64 takes to the least numbers.
 */
static __always_inline int fast_ipv4_sum(const struct iphdr *ip)
{
	const __u32 *word = (const __u32 *)ip;
	__u64 sum = (__u64)word[0] + word[1] + word[2] + word[3] + word[4];

	return sum * 0xfffefffefffeffff <= ~0ull / 0xffff;
}

/* Whether layer 4, of TCP or UDP, is there, and no event of TCP's. */
static __always_inline int fast_is_data(__u8 proto, const void *l4, const void *end)
{
	if (proto == IPPROTO_UDP)
		return l4 + 8 <= end;
	return l4 + sizeof(struct tcphdr) <= end &&
	       (((const __u8 *)l4)[13] & (TCP_EVENTS | TCP_ACK)) == TCP_ACK;
}

/* Whether a packet that is larger than the MTU is cut into pieces that are not; as
 * track_fits.
 */
static __always_inline int fast_fits(struct __sk_buff *skb, __u8 proto, const void *l4,
				     __u32 l3_len, __u32 mtu_bytes)
{
	__u32 l4_len = proto == IPPROTO_UDP ? 8 : (((const __u8 *)l4)[12] >> 4) * 4;

	if (skb->len - FAST_L3 <= mtu_bytes)
		return 1;
	return skb->gso_size && skb->gso_size + l3_len + l4_len <= mtu_bytes;
}

/* The next hop by which packets of a connection take the short cut now; NULL: none. */
static __always_inline struct nexthop *fast_nexthop(struct __sk_buff *skb, int bridge_port,
						    const struct ct_meta *meta, __u32 now_tick)
{
	__u32 index = meta->nexthop;
	struct nexthop *nexthop;

	/* As track_nexthop. */
	if (bridge_port && (meta->last_seen_tick ^ now_tick) >> BRIDGE_SEES_SHIFT)
		return NULL;
	if (meta->state != CT_ESTABLISHED || !index || firewall_has_changed(meta))
		return NULL;
	if (track_has_moved(skb->ifindex, meta))
		return NULL;
	nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
	if (!nexthop || nexthop->vid || nexthop->flags & (NEXTHOP_F_BRIDGED | NEXTHOP_F_TUNNEL) ||
	    ticks_since(now_tick, nexthop->checked_tick) > config_confirm_ticks)
		return NULL;
	return nexthop;
}

/* Counts a packet in its entry; as track_count. */
static __always_inline void fast_count(struct __sk_buff *skb, struct ct_meta *meta, __u8 proto,
				       const struct tcphdr *tcp, __u32 now_tick)
{
	meta->packet_count++;
	meta->byte_count += skb->len;
	if (meta->last_seen_tick != now_tick)
		meta->last_seen_tick = now_tick;
	if (proto == IPPROTO_TCP) {
		meta->tcp_ack = bpf_ntohl(tcp->ack_seq);
		meta->tcp_window = bpf_ntohs(tcp->window);
	}
}

/* The checksum of layer 4 follows what has changed; as nat_l4_csum. */
static __always_inline int fast_l4_csum(struct __sk_buff *skb, __u8 proto, __u32 l4_off,
					__u64 addr_diff, __u32 old_ports, __u32 new_ports)
{
	__u64 port_diff = old_ports != new_ports ? csum_diff32(0, old_ports, new_ports) : 0;
	__u64 flags = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 off = l4_off + (proto == IPPROTO_UDP ? offsetof(struct udphdr, check)
						   : offsetof(struct tcphdr, check));

	if (bpf_l4_csum_replace(skb, off, 0, csum_fold32(addr_diff), flags | BPF_F_PSEUDO_HDR))
		return -1;
	if (l4_off == FAST_L46)
		bpf_csum_update(skb, ~csum_fold32(addr_diff));
	if (port_diff && bpf_l4_csum_replace(skb, off, 0, csum_fold32(port_diff), flags))
		return -1;
	return 0;
}

/* Writes both addresses of the frame, which the next hop has one behind the other. */
static __always_inline void fast_address(void *data, const struct nexthop *nexthop)
{
	_Static_assert(offsetof(struct nexthop, dmac) == 8 && offsetof(struct nexthop, smac) == 14,
		       "12 bytes, the first of them where words begin");
	*(__u64 *)data = *(const __u64 *)nexthop->dmac;
	*(__u32 *)(data + 8) = *(const __u32 *)(nexthop->dmac + 8);
}

/* Sends a packet, of which len bytes are Ethernet and IP. */
static __always_inline int fast_send(struct __sk_buff *skb, __u32 len, __u32 flags, __u32 out)
{
	/* As nat_trim. */
	if (skb->len != len && !skb->gso_size && bpf_skb_change_tail(skb, len, 0))
		return -DROP_REWRITE;
	count_verdict(VERDICT_TRACKED);
	if (flags & NEXTHOP_F_PEER)
		return bpf_redirect_peer(out, 0);
	tracked_word(skb);
	return bpf_redirect(out, 0);
}

static __always_inline int fast_ipv4(struct __sk_buff *skb, __u8 proto, int bridge_port)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + FAST_L3;
	__u32 len, out, flags, old_ports, now_tick, check;
	struct nexthop *nexthop;
	struct ct4_key key;
	struct ct4_val *v;
	__u64 diff;

	if (data + FAST_L44 + 8 > end)
		return FAST_NOT;
	len = FAST_L3 + bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK) ||
	    ip->ttl <= 1 || len > skb->len || len < FAST_L44 + 8 || !fast_ipv4_sum(ip) ||
	    !fast_is_data(proto, data + FAST_L44, end))
		return FAST_NOT;
	old_ports = *(__u32 *)(data + FAST_L44);
	key.saddr = ip->saddr;
	key.daddr = ip->daddr;
	key.sport = old_ports;
	key.dport = old_ports >> 16;
	key.proto = proto;
	key.zone = config_zone;
	key.domain = 0;
	v = bpf_map_lookup_elem(&ll_ct4, &key);
	if (!v)
		return FAST_NOT;
	now_tick = bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
	nexthop = fast_nexthop(skb, bridge_port, &v->meta, now_tick);
	if (!nexthop)
		return FAST_NOT;
	out = nexthop_device(nexthop);
	if (!out || !fast_fits(skb, proto, data + FAST_L44, sizeof(*ip), nexthop->mtu_bytes))
		return FAST_NOT;
	fast_count(skb, &v->meta, proto, data + FAST_L44, now_tick);
	fast_address(data, nexthop);
	flags = nexthop->flags;
	ip->ttl--;
	if (!(v->meta.flags & (CT_F_DNAT | CT_F_SNAT))) {
		check = ip->check + bpf_htons(0x0100);
		ip->check = check + (check >= 0xffff); /* as of RFC 1141 */
		return fast_send(skb, len, flags, out);
	}
	old_ports = *(__u32 *)(data + FAST_L44);
	diff = csum_diff32(csum_diff32(0, ip->saddr, v->saddr), ip->daddr, v->daddr);
	ip->check = csum_apply(ip->check, diff + (__u32)(__u16)~bpf_htons(0x0100));
	ip->saddr = v->saddr;
	ip->daddr = v->daddr;
	*(__u32 *)(data + FAST_L44) = v->sport | (__u32)v->dport << 16;
	if (fast_l4_csum(skb, proto, FAST_L44, diff, old_ports, v->sport | (__u32)v->dport << 16))
		return -DROP_REWRITE;
	return fast_send(skb, len, flags, out);
}

static __always_inline int fast_ipv6(struct __sk_buff *skb, __u8 proto, int bridge_port)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip = data + FAST_L3;
	__u32 len, old_ports, out, flags, now_tick;
	struct nexthop *nexthop;
	struct ct6_key key;
	struct ct6_val *v;
	__u64 diff;

	if (data + FAST_L46 + 8 > end)
		return FAST_NOT;
	len = FAST_L46 + bpf_ntohs(ip->payload_len);
	if ((*(__u8 *)ip & 0xf0) != 0x60 || ip->hop_limit <= 1 || len > skb->len ||
	    !fast_is_data(proto, data + FAST_L46, end))
		return FAST_NOT;
	old_ports = *(__u32 *)(data + FAST_L46);
	__builtin_memcpy(&key.saddr, &ip->saddr, sizeof(key.saddr));
	__builtin_memcpy(&key.daddr, &ip->daddr, sizeof(key.daddr));
	key.sport = old_ports;
	key.dport = old_ports >> 16;
	key.proto = proto;
	key.zone = config_zone;
	key.domain = 0;
	v = bpf_map_lookup_elem(&ll_ct6, &key);
	if (!v)
		return FAST_NOT;
	now_tick = bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
	nexthop = fast_nexthop(skb, bridge_port, &v->meta, now_tick);
	if (!nexthop)
		return FAST_NOT;
	out = nexthop_device(nexthop);
	if (!out || !fast_fits(skb, proto, data + FAST_L46, sizeof(*ip), nexthop->mtu_bytes))
		return FAST_NOT;
	fast_count(skb, &v->meta, proto, data + FAST_L46, now_tick);
	fast_address(data, nexthop);
	flags = nexthop->flags;
	ip->hop_limit--;
	if (!(v->meta.flags & (CT_F_DNAT | CT_F_SNAT)))
		return fast_send(skb, len, flags, out);
	diff = csum_diff_addr(csum_diff_addr(0, &key.saddr, &v->saddr), &key.daddr, &v->daddr);
	__builtin_memcpy(&ip->saddr, &v->saddr, sizeof(v->saddr));
	__builtin_memcpy(&ip->daddr, &v->daddr, sizeof(v->daddr));
	*(__u32 *)(data + FAST_L46) = v->sport | (__u32)v->dport << 16;
	if (fast_l4_csum(skb, proto, FAST_L46, diff, key.sport | (__u32)key.dport << 16,
			 v->sport | (__u32)v->dport << 16))
		return -DROP_REWRITE;
	return fast_send(skb, len, flags, out);
}

static __noinline int fast_tcp4(struct __sk_buff *skb, int bridge_port)
{
	return fast_ipv4(skb, IPPROTO_TCP, bridge_port);
}

static __noinline int fast_udp4(struct __sk_buff *skb, int bridge_port)
{
	return fast_ipv4(skb, IPPROTO_UDP, bridge_port);
}

static __noinline int fast_tcp6(struct __sk_buff *skb, int bridge_port)
{
	return fast_ipv6(skb, IPPROTO_TCP, bridge_port);
}

static __noinline int fast_udp6(struct __sk_buff *skb, int bridge_port)
{
	return fast_ipv6(skb, IPPROTO_UDP, bridge_port);
}

/* Whether a frame that comes in by a port of a bridge is to be routed; as domain_of_port. */
static __noinline int fast_is_routed(struct __sk_buff *skb)
{
	const __u16 *mac = (void *)(long)skb->data;
	struct station *s = domain_station(skb->ifindex, 0);

	if (!s || !s->domain || (void *)(mac + 6) > (void *)(long)skb->data_end ||
	    ((const __u8 *)mac)[6] & 1)
		return 0;
	if (s->flags & STATION_F_GUARDED &&
	    (mac[3] != *(__u16 *)&s->guard[0] || mac[4] != *(__u16 *)&s->guard[2] ||
	     mac[5] != *(__u16 *)&s->guard[4]))
		return 0;
	if (skb->pkt_type == PACKET_HOST)
		return 1;
	return skb->pkt_type == PACKET_OTHERHOST && mac[0] == *(__u16 *)&s->mac[0] &&
	       mac[1] == *(__u16 *)&s->mac[2] && mac[2] == *(__u16 *)&s->mac[4];
}

/* Forwards a packet: a TC action, or FAST_NOT, or -DROP_REWRITE. Each kind has a function of
 * its own, in which the protocol is a constant.
 */
static __always_inline int fast_forward(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	int bridge_port;
	__u8 proto;

	if (skb->vlan_present || data + FAST_L44 > end)
		return FAST_NOT;
	bridge_port = domain_may_bridge(skb->ifindex);
	if (bridge_port ? !fast_is_routed(skb) : skb->pkt_type != PACKET_HOST)
		return FAST_NOT;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		proto = ((struct iphdr *)(eth + 1))->protocol;
		if (proto == IPPROTO_TCP)
			return fast_tcp4(skb, bridge_port);
		return proto == IPPROTO_UDP ? fast_udp4(skb, bridge_port) : FAST_NOT;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		proto = ((struct ipv6hdr *)(eth + 1))->nexthdr;
		if (proto == IPPROTO_TCP)
			return fast_tcp6(skb, bridge_port);
		return proto == IPPROTO_UDP ? fast_udp6(skb, bridge_port) : FAST_NOT;
	}
	return FAST_NOT;
}
