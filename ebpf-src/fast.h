/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fast.h - the tracked path for packets of the commonest form: IPv4 without options, tags
 * and fragments, TCP or UDP, routed. What differs in anything takes the tracked path of
 * shortcut.h, which does the same to it, but keeps what it knows in memory.
 */
#pragma once

#include "shortcut.h"

#define FAST_NOT (-2) /* not such a packet; nothing was done */
#define FAST_L3	 14
#define FAST_L4	 34

/* 0: no packet goes this way. For tests, which compare it with the other. */
volatile const __u8 config_fast = 1;

/* Whether a packet that is larger than the MTU is cut into pieces that are not. */
static __always_inline int fast_fits(struct __sk_buff *skb, __u32 header_len, __u32 mtu_bytes)
{
	if (skb->len - FAST_L3 <= mtu_bytes)
		return 1;
	return skb->gso_size && skb->gso_size + header_len <= mtu_bytes;
}

/* Drops a packet that the kernel did not let us rewrite. */
static __noinline int fast_drop(struct __sk_buff *skb, const struct ct4_key *key, __u32 now_tick)
{
	struct pkt p = {
		.skb = skb,
		.family = 4,
		.proto = key->proto,
		.sport = key->sport,
		.dport = key->dport,
		.now_tick = now_tick,
	};

	addr_from4(&p.saddr, key->saddr);
	addr_from4(&p.daddr, key->daddr);
	count_drop(&p, DROP_REWRITE);
	return TC_ACT_SHOT;
}

static __always_inline int fast_rewrite(struct __sk_buff *skb, const struct ct4_key *key,
					const struct ct4_val *v)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 old_ports = key->sport | (__u32)key->dport << 16;
	__u32 new_ports = v->sport | (__u32)v->dport << 16;
	__u64 diff = csum_diff32(csum_diff32(0, key->saddr, v->saddr), key->daddr, v->daddr);
	__u64 port_diff = old_ports != new_ports ? csum_diff32(0, old_ports, new_ports) : 0;
	__u64 flags = key->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 off = FAST_L4 + (key->proto == IPPROTO_UDP ? offsetof(struct udphdr, check)
							 : offsetof(struct tcphdr, check));
	struct iphdr *ip = data + FAST_L3;

	if (data + FAST_L4 + 4 > end)
		return -1;
	ip->check = csum_apply(ip->check, diff + (__u32)(__u16)~bpf_htons(0x0100));
	ip->ttl--;
	ip->saddr = v->saddr;
	ip->daddr = v->daddr;
	*(__u32 *)(data + FAST_L4) = new_ports;
	if (bpf_l4_csum_replace(skb, off, 0, csum_fold32(diff), flags | BPF_F_PSEUDO_HDR))
		return -1;
	if (port_diff && bpf_l4_csum_replace(skb, off, 0, csum_fold32(port_diff), flags))
		return -1;
	return 0;
}

static __noinline int fast_forward(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + FAST_L3;
	struct ct4_key key = {};
	struct nexthop *nexthop;
	struct ct4_val *v;
	__u32 now_tick, index, out, len, header_len = 28, ack = 0;
	__u16 window = 0;

	if (data + FAST_L4 + 8 > end || skb->vlan_present || eth->h_proto != bpf_htons(ETH_P_IP))
		return FAST_NOT;
	len = bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0x3fff) || ip->ttl <= 1 ||
	    len + FAST_L3 > skb->len || len < 28 || !parse_ipv4_sum(ip))
		return FAST_NOT;
	key.proto = ip->protocol;
	if (key.proto == IPPROTO_TCP) {
		struct tcphdr *tcp = data + FAST_L4;

		if ((void *)(tcp + 1) > end || ((__u8 *)tcp)[13] & TCP_EVENTS ||
		    !(((__u8 *)tcp)[13] & TCP_ACK))
			return FAST_NOT;
		ack = bpf_ntohl(tcp->ack_seq);
		window = bpf_ntohs(tcp->window);
		header_len = 20 + (((__u8 *)tcp)[12] >> 4) * 4;
	} else if (key.proto != IPPROTO_UDP) {
		return FAST_NOT;
	}
	if (domain_may_bridge(skb->ifindex))
		return FAST_NOT;
	key.saddr = ip->saddr;
	key.daddr = ip->daddr;
	key.sport = *(__be16 *)(data + FAST_L4);
	key.dport = *(__be16 *)(data + FAST_L4 + 2);
	key.zone = config_zone;
	v = bpf_map_lookup_elem(&ll_ct4, &key);
	if (!v || v->meta.state != CT_ESTABLISHED || firewall_has_changed(&v->meta))
		return FAST_NOT;
	if (track_has_moved(skb->ifindex, &v->meta))
		return FAST_NOT;
	index = v->meta.nexthop;
	nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
	if (!index || !nexthop)
		return FAST_NOT;
	out = nexthop_device(nexthop);
	now_tick = bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
	if (!out || nexthop->vid || nexthop->flags & (NEXTHOP_F_BRIDGED | NEXTHOP_F_TUNNEL) ||
	    !fast_fits(skb, header_len, nexthop->mtu_bytes) ||
	    ticks_since(now_tick, nexthop->checked_tick) > config_confirm_ticks)
		return FAST_NOT;
	v->meta.packet_count++;
	v->meta.byte_count += skb->len;
	if (v->meta.last_seen_tick != now_tick)
		v->meta.last_seen_tick = now_tick;
	if (key.proto == IPPROTO_TCP) {
		v->meta.tcp_ack = ack;
		v->meta.tcp_window = window;
	}
	__builtin_memcpy(eth->h_dest, nexthop->dmac, 6);
	__builtin_memcpy(eth->h_source, nexthop->smac, 6);
	if (v->meta.flags & (CT_F_DNAT | CT_F_SNAT)) {
		if (fast_rewrite(skb, &key, v))
			return fast_drop(skb, &key, now_tick);
	} else {
		ip->check = csum_apply(ip->check, (__u32)(__u16)~bpf_htons(0x0100));
		ip->ttl--;
	}
	if (skb->len != len + FAST_L3 && !skb->gso_size &&
	    bpf_skb_change_tail(skb, len + FAST_L3, 0)) /* as nat_trim */
		return fast_drop(skb, &key, now_tick);
	count_verdict(VERDICT_TRACKED);
	if (nexthop->flags & NEXTHOP_F_PEER)
		return bpf_redirect_peer(out, 0);
	skb->tc_index = TC_INDEX_TRACKED;
	return bpf_redirect(out, 0);
}
