/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* pkt.h - one packet on its way through the stages. */
#pragma once

#include "maps.h"

/* The result of a stage: one of these, or -DROP_*. */
enum ll_verdict {
	LL_NEXT,      /* nothing decided: run the next stage */
	LL_PASS,      /* not handled: passes unchanged to the next program and the kernel */
	LL_STACK,     /* handled and rewritten: the kernel continues with it */
	LL_REDIRECT,  /* a redirect helper was called: its result is p->action */
	LL_SHORT,     /* the headers are not all directly readable */
	LL_OPEN,      /* no connection matches: the packet may open one */
	LL_REFUSE,    /* to be refused and answered, for the reason p->refused */
	LL_UNTRACKED, /* not part of a connection */
	LL_UNCLEAR,   /* cannot be classified: too many headers, or truncated */
	LL_INNER,     /* decapsulated: to be parsed again */
};

/* Offsets are in bytes from the start of the frame. A stage never keeps a packet pointer: any
 * helper that writes to the packet invalidates it.
 */
struct pkt {
	struct __sk_buff *skb;
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;	/* of layer 4; in later IPv6 fragments possibly an extension header */
	__u8 family;	/* 4 or 6 */
	__u8 tcp_flags; /* as in the header; 0 if not TCP */
	__u8 fragment;	/* FRAGMENT_ */
	__u16 l3_off;
	__u16 l4_off;
	__u8 ttl;
	__u8 tagged;	 /* has a VLAN tag that only the kernel can handle */
	__u8 egress;	 /* on the egress hook */
	__u8 icmp_error; /* ICMP error: quotes another packet */
	__u32 tcp_seq;	 /* host order; TCP only */
	__u32 tcp_ack;	 /* SCTP: the verification tag */
	__u32 now_tick;
	__u16 tcp_window;   /* host order; a later fragment of ICMP: type and code */
	__u8 sctp_chunk;    /* type of the first chunk; 0xff: none */
	__u8 opened;	    /* it is the first packet of a connection */
	__u8 refused;	    /* for LL_REFUSE: enum drop_reason */
	__u8 martian;	    /* leaves with the node's IPv4 address as source: bypasses the stack */
	__u8 missed;	    /* MISSED_ */
	__u8 slow;	    /* only the kernel can forward it, for example because of IP options */
	__u8 bridge_port;   /* it arrived on a bridge port */
	__u8 bridged;	    /* it goes from one port of a bridge to another */
	__u8 icmp_type;	    /* ICMP and ICMPv6 only */
	__u8 l4_header_len; /* bytes; 0: unknown */
	__u8 icmp_code;
	__u8 dscp;
	__u8 to_group;	 /* broadcast or multicast frame */
	__u8 stateless;	 /* allowed by a stateless rule: replies are evaluated too */
	__u16 vid;	 /* of the VLAN tag; 0: none */
	__u16 vlan;	 /* VLAN of the frame: from its tag, or from the bridge port */
	__u16 domain;	 /* as in ct4_key */
	__u16 l4_len;	 /* bytes from l4_off to the end of the IP packet */
	__u16 mtu_bytes; /* of its path; for DROP_TOO_BIG */
	__u16 in_port;	 /* as in ct_meta: where it arrived */
	__u16 peer;	 /* index of the peer whose tunnel it came from; 0: none */
	__u8 early;	 /* just decapsulated: fast path, or else to the tunnel's device */
	__u8 tunnel;	 /* sent by the device of a tunnel: to be encapsulated */
	__u8 loopback;	 /* from the node to itself */
	__u8 action;	 /* for LL_REDIRECT: TC_ACT_ */
	enum verdict_count verdict : 8;
	__u8 needs_first; /* of a fragment: FRAGMENT_PORTS and so on */
	__be32 fragment_id;
	__u32 service_id; /* for counters and samples */
	__u32 rule_id;	  /* of the firewall rule that decided; 0: none */
	__u32 nat_id;	  /* of the NAT that translates it; 0: none */
};

