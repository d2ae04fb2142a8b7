/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* icmp.h - translates ICMP errors about connections (RFC 5508, section 4): the quoted tuple and the
 * addresses of the error become the ones that the receiver knows. The quoted layer-4 checksum stays
 * unchanged: receivers cannot verify it, since most of the data that it covers is cut off.
 */
#pragma once

#include <stddef.h>

#include "count.h"
#include "ct_state.h"
#include "fw.h"
#include "local_in.h"
#include "nh.h"
#include "parse.h"
#include "fib.h"

static __always_inline int icmp_is_echo(const struct pkt *p)
{
	return p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6;
}

/* Reads the quoted echo message: its identifier is both ports. */
static __always_inline int icmp_parse_echo(struct pkt *p, struct pkt *inner)
{
	struct icmp_header icmp;

	if (bpf_skb_load_bytes(p->skb, inner->l4_off, &icmp, sizeof(icmp)))
		return LL_PASS;
	if (p->family == 4 ? icmp.type != ICMP_ECHO && icmp.type != ICMP_ECHO_REPLY
			   : icmp.type != ICMPV6_ECHO && icmp.type != ICMPV6_ECHO_REPLY)
		return LL_PASS;
	inner->sport = *(__be16 *)&icmp.rest;
	inner->dport = inner->sport;
	return LL_NEXT;
}

/* Reads the headers of the quoted packet into w->inner, with offsets from the start of the frame.
 * LL_PASS: a quoted packet that we do not translate.
 */
