/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fastpath_checks.h - the fast-path checks, made for each packet of an established connection on
 * every hook.
 */
#pragma once

#include "maps.h"
#include "pkt.h"
#include "policy_port.h"

/* Reports whether a device, given by its index or as in in_port, is a port of role uplink. */
static __always_inline int port_is_uplink(__u32 ifindex)
{
	__u32 low = ifindex & 0xffff, word = (config_netns + 2) * GUARDED_WORDS + (low >> 6);
	__u64 *bits = bpf_map_lookup_elem(&ll_guarded, &word);

	return bits && *bits >> (low & 63) & 1;
}

/* Reports whether a device may be a bridge port. 0: it is not. */
static __always_inline int domain_may_bridge(__u32 ifindex)
{
	__u32 low = ifindex & 0xffff, word = config_netns * BRIDGED_WORDS + (low >> 6);
	__u64 *bits = bpf_map_lookup_elem(&ll_bridged, &word);

	return bits && *bits >> (low & 63) & 1;
}

static __always_inline struct bridge_port *bridge_port_find(__u32 ifindex, __u16 vid)
{
	struct bridge_port_key key = { .ifindex = ifindex, .vid = vid, .netns = config_netns };

	return bpf_map_lookup_elem(&ll_bridge_port, &key);
}

/* Returns the output device of a next hop; 0: invalid. Callers read it only once, since it may
 * become 0 at any moment. The other fields of a next hop do not change while an entry refers to it.
 */
static __always_inline __u32 nexthop_device(const struct nexthop *nexthop)
{
	return *(const volatile __u32 *)&nexthop->ifindex;
}

/* Reports whether a packet with data cannot change the state of its connection: either the connection
 * is lasting, in CT_ESTABLISHED, CT_ONE_WAY or CT_FIN, or it is in CT_TIME_WAIT, where only the last
 * acknowledgements follow.
 */
static __always_inline int conn_is_settled(const struct ct_meta *meta)
{
	return (meta->flags & CT_F_LASTING || meta->state == CT_TIME_WAIT) &&
	       meta->state >= CT_ESTABLISHED && meta->state < CT_CLOSED;
}

/* Reports whether an epoch began since the last packet in the direction of meta. */
static __always_inline int epoch_has_changed(const struct ct_meta *meta, __u32 of)
{
	const struct epoch *epoch = bpf_map_lookup_elem(&ll_epoch, &of);

	return epoch && epoch->count && (__s32)(meta->last_seen_tick - epoch->changed_tick) <= 0;
}

/* Reports whether the policies of a port, as policies name it, have changed since a tick. */
static __always_inline int epoch_of_port(__u32 port, __u32 last_seen_tick)
{
	__u32 of = EPOCH_PORTS + EPOCH_OF_PORT(port);
	const struct epoch *epoch = bpf_map_lookup_elem(&ll_epoch, &of);

	return epoch && epoch->count && (__s32)(last_seen_tick - epoch->changed_tick) <= 0;
}

/* Reports whether the policies of the port on which packets of a connection arrive, or of the port
 * through which they leave, have changed since a tick; index: of their next hop, 0: none.
 */
static __noinline int epoch_of_ports(__u32 in, __u32 index, __u32 last_seen_tick)
{
	struct nexthop *nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;

	if (epoch_of_port(policy_port_here(in), last_seen_tick))
		return 1;
	if (!index) /* they may be for the node itself */
		return epoch_of_port(POLICY_PORT_HERE, last_seen_tick);
	return nexthop && epoch_of_port(policy_port_here(nexthop_device(nexthop)), last_seen_tick);
}

/* Reports whether the policies of the Endpoint with an address have changed since a tick. In the switch,
 * the ports of Endpoints are known.
 */
static __noinline int epoch_of_addr(const struct addr *addr, __u32 last_seen_tick)
{
	__u32 port = config_netns ? 0 : policy_port_of(addr, policy_word());

	return port && epoch_of_port(port, last_seen_tick);
}

static __noinline int epoch_of_addr4(__be32 v4, __u32 last_seen_tick)
{
	struct addr addr;

	addr_from4(&addr, v4);
	return epoch_of_addr(&addr, last_seen_tick);
}

/* The addresses of a connection that policies know: where its packets come from on arrival, and where
 * they go when they leave. Either an entry of IPv4, or both addresses.
 */
struct conn_ends {
	const struct ct4 *v4;
	const struct addr *from;
	const struct addr *to;
};

/* Reports whether the policies of the Endpoint at one end of a connection have changed since its last
 * packet. The host knows the Endpoints behind its link to the switch by their addresses only.
 */
