/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* route.h - what the kernel's routing table says. Never on the tracked path. */
#pragma once

#include "conntrack.h"

#define AF_INET	 2
#define AF_INET6 10

static __always_inline struct device *device_find(__u32 ifindex)
{
	struct device_key key = { .ifindex = ifindex, .zone = config_zone };

	return bpf_map_lookup_elem(&ll_device, &key);
}

/* Returns the index of the device that a packet from saddr to daddr leaves by; 0
 * where it does not leave: it is for the node itself, or there is no way.
 */
static __noinline __u32 route_out(struct pkt *p, struct bpf_fib_lookup *fib,
				  const struct addr *saddr, const struct addr *daddr)
{
	long ret;

	if (!fib)
		return 0;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = p->skb->ifindex;
	fib->l4_protocol = p->proto;
	if (p->family == 4) {
		fib->family = AF_INET;
		fib->ipv4_src = saddr->word[3];
		fib->ipv4_dst = daddr->word[3];
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, saddr, sizeof(*saddr));
		__builtin_memcpy(fib->ipv6_dst, daddr, sizeof(*daddr));
	}
	ret = bpf_fib_lookup(p->skb, fib, sizeof(*fib), 0);
	switch (ret) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return fib->ifindex;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		/* A node that does not forward can still send what is its own. */
		return p->egress ? p->skb->ifindex : 0;
	default:
		return 0;
	}
}

/* Whether an IPv4 address is the node's own. */
static __always_inline int route_is_local4(struct pkt *p, struct bpf_fib_lookup *fib, __be32 addr)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = p->skb->ifindex;
	fib->family = AF_INET;
	fib->ipv4_dst = addr;
	return bpf_fib_lookup(p->skb, fib, sizeof(*fib), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Back to the node itself, by the ingress hook of the same device. */
static __always_inline int route_back(struct pkt *p)
{
	struct device *device = device_find(p->skb->ifindex);
	int ret;

	if (!device)
		return -DROP_NO_ROUTE;
	ret = frame_address(p, device->mac, device->mac);
	if (ret != LL_NEXT)
		return ret;
	p->action = bpf_redirect(p->skb->ifindex, BPF_F_INGRESS);
	return LL_REDIRECT;
}
