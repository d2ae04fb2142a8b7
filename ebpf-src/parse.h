/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* parse.h - parses headers of layers 2 to 4 into struct pkt. */
#pragma once

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "csum.h"
#include "pkt.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET_MASK	  0x1fff
#define IPV6_EXT_MAX	  8   /* extension headers that are walked */
#define HEADERS_MAX	  128 /* bytes to make directly readable */
#define L4_OFF_MAX	  511 /* packets whose layer 4 begins later are not parsed */

/* An ICMP header (RFC 792, RFC 4443); linux/icmp.h cannot be used, since it needs libc headers. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 rest;
};

#define ICMP_ECHO_REPLY	   0
#define ICMP_DEST_UNREACH  3
#define ICMP_ECHO	   8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_INFO_MIN	   128 /* below: errors */
#define ICMPV6_ECHO	   128
#define ICMPV6_ECHO_REPLY  129

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* Walks the IPv6 extension headers that begin at p->l4_off. LL_NEXT: p->l4_off and p->proto
 * describe the upper layer. LL_PASS: the headers cannot be walked.
 */
static __noinline int parse_ipv6_extensions(struct __sk_buff *skb, struct pkt *p)
{
	__u32 off = p->l4_off;
	__u8 next = p->proto;
	struct {
		__u8 next;
		__u8 len;
		__be16 frag_off;
		__be32 id;
	} ext;

	for (int i = 0; i <= IPV6_EXT_MAX; i++) {
		switch (next) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
			p->slow = 1; /* each router may have to examine them */
		case IPPROTO_DSTOPTS:
			if (bpf_skb_load_bytes(skb, off, &ext, sizeof(ext)))
				return LL_PASS;
			off += (ext.len + 1) * 8;
			break;
		case IPPROTO_FRAGMENT:
			if (bpf_skb_load_bytes(skb, off, &ext, sizeof(ext)))
				return LL_PASS;
			off += 8;
			p->fragment_id = ext.id;
			if (ext.frag_off & bpf_htons(0xfff8)) {
				p->fragment = FRAGMENT_LATER;
				next = ext.next;
				goto out;
			}
			/* An atomic fragment (RFC 6946) is a whole packet. */
			if (ext.frag_off & bpf_htons(1))
				p->fragment = FRAGMENT_FIRST;
			break;
		default:
			goto out;
		}
		next = ext.next;
	}
	return LL_PASS;
out:
	if (off > L4_OFF_MAX || off - p->l4_off > p->l4_len)
		return LL_PASS;
	p->l4_len -= off - p->l4_off;
	p->l4_off = off;
	p->proto = next;
	return LL_NEXT;
}

/* Reads an ICMP header. The identifier of an echo message serves as both ports, an error has
 * p->icmp_error set, and other messages are not tracked.
 */
static __always_inline int parse_icmp(struct pkt *p, struct icmp_header *icmp, void *end)
{
	int echo;

	if ((void *)(icmp + 1) > end)
		return LL_SHORT;
	p->icmp_type = icmp->type;
	p->icmp_code = icmp->code;
	if (p->family == 4) {
		echo = icmp->type == ICMP_ECHO || icmp->type == ICMP_ECHO_REPLY;
		p->icmp_error = icmp->type == ICMP_DEST_UNREACH ||
				icmp->type == ICMP_TIME_EXCEEDED ||
				icmp->type == ICMP_PARAMETERPROB;
	} else {
		echo = icmp->type == ICMPV6_ECHO || icmp->type == ICMPV6_ECHO_REPLY;
		p->icmp_error = icmp->type && icmp->type < ICMPV6_INFO_MIN;
	}
	if (echo) {
		p->sport = *(__be16 *)&icmp->rest;
		p->dport = p->sport;
	}
	return echo || p->icmp_error ? LL_NEXT : LL_UNTRACKED;
}

/* Returns what a later fragment of p's protocol needs from its first fragment to be tracked and
 * evaluated: FRAGMENT_PORTS, FRAGMENT_TYPE or 0. After an extension header, any protocol may
 * follow.
 */