static __always_inline int epoch_of_ends(struct conn_ends ends, __u32 last_seen_tick)
{
	if (ends.v4)
		return epoch_of_addr4(ends.v4->key.saddr, last_seen_tick) ||
		       epoch_of_addr4(ends.v4->daddr, last_seen_tick);
	return epoch_of_addr(ends.from, last_seen_tick) || epoch_of_addr(ends.to, last_seen_tick);
}

/* Reports whether rules, or the policies of a port, have changed since the last packet in the
 * direction of meta, or deny the connection since they changed; in: the device of arrival. While the
 * last change is older, one entry is read.
 */
static __always_inline int firewall_has_changed(const struct ct_meta *meta, __u32 in,
						struct conn_ends ends)
{
	__u32 of = EPOCH_RULES;
	const struct epoch *epoch;

	if (meta->flags & CT_F_DENIED)
		return 1;
	epoch = bpf_map_lookup_elem(&ll_epoch, &of);
	if (!epoch)
		return 0;
	if (epoch->count && (__s32)(meta->last_seen_tick - epoch->changed_tick) <= 0)
		return 1;
	if (!epoch->port_count || (__s32)(meta->last_seen_tick - epoch->port_changed_tick) > 0)
		return 0;
	return epoch_of_ports(in, meta->nexthop, meta->last_seen_tick) ||
	       epoch_of_ends(ends, meta->last_seen_tick);
}

/* Reports whether the packet must leave the fast path because rules or policies have changed, or
 * because the client's destination may be a service by now.
 */
static __always_inline int conn_is_outdated(const struct ct_meta *meta, __u32 in,
					    struct conn_ends ends)
{
	if (meta->state == CT_ONE_WAY && !(meta->flags & CT_F_SERVICE) &&
	    epoch_has_changed(meta, EPOCH_SERVICES))
		return 1;
	return firewall_has_changed(meta, in, ends);
}

/* Reports whether a packet arrives on another port than before and therefore must leave the fast
 * path. An untranslated packet always must, since the kernel decides again; a translated packet
 * only if the former port is unknown, one of the two ports has a source guard, or exactly one of
 * them is an uplink.
 */
static __always_inline int track_has_moved(__u32 ifindex, const struct ct_meta *meta)
{
	if (meta->in_port == (__u16)ifindex)
		return 0;
	return !(meta->flags & (CT_F_DNAT | CT_F_SNAT)) || !meta->in_port ||
	       guard_may_be_on(ifindex) || guard_may_be_on(meta->in_port) ||
	       port_is_uplink(ifindex) != port_is_uplink(meta->in_port);
}

/* Counts a packet in its entry. */
static __always_inline void ct_count(struct ct_meta *meta, __u32 len_bytes)
{
	meta->byte_count += len_bytes;
	if (!++meta->packet_count)
		meta->packet_count_high++;
}

/* Stores the acknowledgement number of a packet and the unscaled window that it announces. The
 * other side sends at most one window, so the next acknowledgement is ahead by at most one window:
 * any other is forged or late.
 */
static __always_inline void ct_note_ack(struct ct_meta *meta, __u32 ack, __u16 window)
{
	__u32 room = (__u32)meta->tcp_window << (meta->tcp_scale & 15) | 0xffff;

	if (meta->tcp_ack && ack - meta->tcp_ack > room)
		return;
	meta->tcp_ack = ack;
	meta->tcp_window = window;
}

/* Ticks (0.4 s) of silence in one direction after which its next packet must check whether the
 * connection is being deleted. The shortest idle time is 1 s, so a packet after a shorter silence
 * has 0.5 s to finish.
 */
#define CT_STALE_TICKS 3

/* Records a packet in the direction of meta. Returns 0 if the connection is being deleted.
 * expire.bpf.c marks both entries and then reads when they were last seen; this function records
 * the packet and then reads the mark. So one of the two detects the other: a packet is forwarded
 * only if its connection stays.
 */
static __always_inline int ct_seen(struct ct_meta *meta, __u32 now_tick)
{
	__u32 last_seen_tick = meta->last_seen_tick;

	if ((__s32)(now_tick - last_seen_tick) > CT_STALE_TICKS)
		__sync_lock_test_and_set(&meta->last_seen_tick, now_tick); /* a barrier */
	else if (last_seen_tick != now_tick)
		meta->last_seen_tick = now_tick;
	return *(const volatile __u8 *)&meta->state != CT_ENDING;
}

/* In 2^6 ticks (8.6 s) the kernel's bridge gets at least one frame of each source MAC, so that it
 * does not forget the MACs.
 */
#define BRIDGE_SEES_SHIFT 6
