/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* reply.h - answers that replace a packet. An answer leaves through the device of arrival; on the
 * egress hook, where the node itself sent the packet, the answer goes to the node's stack. No
 * connection is inserted, and no other stage sees the answer.
 *
 * The code is split into global functions, which the verifier walks once. They share the answer
 * under construction in ll_answer, one for each CPU.
 */
#pragma once

#include <stddef.h>

#include "count.h"
#include "csum.h"
#include "parse.h"
#include "fib.h"

#define ANSWER_L4     40   /* offset of layer 4 in the bytes of an answer */
#define ANSWER_QUOTE4 548  /* bytes that an ICMP error quotes: 576 with both headers */
#define ANSWER_QUOTE6 1232 /* bytes that an ICMPv6 error quotes: 1280 with both headers */
#define ANSWER_ICMP   8	   /* bytes of an ICMP header */
#define ANSWER_CHUNK  512  /* maximum bytes for one call of bpf_csum_diff */
#define ANSWER_TTL    64

/* The data of the packet to answer, and the answer under construction. */
struct answer {
	struct addr saddr; /* of the answer */
	struct addr daddr;
	__be16 sport; /* of the packet */
	__be16 dport;
	__u32 tcp_seq;
	__u32 tcp_ack;
	__u32 packet_len; /* of the IP packet, bytes */
	__u32 l3_off;
	__u32 l4_off;
	__u32 len; /* of the answer's layer 4, bytes */
	__u8 family;
	__u8 proto; /* of the answer */
	__u8 egress;
	__u8 tcp_flags;
	__u8 sctp_chunk;
	__u8 tos;
	__u8 tag_count; /* VLAN tags, outermost first */
	__u8 pad;
	struct vlan_tag tag[2];
	/* An IP header, which ends at ANSWER_L4, and layer 4. The checksum is computed over whole
	 * words, and may read beyond the end of layer 4.
	 */
	__u8 bytes[ANSWER_L4 + 3 * ANSWER_CHUNK];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__uint(value_size, sizeof(struct answer));
	__uint(max_entries, 1);
} ll_answer SEC(".maps");

static __always_inline struct answer *answer_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&ll_answer, &zero);
}

/* Begins an answer to p. */
static __always_inline void answer_about(struct answer *a, const struct pkt *p)
{
	a->saddr = p->daddr;
	a->daddr = p->saddr;
	a->sport = p->sport;
	a->dport = p->dport;
	a->tcp_seq = p->tcp_seq;
	a->tcp_ack = p->tcp_ack;
	a->tcp_flags = p->tcp_flags;
	a->sctp_chunk = p->sctp_chunk;
	a->packet_len = p->l4_off - p->l3_off + p->l4_len;
	a->l3_off = p->l3_off;
	a->l4_off = p->l4_off;
	a->family = p->family;
	a->proto = p->proto;
	a->egress = p->egress;
	a->tos = 0;
}

