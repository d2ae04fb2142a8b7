/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fastpath.h - the fast path for the most common packets: routed TCP or UDP packets without IP
 * options, extension headers, tags or fragmentation. All others take the fast path of
 * fastpath_full.h, which has the same effect but keeps its data in memory. This code is compiled
 * for tc and for XDP; the differences are in fastpath_skb.h and fastpath_xdp.h, one of which is
 * included before this file.
 */
#pragma once

#include "clock.h"
#include "csum.h"
#include "parse.h"
#include "fastpath_checks.h"
#include "ct_table.h"

#define FAST_MISS      (-1) /* as FAST_NOT, and it has no connection */
#define FAST_UNSETTLED (-2) /* as FAST_NOT, and the state of its connection may change */
#define FAST_NOT       (-3) /* not a packet for this fast path; it is unchanged */
#define FAST_L3	       14
#define FAST_L44       34
#define FAST_L46       54
_Static_assert(-DROP_REWRITE < FAST_NOT, "other results are drop reasons");

/* 0: this fast path is disabled, for tests that compare it with fastpath_full.h. */
volatile const __u8 config_fast = 1;

/* Returns the size of a layer-4 header in bytes; TCP: without options. */
static __always_inline __u32 fast_header_len(__u8 proto)
{
	return proto == IPPROTO_UDP ? 8 : sizeof(struct tcphdr);
}

/* Reports whether the header is readable and, for TCP, has ACK but none of TCP_EVENTS set. */
static __always_inline int fast_is_data(__u8 proto, const void *l4, const void *end)
{
	if (proto == IPPROTO_UDP)
		return l4 + 8 <= end;
	return l4 + sizeof(struct tcphdr) <= end &&
	       (((const __u8 *)l4)[13] & (TCP_EVENTS | TCP_ACK)) == TCP_ACK;
}

/* Returns the next hop for a packet of a settled connection; NULL: it is not for this fast path. */
static __always_inline struct nexthop *fast_nexthop(FRAME *f, int bridge_port,
						    const struct ct_meta *meta, __u32 now_tick,
						    struct conn_ends ends)
{
	__u32 index = meta->nexthop;
	struct nexthop *nexthop;

	/* fastpath_full.h asks whether the bridge must see the packet. */
	if (bridge_port && (meta->last_seen_tick ^ now_tick) >> BRIDGE_SEES_SHIFT)
		return NULL;
	if (!index || conn_is_outdated(meta, frame_in(f), ends))
		return NULL;
	if (track_has_moved(frame_in(f), meta))
		return NULL;
	nexthop = bpf_map_lookup_elem(&ll_nexthop, &index);
	if (!nexthop || nexthop->vid || nexthop->flags & (NEXTHOP_F_BRIDGED | NEXTHOP_F_TUNNEL) ||
	    ticks_since(now_tick, nexthop->checked_tick) > config_confirm_ticks)
		return NULL;
	return nexthop;
}

/* Counts a packet in its entry; as track_count. */
static __always_inline void fast_count(FRAME *f, struct ct_meta *meta, __u8 proto,
				       const struct tcphdr *tcp)
{
	ct_count(meta, frame_len(f));
	if (proto == IPPROTO_TCP)
		ct_note_ack(meta, bpf_ntohl(tcp->ack_seq), bpf_ntohs(tcp->window));
}

static __always_inline __u64 fast_port_diff(__u32 old_ports, __u32 new_ports)
{
	return old_ports != new_ports ? csum_diff32(0, old_ports, new_ports) : 0;
}

/* Writes both MAC addresses of the frame, which are adjacent in the next hop. */
static __always_inline void fast_address(void *data, const struct nexthop *nexthop)
{
	_Static_assert(offsetof(struct nexthop, dmac) == 8 && offsetof(struct nexthop, smac) == 14,
		       "12 bytes, the first of them where words begin");
	*(__u64 *)data = *(const __u64 *)nexthop->dmac;
	*(__u32 *)(data + 8) = *(const __u32 *)(nexthop->dmac + 8);
}