static __noinline int icmp_parse_inner(struct pkt *p, struct work *w)
{
	struct pkt *inner = &w->inner;
	struct {
		__be16 sport;
		__be16 dport;
	} ports;

	__builtin_memset(inner, 0, sizeof(*inner));
	inner->family = p->family;
	inner->domain = p->domain;
	inner->l3_off = p->l4_off + sizeof(struct icmp_header);
	inner->l4_len = 0xffff; /* its original length does not matter: only readable data counts */
	if (p->family == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(p->skb, inner->l3_off, &ip, sizeof(ip)))
			return LL_PASS;
		if (ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(IP_OFFSET_MASK))
			return LL_PASS;
		inner->proto = ip.protocol;
		inner->l4_off = inner->l3_off + ip.ihl * 4;
		addr_from4(&inner->saddr, ip.saddr);
		addr_from4(&inner->daddr, ip.daddr);
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(p->skb, inner->l3_off, &ip, sizeof(ip)) || ip.version != 6)
			return LL_PASS;
		inner->proto = ip.nexthdr;
		inner->l4_off = inner->l3_off + sizeof(ip);
		__builtin_memcpy(&inner->saddr, &ip.saddr, sizeof(inner->saddr));
		__builtin_memcpy(&inner->daddr, &ip.daddr, sizeof(inner->daddr));
		if (parse_ipv6_extensions(p->skb, inner) != LL_NEXT ||
		    inner->fragment == FRAGMENT_LATER)
			return LL_PASS;
	}
	if (inner->proto == (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return icmp_parse_echo(p, inner);
	if (inner->proto != IPPROTO_TCP && inner->proto != IPPROTO_UDP &&
	    inner->proto != IPPROTO_SCTP)
		return LL_PASS;
	if (bpf_skb_load_bytes(p->skb, inner->l4_off, &ports, sizeof(ports)))
		return LL_PASS;
	inner->sport = ports.sport;
	inner->dport = ports.dport;
	return LL_NEXT;
}

/* Writes the addresses of the IP header at off, and updates the IPv4 checksum. */
static __noinline int icmp_write_addrs(struct __sk_buff *skb, __u32 off, __u32 family,
				       const struct addr *saddr, const struct addr *daddr)
{
	struct iphdr ip;
	__u64 diff;

	if (!saddr || !daddr)
		return -DROP_REWRITE;
	if (family == 6)
		return bpf_skb_store_bytes(
			       skb, off + offsetof(struct ipv6hdr, saddr), saddr, 16,
			       0) || bpf_skb_store_bytes(skb, off + offsetof(struct ipv6hdr, daddr),
							 daddr, 16, 0)
			       ? -DROP_REWRITE
			       : LL_NEXT;
	if (bpf_skb_load_bytes(skb, off, &ip, sizeof(ip)))
		return -DROP_REWRITE;
	diff = csum_diff32(csum_diff32(0, ip.saddr, saddr->word[3]), ip.daddr, daddr->word[3]);
	ip.check = csum_apply(ip.check, diff);
	ip.saddr = saddr->word[3];
	ip.daddr = daddr->word[3];
	return bpf_skb_store_bytes(skb, off, &ip, sizeof(ip), 0) ? -DROP_REWRITE : LL_NEXT;
}

/* Decrements the IPv4 TTL. */
static __always_inline int icmp_hop(struct pkt *p)
{
	__u8 ttl = p->ttl - 1;

	return bpf_l3_csum_replace(p->skb, p->l3_off + offsetof(struct iphdr, check),
				   bpf_htons((__u16)p->ttl << 8), bpf_htons((__u16)ttl << 8), 2) ||
	       bpf_skb_store_bytes(p->skb, p->l3_off + offsetof(struct iphdr, ttl), &ttl, 1, 0);
}

/* Reports whether p is the stack's own report, as a router, that the TTL of a packet has expired.
 * The stack sends it only about packets that were not translated: track_forward answers the others.
 */
static __always_inline int icmp_is_own_ttl(const struct pkt *p)
{
	return p->egress && !p->skb->ingress_ifindex && !p->icmp_code &&
	       p->icmp_type == (p->family == 4 ? ICMP_TIME_EXCEEDED : ICMPV6_TIME_EXCEEDED);
}

/* Finds the connection that the ICMP error p is about, and copies it to w->conn. Before we rewrote it,
 * the quoted packet had the reversed leaving tuple of w->conn. LL_PASS: no translation is needed;
 * LL_UNTRACKED: not about a connection. Or a drop reason.
 */
static __always_inline int icmp_find(struct pkt *p, struct work *w)
{
	int ret;

	if (icmp_parse_inner(p, w) != LL_NEXT)
		return LL_UNTRACKED;
	/* The error must be addressed to the source of the quoted packet; otherwise the rules are
	 * evaluated for it.
	 */
	if (!addr_equal(&p->daddr, &w->inner.saddr))
		return LL_UNTRACKED;
	tuple_of(&w->tuple, &w->inner);
	tuple_turn(&w->tuple);
	if (!conn_find(w, &w->tuple, &w->conn)) {
		/* From the node, about a packet that SNAT at egress has not translated yet. */
		tuple_turn(&w->tuple);
		if (conn_find(w, &w->tuple, &w->conn) &&
		    (w->conn.meta.flags & (CT_F_SNAT_AT_EGRESS | CT_F_REPLY)) ==
			    CT_F_SNAT_AT_EGRESS)
			return LL_PASS;
		return LL_UNTRACKED;
	}
	ret = policy_follow(p, w);
	if (ret != LL_NEXT)
		return ret == LL_REFUSE ? -DROP_POLICY : ret;
	if (!(w->conn.meta.flags & (CT_F_DNAT | CT_F_SNAT)) || icmp_is_own_ttl(p))
		return LL_PASS;
	return LL_NEXT;
}

/* Writes the addresses and the ports of the quoted packet, and the outer addresses in w->rewrite.
 * Returns 0, or an error.
 */
static __always_inline int icmp_write(struct pkt *p, struct work *w)
{
	struct rewrite *outer = &w->rewrite;
	struct {
		__be16 sport;
		__be16 dport;
	} ports;
	__u32 ports_off, ports_size = sizeof(ports);
	__u64 diff;

	ports.sport = w->conn.dport;
	ports.dport = w->conn.sport;
	ports_off = w->inner.l4_off;
	if (icmp_is_echo(&w->inner)) {
		ports_off += offsetof(struct icmp_header, rest);
		ports_size = sizeof(ports.sport);
		diff = csum_diff32(0, w->inner.sport, ports.sport);
	} else {
		diff = csum_diff32(0, w->inner.sport | (__u32)w->inner.dport << 16,
				   ports.sport | (__u32)ports.dport << 16);
	}
	/* In IPv4, the changes of the quoted addresses and of the quoted header checksum cancel
	 * out.
	 */
	if (p->family == 6) {
		diff = csum_diff_addr(diff, &w->inner.saddr, &w->conn.daddr);
		diff = csum_diff_addr(diff, &w->inner.daddr, &w->conn.saddr);
		diff = csum_diff_addr(diff, &p->saddr, &outer->saddr);
		diff = csum_diff_addr(diff, &p->daddr, &outer->daddr);
	}
	return icmp_write_addrs(p->skb, w->inner.l3_off, p->family, &w->conn.daddr,
				&w->conn.saddr) ||
	       icmp_write_addrs(p->skb, p->l3_off, p->family, &outer->saddr, &outer->daddr) ||
	       bpf_skb_store_bytes(p->skb, ports_off, &ports, ports_size, 0) ||
	       bpf_l4_csum_replace(p->skb, p->l4_off + offsetof(struct icmp_header, checksum), 0,
				   csum_fold32(diff), 0);
}

/* Sends the translated ICMP error p: at ingress through the device out, if it is not 0. */
static __always_inline int icmp_send(struct pkt *p, struct work *w, __u32 out)
{
	struct rewrite *outer = &w->rewrite;

	p->skb->tc_index = TC_INDEX_LEARN; /* no next hop is learnt from it */
	if (p->egress && !addr_equal(&p->daddr, &outer->daddr)) {
		if (w->conn.meta.flags & CT_F_LOCAL)
			return route_back(p);
		/* Already routed to its former destination: route it again. */
		out = route_out(p, &outer->saddr, &outer->daddr);
		if (!out)
			return -DROP_NO_ROUTE;
		p->action = bpf_redirect_neigh(out, NULL, 0, 0);
		return LL_REDIRECT;
	}
	if (!p->egress && out) {
		if (icmp_hop(p))
			return -DROP_REWRITE;
		p->action = route_redirect(out);
		return LL_REDIRECT;
	}
	if (p->egress)
		p->skb->tc_index = 0; /* the packet leaves without the word */
	return LL_STACK;
}

/* Translates the ICMP error p. LL_PASS: no translation is needed; LL_UNTRACKED: not about a
 * connection.
 */
static __noinline int icmp_translate(struct pkt *p, struct work *w)
{
	struct rewrite *outer;
	__u32 out = 0;
	int answers, found;

	found = w ? icmp_find(p, w) : LL_UNTRACKED;
	if (found != LL_NEXT)
		return found;
	outer = &w->rewrite;
	outer->translate = 1;
	outer->daddr = w->conn.daddr;
	outer->saddr = p->saddr;
	/* Only the translated source is known outside (RFC 5508, REQ-5). */
	if (addr_equal(&p->saddr, &w->inner.daddr) ||
	    (w->conn.more.nat_id && (w->conn.meta.flags & (CT_F_SNAT | CT_F_REPLY)) == CT_F_SNAT))
		outer->saddr = w->conn.saddr;
	/* The stack drops packets that arrive with the node's address as source, so p is forwarded
	 * here.
	 */
	answers = !p->egress && loopback_answers(p, w->conn.meta.flags, outer);
	if (!p->egress && !answers && p->family == 4 && !addr_equal(&p->saddr, &outer->saddr) &&
	    firewall_is_local(&outer->saddr))
		out = route_out(p, &outer->saddr, &outer->daddr);
	if (out && p->ttl <= 1)
		return -DROP_TTL_LIMITED; /* no error about an error (RFC 1122, section 3.2.2) */
	if (icmp_write(p, w))
		return -DROP_REWRITE;
	p->verdict = VERDICT_ICMP_ERROR;
	return answers ? loopback_redirect(p) : icmp_send(p, w, out);
}