/* What fastpath.h found in the connection table for a packet. */
#define MISSED_NOT	 0 /* it did not look, or the other fast path may take the packet */
#define MISSED_UNSETTLED 1 /* an entry whose state the packet may change */
#define MISSED_NONE	 2 /* no entry in domain 0 */

#define LOOPBACK_IFINDEX 1 /* in every netns */

/* Returns the ticks from then to now, allowing for wraparound; 0 if then is later than now, as
 * written by another CPU that began its packet later.
 */
static __always_inline __u32 ticks_since(__u32 now, __u32 then)
{
	__s32 ticks = now - then;

	return ticks > 0 ? ticks : 0;
}

#define FRAGMENT_NONE  0
#define FRAGMENT_FIRST 1 /* offset 0, more fragments follow: has the ports */
#define FRAGMENT_LATER 2

/* The part of layer 4 that only the first fragment contains. */
#define FRAGMENT_PORTS	 1
#define FRAGMENT_TYPE	 2 /* ICMP: identifier, type and code */
#define FRAGMENT_UNKNOWN 4 /* of a later fragment: not known yet */

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define TCP_EVENTS (TCP_SYN | TCP_FIN | TCP_RST) /* change the state of a connection */

static __always_inline void addr_from4(struct addr *a, __be32 v4)
{
	a->word[0] = 0;
	a->word[1] = 0;
	a->word[2] = bpf_htonl(0xffff);
	a->word[3] = v4;
}

