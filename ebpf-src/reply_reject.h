/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* reply_reject.h - answers refused packets with a TCP reset (RFC 9293, section 3.10.7.1), an SCTP
 * ABORT (RFC 9260, section 8.4), or an ICMP error (RFC 1812, section 4.3.2; RFC 4443, section 2.4).
 * reply.h sends the answer.
 */
#pragma once

#include "reply_sctp.h"

/* A tick is 134 ms, so these limits allow a thousand ICMP errors a second, as many as Linux sends,
 * and ten thousand resets, which are no larger than the packets that they answer.
 */
#define ANSWER_ERRORS_PER_TICK 134
#define ANSWER_RESETS_PER_TICK 1340

#define ANSWER_TYPE(type, code) ((type) << 8 | (code))

#define ICMP_ECHO_REQUEST    8
#define ICMP_PORT_UNREACH    3
#define ICMP_FRAG_NEEDED     4
#define ICMP_PROHIBITED	     13
#define ICMPV6_DEST_UNREACH  1
#define ICMPV6_TOO_BIG	     2
#define ICMPV6_TIME_EXCEEDED 3
#define ICMPV6_PORT_UNREACH  4
#define ICMPV6_PROHIBITED    1
#define ICMPV6_INFO_REDIRECT 137

/* Reports whether an address can belong to a single host that can receive packets. */
static __always_inline int answer_is_host(const struct addr *a, __u8 family)
{
	__u8 first = family == 4 ? ((__u8 *)a)[12] : ((__u8 *)a)[0];

	if (family == 4)
		return first && first != 127 && (first & 0xf0) != 0xe0 && ~a->word[3];
	return first != 0xff &&
	       (a->word[0] | a->word[1] | a->word[2] | (a->word[3] & ~bpf_htonl(1)));
}

/* Reports whether p may be answered at all. */
static __always_inline int answer_may(struct pkt *p)
{
	__u8 macs[12];

	if (p->fragment == FRAGMENT_LATER || !answer_is_host(&p->saddr, p->family) ||
	    !answer_is_host(&p->daddr, p->family))
		return 0;
	if (bpf_skb_load_bytes(p->skb, 0, macs, sizeof(macs)))
		return 0;
	return !((macs[0] | macs[6]) & 1); /* to or from a group */
}

/* Reports whether p may be answered with an ICMP error: it must not be an ICMP error itself. */
static __always_inline int answer_may_error(struct pkt *p)
{
	__u8 type;

	if (p->icmp_error)
		return 0;
	if (p->proto != IPPROTO_ICMP && p->proto != IPPROTO_ICMPV6)
		return 1;
	if (bpf_skb_load_bytes(p->skb, p->l4_off, &type, 1))
		return 0;
	if (p->family == 4) /* no source quench, no redirect */
		return type == 0 || type >= ICMP_ECHO_REQUEST;
	return type >= ICMPV6_INFO_MIN && type != ICMPV6_INFO_REDIRECT;
}

/* Resets the TCP connection of a packet. LL_NEXT: the packet must not be answered. */
__noinline int answer_reset(struct __sk_buff *skb)
{
	struct answer *a = answer_get();
	struct tcphdr *tcp;
	__u32 data, doff;
	__u8 byte;

	if (!a || a->tcp_flags & TCP_RST)
		return LL_NEXT;
	if (bpf_skb_load_bytes(skb, a->l4_off + 12, &byte, 1))
		return -DROP_REWRITE;
	doff = (byte >> 4) * 4;
	data = a->packet_len - (a->l4_off - a->l3_off);
	if (doff < sizeof(*tcp) || doff > data)
		return LL_NEXT;
	data = data - doff + !!(a->tcp_flags & TCP_SYN) + !!(a->tcp_flags & TCP_FIN);
	tcp = (void *)&a->bytes[ANSWER_L4];
	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = a->dport;
	tcp->dest = a->sport;
	tcp->doff = sizeof(*tcp) / 4;
	tcp->rst = 1;
	if (a->tcp_flags & TCP_ACK) {
		tcp->seq = bpf_htonl(a->tcp_ack);
	} else {
		tcp->ack = 1;
		tcp->ack_seq = bpf_htonl(a->tcp_seq + data);
	}
	a->len = sizeof(*tcp);
	tcp->check = csum_fold16(answer_sum(1));
	return answer_send(skb);
}

/* Sends an ICMP error about a packet: type is an ANSWER_TYPE, rest the second word of the ICMP
 * header. The error quotes the packet in its present form.
 */