static __always_inline __u8 parse_needs_first(const struct pkt *p)
{
	switch (p->proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		return FRAGMENT_PORTS;
	case IPPROTO_ICMP:
		return p->family == 4 ? FRAGMENT_TYPE : 0;
	case IPPROTO_ICMPV6:
		return p->family == 6 ? FRAGMENT_TYPE : 0;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_DSTOPTS:
		return p->family == 6 ? FRAGMENT_PORTS : 0;
	}
	return 0;
}

/* Reports whether the IP packet ends within the first len bytes of layer 4; bytes after its end are
 * not part of it, even if the frame contains them. The length field of a GSO packet may be 0 (BIG
 * TCP).
 */
static __always_inline int parse_ends_before(const struct __sk_buff *skb, const struct pkt *p,
					     __u32 len)
{
	return p->l4_len < len && !skb->gso_size;
}

/* Reads the ports, and the TCP fields that connection tracking needs. */
static __always_inline int parse_l4(struct __sk_buff *skb, struct pkt *p, void *data, void *end)
{
	void *l4 = data + (p->l4_off & L4_OFF_MAX);

	p->needs_first = p->fragment ? parse_needs_first(p) : 0;
	if (p->fragment == FRAGMENT_LATER) {
		if (!p->needs_first)
			return LL_UNTRACKED;
		p->needs_first |= FRAGMENT_UNKNOWN;
		return LL_NEXT;
	}
	if (p->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if (parse_ends_before(skb, p, sizeof(*tcp)))
			return LL_PASS;
		if ((void *)(tcp + 1) > end)
			return LL_SHORT;
		p->sport = tcp->source;
		p->dport = tcp->dest;
		p->tcp_flags = ((__u8 *)tcp)[13];
		p->l4_header_len = (((__u8 *)tcp)[12] >> 4) * 4;
		p->tcp_seq = bpf_ntohl(tcp->seq);
		p->tcp_ack = bpf_ntohl(tcp->ack_seq);
		p->tcp_window = bpf_ntohs(tcp->window);
		return LL_NEXT;
	}
	if (p->proto == IPPROTO_UDP || p->proto == IPPROTO_SCTP) {
		/* SCTP has its ports at the same offsets as UDP, and a header of 12 bytes. */
		p->l4_header_len = p->proto == IPPROTO_UDP ? 8 : 12;
		if (parse_ends_before(skb, p, p->l4_header_len))
			return LL_PASS;
		if (l4 + (p->proto == IPPROTO_UDP ? 8 : 12) > end)
			return LL_SHORT;
		p->sport = ((struct udphdr *)l4)->source;
		p->dport = ((struct udphdr *)l4)->dest;
		p->sctp_chunk = 0xff;
		if (p->proto == IPPROTO_SCTP)
			p->tcp_ack = bpf_ntohl(((__be32 *)l4)[1]);
		/* The chunks of a GSO packet are in its fragment list, which is never pulled. */
		if (p->proto == IPPROTO_SCTP && p->l4_len > 12 &&
		    bpf_skb_load_bytes(skb, p->l4_off + 12, &p->sctp_chunk, 1))
			return LL_PASS;
		return LL_NEXT;
	}
	if (p->proto == (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return parse_ends_before(skb, p, 8) ? LL_PASS : parse_icmp(p, l4, end);
	return LL_UNTRACKED;
}

/* Reports whether an IPv4 header of 20 bytes has a correct checksum: a router must not forward
 * packets with a wrong one (RFC 1812, section 5.2.2).
 */
static __always_inline int parse_ipv4_sum(const struct iphdr *ip)
{
	const __u32 *word = (const __u32 *)ip;

	return csum_is_zero((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
}

static __always_inline int parse_ipv4(struct __sk_buff *skb, struct pkt *p, void *data, void *end)
{
	struct iphdr *ip = data + (p->l3_off & 63);
	__u16 frag;

	if ((void *)(ip + 1) > end)
		return LL_SHORT;
	if (ip->version != 4 || ip->ihl < 5)
		return LL_PASS;
	p->family = 4;
	p->proto = ip->protocol;
	p->ttl = ip->ttl;
	p->dscp = ip->tos >> 2;
	addr_from4(&p->saddr, ip->saddr);
	addr_from4(&p->daddr, ip->daddr);
	p->l4_off = p->l3_off + ip->ihl * 4;
	p->l4_len = bpf_ntohs(ip->tot_len) < ip->ihl * 4 ? 0 : bpf_ntohs(ip->tot_len) - ip->ihl * 4;
	/* The length field of a BIG TCP packet is 0. */
	p->slow = ip->ihl != 5 || !parse_ipv4_sum(ip) ||
		  p->l3_off + bpf_ntohs(ip->tot_len) > skb->len ||
		  (bpf_ntohs(ip->tot_len) < sizeof(*ip) && !skb->gso_size);
	frag = bpf_ntohs(ip->frag_off);
	if (frag & (IP_MORE_FRAGMENTS | IP_OFFSET_MASK)) {
		p->fragment_id = ip->id;
		p->fragment = frag & IP_OFFSET_MASK ? FRAGMENT_LATER : FRAGMENT_FIRST;
	}
	return LL_NEXT;
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, struct pkt *p, void *data, void *end)
{
	struct ipv6hdr *ip = data + (p->l3_off & 63);

	if ((void *)(ip + 1) > end)
		return LL_SHORT;
	if (ip->version != 6)
		return LL_PASS;
	p->family = 6;
	p->proto = ip->nexthdr;
	p->ttl = ip->hop_limit;
	p->dscp = ip->priority << 2 | ip->flow_lbl[0] >> 6;
	__builtin_memcpy(&p->saddr, &ip->saddr, sizeof(p->saddr));
	__builtin_memcpy(&p->daddr, &ip->daddr, sizeof(p->daddr));
	p->l4_off = p->l3_off + sizeof(*ip);
	p->l4_len = bpf_ntohs(ip->payload_len);
	p->slow = p->l4_off + p->l4_len > skb->len;
	if (addr_is4(&p->saddr) || addr_is4(&p->daddr))
		return LL_PASS; /* IPv4-mapped: tables use this form for IPv4 addresses */
	if (p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP)
		return LL_NEXT;
	return parse_ipv6_extensions(skb, p);
}

/* Fills p from an Ethernet frame. LL_PASS: not an IP packet, or it cannot be parsed. */
static __always_inline int parse_linear(struct __sk_buff *skb, struct pkt *p)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	__be16 proto;
	int ret;

	if ((void *)(eth + 1) > end)
		return LL_SHORT;
	proto = eth->h_proto;
	p->l3_off = sizeof(*eth);
	p->tagged = 0;
	p->vid = 0;
	p->family = 0;
	if (skb->vlan_present) {
		p->vid = skb->vlan_tci & 0xfff;
		p->tagged = !p->vid || skb->vlan_proto != bpf_htons(ETH_P_8021Q);
	}
	for (int i = 0; i < 2; i++) {
		struct vlan_tag *tag = data + (p->l3_off & 63);

		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			return LL_SHORT;
		proto = tag->proto;
		p->l3_off += sizeof(*tag);
		p->tagged = 1;
	}
	if (proto == bpf_htons(ETH_P_IP))
		ret = parse_ipv4(skb, p, data, end);
	else if (proto == bpf_htons(ETH_P_IPV6))
		ret = parse_ipv6(skb, p, data, end);
	else
		return LL_PASS;
	if (ret != LL_NEXT)
		return ret;
	return parse_l4(skb, p, data, end);
}

/* Makes the headers directly readable, and parses them again. Called only if necessary: pulling
 * payload costs a copy, prevents TCP from coalescing packets on receipt, and would break the
 * fragment list of a UDP GSO packet.
 */
static __noinline int parse_pulled(struct __sk_buff *skb, struct pkt *p)
{
	if (skb->gso_size ||
	    bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX))
		return LL_PASS;
	p->fragment = FRAGMENT_NONE;
	return parse_linear(skb, p);
}

/* Fills p from a frame, even if its headers are not directly readable. LL_PASS: not an IP packet. A
 * global function, so that the verifier walks it and the code after it once, not for each kind of
 * packet. The caller must set p->skb again.
 */
__noinline int parse_packet(struct __sk_buff *skb, struct pkt *p)
{
	int ret;

	if (!p)
		return LL_PASS;
	ret = parse_linear(skb, p);
	if (ret == LL_SHORT)
		ret = parse_pulled(skb, p);
	p->vlan = p->vid;
	if (ret == LL_NEXT || ret == LL_UNTRACKED)
		return ret;
	return p->family ? LL_UNCLEAR : LL_PASS;
}
