/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* loopback.h - what the node sends to one of its own addresses, where a service or a rule of
 * destinations has it. It never leaves by a port: our program for the egress hook is on the
 * loopback for it. What comes back has an address of the node for its source, which the
 * kernel takes on the loopback only (net.ipv4.conf.lo.accept_local, and route_localnet for
 * an address of the loopback, which a rule may have).
 */
#pragma once

#include "ctstate.h"
#include "nat.h"
#include "translate.h"

static __always_inline int loopback_ip4(__be32 addr)
{
	return (addr & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline int loopback_ip6(const __be32 *addr)
{
	return !(addr[0] | addr[1] | addr[2] | (addr[3] ^ bpf_htonl(1)));
}

/* Whether a packet on the loopback may be for a frontend or a rule: most have addresses of it
 * at both ends, and no way to anywhere else.
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

/* Whether a packet that was parsed so is one that we could translate. */
static __always_inline int loopback_follows(const struct pkt *p, int ret)
{
	return ret == LL_NEXT && p->fragment == FRAGMENT_NONE && !p->icmp_error &&
	       (p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP || p->proto == IPPROTO_SCTP);
}

/* Whether p, which no connection has, is for a service or a rule. Of TCP and SCTP only what
 * opens a connection is asked about: the node talks much to itself.
 */
static __noinline int loopback_opens(struct pkt *p, struct work *w)
{
	if (p->proto != IPPROTO_UDP && ct_event_of(p) != EVENT_OPEN)
		return 0;
	return lb_service(p, &w->service_key) || translate_ask(p, w, RULES_DNAT, 0);
}
