/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* l2_responder.h - answers ARP requests and neighbour solicitations for announced addresses, which
 * no device has (RFC 826, RFC 5227; RFC 4861, section 7.2). Packets that belong to no connection
 * are dropped or refused if only services or NAT use their destination.
 */
#pragma once

#include "reply_reject.h"
#include "l2_domain.h"
#include "fw.h"
#include "lb.h"

struct arp_ipv4 {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 op;
	__u8 sender_mac[6];
	__be16 sender[2];
	__u8 target_mac[6];
	__be16 target[2];
};
_Static_assert(sizeof(struct arp_ipv4) == 28, "as on the wire");

/* A neighbour advertisement. */
struct announce_nd {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 flags;
	struct addr target;
	__u8 option;
	__u8 option_len; /* in units of 8 bytes */
	__u8 mac[6];
};
_Static_assert(sizeof(struct announce_nd) == 32, "as on the wire");

#define ARPOP_REQUEST	 1
#define ARPOP_REPLY	 2
#define ND_SOLICITATION	 135
#define ND_ADVERTISEMENT 136
#define ND_SOLICITED	 0x40000000
#define ND_OVERRIDE	 0x20000000
#define ND_TARGET_MAC	 2
#define ND_HOP_LIMIT	 255
#define ND_MIN		 24 /* bytes of a solicitation without options */
#define ND_MAX		 64 /* with options; longer ones are not answered */

/* Returns the announced prefix that contains addr on a device, or NULL; ifindex 0: any device. */
static __always_inline struct announced *announce_find(__u32 ifindex, const struct addr *addr)
{
	struct announce_key key = {
		.prefix_len = 8 * (sizeof(key) - sizeof(key.prefix_len)),
		.ifindex = ifindex,
		.netns = config_netns,
		.addr = *addr,
	};
	struct announced *found = bpf_map_lookup_elem(&ll_announced, &key);

	return found && !(found->flags & ANNOUNCED_F_NOT) ? found : NULL;
}

/* Returns the device that answers an untagged request for addr (for a bridge port, the bridge), or
 * NULL if there is none. own: the node itself sent the request; it gets an answer only for
 * addresses that only services have, since no other host answers for them.
 */
static __always_inline struct device *announce_device(struct __sk_buff *skb,
						      const struct addr *addr, __u32 own)
{
	__u32 in = skb->ifindex;
	struct bridge_port *s;

	asm volatile("" : "+r"(in)); /* two reads, not one at a variable offset */
	if (skb->vlan_present)
		return NULL;
	if (own)
		return lb_other_ports(addr) ? device_find(in) : NULL;
	if (domain_may_bridge(in)) {
		s = bridge_port_find(in, 0);
		if (s)
			in = s->bridge;
	}
	if (!announce_find(in, addr) || firewall_is_local(addr))
		return NULL;
	return device_find(in);
}

/* Sends the frame, which now contains the answer, back. */
static __always_inline int announce_send(struct __sk_buff *skb, __u32 own)
{
	skb->tc_index = own ? TC_INDEX_DONE_INGRESS : TC_INDEX_TRACKED;
	if (own)
		skb->mark = MARK_OURS;
	count_verdict(VERDICT_ANSWERED);
	return bpf_redirect(skb->ifindex, own ? BPF_F_INGRESS : 0);
}

static __always_inline int announce_is(const __u8 *a, const __u8 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4] &&
	       a[5] == b[5];
}

/* Answers an ARP request for an announced address. An ARP announcement, which has the same sender
 * and target address, is not answered. A global function, so that the verifier walks it once.
 */
