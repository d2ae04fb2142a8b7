/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fragment.h - the first fragment tells the ports of the later ones. */
#pragma once

#include "maps.h"
#include "pkt.h"

#define FRAGMENT_TICKS 224 /* 30 s, as long as the kernel collects fragments */

static __always_inline void fragment_key_of(struct fragment_key *key, const struct pkt *p)
{
	key->saddr = p->saddr;
	key->daddr = p->daddr;
	key->id = p->fragment_id;
	key->proto = p->proto;
	key->zone = config_zone;
	key->pad = 0;
}

/* A first fragment of a connection of ours: its ports are remembered. */
static __noinline void fragment_teach(struct pkt *p)
{
	struct fragment value = { .sport = p->sport, .dport = p->dport, .seen_tick = p->now_tick };
	struct fragment_key key;

	fragment_key_of(&key, p);
	bpf_map_update_elem(&ll_fragment, &key, &value, BPF_ANY);
}

/* A later fragment gets the ports of its first. LL_UNTRACKED: that was
 * not ours, or comes after this one.
 */
static __noinline int fragment_learn(struct pkt *p)
{
	struct fragment *known;
	struct fragment_key key;

	fragment_key_of(&key, p);
	known = bpf_map_lookup_elem(&ll_fragment, &key);
	if (!known || ticks_since(p->now_tick, known->seen_tick) > FRAGMENT_TICKS)
		return LL_UNTRACKED;
	p->sport = known->sport;
	p->dport = known->dport;
	return LL_NEXT;
}