__noinline int answer_error(struct __sk_buff *skb, __u32 type, __u32 rest)
{
	struct answer *a = answer_get();
	struct icmp_header *icmp;
	__u32 len, max;
	__u8 tos;

	if (!a)
		return -DROP_REWRITE;
	if (a->family == 4) {
		/* Precedence 6, internetwork control, and the packet's type of service. */
		if (bpf_skb_load_bytes(skb, a->l3_off + 1, &tos, 1))
			return -DROP_REWRITE;
		a->tos = (tos & 0x1e) | 0xc0;
	}
	max = a->family == 4 ? ANSWER_QUOTE4 : ANSWER_QUOTE6;
	len = skb->len - a->l3_off;
	if (len > a->packet_len)
		len = a->packet_len; /* without the padding of its frame */
	if (len > max)
		len = max;
	asm volatile("" : "+r"(len)); /* keeps the check in the next line, for the verifier */
	if (len < ANSWER_ICMP || len > ANSWER_QUOTE6)
		return -DROP_REWRITE;
	/* The checksum is computed over whole words. */
	*(__u32 *)&a->bytes[ANSWER_L4 + ANSWER_ICMP + (len & (2047 & ~3))] = 0;
	icmp = (void *)&a->bytes[ANSWER_L4];
	if (bpf_skb_load_bytes(skb, a->l3_off, icmp + 1, len))
		return -DROP_REWRITE;
	icmp->type = type >> 8;
	icmp->code = type;
	icmp->checksum = 0;
	icmp->rest = bpf_htonl(rest);
	a->proto = a->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	a->len = sizeof(*icmp) + len;
	icmp->checksum = csum_fold16(answer_sum(a->family == 6));
	return answer_send(skb);
}

/* Counts p as dropped for reason, or for its _LIMITED counterpart if this CPU has reached the rate
 * of answers. Returns the answer to p, to be completed; NULL: p must not be answered.
 */
static __noinline struct answer *answer_begin(struct pkt *p, __u32 rate, __u32 reason)
{
	__u64 limit = rate == RATE_ICMP ? ANSWER_ERRORS_PER_TICK : ANSWER_RESETS_PER_TICK;
	struct answer *a = answer_get();

	if (!a || !answer_may(p) || (rate == RATE_ICMP && !answer_may_error(p))) {
		count_drop(p, reason);
		return NULL;
	}
	if (!rate_allows(rate, p->now_tick, limit)) {
		count_drop(p, reason + 1);
		return NULL;
	}
	count_drop(p, reason);
	answer_about(a, p);
	return a;
}

/* Drops p, which is unchanged, and sends an ICMP error to its sender; type is an ANSWER_TYPE.
 * Returns LL_REDIRECT if the error is sent. The source of the error is the address of the device on
 * which p arrived, so that it shows where p was dropped. If that device has no address, or if the
 * node itself sent p, the source is the destination of p: the node accepts no packet from its own
 * address.
 */
static __noinline int answer_icmp(struct pkt *p, __u32 type, __u32 rest, __u32 reason)
{
	struct answer *a = answer_begin(p, RATE_ICMP, reason);
	struct device *device;

	if (!a)
		return LL_NEXT;
	device = p->egress ? NULL : device_find(p->skb->ifindex);
	if (device && p->family == 4 && addr_is_set(&device->addr4))
		a->saddr = device->addr4;
	else if (device && p->family == 6 && addr_is_set(&device->addr6))
		a->saddr = device->addr6;
	return answer_error(p->skb, type, rest);
}

/* As answer_icmp, for a packet that is larger than p->mtu_bytes. */
static __always_inline int answer_too_big(struct pkt *p)
{
	__u32 type = p->family == 4 ? ANSWER_TYPE(ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED)
				    : ANSWER_TYPE(ICMPV6_TOO_BIG, 0);

	return answer_icmp(p, type, p->mtu_bytes, DROP_TOO_BIG);
}

/* As answer_icmp, for a packet whose TTL expires on this node. */
static __always_inline int answer_ttl(struct pkt *p)
{
	__u32 type = p->family == 4 ? ANSWER_TYPE(ICMP_TIME_EXCEEDED, 0)
				    : ANSWER_TYPE(ICMPV6_TIME_EXCEEDED, 0);

	return answer_icmp(p, type, 0, DROP_TTL);
}

/* As answer_icmp, for a packet that its destination does not accept: depending on the protocol of
 * p, the answer is a TCP reset, an SCTP ABORT or an ICMP error.
 */
static __noinline int answer_unwanted(struct pkt *p, __u32 reason)
{
	__u32 type = p->family == 4 ? ANSWER_TYPE(ICMP_DEST_UNREACH, ICMP_PROHIBITED)
				    : ANSWER_TYPE(ICMPV6_DEST_UNREACH, ICMPV6_PROHIBITED);

	if (p->proto == IPPROTO_UDP)
		type = p->family == 4 ? ANSWER_TYPE(ICMP_DEST_UNREACH, ICMP_PORT_UNREACH)
				      : ANSWER_TYPE(ICMPV6_DEST_UNREACH, ICMPV6_PORT_UNREACH);
	if (p->proto != IPPROTO_TCP && p->proto != IPPROTO_SCTP)
		return answer_icmp(p, type, 0, reason);
	if (!answer_begin(p, RATE_RESET, reason))
		return LL_NEXT;
	return p->proto == IPPROTO_TCP ? answer_reset(p->skb) : answer_abort(p->skb);
}

/* Returns the action of a hook for p, after its last stage returned ret. LL_REFUSE: p, which is
 * unchanged, is dropped, counted under the reason p->refused, and answered.
 */
static __always_inline int refuse_or_finish(struct pkt *p, int ret)
{
	if (ret != LL_REFUSE)
		return finish(p, ret);
	if (p->refused == DROP_TOO_BIG)
		ret = answer_too_big(p);
	else if (p->refused == DROP_TTL)
		ret = answer_ttl(p);
	else
		ret = answer_unwanted(p, p->refused);
	if (ret != LL_REDIRECT)
		return TC_ACT_SHOT;
	count_verdict(VERDICT_ANSWERED);
	return TC_ACT_REDIRECT;
}