__noinline int announce_arp(struct __sk_buff *skb, __u32 own)
{
	struct device *device;
	struct addr target;
	struct {
		__u8 dmac[6];
		__u8 smac[6];
		__be16 proto;
		struct arp_ipv4 arp;
	} f;

	if (bpf_skb_load_bytes(skb, 0, &f, sizeof(f)))
		return TC_ACT_UNSPEC;
	if (f.proto != bpf_htons(ETH_P_ARP) || f.arp.hardware != bpf_htons(1) ||
	    f.arp.protocol != bpf_htons(ETH_P_IP) || f.arp.hardware_len != 6 ||
	    f.arp.protocol_len != 4 || f.arp.op != bpf_htons(ARPOP_REQUEST) ||
	    f.arp.sender_mac[0] & 1)
		return TC_ACT_UNSPEC;
	if (f.arp.sender[0] == f.arp.target[0] && f.arp.sender[1] == f.arp.target[1])
		return TC_ACT_UNSPEC;
	__builtin_memset(&target, 0, sizeof(target));
	target.word[2] = bpf_htonl(0xffff);
	__builtin_memcpy(&target.word[3], f.arp.target, 4);
	device = announce_device(skb, &target, own);
	if (!device || (!own && announce_is(f.arp.sender_mac, device->mac)))
		return TC_ACT_UNSPEC;
	f.arp.op = bpf_htons(ARPOP_REPLY);
	__builtin_memcpy(f.arp.target, f.arp.sender, 4);
	__builtin_memcpy(f.arp.target_mac, f.arp.sender_mac, 6);
	__builtin_memcpy(f.arp.sender, &target.word[3], 4);
	__builtin_memcpy(f.arp.sender_mac, device->mac, 6);
	__builtin_memcpy(f.dmac, f.arp.target_mac, 6);
	__builtin_memcpy(f.smac, device->mac, 6);
	if (bpf_skb_store_bytes(skb, 0, &f, sizeof(f), 0))
		return TC_ACT_UNSPEC;
	return announce_send(skb, own);
}

/* Returns the sum of the pseudo header and of the len bytes of layer 4 that follow the IPv6 header
 * in a->bytes. It folds to 0xffff if the checksum is correct.
 */
static __always_inline __u32 announce_sum(struct answer *a, __u32 len)
{
	struct ipv6hdr *ip = (void *)a->bytes;
	__u32 sum = bpf_csum_diff(NULL, 0, (void *)&ip->saddr, 32, bpf_htonl(len + ip->nexthdr));

	return bpf_csum_diff(NULL, 0, (void *)&a->bytes[ANSWER_L4], len, sum);
}

/* Reads a neighbour solicitation into a->bytes. Reports whether it is valid (RFC 4861, section
 * 7.1.1).
 */
static __always_inline int announce_read(struct __sk_buff *skb, struct answer *a)
{
	struct ipv6hdr *ip = (void *)a->bytes;
	__u32 len;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, a->bytes, ANSWER_L4 + ND_MIN))
		return 0;
	if (ip->version != 6 || ip->nexthdr != IPPROTO_ICMPV6 || ip->hop_limit != ND_HOP_LIMIT ||
	    a->bytes[ANSWER_L4] != ND_SOLICITATION || a->bytes[ANSWER_L4 + 1])
		return 0;
	len = bpf_ntohs(ip->payload_len);
	if (len & 7)
		return 0;
	/* Separate comparisons, so that the verifier sees both. */
	asm volatile("" : "+r"(len));
	if (len < ND_MIN)
		return 0;
	asm volatile("" : "+r"(len));
	if (len > ND_MAX)
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + ANSWER_L4, &a->bytes[ANSWER_L4], len))
		return 0;
	return csum_fold16(announce_sum(a, len)) == 0;
}

/* Passed with the flags of an advertisement: the advertisement is for the node itself. */
#define ANNOUNCE_OWN 0x1

/* Replaces the packet with an advertisement of addr, addressed to *to, and sends it back. A global
 * function, so that the verifier walks it once.
 */
