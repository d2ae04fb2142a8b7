/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* pathmtu.h - what routers of the underlay say about packets to peers: that they are too
 * large (RFC 1191, RFC 8201).
 */
#pragma once

#include "clock.h"
#include "decap.h"
#include "parse.h"
#include "refuse.h"

/* Less than that nobody has to carry, and who says so wants to slow us down. */
#define PATH_MTU_LEAST4 576
#define PATH_MTU_LEAST6 1280

/* The packet that an ICMP error is about, as far as it says whose it is. */
struct quote {
	struct addr remote;
	struct tunnel_key key;
	__u32 off; /* of layer 4 */
};

/* Returns the MTU that an ICMP error tells; 0: none that is heeded. */
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
		return mtu < PATH_MTU_LEAST4 ? 0 : mtu;
	}
	return p->icmp_type != ICMPV6_TOO_BIG || mtu < PATH_MTU_LEAST6 ? 0 : mtu;
}

/* Reads the IP header of the packet at off: ours have neither options nor extensions. */
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

/* Reads what comes behind it: port or key, and VNI. Who quotes less is not heeded. */
static __always_inline int path_quote_tunnel(struct __sk_buff *skb, struct quote *q)
{
	__u8 head[16] = {};

	if (q->key.proto == IPPROTO_UDP) {
		if (bpf_skb_load_bytes(skb, q->off, head, sizeof(head)))
			return LL_PASS;
		if (head[0] < 0xc0) /* no source port of ours: tunnel_source_port */
			return LL_PASS;
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

/* Ingress hook, in the host's namespace, an ICMP error: remembers how long packets to a
 * peer may be, if it is about one that we sent there. loxilightd makes something of it, and
 * forgets it. A global function, so that the verifier walks it once.
 */
__noinline int path_heard(struct __sk_buff *skb, struct pkt *p)
{
	struct peer_key id = {};
	struct peer_path *path;
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
	/* Not what a pod says: routers of the underlay are not behind the switch. */
	if (!peer || !addr_equal(&peer->remote, &q.remote) || skb->ifindex == peer->return_ifindex)
		return 0;
	path = bpf_map_lookup_elem(&ll_peer_path, index);
	if (!path)
		return 0;
	now = clock_tick();
	if (path->mtu_bytes && path->mtu_bytes < mtu &&
	    ticks_since(now, path->heard_tick) < PATH_MTU_TICKS)
		return 0; /* it does not grow before it is forgotten */
	path->mtu_bytes = mtu;
	path->heard_tick = now;
	return 0;
}