static __always_inline __u32 answer_header_len(const struct answer *a)
{
	return a->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* Returns the sum of the answer's layer 4; pseudo: including the pseudo header. */
__noinline __u32 answer_sum(int pseudo)
{
	struct answer *a = answer_get();
	__u64 sum = 0;
	__u32 part = 0;

	if (!a)
		return 0;
	if (pseudo) {
		sum = bpf_htonl(a->len + a->proto);
		for (int i = a->family == 4 ? 3 : 0; i < 4; i++)
			sum += (__u64)a->saddr.word[i & 3] + a->daddr.word[i & 3];
	}
	for (int i = 0; i < 3; i++) {
		__s64 left = (__s64)a->len - i * ANSWER_CHUNK;

		if (left <= 0)
			break;
		left = left >= ANSWER_CHUNK ? ANSWER_CHUNK : (left + 3) & (ANSWER_CHUNK - 4);
		part = bpf_csum_diff(NULL, 0, (void *)&a->bytes[ANSWER_L4 + i * ANSWER_CHUNK], left,
				     part);
	}
	return csum_fold32(sum + part);
}

/* Writes the IP header before the answer's layer 4. */
static __always_inline void answer_ip(struct answer *a)
{
	if (a->family == 4) {
		struct iphdr *ip = (void *)&a->bytes[ANSWER_L4 - sizeof(*ip)];

		__builtin_memset(ip, 0, sizeof(*ip));
		ip->version = 4;
		ip->ihl = 5;
		ip->tos = a->tos;
		ip->tot_len = bpf_htons(sizeof(*ip) + a->len);
		ip->frag_off = bpf_htons(0x4000); /* DF: the answer fits any path */
		ip->ttl = ANSWER_TTL;
		ip->protocol = a->proto;
		ip->saddr = a->saddr.word[3];
		ip->daddr = a->daddr.word[3];
		ip->check = csum_fold16((__u32)bpf_csum_diff(NULL, 0, (void *)ip, sizeof(*ip), 0));
	} else {
		struct ipv6hdr *ip = (void *)&a->bytes[0];

		__builtin_memset(ip, 0, sizeof(*ip));
		ip->version = 6;
		ip->payload_len = bpf_htons(a->len);
		ip->nexthdr = a->proto;
		ip->hop_limit = ANSWER_TTL;
		__builtin_memcpy(&ip->saddr, &a->saddr, sizeof(a->saddr));
		__builtin_memcpy(&ip->daddr, &a->daddr, sizeof(a->daddr));
	}
}

/* Removes the VLAN tags from the frame and stores them, since the kernel cannot resize a packet
 * behind them. A single tag outside the frame data may stay.
 */
static __always_inline int answer_untag(struct __sk_buff *skb, struct answer *a)
{
	__u32 in_frame = (a->l3_off - ETH_HLEN) / sizeof(struct vlan_tag), count = 0;

	a->tag_count = 0;
	if (!in_frame)
		return LL_NEXT;
	if (skb->vlan_present) {
		a->tag[0].proto = skb->vlan_proto;
		a->tag[0].tci = bpf_htons(skb->vlan_tci);
		count = 1;
	}
	for (int i = 0; i < 2 && i < in_frame; i++) {
		struct {
			__be16 proto;
			__be16 tci;
		} tag;

		if (count > 1 || bpf_skb_load_bytes(skb, 12 + i * sizeof(tag), &tag, sizeof(tag)))
			return -DROP_REWRITE;
		a->tag[count & 1].proto = tag.proto;
		a->tag[count & 1].tci = tag.tci;
		count++;
	}
	for (int i = 0; i < 2 && i < count; i++)
		if (bpf_skb_vlan_pop(skb))
			return -DROP_REWRITE;
	a->tag_count = count;
	a->l4_off -= a->l3_off - ETH_HLEN;
	a->l3_off = ETH_HLEN;
	return LL_NEXT;
}

static __always_inline int answer_retag(struct __sk_buff *skb, const struct answer *a)
{
	for (int i = 1; i >= 0; i--)
		if (i < a->tag_count &&
		    bpf_skb_vlan_push(skb, a->tag[i].proto, bpf_ntohs(a->tag[i].tci)))
			return -DROP_REWRITE;
	return LL_NEXT;
}

/* As bpf_skb_adjust_room, after the Ethernet header; 0 bytes: does nothing. */
static __always_inline int answer_room(struct __sk_buff *skb, __s32 bytes)
{
	return bytes ? bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_MAC, 0) : 0;
}

/* As answer_blank, for a packet that the kernel takes for encapsulated: on some devices, each packet that
 * left a tunnel. The kernel does not change its tail, so bytes are inserted or removed at the front, which
 * does not cancel segmentation. While the packet passes for IPv4, it may become as short as an IPv4
 * header: what the device would checksum begins within the removed bytes if it was longer than 34 bytes.
 */