__noinline int announce_advertise(struct __sk_buff *skb, const struct device *device,
				  const struct addr *addr, const struct addr *to, __u32 flags)
{
	struct answer *a = answer_get();
	struct announce_nd *nd;
	struct ipv6hdr *ip;
	__u8 macs[12];

	if (!a || !device || !addr || !to || bpf_skb_load_bytes(skb, 6, macs, 6))
		return TC_ACT_UNSPEC;
	if (!(flags & ND_SOLICITED)) { /* to all nodes on the link */
		macs[0] = macs[1] = 0x33;
		macs[2] = macs[3] = macs[4] = 0;
		macs[5] = 1;
	}
	__builtin_memcpy(macs + 6, device->mac, 6);
	ip = (void *)a->bytes;
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(sizeof(*nd));
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = ND_HOP_LIMIT;
	__builtin_memcpy(&ip->saddr, addr, sizeof(*addr));
	__builtin_memcpy(&ip->daddr, to, sizeof(*to));
	nd = (void *)&a->bytes[ANSWER_L4];
	__builtin_memset(nd, 0, sizeof(*nd));
	nd->type = ND_ADVERTISEMENT;
	nd->flags = bpf_htonl(flags & ~ANNOUNCE_OWN);
	nd->target = *addr;
	nd->option = ND_TARGET_MAC;
	nd->option_len = 1;
	__builtin_memcpy(nd->mac, device->mac, 6);
	nd->checksum = csum_fold16(announce_sum(a, sizeof(*nd)));
	if (bpf_skb_change_tail(skb, ETH_HLEN + ANSWER_L4 + sizeof(*nd), 0) ||
	    bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, a->bytes, ANSWER_L4 + sizeof(*nd), 0))
		return TC_ACT_UNSPEC;
	return announce_send(skb, flags & ANNOUNCE_OWN);
}

/* Answers a neighbour solicitation for an announced address. If the sender has no address yet and
 * only checks whether the target is free, the answer goes to all nodes (RFC 4861, section 7.2.4). A
 * global function, so that the verifier walks it once.
 */
__noinline int announce_nd(struct __sk_buff *skb, __u32 own)
{
	struct answer *a = answer_get();
	struct device *device;
	struct addr from, target;
	__u8 asker[6];

	if (!a || !announce_read(skb, a) || bpf_skb_load_bytes(skb, 6, asker, sizeof(asker)))
		return TC_ACT_UNSPEC;
	__builtin_memcpy(&from, &a->bytes[8], sizeof(from));
	__builtin_memcpy(&target, &a->bytes[ANSWER_L4 + 8], sizeof(target));
	device = announce_device(skb, &target, own);
	if (!device || addr_equal(&from, &target) || asker[0] & 1 ||
	    (!own && announce_is(asker, device->mac)))
		return TC_ACT_UNSPEC;
	if (addr_is_set(&from))
		return answer_is_host(&from, 6)
			       ? announce_advertise(skb, device, &target, &from,
						    ND_SOLICITED | ND_OVERRIDE |
							    (own ? ANNOUNCE_OWN : 0))
			       : TC_ACT_UNSPEC;
	if (own)
		return TC_ACT_UNSPEC;
	from.word[0] = bpf_htonl(0xff020000);
	from.word[3] = bpf_htonl(1);
	return announce_advertise(skb, device, &target, &from, ND_OVERRIDE);
}

/* Answers a packet that no other stage handles, if it asks for an announced address. */
static __always_inline int announce_answer(struct __sk_buff *skb, int to_group)
{
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return announce_arp(skb, 0);
	if (to_group && skb->protocol == bpf_htons(ETH_P_IPV6))
		return announce_nd(skb, 0);
	return TC_ACT_UNSPEC;
}

/* Drops or refuses p, which belongs to no connection, if only services or NAT use its destination:
 * the kernel would route p back, or to the default gateway. LL_NEXT: p is not such a packet.
 */
static __always_inline int announce_lost(struct pkt *p)
{
	struct announced *found;
	__u32 how;

	if (p->bridged || p->to_group || config_shadow)
		return LL_NEXT;
	how = lb_other_ports(&p->daddr);
	if (how & SERVICE_ADDR_REJECT) {
		p->refused = DROP_NO_SERVICE;
		return LL_REFUSE;
	}
	if (how)
		return -DROP_NO_SERVICE;
	if (p->egress)
		return LL_NEXT;
	found = announce_find(0, &p->daddr);
	if (!found || firewall_is_local(&p->daddr))
		return LL_NEXT;
	p->nat_id = found->nat_id;
	return -DROP_NO_MAPPING;
}
