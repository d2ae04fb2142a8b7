/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nh_resolve.h - finds the next hop of a new connection from the kernel's routes and neighbours. */
#pragma once

#include "nh.h"
#include "fib.h"
#include "policy_conn.h"
#include "tun_encap.h"

/* Returns the place of the hint, an index of a next hop, for the neighbour in work's fib. */
static __always_inline __u16 *nexthop_hint(struct work *w, __u32 out)
{
	const __u8 *dmac = w->fib.dmac;

	return &w->nexthop_hint[config_netns & 1][(out ^ dmac[4] ^ dmac[5]) % NEXTHOP_HINTS];
}

/* Reports whether a hint is correct: the entry is valid, and the same as a new entry would be. */
static __always_inline int nexthop_is_of_route(const struct nexthop *nexthop,
					       const struct bpf_fib_lookup *fib, __u32 out)
{
	const __u16 *dmac = (const __u16 *)nexthop->dmac, *to = (const __u16 *)fib->dmac;
	const __u16 *smac = (const __u16 *)nexthop->smac, *from = (const __u16 *)fib->smac;

	return dmac[0] == to[0] && dmac[1] == to[1] && dmac[2] == to[2] && smac[0] == from[0] &&
	       smac[1] == from[1] && smac[2] == from[2] && !nexthop->vid &&
	       nexthop->mtu_bytes == fib->mtu_result && nexthop_device(nexthop) == out &&
	       !(nexthop->flags & (NEXTHOP_F_BRIDGED | NEXTHOP_F_MEMBER | NEXTHOP_F_TUNNEL));
}

/* Returns the index of the next hop to which the kernel would send; out and work's fib are results
 * of route_find for a packet to daddr. 0: the kernel has to resolve it, or the output device is not
 * a port. A global function, so that the verifier walks it once.
 */
__noinline __u32 nexthop_of_route(const struct addr *daddr, __u32 out, __u32 now_tick)
{
	struct nexthop_key key = { .netns = config_netns, .ifindex = out };
	struct work *w = work_get();
	struct bpf_fib_lookup *fib;
	struct nexthop *nexthop;
	struct device *device;
	__u32 *known, index;
	__u16 *hint;

	if (!w || !daddr || policy_misses(daddr, out))
		return 0;
	fib = &w->fib;
	hint = nexthop_hint(w, out);
	index = *hint;
	nexthop = out && index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;
	if (nexthop && nexthop_is_of_route(nexthop, fib, out))
		return index;
	device = key.ifindex ? device_find(key.ifindex) : NULL;
	if (!device || (device->flags & (DEVICE_F_PORT | DEVICE_F_MEMBER)) != DEVICE_F_PORT)
		return 0;
	key.mtu_bytes = device->mtu_bytes;
	if (fib->mtu_result && fib->mtu_result < key.mtu_bytes)
		key.mtu_bytes = fib->mtu_result;
	__builtin_memcpy(key.dmac, fib->dmac, 6);
	__builtin_memcpy(key.smac, fib->smac, 6);
	if (device->flags & DEVICE_F_TUNNEL) {
		__u32 peer = tunnel_peer_of(daddr);

		if (!peer)
			return 0;
		nexthop_key_of_peer(&key, peer);
	}
	if (!(key.dmac[0] | key.dmac[1] | key.dmac[2] | key.dmac[3] | key.dmac[4] | key.dmac[5]))
		return 0; /* not resolved */
	known = bpf_map_lookup_elem(&ll_nexthop_id, &key);
	if (!known) /* not confirmed: the first packet uses the kernel's neighbour table */
		return nexthop_enter(&key, device, now_tick - config_confirm_ticks - 1);
	nexthop = bpf_map_lookup_elem(&ll_nexthop, known);
	if (!nexthop || !nexthop->ifindex)
		return 0;
	*hint = *known;
	return *known;
}

/* Finds the next hop of w->conn, which belongs to a service, from the kernel's routes, once for
 * each packet; out: the output device, if known. Returns the index of the next hop; 0: the kernel
 * has to resolve it.
 */
static __always_inline __u32 nexthop_resolve(struct pkt *p, struct work *w, __u32 out)
{
	if (w->resolved || p->egress || p->fragment != FRAGMENT_NONE ||
	    names_come_from(&w->conn.daddr, w->conn.sport))
		return 0;
	w->resolved = 1;
	if (!out)
		out = route_out(p, &w->conn.saddr, &w->conn.daddr);
	return nexthop_of_route(&w->conn.daddr, out, p->now_tick);
}

/* Stores the next hop in the entry of w->conn under w->tuple. */
static __always_inline void nexthop_note(struct work *w, __u32 index)
{
	struct ct_meta *meta = conn_peek(w, &w->tuple, &w->conn);

	if (meta)
		meta->nexthop = index;
}
