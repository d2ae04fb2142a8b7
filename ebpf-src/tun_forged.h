/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tun_forged.h - drops forged packets: packets to tunnel ends, packets outside of tunnels with a
 * source address of a pod or of the node itself, and packets with loopback addresses. Only packets
 * without an established connection are checked; a forged packet never opens one.
 */
#pragma once

#include "fw.h"
#include "parse.h"
#include "tun_encap.h"

/* Reports whether packets of proto may be for a tunnel end at all; saves calls on nodes without
 * tunnels.
 */
static __always_inline int forged_has_ends(__u32 proto)
{
	__u32 zero = 0;
	const struct tunnel_gate *gate = bpf_map_lookup_elem(&ll_tunnel_gate, &zero);

	if (!gate)
		return 0;
	return proto == IPPROTO_UDP ? gate->port[0] : proto == IPPROTO_GRE && gate->gre;
}

/* Reports whether addr, with proto and dport, is the tunnel end of another node. A global function,
 * so that the verifier walks it once.
 */
__noinline int forged_end(const struct addr *addr, __u32 proto, __u32 dport)
{
	struct peer_key key = {}; /* tunnel_id 0: of any tunnel */
	struct tunnel_gate *gate;
	__u32 zero = 0;
	int known = 0;

	gate = bpf_map_lookup_elem(&ll_tunnel_gate, &zero);
	if (!addr || !gate)
		return 0;
	if (proto == IPPROTO_UDP) {
		for (int i = 0; i < TUNNEL_PORTS; i++)
			known |= gate->port[i] == dport;
		known = known && dport;
	} else if (proto == IPPROTO_GRE) {
		known = !!gate->gre;
	}
	if (!known)
		return 0;
	key.underlay = *addr;
	return bpf_map_lookup_elem(&ll_peer_id, &key) != NULL;
}

/* Reports whether packets that arrive like p and leave as in meta may go to the tunnel end of
 * another node: packets of this node itself may, and packets from an uplink that are forwarded
 * untranslated.
 */
static __always_inline int forged_may(struct __sk_buff *skb, const struct pkt *p,
				      const struct ct_meta *meta)
{
	if (p->egress)
		return !skb->ingress_ifindex;
	return !(meta->flags & (CT_F_DNAT | CT_F_SNAT)) && port_is_uplink(skb->ifindex);
}

/* Reports whether p, of the connection w->conn, or its replies would go to a tunnel end without
 * permission. A global function, so that the verifier walks it once. The caller must set p->skb
 * again.
 */
__noinline int forged_sends(struct __sk_buff *skb, struct pkt *p)
{
	struct work *w = work_get();

	if (!p || !w || forged_may(skb, p, &w->conn.meta))
		return 0;
	return forged_end(&w->conn.daddr, IPPROTO_UDP, w->conn.dport) ||
	       forged_end(&p->saddr, IPPROTO_UDP, p->sport);
}

/* Reports whether w->conn, a direction of a connection, leads to an address that became a tunnel
 * end after the connection was opened. As with forged_sends, the caller must set p->skb again.
 */
__noinline int forged_before(struct __sk_buff *skb, struct pkt *p)
{
	struct work *w = work_get();

	if (!p || !w || p->proto != IPPROTO_UDP || w->conn.meta.flags & CT_F_FROM_NODE ||
	    forged_may(skb, p, &w->conn.meta))
		return 0;
	return forged_end(&w->conn.daddr, IPPROTO_UDP, w->conn.dport);
}

/* Egress hook: reports whether p, as it leaves, goes to a tunnel end with an address of this node
 * as source although the node only forwards it. As with forged_sends, the caller must set p->skb
 * again.
 */
__noinline int forged_leaves(struct __sk_buff *skb, struct pkt *p)
{
	return p && skb->ingress_ifindex && forged_end(&p->daddr, p->proto, p->dport) &&
	       firewall_is_local(&p->saddr);
}

/* Reports whether an ICMP error quotes a packet between tunnel ends, which its sender cannot have
 * seen.
 */
static __noinline int forged_quotes(struct __sk_buff *skb, const struct pkt *p)
{
	struct local_key local = {}; /* the underlay is in the host netns, netns 0 */
	__u32 off = p->l4_off + sizeof(struct icmp_header), proto;
	__be16 ports[2] = {};

	if (p->family == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, off, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
			return 0;
		addr_from4(&local.addr, ip.daddr);
		proto = ip.protocol;
		off += ip.ihl * 4;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, off, &ip, sizeof(ip)) || ip.version != 6)
			return 0;
		__builtin_memcpy(&local.addr, &ip.daddr, sizeof(local.addr));
		proto = ip.nexthdr;
		off += sizeof(ip);
	}
	if (proto == IPPROTO_UDP && bpf_skb_load_bytes(skb, off, ports, sizeof(ports)))
		return 0;
	if (!forged_end(&p->daddr, proto, ports[1]))
		return 0;
	return forged_end(&local.addr, proto, ports[1]) || bpf_map_lookup_elem(&ll_local, &local);
}

/* Reports whether p, from an uplink, has the source address of a pod or of this node. The kernel
 * refuses its own addresses as source for IPv4 only. Frames to a group are left to the kernel,
 * which needs them for duplicate address detection and does not forward them.
 */
static __always_inline int forged_on_uplink(const struct pkt *p, const struct tunnel_gate *gate)
{
	if (gate->inside && tunnel_is_inside(&p->saddr, 0))
		return 1;
	return !p->bridged && !p->to_group && firewall_is_local(&p->saddr);
}

static __always_inline int forged_is_loopback(const struct addr *a)
{
	if (addr_is4(a))
		return (bpf_ntohl(a->word[3]) >> 24) == 127;
	return !(a->word[0] | a->word[1] | a->word[2]) && a->word[3] == bpf_htonl(1);
}

/* Ingress hook, for a packet without an established connection: returns 0, or the negated drop
 * reason. A global function, so that the verifier walks it once. The caller must set p->skb again.
 */
__noinline int forged_comes(struct __sk_buff *skb, struct pkt *p)
{
	struct tunnel_gate *gate;
	__u32 zero = 0;

	if (!p || !p->family)
		return 0;
	if (skb->ifindex != LOOPBACK_IFINDEX &&
	    (forged_is_loopback(&p->saddr) || forged_is_loopback(&p->daddr)))
		return -DROP_LOOPBACK;
	gate = bpf_map_lookup_elem(&ll_tunnel_gate, &zero);
	if (!gate)
		return 0;
	if (port_is_uplink(skb->ifindex))
		return forged_on_uplink(p, gate) ? -DROP_UPLINK_SOURCE : 0;
	if (p->icmp_error)
		return forged_quotes(skb, p) ? -DROP_TUNNEL_FORGED : 0;
	return forged_end(&p->daddr, p->proto, p->dport) ? -DROP_TUNNEL_FORGED : 0;
}
