/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_open_plain.h - opens connections that neither a service nor a NAT rule translates. */
#pragma once

#include "nat_snat_ingress.h"
#include "ct_insert.h"
#include "lb_snat.h"

/* Reports whether a service or a NAT rule may lead connections to the destination port of p. Other
 * clients may be led to the same socket by them, with the source address and port of p.
 */
static __always_inline int open_is_target(const struct pkt *p)
{
	__u16 port = bpf_ntohs(p->dport);
	__u32 word = PORT_WORDS + (port >> 6);
	__u64 *bits = bpf_map_lookup_elem(&ll_port_taken, &word);

	return bits && *bits >> (port & 63) & 1;
}

/* Reports whether netfilter has given p, which the kernel forwards, an address of the node as source.
 * The replies, to this address, are not for a socket of the node.
 */
static __always_inline int open_is_masqueraded(struct pkt *p)
{
	return policy_word() & POLICY_HERE && p->skb->ingress_ifindex &&
	       firewall_is_local(&p->saddr);
}

/* Reports whether the connection that p opens without a service is tracked: any forwarded
 * connection; if rules exist, any connection for which they are evaluated; any of an Endpoint with
 * policies, so that its replies are allowed; if policies apply to the node, any whose source
 * netfilter has translated to an address of the node, for the same reason; and any of the node that may have the same addresses and
 * ports at its server as a translated connection.
 */
static __always_inline int open_follows(struct pkt *p, const struct work *w)
{
	if (!open_may(p) || p->stateless || p->to_group)
		return 0;
	if (p->egress && (w->judged || open_is_masqueraded(p)))
		return !frame_is_to_group(p);
	if (firewall_rules())
		return firewall_hook(p) != 0;
	if (w->judged ||
	    (!p->egress && !p->tagged && (p->bridged || !firewall_is_local(&p->daddr))))
		return 1;
	return !p->tagged && open_is_target(p) && firewall_hook(p) != 0 &&
	       !(p->egress && frame_is_to_group(p));
}

/* Separates the replies of w->conn, which is untranslated, from the replies of another connection
 * with the same leaving tuple: the client uses a backend both through a frontend and directly. Only
 * a different source port distinguishes them. LL_PASS: w->conn is not tracked.
 */
static __noinline int open_apart(struct pkt *p, struct work *w)
{
	int ret;

	if (p->bridged || twin_is_free())
		return LL_NEXT;
	if (!p->egress) {
		w->routed = route_out(p, &w->conn.saddr, &w->conn.daddr);
		if (!w->routed && translate_has(RULES_SNAT) && !firewall_is_local(&p->daddr))
			return LL_PASS; /* the egress hook knows the device, and its rule */
		ret = open_by_rule(p, w, 0);
		w->routed = 0;
		if (ret != LL_NEXT || w->conn.meta.flags & CT_F_SNAT)
			return ret;
	}
	w->conn.meta.flags |= CT_F_SNAT;
	return snat_port();
}

/* Opens a connection without a service: it is inserted untranslated, and the kernel forwards it.
 * LL_PASS: not tracked.
 */
static __always_inline int open_plain(struct pkt *p, struct work *w)
{
	int ret;

	if (!open_follows(p, w)) {
		if (p->stateless && p->fragment == FRAGMENT_FIRST)
			fragment_teach(p);
		return LL_PASS;
	}
	open_begin(p, w);
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	open_fetch();
	ret = open_apart(p, w);
	if (ret != LL_NEXT)
		return ret;
	ret = open_enter(p, w);
	/* If no table has room, the kernel forwards p like any untracked packet. */
	return ret == -DROP_TABLE_FULL && !(w->conn.meta.flags & CT_F_SNAT) ? LL_PASS : ret;
}
