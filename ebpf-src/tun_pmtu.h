/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tun_pmtu.h - path MTU discovery towards peers: packet-too-big errors from underlay routers (RFC
 * 1191, RFC 8201).
 */
#pragma once

#include "clock.h"
#include "tun_decap.h"
#include "parse.h"
#include "reply_reject.h"

/* No underlay has a smaller MTU (RFC 8200 requires at least 1280 for IPv6). A smaller reported MTU
 * is an attempt to slow us down.
 */
#define PATH_MTU_LEAST 1280

/* The packet that an ICMP error quotes, up to the fields that identify it. */
struct quote {
	struct addr remote;
	struct tunnel_key key;
	__u32 off;    /* of layer 4; then of the inner IP header */
	__be16 port;  /* source port; 0: GRE, without ports */
	__be16 inner; /* EtherType of the inner packet */
};

/* Returns the MTU that an ICMP error reports; 0: none, or ignored. */
static __always_inline __u32 path_told(struct __sk_buff *skb, const struct pkt *p)
{
	__be32 rest;
	__u32 mtu;

	if (bpf_skb_load_bytes(skb, p->l4_off + 4, &rest, sizeof(rest)))
		return 0;
	mtu = bpf_ntohl(rest);
	if (p->family == 4) {
		mtu &= 0xffff;
		if (p->icmp_type != ICMP_DEST_UNREACH || p->icmp_code != ICMP_FRAG_NEEDED)
			return 0;
		return mtu < PATH_MTU_LEAST ? 0 : mtu;
	}
	return p->icmp_type != ICMPV6_TOO_BIG || mtu < PATH_MTU_LEAST ? 0 : mtu;
}

/* Reads the quoted IP header at off. Our headers have neither options nor extension headers. */
static __always_inline int path_quote(struct __sk_buff *skb, const struct pkt *p, __u32 off,
				      struct quote *q)
{
	if (p->family == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, off, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl != 5)
			return LL_PASS;
		addr_from4(&q->key.local, ip.saddr);
		addr_from4(&q->remote, ip.daddr);
		q->key.proto = ip.protocol;
		q->off = off + sizeof(ip);
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, off, &ip, sizeof(ip)) || ip.version != 6)
			return LL_PASS;
		__builtin_memcpy(&q->key.local, &ip.saddr, sizeof(q->key.local));
		__builtin_memcpy(&q->remote, &ip.daddr, sizeof(q->remote));
		q->key.proto = ip.nexthdr;
		q->off = off + sizeof(ip);
	}
	return addr_equal(&q->key.local, &p->daddr) ? LL_NEXT : LL_PASS;
}

/* Reads the quoted tunnel header: port or key, and VNI. Quotes that are too short are ignored. */
static __always_inline int path_quote_tunnel(struct __sk_buff *skb, struct quote *q)
{
	__u8 head[16] = {};

	if (q->key.proto == IPPROTO_UDP) {
		if (bpf_skb_load_bytes(skb, q->off, head, sizeof(head)))
			return LL_PASS;
		if (head[0] < 0xc0) /* not one of our source ports, see tunnel_source_port */
			return LL_PASS;
		if (bpf_skb_load_bytes(skb, q->off + 16 + 12, &q->inner, sizeof(q->inner)))
			return LL_PASS;
		q->off += 16 + ETH_HLEN;
		q->port = *(__be16 *)&head[0];
		q->key.port = *(__be16 *)&head[2];
		q->key.vni = head[12] << 16 | head[13] << 8 | head[14];
		return LL_NEXT;
	}
	if (q->key.proto != IPPROTO_GRE || bpf_skb_load_bytes(skb, q->off, head, 8))
		return LL_PASS;
	if (*(__be16 *)head & ~bpf_htons(GRE_HAS_KEY))
		return LL_PASS;
	q->key.keyed = *(__be16 *)head != 0;
	q->key.vni = q->key.keyed ? bpf_ntohl(*(__be32 *)&head[4]) : 0;
	return LL_NEXT;
}

/* Returns in ports the ports of a packet whose layer 4 is at off, as tunnel_source_port uses them;
 * -1: they are not in the quote.
 */
