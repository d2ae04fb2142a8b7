/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* names_packet.h - finds the DNS responses in datagrams, fragments and TCP segments to an Endpoint.
 *
 * A position in a TCP connection is known from its beginning on: what a server sends within a response
 * is never taken for a response.
 */
#pragma once

#include "names_learn.h"
#include "names_part.h"

#define RESPONSES_MAX 32 /* of one segment */

/* Reports whether a packet may contain a DNS response, for which its first bytes suffice. */
static __always_inline int names_may_come(struct __sk_buff *skb)
{
	const __u8 *ip = (const __u8 *)(long)skb->data + ETH_HLEN;
	const __u8 *end = (const __u8 *)(long)skb->data_end;
	const __u8 *ports;
	__u8 proto;

	if (ip + sizeof(struct ipv6hdr) + 2 > end)
		return 1;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		proto = ip[offsetof(struct iphdr, protocol)];
		ports = ip + sizeof(struct iphdr);
		if (proto != IPPROTO_UDP && proto != IPPROTO_TCP)
			return 0;
		if ((ip[0] & 15) != 5 || ip[offsetof(struct iphdr, frag_off)] & 0x3f ||
		    ip[offsetof(struct iphdr, frag_off) + 1])
			return 1;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		proto = ip[offsetof(struct ipv6hdr, nexthdr)];
		ports = ip + sizeof(struct ipv6hdr);
		if (proto != IPPROTO_UDP && proto != IPPROTO_TCP)
			return proto != IPPROTO_ICMPV6;
	} else {
		return 0;
	}
	return ports[0] == 0 && ports[1] == 53;
}

/* Finds the next response in a segment. PART_WHOLE: the message is in dns_work. PART_LONG: a response
 * that is too long was skipped. A global function, so that the verifier walks it once.
 */
__noinline int names_next(struct __sk_buff *skb)
{
	struct dns_work *w = dns_work_get();
	__be16 prefix;
	__u32 len, at;
	__s32 skip;
	int ret;

	if (!w)
		return PART_LOST;
	skip = w->next_seq - w->seq;
	if (skip >= (__s32)w->size)
		return PART_WAITS;
	if (skip < 0) {
		ret = part_add(skb, w->next_seq, PART_LENGTH - skip, 0);
		goto out;
	}
	at = w->off + skip;
	if (w->size - skip >= sizeof(prefix)) {
		if (bpf_skb_load_bytes(skb, at, &prefix, sizeof(prefix)))
			return PART_LOST;
		len = bpf_ntohs(prefix);
		if (w->size - skip - sizeof(prefix) >= len && len <= DNS_MESSAGE_MAX) {
			if (!len || bpf_skb_load_bytes(skb, at + sizeof(prefix), w->message,
						       DNS_LENGTH(len, DNS_MESSAGE_MAX)))
				return PART_LOST;
			w->len = len;
			w->total = len + DNS_PART_TEXT;
			ret = PART_WHOLE;
			goto out;
		}
	}
	ret = part_add(skb, w->next_seq, PART_LENGTH, skip);
out:
	if (ret == PART_WHOLE || ret == PART_LONG)
		w->next_seq += w->total - PART_LENGTH;
	return ret;
}

/* Learns names from p, a segment. */
static __always_inline void names_in_segment(struct pkt *p, struct dns_work *dns)
{
	struct dns_stream *stream, begin = { .next_seq = p->tcp_seq + 1 };
	struct dns_flow flow;

	dns->flow.id = p->dport;
	flow = dns->flow;
	if (p->tcp_flags & TCP_SYN) {
		bpf_map_update_elem(&ll_dns_stream, &flow, &begin, BPF_ANY);
		return;
	}
	stream = bpf_map_lookup_elem(&ll_dns_stream, &flow);
	if (!stream || !dns->size)
		return;
	dns->seq = p->tcp_seq;
	dns->next_seq = stream->next_seq;
	for (int i = 0; i < RESPONSES_MAX; i++) {
		int ret = names_next(p->skb);

		if (ret == PART_WHOLE)
			names_learn_message();
		else if (ret != PART_LONG)
			break;
	}
	if (dns->next_seq != stream->next_seq)
		stream->next_seq = dns->next_seq;
}

/* Returns the offset of p, a fragment, in its datagram, in bytes; all ones: unknown. */
static __always_inline __u32 fragment_offset(struct pkt *p)
{
	struct {
		__u8 next;
		__u8 pad;
		__be16 off;
		__be32 id;
	} ext;
	__be16 off;

	if (p->family == 4) {
		if (bpf_skb_load_bytes(p->skb, p->l3_off + offsetof(struct iphdr, frag_off), &off,
				       sizeof(off)))
			return ~0;
		return (bpf_ntohs(off) & IP_OFFSET_MASK) * 8;
	}
	/* Other headers behind the fragment header are unusual, and not read here. */
	if (bpf_skb_load_bytes(p->skb, p->l4_off - sizeof(ext), &ext, sizeof(ext)) ||
	    ext.next != IPPROTO_UDP || ext.id != p->fragment_id)
		return ~0;
	return bpf_ntohs(ext.off) & 0xfff8;
}

/* Learns names from p, a fragment of a datagram. */
static __always_inline void names_in_fragment(struct pkt *p, struct dns_work *dns)
{
	dns->flow.id = p->fragment_id;
	dns->off = p->l4_off;
	dns->size = p->l4_len;
	dns->checked = p->fragment == FRAGMENT_FIRST;
	if (part_add(p->skb, 0, fragment_offset(p), 0) == PART_WHOLE)
		names_learn_message();
}

/* Learns names from p, a datagram. */
static __always_inline void names_in_datagram(struct pkt *p, struct dns_work *dns)
{
	__u32 len = dns->size;

	asm volatile("" : "+r"(len));
	if (len < DNS_HEADER || len > DNS_MESSAGE_MAX ||
	    bpf_skb_load_bytes(p->skb, dns->off, dns->message, len))
		return;
	dns->len = len;
	names_learn_message();
}

/* Learns names from p, which comes from a resolver. */
static __always_inline void names_in_packet(struct pkt *p, struct dns_work *dns,
					    const struct resolver *resolver, __u32 network)
{
	names_begin_packet(p, dns, resolver, network);
	if (p->proto == IPPROTO_TCP && p->fragment == FRAGMENT_NONE)
		names_in_segment(p, dns);
	else if (p->proto == IPPROTO_UDP && p->fragment == FRAGMENT_NONE)
		names_in_datagram(p, dns);
	else if (p->proto == IPPROTO_UDP)
		names_in_fragment(p, dns);
}

/* Learns names from p, a packet that is about to leave through the port of an Endpoint. */
static __always_inline void names_learn(struct pkt *p, struct work *w, __u32 network)
{
	struct resolver_key key = { .addr = p->saddr, .network = network };
	struct dns_work *dns = dns_work_get();
	const struct resolver *resolver;

	if (p->fragment != FRAGMENT_LATER && p->sport != PORT_DNS)
		return;
	resolver = bpf_map_lookup_elem(&ll_resolver, &key);
	if (!dns || !resolver || (p->fragment != FRAGMENT_LATER && !names_is_answer(p, w)))
		return;
	names_in_packet(p, dns, resolver, network);
}
