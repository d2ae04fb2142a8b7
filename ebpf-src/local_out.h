/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* local_out.h - local out: packets that the node sends to its own addresses, for services and DNAT
 * rules. They never leave through a port, so our egress program is attached to the loopback for
 * them. Replies have an address of the node as source, which the kernel accepts only on the
 * loopback (net.ipv4.conf.lo.accept_local, and route_localnet for a loopback address, which a rule
 * may match).
 */
#pragma once

#include "ct_state.h"
#include "rewrite.h"
#include "nat_rules.h"

static __always_inline int loopback_ip4(__be32 addr)
{
	return (addr & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline int loopback_ip6(const __be32 *addr)
{
	return !(addr[0] | addr[1] | addr[2] | (addr[3] ^ bpf_htonl(1)));
}

/* Reports whether a packet on the loopback may be for a frontend or a rule: most packets there are
 * between two loopback addresses, and cannot leave the node.
 */
static __always_inline int loopback_may(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return (void *)(ip + 1) <= end &&
		       !(loopback_ip4(ip->daddr) && loopback_ip4(ip->saddr));
	return skb->protocol == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end &&
	       !(loopback_ip6(ip6->daddr.in6_u.u6_addr32) &&
		 loopback_ip6(ip6->saddr.in6_u.u6_addr32));
}

/* Reports whether p can be translated; ret: the result of parse_packet. */
static __always_inline int loopback_follows(const struct pkt *p, int ret)
{
	return ret == LL_NEXT && p->fragment == FRAGMENT_NONE && !p->icmp_error &&
	       (p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP || p->proto == IPPROTO_SCTP);
}

/* Reports whether p, which has no connection, is for a service or a rule. For TCP and SCTP only
 * packets that open a connection are evaluated, since the node sends many packets to itself.
 */
static __noinline int loopback_opens(struct pkt *p, struct work *w)
{
	if (p->proto != IPPROTO_UDP && ct_event_of(p) != EVENT_OPEN)
		return 0;
	return lb_service(p, &w->service_key) || translate_ask(p, w, RULES_DNAT, 0);
}
