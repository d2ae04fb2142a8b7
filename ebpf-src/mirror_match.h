/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror_match.h - whether a packet matches a mirror. */
#pragma once

#include "maps.h"
#include "pkt.h"

/* Reports whether one of the first count prefixes contains an address of the family. */
static __noinline int mirror_has_addr(const struct mirror_prefix *list, __u32 count,
				      const struct addr *addr, int is4)
{
	for (__u32 i = 0; i < MIRROR_MEMBERS && i < count; i++) {
		const struct mirror_prefix *x = &list[i];
		__u32 differ = 0;

		for (int word = 0; word < 4; word++)
			differ |= (addr->word[word] ^ x->addr.word[word]) & x->mask.word[word];
		/* ::/0 contains no IPv4 address. */
		if (!differ && addr_is4(&x->addr) == is4)
			return 1;
	}
	return 0;
}

/* Reports whether one of the first count ranges contains a port, in host order. */
static __noinline int mirror_has_port(const struct mirror_ports *list, __u32 count, __u32 port)
{
	for (__u32 i = 0; i < MIRROR_MEMBERS && i < count; i++) {
		if (list[i].first <= port && port <= list[i].last)
			return 1;
	}
	return 0;
}

/* Reports whether the ports of p are known: not in later fragments, nor in truncated packets. ret:
 * the result of parsing.
 */
static __always_inline int mirror_knows_ports(const struct pkt *p, int ret)
{
	return ret == LL_NEXT && p->fragment != FRAGMENT_LATER &&
	       (p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP || p->proto == IPPROTO_SCTP);
}

/* Reports whether p matches m. A field that p does not have is matched only by an empty list. */
static __always_inline int mirror_matches(const struct mirror *m, const struct pkt *p, int ret)
{
	int is4 = p->family == 4;

	if (!(m->flags & MIRROR_F_IP))
		return 1;
	if (!p->family)
		return 0;
	if (m->flags & MIRROR_F_PROTOCOL && !(m->protocol[p->proto >> 6] >> (p->proto & 63) & 1))
		return 0;
	if (m->source_count && !mirror_has_addr(m->source, m->source_count, &p->saddr, is4))
		return 0;
	if (m->destination_count &&
	    !mirror_has_addr(m->destination, m->destination_count, &p->daddr, is4))
		return 0;
	if (!m->source_port_count && !m->port_count)
		return 1;
	if (!mirror_knows_ports(p, ret))
		return 0;
	if (m->source_port_count &&
	    !mirror_has_port(m->source_port, m->source_port_count, bpf_ntohs(p->sport)))
		return 0;
	return !m->port_count || mirror_has_port(m->port, m->port_count, bpf_ntohs(p->dport));
}
