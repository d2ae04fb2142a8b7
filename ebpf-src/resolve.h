/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* resolve.h - the next hop of a new connection, by the kernel's routes and neighbours. */
#pragma once

#include "nexthop.h"
#include "route.h"
#include "tunnel.h"

/* Returns the index of the neighbour that the kernel would send to, out and work's fib
 * being what route_find found; 0 where the kernel has to find out, or where it does not
 * lead out by a port. A global function, so that the verifier walks it once.
 */
__noinline __u32 nexthop_of_route(__u32 out, __u32 now_tick)
{
	struct nexthop_key key = { .zone = config_zone, .ifindex = out };
	struct work *w = work_get();
	struct bpf_fib_lookup *fib;
	struct nexthop *nexthop;
	struct device *device;
	__u32 *known;

	if (!w)
		return 0;
	fib = &w->fib;
	device = key.ifindex ? device_find(key.ifindex) : NULL;
	if (!device || (device->flags & (DEVICE_F_PORT | DEVICE_F_PART)) != DEVICE_F_PORT)
		return 0;
	key.mtu_bytes = device->mtu_bytes;
	if (fib->mtu_result && fib->mtu_result < key.mtu_bytes)
		key.mtu_bytes = fib->mtu_result;
	__builtin_memcpy(key.dmac, fib->dmac, 6);
	__builtin_memcpy(key.smac, fib->smac, 6);
	if (device->flags & DEVICE_F_TUNNEL) {
		__u32 peer = tunnel_peer_of(&w->rewrite.daddr);

		if (!peer)
			return 0;
		nexthop_key_of_peer(&key, peer);
	}
	if (!(key.dmac[0] | key.dmac[1] | key.dmac[2] | key.dmac[3] | key.dmac[4] | key.dmac[5]))
		return 0; /* not resolved */
	known = bpf_map_lookup_elem(&ll_nexthop_id, &key);
	if (!known) /* its first packet goes by the kernel's neighbour table */
		return nexthop_enter(&key, device, now_tick - config_confirm_ticks - 1);
	nexthop = bpf_map_lookup_elem(&ll_nexthop, known);
	return nexthop && nexthop->ifindex ? *known : 0;
}

/* The same for what leaves as w->rewrite says. */
static __always_inline __u32 nexthop_by_route(struct pkt *p, struct work *w)
{
	__u32 out = w->routed;

	if (!out)
		out = route_out(p, &w->rewrite.saddr, &w->rewrite.daddr);
	return nexthop_of_route(out, p->now_tick);
}

/* Enters the next hop of w->conn, which is known under w->tuple. */
static __always_inline void nexthop_note(struct work *w, __u32 index)
{
	struct ct_meta *meta = conn_find(w, &w->tuple, &w->conn, 1);

	if (meta)
		meta->nexthop = index;
}
