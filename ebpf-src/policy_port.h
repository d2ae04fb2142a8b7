/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* policy_port.h - the ports by which network policies name Endpoints. */
#pragma once

#include "maps.h"
#include "pkt.h"

/* Returns the word that says which image and side are in force; 0: no policies. */
static __always_inline __u32 policy_word(void)
{
	__u32 set = RULES_POLICY;
	const struct rules *rules = bpf_map_lookup_elem(&ll_rules, &set);

	return rules ? *(const volatile __u32 *)&rules->image : 0;
}

/* Returns the port of the Endpoint of this node that has an address; 0: none has it. */
static __always_inline __u32 policy_port_of(const struct addr *addr, __u32 word)
{
	/* Linux 6.1 looks up no key in the memory of an argument. */
	struct addr key = *addr;
	const struct policy_addr *found = bpf_map_lookup_elem(&ll_policy_addr, &key);

	return found ? found->port[!!(word & POLICY_SIDE)] : 0;
}

/* Returns how policies name a port in the netns that this copy serves. */
static __always_inline __u32 policy_port_here(__u32 ifindex)
{
	return ifindex | (__u32)config_netns << 31;
}