static __always_inline int addr_equal(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

/* Reports whether an address is IPv4-mapped. */
static __always_inline int addr_is4(const struct addr *a)
{
	return !a->word[0] && !a->word[1] && a->word[2] == bpf_htonl(0xffff);
}

static __always_inline int addr_is_set(const struct addr *a)
{
	return a->word[0] | a->word[1] | a->word[2] | a->word[3];
}

/* Keys are written in the whole words in which they are read next: a processor forwards a recent
 * store only to a load that lies entirely within it.
 */
typedef __u64 __attribute__((may_alias)) key_word;

typedef __u32 __attribute__((may_alias)) key_half;

/* Returns the last word of a key of either family. */
static __always_inline __u64 key_tail(__u32 ports, __u8 proto, __u16 domain)
{
	return ports | (__u64)(proto | (__u32)config_netns << 8 | (__u32)domain << 16) << 32;
}

static __always_inline void key4_set(struct ct4_key *k, __be32 saddr, __be32 daddr, __u32 ports,
				     __u8 proto, __u16 domain)
{
	key_word *word = (key_word *)k;

	word[0] = saddr | (__u64)daddr << 32;
	word[1] = key_tail(ports, proto, domain);
}

static __always_inline void key6_set(struct ct6_key *k, const void *saddr, const void *daddr,
				     __u32 ports, __u8 proto, __u16 domain)
{
	const key_word *from = saddr, *to = daddr;
	key_word *word = (key_word *)k;

	word[0] = from[0];
	word[1] = from[1];
	word[2] = to[0];
	word[3] = to[1];
	word[4] = key_tail(ports, proto, domain);
}

static __always_inline __u32 ports_word(__be16 sport, __be16 dport)
{
	return sport | (__u32)dport << 16;
}

/* Reports whether a device may have a source guard. 0: it has no guard. */
static __always_inline int guard_may_be_on(__u32 ifindex)
{
	__u32 low = ifindex & 0xffff, word = config_netns * GUARDED_WORDS + (low >> 6);
	__u64 *bits = bpf_map_lookup_elem(&ll_guarded, &word);

	return bits && *bits >> (low & 63) & 1;
}

/* Writes both MAC addresses of the frame. */
static __always_inline int frame_address(struct pkt *p, const __u8 *dmac, const __u8 *smac)
{
	void *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;

	if (data + 14 > end)
		return -DROP_REWRITE;
	__builtin_memcpy(data, dmac, 6);
	__builtin_memcpy(data + 6, smac, 6);
	return LL_NEXT;
}

/* Reports whether the destination MAC of the frame is dmac. */
static __always_inline int frame_is_for(const struct pkt *p, const __u8 *dmac)
{
	const __u16 *data = (void *)(long)p->skb->data;
	void *end = (void *)(long)p->skb->data_end;
	const __u16 *want = (const __u16 *)dmac;

	return (void *)(data + 3) <= end && data[0] == want[0] && data[1] == want[1] &&
	       data[2] == want[2];
}

/* Reports whether the destination MAC of the frame is a group. */
static __always_inline int frame_is_to_group(const struct pkt *p)
{
	const __u8 *data = (void *)(long)p->skb->data;

	return data + 1 <= (const __u8 *)(long)p->skb->data_end && data[0] & 1;
}

/* skb->tc_index carries a word from our ingress hook to our egress hook. Both clear it, so that
 * other programs never see it.
 */
#define TC_INDEX_TRACKED 0x4c01 /* redirected: nothing left to do */
#define TC_INDEX_LEARN	 0x4c02 /* the egress hook learns the next hop */
#define TC_INDEX_ASK	 0x4c03 /* bridged: the egress hook evaluates rules, then learns */
#define TC_INDEX_OURS	 0x4c00 /* with the lower byte of one of the above */

/* Added to TC_INDEX_LEARN or TC_INDEX_ASK: the packet is already translated. The egress hook must
 * not translate it again, even if its current tuple is the arriving tuple of another connection.
 */
#define TC_INDEX_TRANSLATED 0x0004

/* Combined with the index of a peer: the packet is encapsulated, to be sent to that peer
 * (UNDERLAY), or was decapsulated from its tunnel (INNER). Trusted only on devices that such
 * packets cross.
 */
#define TC_INDEX_UNDERLAY 0x8000
#define TC_INDEX_INNER	  0xc000
#define TC_INDEX_PEER	  0x3fff

/* From a shadow program to the program after it on the same hook: the packet has been handled. On
 * the ingress hook, the lower byte is copied from the word for the egress hook. A veth preserves
 * the word, so any sender behind a veth can set it: it is honoured only while a shadow program is
 * attached.
 */
#define TC_INDEX_DONE_INGRESS 0x4d00
#define TC_INDEX_DONE_EGRESS  0x4e00

/* skb->mark of packets that one of our programs redirects, with a word in skb->tc_index. Packets
 * from another netns never have a mark.
 */
#define MARK_OURS 0x4c4c4d00

/* A copy for a mirror, on its way through the kernel: skb->mark is MARK_COPY until it is on the wire
 * or in another netns, and skb->tc_index is TC_INDEX_COPY plus the slot of the mirror until the
 * program on its target has handled it. Copies are never copied. A pod can set the word, but not the
 * mark.
 */
#define MARK_COPY	0x4c4c4e00
#define TC_INDEX_COPY	0x4f00
#define TC_INDEX_MIRROR 0x003f /* the slot */

/* Reports whether one of our programs marked a packet as handled. The mark is always proof; the
 * word is proof only if no pod can have set it (guarded is 0).
 */
static __always_inline int handled_before(struct __sk_buff *skb, int guarded)
{
	__u32 zero = 0, *front = bpf_map_lookup_elem(&ll_shadow, &zero);

	if (skb->mark == MARK_OURS) {
		skb->mark = 0;
		return 1;
	}
	return !guarded && front && *front;
}

/* Marks a packet that is about to be redirected as handled. It also gets MARK_OURS, unless it has
 * another mark, so that the egress hook need not check the origin of the word.
 */
static __always_inline void tracked_word(struct __sk_buff *skb)
{
	skb->tc_index = TC_INDEX_TRACKED;
	if (!skb->mark)
		skb->mark = MARK_OURS;
}

/* Returns the TC action for a packet that this hook has handled and that continues. */
static __always_inline int handled(struct __sk_buff *skb, int egress)
{
	if (config_shadow) {
		skb->tc_index = egress ? TC_INDEX_DONE_EGRESS
				       : TC_INDEX_DONE_INGRESS | (skb->tc_index & 0xff);
		if (!egress && !skb->mark && guard_may_be_on(skb->ifindex))
			skb->mark = MARK_OURS; /* a pod cannot set it */
	}
	return TC_ACT_UNSPEC;
}
