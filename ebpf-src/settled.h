/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* settled.h - what is asked about each packet of a connection that takes the tracked path,
 * on whichever hook it comes in.
 */
#pragma once

#include "maps.h"
#include "pkt.h"

/* Whether a device is a port of role uplink, or in_port stands for one. */
static __always_inline int port_is_uplink(__u32 ifindex)
{
	__u32 low = ifindex & 0xffff, word = (config_zone + 2) * GUARDED_WORDS + (low >> 6);
	__u64 *bits = bpf_map_lookup_elem(&ll_guarded, &word);

	return bits && *bits >> (low & 63) & 1;
}

/* Whether a device may be a port of a bridge; if not, it is none. */
static __always_inline int domain_may_bridge(__u32 ifindex)
{
	__u32 low = ifindex & 0xffff, word = config_zone * BRIDGED_WORDS + (low >> 6);
	__u64 *bits = bpf_map_lookup_elem(&ll_bridged, &word);

	return bits && *bits >> (low & 63) & 1;
}

static __always_inline struct station *domain_station(__u32 ifindex, __u16 vid)
{
	struct station_key key = { .ifindex = ifindex, .vid = vid, .zone = config_zone };

	return bpf_map_lookup_elem(&ll_station, &key);
}

/* The device that a next hop leads out by; 0: it is not valid. Whoever decides by it
 * reads it once: it may become 0 at any moment. All else of a next hop stays what it is
 * for as long as an entry refers to it.
 */
static __always_inline __u32 nexthop_device(const struct nexthop *nexthop)
{
	return *(const volatile __u32 *)&nexthop->ifindex;
}

/* Whether the rules have changed since a direction of a connection was last seen, or do not
 * allow it since they did.
 */
static __always_inline int firewall_has_changed(const struct ct_meta *meta)
{
	__u32 zero = 0;
	const struct epoch *epoch = bpf_map_lookup_elem(&ll_epoch, &zero);

	if (meta->flags & CT_F_DENIED)
		return 1;
	return epoch && epoch->count && (__s32)(meta->last_seen_tick - epoch->changed_tick) <= 0;
}

/* Whether a packet comes by another port than before: of what is not translated the kernel
 * decides anew, and what comes or came in by a port with a guard is looked at, as is what
 * comes by an uplink and did not before, or the other way round.
 */
static __always_inline int track_has_moved(__u32 ifindex, const struct ct_meta *meta)
{
	if (meta->in_port == (__u16)ifindex)
		return 0;
	return !(meta->flags & (CT_F_DNAT | CT_F_SNAT)) || !meta->in_port ||
	       guard_may_be_on(ifindex) || guard_may_be_on(meta->in_port) ||
	       port_is_uplink(ifindex) != port_is_uplink(meta->in_port);
}

/* Notes what a packet acknowledges and the window that it announces, unscaled. The other side
 * sends no more than it has room for, so that a later acknowledgement is ahead by that at
 * most: anything else is forged, or late.
 */
static __always_inline void ct_note_ack(struct ct_meta *meta, __u32 ack, __u16 window)
{
	__u32 room = (__u32)meta->tcp_window << (meta->tcp_scale & 15) | 0xffff;

	if (meta->tcp_ack && ack - meta->tcp_ack > room)
		return;
	meta->tcp_ack = ack;
	meta->tcp_window = window;
}

/* Ticks (7 s) of silence in one direction after which its next packet takes the slow path, which
 * alone knows how to keep a connection that is about to be deleted (expire.bpf.c). Idle times
 * of 9 s and more leave a packet on the fast path 2 s to finish.
 */
#define CT_STALE_TICKS 52

static __always_inline int ct_is_stale(const struct ct_meta *meta, __u32 now_tick)
{
	return (__s32)(now_tick - meta->last_seen_tick) > CT_STALE_TICKS;
}

/* Ticks (8.6 s) in which the kernel's bridge sees one packet of each connection at
 * least: it forgets stations that it does not hear.
 */
#define BRIDGE_SEES_SHIFT 6
