/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fib.h - looks up the kernel's routing table. Never on the fast path. */
#pragma once

#include "ct.h"
#include "fastpath_checks.h"

#define AF_INET	 2
#define AF_INET6 10

static __always_inline struct device *device_find(__u32 ifindex)
{
	struct device_key key = { .ifindex = ifindex, .netns = config_netns };

	return bpf_map_lookup_elem(&ll_device, &key);
}

/* The argument how of route_find. */
#define ROUTE_PROTO(how) ((how) & 0xff)
#define ROUTE_IPV4	 0x100
#define ROUTE_EGRESS	 0x200

/* As route_out, for a packet that arrived on the device in; stores the result in work's fib. A
 * global function, so that the verifier walks it once.
 */
__noinline __u32 route_find(struct __sk_buff *skb, const struct addr *saddr,
			    const struct addr *daddr, __u32 how, __u32 in)
{
	struct work *w = work_get();
	struct bpf_fib_lookup *fib;

	if (!w || !saddr || !daddr)
		return 0;
	fib = &w->fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = in;
	fib->l4_protocol = ROUTE_PROTO(how);
	fib->tot_len = 1; /* so that the result contains the path MTU */
	if (how & ROUTE_IPV4) {
		fib->family = AF_INET;
		fib->ipv4_src = saddr->word[3];
		fib->ipv4_dst = daddr->word[3];
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, saddr, sizeof(*saddr));
		__builtin_memcpy(fib->ipv6_dst, daddr, sizeof(*daddr));
	}
	switch (bpf_fib_lookup(skb, fib, sizeof(*fib), 0)) {
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		fib->mtu_result = 0; /* not filled in this case */
		return fib->ifindex;
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return fib->ifindex;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		/* A node that does not forward can still send its own packets. */
		return how & ROUTE_EGRESS ? in : 0;
	default:
		return 0;
	}
}

/* Returns the index of the device of arrival as the kernel's routes see it: for a bridge port, the
 * bridge. A global function, so that the verifier walks it once.
 */
__noinline __u32 route_bridge(struct __sk_buff *skb, __u32 bridge_port, __u32 vid)
{
	__u32 in = skb->ifindex;
	struct bridge_port *s = bridge_port ? bridge_port_find(in, vid) : NULL;

	return s ? s->bridge : in;
}

static __always_inline __u32 route_in(const struct pkt *p)
{
	return route_bridge(p->skb, p->bridge_port, p->vid);
}

/* Returns the index of the output device of packets from saddr to daddr; 0 if such a packet does not
 * leave: it is for the node itself, or there is no route.
 */
static __noinline __u32 route_out(struct pkt *p, const struct addr *saddr, const struct addr *daddr)
{
	return route_find(p->skb, saddr, daddr,
			  p->proto | (p->family == 4 ? ROUTE_IPV4 : 0) |
				  (p->egress ? ROUTE_EGRESS : 0),
			  route_in(p));
}

/* Redirects a packet through the device out to the next hop in work's fib, both results of
 * route_find. Without a next hop, bpf_redirect_neigh would look up the route again, and ignore the
 * device of arrival. A global function, so that the verifier walks it once.
 *
 * For the ingress hook only. On the egress hook, a packet already has the route by which it was
 * sent: if the kernel has to wait for the neighbour, it sends the packet to the next hop of that
 * route.
 */
__noinline int route_redirect(__u32 out)
{
	struct work *w = work_get();

	if (!w)
		return TC_ACT_SHOT;
	w->gateway.nh_family = w->fib.family; /* of the next hop */
	__builtin_memcpy(w->gateway.ipv6_nh, w->fib.ipv6_dst, sizeof(w->gateway.ipv6_nh));
	return bpf_redirect_neigh(out, &w->gateway, sizeof(w->gateway), 0);
}

/* Reports whether an IPv4 address is the node's own. */
__noinline int route_is_local4(struct __sk_buff *skb, __be32 addr)
{
	struct work *w = work_get();
	struct bpf_fib_lookup *fib;

	if (!w)
		return 0;
	fib = &w->fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = skb->ifindex;
	fib->family = AF_INET;
	fib->ipv4_dst = addr;
	return bpf_fib_lookup(skb, fib, sizeof(*fib), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Reports whether the kernel delivers packets that arrive on the device in for an address to the node
 * itself, or drops them: an address of the node, a group, a broadcast or anycast address, or any
 * address if the node does not forward. A global function, so that the verifier walks it once.
 */
__noinline int route_ends_here(struct __sk_buff *skb, const struct addr *daddr, __u32 family,
			       __u32 in)
{
	struct work *w = work_get();
	struct bpf_fib_lookup *fib;
	long ret;

	if (!w || !daddr)
		return 0;
	fib = &w->fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = in;
	if (family == 4) {
		if (((const __u8 *)daddr)[12] >= 224)
			return 1;
		fib->family = AF_INET;
		fib->ipv4_dst = daddr->word[3];
	} else {
		if (((const __u8 *)daddr)[0] == 0xff)
			return 1;
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_dst, daddr, sizeof(*daddr));
	}
	ret = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	return ret == BPF_FIB_LKUP_RET_NOT_FWDED || ret == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Sends p back to the node itself, through the ingress hook of its device. That hook must not
 * evaluate p again: the rewritten p does not belong to another connection. The loopback has none of
 * our programs on its ingress hook. A mark set by the sender is lost.
 */
static __always_inline int route_back(struct pkt *p)
{
	struct device *device = device_find(p->skb->ifindex);
	int ret;

	if (!device)
		return -DROP_NO_ROUTE;
	ret = frame_address(p, device->mac, device->mac);
	if (ret != LL_NEXT)
		return ret;
	if (p->skb->ifindex != LOOPBACK_IFINDEX) {
		p->skb->tc_index = TC_INDEX_DONE_INGRESS;
		p->skb->mark = MARK_OURS;
	}
	p->action = bpf_redirect(p->skb->ifindex, BPF_F_INGRESS);
	return LL_REDIRECT;
}
