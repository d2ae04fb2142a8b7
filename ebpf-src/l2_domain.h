/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* l2_domain.h - determines whether a packet is bridged or routed, and its bridge domain: the same
 * addresses in two VLANs, or behind two bridges, belong to different hosts.
 */
#pragma once

#include <linux/if_packet.h>

#include "maps.h"
#include "pkt.h"
#include "source_guard_addr.h"

/* As domain_ingress, for a possible bridge port. The source MAC is checked here, since the bridge
 * forwards the frame unchanged and learns from it.
 */
static __noinline int domain_of_port(struct pkt *p)
{
	struct __sk_buff *skb = p->skb;
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct bridge_port *s;
	__u16 *dmac = data;

	s = bridge_port_find(skb->ifindex, p->vid);
	if (!s) {
		/* Not a bridge port, not a VLAN of this port, or not known yet. */
		return skb->pkt_type == PACKET_HOST && !p->vid && !guard_may_be_on(skb->ifindex)
			       ? LL_NEXT
			       : LL_PASS;
	}
	if (s->flags & BRIDGE_PORT_F_TUNNEL) {
		p->tunnel = 1;
		return LL_NEXT;
	}
	/* A bridge does not forward frames with a group address as source MAC. */
	if (!s->domain || data + 12 > end || ((__u8 *)data)[6] & 1)
		return LL_PASS;
	if (s->flags & BRIDGE_PORT_F_GUARDED &&
	    (dmac[3] != *(__u16 *)&s->guard[0] || dmac[4] != *(__u16 *)&s->guard[2] ||
	     dmac[5] != *(__u16 *)&s->guard[4]))
		return -DROP_SPOOFED;
	p->bridge_port = 1;
	p->vlan = s->vid;
	if (skb->pkt_type == PACKET_HOST)
		return LL_NEXT;
	if (dmac[0] == *(__u16 *)&s->mac[0] && dmac[1] == *(__u16 *)&s->mac[2] &&
	    dmac[2] == *(__u16 *)&s->mac[4])
		return LL_NEXT;
	p->bridged = 1;
	p->domain = s->flags & BRIDGE_PORT_F_FLAT ? 0 : s->domain;
	return LL_NEXT;
}

/* Reports whether the kernel's bridge has recently been given a frame of the source MAC of p, which
 * arrives on a bridge port. If not, it must be given p. A MAC that moves to another port is unknown
 * there.
 */
static __noinline int bridge_has_seen(struct pkt *p)
{
	const __u8 *data = (void *)(long)p->skb->data;
	const void *end = (void *)(long)p->skb->data_end;
	struct bridge_seen *seen;
	__u16 vlan = p->vlan | config_netns << 12;
	__u32 high, index;
	__u16 low;

	if (data + 12 > (const __u8 *)end)
		return 0;
	low = *(const __u16 *)(data + 6);
	high = *(const __u32 *)(data + 8);
	index = ((high ^ (__u32)low << 16) * 0x9e3779b1) >> (32 - BRIDGE_SEEN_BITS);
	seen = bpf_map_lookup_elem(&ll_bridge_seen, &index);
	if (!seen)
		return 0;
	if (seen->ifindex == p->in_port && seen->vlan == vlan && *(__u16 *)&seen->mac[0] == low &&
	    *(__u16 *)&seen->mac[2] == (__u16)high && *(__u16 *)&seen->mac[4] == high >> 16 &&
	    !((seen->tick ^ p->now_tick) >> BRIDGE_SEES_SHIFT))
		return 1;
	seen->tick = p->now_tick;
	seen->ifindex = p->in_port;
	seen->vlan = vlan;
	*(__u16 *)&seen->mac[0] = low;
	*(__u16 *)&seen->mac[2] = high;
	*(__u16 *)&seen->mac[4] = high >> 16;
	return 0;
}

/* Sets the bridge domain of an arriving packet. LL_PASS: we cannot forward it. */
static __always_inline int domain_ingress(struct pkt *p)
{
	if (domain_may_bridge(p->skb->ifindex))
		return domain_of_port(p);
	if (p->vid)
		p->tagged = 1; /* for a VLAN device of the kernel */
	return p->skb->pkt_type != PACKET_OTHERHOST ? LL_NEXT : LL_PASS;
}
