/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rewrite.h - rewrites addresses, ports and TTL, and updates checksums. */
#pragma once

#include <stddef.h>

#include "ct.h"
#include "csum.h"
#include "drop.h"
#include "parse.h"
#include "pkt.h"
#include "sctp_csum.h"

#define IP_TTL_WORD 8 /* offset of the word that contains TTL and protocol */

/* Updates the layer-4 checksum: always for the change of the pseudo header, and for the change of
 * the ports only if the checksum is complete. The kernel knows whether it is.
 */
static __always_inline int nat_l4_csum(struct pkt *p, __u64 addr_diff, __u64 port_diff)
{
	__u64 flags = 0;
	__u32 off;

	if (p->proto == IPPROTO_TCP) {
		off = p->l4_off + offsetof(struct tcphdr, check);
	} else {
		off = p->l4_off + offsetof(struct udphdr, check);
		/* A UDP checksum of 0 means "none": it stays 0, and no other becomes 0. */
		flags = BPF_F_MARK_MANGLED_0;
	}
	if (bpf_l4_csum_replace(p->skb, off, 0, csum_fold32(addr_diff), flags | BPF_F_PSEUDO_HDR))
		return -DROP_REWRITE;
	/* In IPv6, whose header has no checksum, the changes to the addresses and to this checksum
	 * cancel out. So a device's checksum over the whole packet (CHECKSUM_COMPLETE) has not
	 * changed: undo what the helper subtracted from it.
	 */
	if (p->family == 6)
		bpf_csum_update(p->skb, csum_fold32(addr_diff));
	if (port_diff && bpf_l4_csum_replace(p->skb, off, 0, csum_fold32(port_diff), flags))
		return -DROP_REWRITE;
	return LL_NEXT;
}

static __always_inline int nat_is_echo(const struct pkt *p)
{
	return p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6;
}

/* Updates the identifier and the checksum of an ICMP echo message; the ICMPv6 checksum covers the
 * addresses too.
 */
static __noinline int nat_echo(struct pkt *p, __u64 addr_diff, __be16 old_id, __be16 new_id)
{
	__u32 off = p->l4_off + offsetof(struct icmp_header, checksum);
	__u64 diff = csum_diff32(0, old_id, new_id);

	if (p->family == 6) {
		if (bpf_l4_csum_replace(p->skb, off, 0, csum_fold32(addr_diff), BPF_F_PSEUDO_HDR))
			return -DROP_REWRITE;
		bpf_csum_update(p->skb, csum_fold32(addr_diff));
	}
	if (old_id == new_id)
		return LL_NEXT;
	if (bpf_l4_csum_replace(p->skb, off, 0, csum_fold32(diff), 0) ||
	    bpf_skb_store_bytes(p->skb, p->l4_off + offsetof(struct icmp_header, rest), &new_id,
				sizeof(new_id), 0))
		return -DROP_REWRITE;
	return LL_NEXT;
}

/* Decrements the TTL if this node is a hop; nothing else changes. */
static __always_inline int nat_hop(struct pkt *p, const struct rewrite *r)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	void *l3 = data + (p->l3_off & 63);

	if (!r->dec_ttl)
		return LL_NEXT;
	if (l3 + sizeof(struct iphdr) > end)
		return -DROP_REWRITE;
	if (p->family == 4) {
		struct iphdr *ip = l3;

		ip->check = csum_apply(ip->check, (__u32)(__u16)~bpf_htons(0x0100));
		ip->ttl--;
	} else {
		((struct ipv6hdr *)l3)->hop_limit--;
	}
	p->ttl--;
	return LL_NEXT;
}

static __always_inline int nat_change(struct pkt *p, const struct rewrite *r)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	void *l3 = data + (p->l3_off & 63);
	void *l4 = data + (p->l4_off & L4_OFF_MAX);
	__u32 old_ports = p->sport | (__u32)p->dport << 16;
	__u32 new_ports = r->sport | (__u32)r->dport << 16;
	__u64 addr_diff, port_diff = 0;

	if (!r->translate)
		return nat_hop(p, r);
	addr_diff = csum_diff_addr(csum_diff_addr(0, &p->saddr, &r->saddr), &p->daddr, &r->daddr);
	if (p->family == 4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return -DROP_REWRITE;
		ip->check = csum_apply(
			ip->check, addr_diff + (r->dec_ttl ? (__u32)(__u16)~bpf_htons(0x0100) : 0));
		ip->ttl -= r->dec_ttl;
		ip->saddr = r->saddr.word[3];
		ip->daddr = r->daddr.word[3];
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return -DROP_REWRITE;
		ip->hop_limit -= r->dec_ttl;
		__builtin_memcpy(&ip->saddr, &r->saddr, sizeof(r->saddr));
		__builtin_memcpy(&ip->daddr, &r->daddr, sizeof(r->daddr));
	}
	if (p->fragment != FRAGMENT_LATER) {
		if (l4 + 4 > end)
			return -DROP_REWRITE;
		if (old_ports != new_ports && !nat_is_echo(p)) {
			*(__u32 *)l4 = new_ports;
			port_diff = csum_diff32(0, old_ports, new_ports);
		}
	}
	p->saddr = r->saddr;
	p->daddr = r->daddr;
	p->sport = r->sport;
	p->dport = r->dport;
	p->ttl -= r->dec_ttl;
	if (p->fragment == FRAGMENT_LATER)
		return LL_NEXT;
	if (nat_is_echo(p))
		return nat_echo(p, addr_diff, (__be16)old_ports, (__be16)new_ports);
	if (p->proto == IPPROTO_SCTP && old_ports != new_ports) {
		/* The change of the checksum depends on the length of the whole packet. */
		if (p->fragment)
			return -DROP_REWRITE;
		return sctp_csum(p->skb, p->l4_off, p->l4_len, old_ports ^ new_ports);
	}
	if (p->proto == IPPROTO_SCTP)
		return LL_NEXT;
	return nat_l4_csum(p, addr_diff, port_diff);
}

/* Trims the frame to the IP packet: a router does not forward padding or other bytes after it. */
static __always_inline int nat_trim(struct pkt *p)
{
	__u32 len = p->l4_off + p->l4_len;

	if (p->skb->len == len || p->slow || p->skb->gso_size)
		return LL_NEXT;
	return bpf_skb_change_tail(p->skb, len, 0) ? -DROP_REWRITE : LL_NEXT;
}

/* Rewrites the packet, and p, according to r. */
static __always_inline int nat_rewrite(struct pkt *p, const struct rewrite *r)
{
	int ret = nat_change(p, r);

	return ret == LL_NEXT && r->dec_ttl ? nat_trim(p) : ret;
}