static __always_inline int fast_ipv4(FRAME *f, __u8 proto, int bridge_port)
{
	void *data = (void *)(long)f->data;
	void *end = (void *)(long)f->data_end;
	struct iphdr *ip = data + FAST_L3;
	__u32 len, out, flags, old_ports, now_tick, check;
	int begun;
	struct nexthop *nexthop;
	struct ct4_key key __attribute__((aligned(8)));
	struct ct4 *v;
	__u64 diff;

	if (data + FAST_L44 + 8 > end)
		return FAST_NOT;
	len = FAST_L3 + bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK) ||
	    ip->ttl <= 1 || len > frame_len(f) || len < FAST_L44 + fast_header_len(proto) ||
	    !parse_ipv4_sum(ip) || !fast_is_data(proto, data + FAST_L44, end))
		return FAST_NOT;
	old_ports = *(__u32 *)(data + FAST_L44);
	key4_set(&key, ip->saddr, ip->daddr, old_ports, proto, 0);
	v = ct4_find(&key);
	if (!v)
		return FAST_MISS;
	if (!conn_is_settled(&v->meta))
		return FAST_UNSETTLED;
	now_tick = clock_tick();
	nexthop = fast_nexthop(f, bridge_port, &v->meta, now_tick, (struct conn_ends){ .v4 = v });
	if (!nexthop)
		return FAST_NOT;
	out = nexthop_device(nexthop);
	if (!out || !frame_may_leave(f, nexthop, out) ||
	    !frame_fits(f, proto, data + FAST_L44, sizeof(*ip), nexthop->mtu_bytes) ||
	    !frame_is_whole(f, proto, FAST_L44, len) || !ct_seen(&v->meta, now_tick))
		return FAST_NOT;
	fast_count(f, &v->meta, proto, data + FAST_L44);
	fast_address(data, nexthop);
	flags = nexthop->flags;
	ip->ttl--;
	if (!(v->meta.flags & (CT_F_DNAT | CT_F_SNAT))) {
		check = ip->check + bpf_htons(0x0100);
		ip->check = check + (check >= 0xffff); /* as in RFC 1141 */
		return frame_send(f, len, flags, out);
	}
	begun = frame_csum_is_begun(f, data, proto, FAST_L44, len);
	old_ports = *(__u32 *)(data + FAST_L44);
	diff = csum_diff32(csum_diff32(0, ip->saddr, v->saddr), ip->daddr, v->daddr);
	ip->check = csum_apply(ip->check, diff + (__u32)(__u16)~bpf_htons(0x0100));
	ip->saddr = v->saddr;
	ip->daddr = v->daddr;
	*(__u32 *)(data + FAST_L44) = v->sport | (__u32)v->dport << 16;
	if (frame_l4_csum(f, data, proto, FAST_L44, diff,
			  fast_port_diff(old_ports, v->sport | (__u32)v->dport << 16), begun))
		return -DROP_REWRITE;
	return frame_send(f, len, flags, out);
}

static __always_inline int fast_ipv6(FRAME *f, __u8 proto, int bridge_port)
{
	void *data = (void *)(long)f->data;
	void *end = (void *)(long)f->data_end;
	struct ipv6hdr *ip = data + FAST_L3;
	__u32 len, old_ports, out, flags, now_tick;
	int begun;
	struct nexthop *nexthop;
	struct ct6_key key __attribute__((aligned(8)));
	struct ct6 *v;
	__u64 diff;

	if (data + FAST_L46 + 8 > end)
		return FAST_NOT;
	len = FAST_L46 + bpf_ntohs(ip->payload_len);
	if ((*(__u8 *)ip & 0xf0) != 0x60 || ip->hop_limit <= 1 || len > frame_len(f) ||
	    len < FAST_L46 + fast_header_len(proto) || !fast_is_data(proto, data + FAST_L46, end))
		return FAST_NOT;
	old_ports = *(__u32 *)(data + FAST_L46);
	key6_set(&key, &ip->saddr, &ip->daddr, old_ports, proto, 0);
	v = ct6_find(&key);
	if (!v)
		return FAST_MISS;
	if (!conn_is_settled(&v->meta))
		return FAST_UNSETTLED;
	now_tick = clock_tick();
	nexthop = fast_nexthop(f, bridge_port, &v->meta, now_tick,
			       (struct conn_ends){ .from = &v->key.saddr, .to = &v->daddr });
	if (!nexthop)
		return FAST_NOT;
	out = nexthop_device(nexthop);
	if (!out || !frame_may_leave(f, nexthop, out) ||
	    !frame_fits(f, proto, data + FAST_L46, sizeof(*ip), nexthop->mtu_bytes) ||
	    !frame_is_whole(f, proto, FAST_L46, len) || !ct_seen(&v->meta, now_tick))
		return FAST_NOT;
	fast_count(f, &v->meta, proto, data + FAST_L46);
	fast_address(data, nexthop);
	flags = nexthop->flags;
	ip->hop_limit--;
	if (!(v->meta.flags & (CT_F_DNAT | CT_F_SNAT)))
		return frame_send(f, len, flags, out);
	begun = frame_csum_is_begun(f, data, proto, FAST_L46, len);
	diff = csum_diff_addr(csum_diff_addr(0, &key.saddr, &v->saddr), &key.daddr, &v->daddr);
	__builtin_memcpy(&ip->saddr, &v->saddr, sizeof(v->saddr));
	__builtin_memcpy(&ip->daddr, &v->daddr, sizeof(v->daddr));
	*(__u32 *)(data + FAST_L46) = v->sport | (__u32)v->dport << 16;
	if (frame_l4_csum(f, data, proto, FAST_L46, diff,
			  fast_port_diff(old_ports, v->sport | (__u32)v->dport << 16), begun))
		return -DROP_REWRITE;
	return frame_send(f, len, flags, out);
}