static __noinline int answer_blank_inner(struct __sk_buff *skb, __u32 l4_off, __u32 len)
{
	int is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u32 most;

	if (skb->gso_size)
		return -DROP_REWRITE;
	if (is_ipv6) {
		if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0))
			return -DROP_REWRITE;
		l4_off -= sizeof(struct ipv6hdr) - sizeof(struct iphdr);
	}
	most = skb->len - ETH_HLEN - sizeof(struct iphdr);
	if (most > l4_off + 4)
		most = l4_off + 4;
	if (answer_room(skb, -(__s32)most))
		return -DROP_REWRITE;
	if (is_ipv6 && bpf_skb_change_proto(skb, bpf_htons(ETH_P_IPV6), 0))
		return -DROP_REWRITE;
	return answer_room(skb, ETH_HLEN + len - skb->len) ? -DROP_REWRITE : LL_NEXT;
}

/* Sets the length of the packet after its Ethernet header to len, and cancels pending offloads:
 * segmentation and checksum.
 *
 * The kernel has no helper for this. But changing the tail cancels GSO and the checksum state of
 * the device, and removing bytes at the front cancels a checksum that begins within them. If the
 * checksum begins further in, as in a tunnel, a probe detects it and the packet is dropped.
 */
static __always_inline int answer_blank(struct __sk_buff *skb, const struct answer *a, __u32 len)
{
	__u32 cut = (a->l4_off + 4) & (1024 - 4);
	__u16 before, after;

	if (skb->len == ETH_HLEN + cut + len)
		cut += 4; /* so that the length changes in any case */
	if (bpf_skb_change_tail(skb, ETH_HLEN + cut + len, 0)) {
		if (answer_blank_inner(skb, a->l4_off, len) != LL_NEXT)
			return -DROP_REWRITE;
	} else if (answer_room(skb, -(__s32)cut)) {
		return -DROP_REWRITE;
	}
	/* The probe: without BPF_F_PSEUDO_HDR, only a complete checksum is changed. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, ETH_HLEN, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &after, sizeof(after)) || before == after)
		return -DROP_REWRITE;
	return LL_NEXT;
}

/* Replaces the packet with the answer, whose layer 4 is complete, and sends it back. */
__noinline int answer_send(struct __sk_buff *skb)
{
	struct answer *a = answer_get();
	__u8 macs[12], turned[12];
	__u32 header, len;

	if (!a || a->len > ANSWER_ICMP + ANSWER_QUOTE6)
		return -DROP_REWRITE;
	header = answer_header_len(a);
	len = header + a->len;
	answer_ip(a);
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) || answer_untag(skb, a) != LL_NEXT ||
	    answer_blank(skb, a, len) != LL_NEXT)
		return -DROP_REWRITE;
	__builtin_memcpy(turned, macs + 6, 6);
	__builtin_memcpy(turned + 6, macs, 6);
	asm volatile("" : "+r"(len)); /* so that the verifier sees the next line */
	if (len < sizeof(struct iphdr) || len > ANSWER_L4 + ANSWER_ICMP + ANSWER_QUOTE6)
		return -DROP_REWRITE;
	if (bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN,
				header == ANSWER_L4 ? a->bytes
						    : &a->bytes[ANSWER_L4 - sizeof(struct iphdr)],
				len, 0) ||
	    answer_retag(skb, a) != LL_NEXT)
		return -DROP_REWRITE;
	if (skb->ifindex == 1) /* the loopback, on which no hook sees the answer */
		return bpf_redirect(1, BPF_F_INGRESS) == TC_ACT_REDIRECT ? LL_REDIRECT
									 : -DROP_REWRITE;
	/* The next hook that sees the answer ignores it. */
	skb->tc_index = a->egress ? TC_INDEX_DONE_INGRESS : TC_INDEX_TRACKED;
	skb->mark = MARK_OURS;
	return bpf_redirect(skb->ifindex, a->egress ? BPF_F_INGRESS : 0) == TC_ACT_REDIRECT
		       ? LL_REDIRECT
		       : -DROP_REWRITE;
}
