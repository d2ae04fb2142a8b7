/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* source_guard6.h - the source guard for IPv6; see source_guard.h. */
#pragma once

#include "source_guard_addr.h"

/* The parts of an IPv6 packet that the guard checks. */
struct guard_ipv6 {
	__u32 off; /* offset of the upper layer */
	__u32 end; /* end of the packet */
	__u8 proto;
	__u8 fragment;	  /* it is a fragment */
	__u8 unspecified; /* its source is :: */
	__u8 hop_limit;
};

#define ND_ROUTER_SOLICIT    133
#define ND_ROUTER_ADVERT     134
#define ND_NEIGHBOUR_SOLICIT 135
#define ND_NEIGHBOUR_ADVERT  136
#define ND_REDIRECT	     137
#define MLD_REPORT	     131
#define MLD_DONE	     132
#define MLD2_REPORT	     143
#define ND_OPTION_MAX	     8
#define ND_OPTION_SOURCE     1
#define ND_OPTION_TARGET     2

/* Checks the neighbour discovery options that begin at off: link-layer addresses must be the
 * sender's MAC.
 */
static __noinline int guard_options(struct __sk_buff *skb, const struct guarded *g, __u32 off,
				    __u32 end, int unspecified)
{
	struct {
		__u8 type;
		__u8 len; /* in units of 8 bytes */
		__u16 mac[3];
	} option;

	for (int i = 0; i < ND_OPTION_MAX; i++) {
		if (off >= end)
			return LL_NEXT;
		if (bpf_skb_load_bytes(skb, off, &option, sizeof(option)) || !option.len)
			return -DROP_SPOOFED;
		if ((option.type == ND_OPTION_SOURCE || option.type == ND_OPTION_TARGET) &&
		    (option.len != 1 || unspecified || !guard_is_mac(g, option.mac)))
			return -DROP_SPOOFED;
		off += option.len * 8;
	}
	return off >= end ? LL_NEXT : -DROP_SPOOFED;
}

/* Reports whether daddr is the solicited-node address of target (RFC 4291, section 2.7.1). */
static __always_inline int guard_solicits(const struct addr *daddr, const struct addr *target)
{
	return daddr->word[0] == bpf_htonl(0xff020000) && !daddr->word[1] &&
	       daddr->word[2] == bpf_htonl(1) &&
	       daddr->word[3] == (bpf_htonl(0xff000000) | (target->word[3] & bpf_htonl(0xffffff)));
}

/* Checks neighbour discovery (RFC 4861). Receivers ignore it in fragments (RFC 6980). Only
 * duplicate address detection (RFC 4862, section 5.4) and the multicast listener reports that it
 * needs (RFC 3590) may have :: as source.
 */
static __noinline int guard_icmpv6(struct __sk_buff *skb, struct guarded *g,
				   const struct guard_ipv6 *ip)
{
	__u32 options = ip->off + 24;
	__u8 type;

	if (bpf_skb_load_bytes(skb, ip->off, &type, 1))
		return -DROP_SPOOFED;
	if (type < ND_ROUTER_SOLICIT || type > ND_REDIRECT) {
		int report = type == MLD_REPORT || type == MLD_DONE || type == MLD2_REPORT;

		if (!ip->unspecified)
			return LL_NEXT;
		return report && ip->hop_limit == 1 &&
				       (g->daddr.word[0] & bpf_htonl(0xffff0000)) ==
					       bpf_htonl(0xff020000)
			       ? LL_NEXT
			       : -DROP_SPOOFED;
	}
	if (ip->fragment || type == ND_ROUTER_ADVERT || type == ND_REDIRECT ||
	    ip->end == GUARD_L4_OFF_V6)
		return -DROP_SPOOFED;
	if (type == ND_ROUTER_SOLICIT) {
		options = ip->off + 8;
		if (ip->unspecified)
			return -DROP_SPOOFED;
	} else if (type == ND_NEIGHBOUR_ADVERT || ip->unspecified) {
		if (bpf_skb_load_bytes(skb, ip->off + 8, &g->key.addr, sizeof(g->key.addr)) ||
		    !addr_is_set(&g->key.addr) || !guard_owns(g))
			return -DROP_SPOOFED;
		if (ip->unspecified && (type != ND_NEIGHBOUR_SOLICIT || ip->hop_limit != 255 ||
					!guard_solicits(&g->daddr, &g->key.addr)))
			return -DROP_SPOOFED;
	}
	return guard_options(skb, g, options, ip->end, ip->unspecified);
}

/* Walks the headers up to the upper layer. LL_PASS: a later fragment. A header chain that cannot be
 * walked to its end could hide anything, so it is refused.
 */
static __noinline int guard_headers(struct __sk_buff *skb, struct guard_ipv6 *ip)
{
	struct {
		__u8 next;
		__u8 len;
		__be16 frag_off;
	} ext;

	for (int i = 0; i <= IPV6_EXT_MAX; i++) {
		__u32 size = 0;

		switch (ip->proto) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_FRAGMENT:
		case IPPROTO_AH:
			break;
		default:
			return LL_NEXT;
		}
		if (bpf_skb_load_bytes(skb, ip->off, &ext, sizeof(ext)))
			return -DROP_SPOOFED;
		if (ip->proto == IPPROTO_FRAGMENT) {
			size = 8;
			ip->fragment |= !!(ext.frag_off & bpf_htons(0xfff9));
			if (ext.frag_off & bpf_htons(0xfff8))
				return LL_PASS;
		} else {
			size = ip->proto == IPPROTO_AH ? (ext.len + 2) * 4 : (ext.len + 1) * 8;
		}
		ip->off += size;
		ip->proto = ext.next;
	}
	return -DROP_SPOOFED;
}

static __noinline int guard_ipv6(struct __sk_buff *skb, struct guarded *g)
{
	struct guard_ipv6 ip = { .off = GUARD_L4_OFF_V6 };
	struct ipv6hdr head;
	int ret;

	if (bpf_skb_load_bytes(skb, GUARD_L3, &head, sizeof(head)) || head.version != 6)
		return -DROP_SPOOFED;
	__builtin_memcpy(&g->saddr, &head.saddr, sizeof(g->saddr));
	__builtin_memcpy(&g->daddr, &head.daddr, sizeof(g->daddr));
	ip.end = ip.off + bpf_ntohs(head.payload_len);
	ip.proto = head.nexthdr;
	ip.hop_limit = head.hop_limit;
	ip.unspecified = !addr_is_set(&g->saddr);
	g->key.addr = g->saddr;
	/* IPv4-mapped addresses are never valid on the wire. */
	if (addr_is4(&g->saddr) || (!ip.unspecified && !guard_owns(g)))
		return -DROP_SPOOFED;
	ret = guard_headers(skb, &ip);
	g->proto = ip.proto;
	if (ret == LL_PASS && !ip.unspecified)
		return LL_NEXT;
	if (ret != LL_NEXT)
		return -DROP_SPOOFED;
	if (ip.proto == IPPROTO_ICMPV6)
		return guard_icmpv6(skb, g, &ip);
	if (ip.unspecified)
		return -DROP_SPOOFED;
	return ip.proto == IPPROTO_UDP ? guard_udp(skb, ip.off, DHCPV6_CLIENT) : LL_NEXT;
}
