/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* source_guard.h - the source guard: decides which frames are accepted from the device of a pod.
 * They must have the pod's MAC and one of its addresses as source, and must not claim other
 * addresses or announce a router. The guard checks packets without an established connection;
 * established connections continue only on their port of arrival.
 */
#pragma once

#include "source_guard6.h"

/* ARP for Ethernet and IPv4 (RFC 826). */
struct guard_arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u16 sender_mac[3];
	__be16 sender[2];
	__u16 target_mac[3];
	__be16 target[2];
};
_Static_assert(sizeof(struct guard_arp) == 28, "as on the wire");

#define ARP_REQUEST 1
#define ARP_REPLY   2

static __noinline int guard_arp(struct __sk_buff *skb, struct guarded *g)
{
	struct guard_arp arp;
	__be32 sender, target;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &arp, sizeof(arp)))
		return -DROP_SPOOFED;
	__builtin_memcpy(&sender, arp.sender, 4);
	__builtin_memcpy(&target, arp.target, 4);
	addr_from4(&g->saddr, sender);
	addr_from4(&g->daddr, target);
	if (arp.hardware != bpf_htons(1) || arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_len != 6 || arp.protocol_len != 4 || !guard_is_mac(g, arp.sender_mac))
		return -DROP_SPOOFED;
	/* An ARP probe asks for an address that its sender wants to use (RFC 5227). */
	addr_from4(&g->key.addr, sender ? sender : target);
	if (arp.operation != bpf_htons(ARP_REQUEST) &&
	    (arp.operation != bpf_htons(ARP_REPLY) || !sender))
		return -DROP_SPOOFED;
	return guard_owns(g) ? LL_NEXT : -DROP_SPOOFED;
}

static __noinline int guard_ipv4(struct __sk_buff *skb, struct guarded *g)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, GUARD_L3, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return -DROP_SPOOFED;
	addr_from4(&g->saddr, ip.saddr);
	addr_from4(&g->daddr, ip.daddr);
	g->proto = ip.protocol;
	g->key.addr = g->saddr;
	if (!guard_owns(g))
		return -DROP_SPOOFED;
	if (ip.protocol != IPPROTO_UDP || ip.frag_off & bpf_htons(IP_OFFSET_MASK))
		return LL_NEXT;
	return guard_udp(skb, GUARD_L3 + ip.ihl * 4, DHCP_CLIENT);
}

/* Reports whether the source guard refuses a frame on its device. A guard that is not open yet
 * refuses everything. A global function, so that the verifier walks it once. The caller must set
 * p->skb again.
 */
__noinline int guard_refuses(struct __sk_buff *skb, struct pkt *p)
{
	struct guarded g = { .key = { .ifindex = skb->ifindex, .netns = config_netns } };
	struct ethhdr eth;
	struct guard *guard;
	int ret = 1;

	if (!p)
		return 1;
	guard = bpf_map_lookup_elem(&ll_guard, &g.key);
	if (!guard)
		return 0; /* no guard: a guarded device has the same lower half of the index */
	if (!(guard->flags & GUARD_F_OPEN) || skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return 1;
	__builtin_memcpy(g.mac, guard->mac, 6);
	if (!guard_is_mac(&g, (__u16 *)eth.h_source))
		return 1;
	if (eth.h_proto == bpf_htons(ETH_P_IP))
		ret = guard_ipv4(skb, &g);
	else if (eth.h_proto == bpf_htons(ETH_P_IPV6))
		ret = guard_ipv6(skb, &g);
	else if (eth.h_proto == bpf_htons(ETH_P_ARP))
		ret = guard_arp(skb, &g);
	if (ret == LL_NEXT)
		return 0;
	p->saddr = g.saddr;
	p->daddr = g.daddr;
	p->proto = g.proto;
	return 1;
}