static __always_inline int fast_tcp4(FRAME *f, int bridge_port)
{
	return fast_ipv4(f, IPPROTO_TCP, bridge_port);
}

static __always_inline int fast_udp4(FRAME *f, int bridge_port)
{
	return fast_ipv4(f, IPPROTO_UDP, bridge_port);
}

static __noinline int fast_tcp6(FRAME *f, int bridge_port)
{
	return fast_ipv6(f, IPPROTO_TCP, bridge_port);
}

static __noinline int fast_udp6(FRAME *f, int bridge_port)
{
	return fast_ipv6(f, IPPROTO_UDP, bridge_port);
}

/* Reports whether a frame from a bridge port is to be routed; as domain_of_port. */
static __noinline int fast_is_routed(FRAME *f)
{
	const __u16 *mac = (void *)(long)f->data;
	struct bridge_port *s = bridge_port_find(frame_in(f), 0);

	if (!s || !s->domain || (void *)(mac + 6) > (void *)(long)f->data_end ||
	    ((const __u8 *)mac)[6] & 1)
		return 0;
	if (s->flags & BRIDGE_PORT_F_GUARDED &&
	    (mac[3] != *(__u16 *)&s->guard[0] || mac[4] != *(__u16 *)&s->guard[2] ||
	     mac[5] != *(__u16 *)&s->guard[4]))
		return 0;
	if (frame_is_own(f))
		return 1;
	return frame_is_others(f) && mac[0] == *(__u16 *)&s->mac[0] &&
	       mac[1] == *(__u16 *)&s->mac[2] && mac[2] == *(__u16 *)&s->mac[4];
}

/* Forwards a packet. Returns a TC or XDP action, or one of FAST_ or -DROP_REWRITE. Each kind of
 * packet has its own function, in which the protocol is a constant.
 */
static __always_inline int fast_forward(FRAME *f)
{
	void *data = (void *)(long)f->data;
	void *end = (void *)(long)f->data_end;
	struct ethhdr *eth = data;
	int bridge_port;
	__u8 proto;

	if (frame_tagged(f) || data + FAST_L44 > end)
		return FAST_NOT;
	bridge_port = domain_may_bridge(frame_in(f));
	if (bridge_port ? !fast_is_routed(f) : !frame_is_own(f))
		return FAST_NOT;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		proto = ((struct iphdr *)(eth + 1))->protocol;
		if (proto == IPPROTO_TCP)
			return fast_tcp4(f, bridge_port);
		return proto == IPPROTO_UDP ? fast_udp4(f, bridge_port) : FAST_NOT;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		proto = ((struct ipv6hdr *)(eth + 1))->nexthdr;
		if (proto == IPPROTO_TCP)
			return fast_tcp6(f, bridge_port);
		return proto == IPPROTO_UDP ? fast_udp6(f, bridge_port) : FAST_NOT;
	}
	return FAST_NOT;
}
