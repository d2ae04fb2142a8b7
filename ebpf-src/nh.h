/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* nh.h - the table of next hops: finds and inserts entries. */
#pragma once

#include "ct.h"
#include "count.h"
#include "rewrite.h"
#include "fastpath_checks.h"
#include "ct_share.h"

#define NEXTHOP_SHARE 8

/* Returns the counter of the next hops of a device, or NULL if the device has its share of them: if
 * a fraction f of all next hops is free, one device may have NEXTHOP_SHARE * f^2 of them, as
 * sources in ct_share.h. So a single device gets at most 70 %, and after n devices have each taken
 * all that they can get, about 1/(8 n) is free for the others. total: the counter of all next hops.
 */
static __always_inline __u32 *nexthop_share(__u32 ifindex, __u32 **total)
{
	__u32 zero = 0, at = config_first_entry(NEXTHOP_DEVICES) + ifindex % NEXTHOP_DEVICES;
	struct shares *use = bpf_map_lookup_elem(&ll_shares, &zero);

	if (!use || share_is_taken(use->nexthop_count[at], use->nexthop_total, NEXTHOP_COUNT,
				   NEXTHOP_SHARE))
		return NULL;
	*total = &use->nexthop_total;
	return &use->nexthop_count[at];
}

/* Returns the index of the next hop for a neighbour behind device, and inserts it if it is unknown;
 * 0 if the table is full or the device has its share. checked_tick: when the kernel last used the
 * neighbour.
 */
static __noinline __u32 nexthop_enter(const struct nexthop_key *key, const struct device *device,
				      __u32 checked_tick)
{
	struct nexthop *nexthop;
	__u32 *known, *count, *total, index;

	if (!device)
		return 0;
	known = bpf_map_lookup_elem(&ll_nexthop_id, key);
	if (known) {
		index = *known;
	} else {
		count = nexthop_share(key->ifindex, &total);
		if (!count || bpf_map_pop_elem(&ll_nexthop_free, &index))
			return 0;
		if (bpf_map_update_elem(&ll_nexthop_id, key, &index, BPF_NOEXIST)) {
			/* Another CPU was first; the next packet finds its entry. */
			bpf_map_push_elem(&ll_nexthop_free, &index, 0);
			return 0;
		}
		__sync_fetch_and_add(count, 1);
		__sync_fetch_and_add(total, 1);
	}
	nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
	if (!nexthop)
		return 0;
	__builtin_memcpy(nexthop->dmac, key->dmac, 6);
	__builtin_memcpy(nexthop->smac, key->smac, 6);
	nexthop->mtu_bytes = key->mtu_bytes;
	nexthop->vid = key->vid;
	nexthop->flags = (device->flags & DEVICE_F_PEER ? NEXTHOP_F_PEER : 0) |
			 (device->flags & DEVICE_F_MEMBER ? NEXTHOP_F_MEMBER : 0) |
			 (device->flags & DEVICE_F_NO_QDISC ? NEXTHOP_F_NO_QDISC : 0) |
			 (device->flags & DEVICE_F_XDP_XMIT ? NEXTHOP_F_XDP_XMIT : 0) |
			 (key->bridged ? NEXTHOP_F_BRIDGED : 0);
	nexthop->peer = 0;
	if (device->flags & DEVICE_F_TUNNEL) {
		nexthop->flags |= NEXTHOP_F_TUNNEL;
		nexthop->peer = key->dmac[4] << 8 | key->dmac[5];
	}
	nexthop->checked_tick = checked_tick;
	nexthop->ifindex = key->ifindex; /* written last: now the entry is valid */
	return index;
}

/* Fills the key of the next hop to a peer through a tunnel's device: the index of the peer replaces
 * the neighbour's MAC.
 */
static __always_inline void nexthop_key_of_peer(struct nexthop_key *key, __u32 index)
{
	__builtin_memset(key->smac, 0, 6);
	__builtin_memset(key->dmac, 0, 6);
	key->dmac[0] = 0x02;
	key->dmac[4] = index >> 8;
	key->dmac[5] = index;
}