static __always_inline int path_ports(struct __sk_buff *skb, __u32 off, __u8 proto, __u32 *ports)
{
	struct icmp_header icmp;
	__be16 both[2];

	*ports = 0;
	if (proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP) {
		if (bpf_skb_load_bytes(skb, off, both, sizeof(both)))
			return -1;
		*ports = (__u32)both[0] << 16 | both[1];
	} else if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6) {
		if (bpf_skb_load_bytes(skb, off, &icmp, sizeof(icmp)))
			return -1;
		both[0] = *(__be16 *)&icmp.rest;
		if (proto == IPPROTO_ICMP
			    ? icmp.type == ICMP_ECHO || icmp.type == ICMP_ECHO_REPLY
			    : icmp.type == ICMPV6_ECHO || icmp.type == ICMPV6_ECHO_REPLY)
			*ports = (__u32)both[0] << 16 | both[0];
	}
	return 0;
}

/* Reports whether the quoted source port is correct for the quoted flow. It depends on a secret
 * seed, so the sender of the error has seen a packet of the flow. A global function, so that the
 * verifier walks it once.
 */
__noinline int path_is_sent(struct __sk_buff *skb, const struct quote *q, __u32 seed)
{
	struct addr saddr, daddr;
	__u32 ports = 0, off;
	__u8 proto;

	if (!q)
		return 0;
	if (q->inner == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, q->off, &ip, sizeof(ip)) || ip.version != 4)
			return 0;
		addr_from4(&saddr, ip.saddr);
		addr_from4(&daddr, ip.daddr);
		proto = ip.protocol;
		off = q->off + ip.ihl * 4;
		if (!(ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK)) &&
		    path_ports(skb, off, proto, &ports))
			return 0;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, q->off, &ip, sizeof(ip)) || ip.version != 6)
			return 0;
		__builtin_memcpy(&saddr, &ip.saddr, sizeof(saddr));
		__builtin_memcpy(&daddr, &ip.daddr, sizeof(daddr));
		proto = ip.nexthdr;
		if (path_ports(skb, q->off + sizeof(ip), proto, &ports))
			return 0;
	}
	return q->port == tunnel_flow_port(tunnel_hash(&saddr, &daddr), ports, proto, seed);
}

/* Ingress hook, in the host netns, for an ICMP error: stores the path MTU to a peer if the error
 * quotes a packet that we sent to that peer. loxilightd applies the path MTU to routes, and deletes
 * it when it expires. A global function, so that the verifier walks it once.
 */
__noinline int path_heard(struct __sk_buff *skb, struct pkt *p)
{
	struct peer_key id = {};
	struct peer_pmtu *path;
	struct quote q = {};
	struct tunnel *tunnel;
	struct peer *peer;
	__u32 mtu, now, *index;

	if (!p || p->fragment)
		return 0;
	mtu = path_told(skb, p);
	if (!mtu || path_quote(skb, p, p->l4_off + sizeof(struct icmp_header), &q) != LL_NEXT ||
	    path_quote_tunnel(skb, &q) != LL_NEXT)
		return 0;
	tunnel = bpf_map_lookup_elem(&ll_tunnel, &q.key);
	if (!tunnel)
		return 0;
	id.underlay = q.remote;
	id.tunnel_id = tunnel->id;
	index = bpf_map_lookup_elem(&ll_peer_id, &id);
	peer = index ? bpf_map_lookup_elem(&ll_peer, index) : NULL;
	/* Errors from pods are ignored: routers of the underlay are not behind the switch. */
	if (!peer || !addr_equal(&peer->remote, &q.remote) ||
	    skb->ifindex == peer->link_host_ifindex || tunnel_is_inside(&p->saddr, 1))
		return 0;
	if (q.port && !path_is_sent(skb, &q, peer->seed))
		return 0;
	path = bpf_map_lookup_elem(&ll_peer_pmtu, index);
	if (!path)
		return 0;
	now = clock_tick();
	if (path->mtu_bytes && path->mtu_bytes < mtu &&
	    ticks_since(now, path->heard_tick) < PATH_MTU_TICKS)
		return 0; /* it cannot rise until it expires */
	path->mtu_bytes = mtu;
	path->heard_tick = now;
	return 0;
}
