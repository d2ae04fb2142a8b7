/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fragment.h - later fragments get the ports, or the ICMP type, of their first fragment. */
#pragma once

#include "maps.h"
#include "pkt.h"

#define FRAGMENT_TICKS 224 /* 30 s, as long as the kernel reassembles fragments */

static __always_inline void fragment_key_of(struct fragment_key *key, const struct pkt *p)
{
	key->saddr = p->saddr;
	key->daddr = p->daddr;
	key->id = p->fragment_id;
	key->proto = p->proto;
	key->netns = config_netns;
	key->pad = 0;
}

/* Returns all ones for ICMP, else 0. Avoids a comparison, since the verifier would walk both of its
 * results.
 */
static __always_inline __u16 fragment_mask(const struct pkt *p)
{
	return -(p->needs_first >> 1 & 1);
}

/* Stores the ports of p, a first fragment; for ICMP the identifier, type and code. */
static __noinline void fragment_teach(struct pkt *p)
{
	__u16 type = bpf_htons((__u16)p->icmp_type << 8 | p->icmp_code), icmp = fragment_mask(p);
	struct fragment value = {
		.sport = p->sport,
		.dport = (p->dport & ~icmp) | (type & icmp),
		.seen_tick = p->now_tick,
	};
	struct fragment_key key;

	fragment_key_of(&key, p);
	bpf_map_update_elem(&ll_fragment, &key, &value, BPF_ANY);
}

#define FRAGMENT_FOUND (FRAGMENT_PORTS | FRAGMENT_TYPE | FRAGMENT_UNKNOWN)

/* Returns the ports stored under key, the source port in the lower half, with FRAGMENT_FOUND above
 * them; 0: none, or too old. A global function, so that the verifier walks it once and treats both
 * results alike afterwards.
 */
__noinline __u64 fragment_ports(const struct fragment_key *key, __u32 now_tick)
{
	struct fragment_key own; /* Linux 6.1 rejects arguments of global functions as keys */
	struct fragment *known;

	if (!key)
		return 0;
	own = *key;
	known = bpf_map_lookup_elem(&ll_fragment, &own);
	if (!known || ticks_since(now_tick, known->seen_tick) > FRAGMENT_TICKS)
		return 0;
	return (__u64)FRAGMENT_FOUND << 32 | ports_word(known->sport, known->dport);
}

/* Sets the ports or type of p, a later fragment, from its first fragment. LL_UNTRACKED: the first
 * fragment is not stored, or has not arrived.
 */
static __noinline int fragment_learn(struct pkt *p)
{
	__u16 icmp = fragment_mask(p);
	struct fragment_key key;
	__u64 ports;

	fragment_key_of(&key, p);
	ports = fragment_ports(&key, p->now_tick);
	if (!ports)
		return LL_UNTRACKED;
	p->sport = ports;
	p->dport = ((ports >> 16) & ~icmp) | (ports & icmp);
	p->tcp_window = bpf_ntohs(ports >> 16);
	p->needs_first &= ~(ports >> 32);
	return LL_NEXT;
}
