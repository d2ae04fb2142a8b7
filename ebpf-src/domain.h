/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* domain.h - bridged or routed: which connections a packet can be one of. The same
 * addresses in two VLANs, or behind two bridges, are those of two stations.
 */
#pragma once

#include <linux/if_packet.h>

#include "maps.h"
#include "pkt.h"
#include "sender.h"

/* As domain_ingress, for what may be a port of a bridge. The source of the frame is looked
 * at here: the bridge sends it on, and learns from it, as it is.
 */
static __noinline int domain_of_port(struct pkt *p)
{
	struct __sk_buff *skb = p->skb;
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct station *s;
	__u16 *dmac = data;

	s = domain_station(skb->ifindex, p->vid);
	if (!s) {
		/* Not one, or a VLAN that it does not have; or one that is not known yet. */
		return skb->pkt_type == PACKET_HOST && !p->vid && !guard_may_be_on(skb->ifindex)
			       ? LL_NEXT
			       : LL_PASS;
	}
	if (s->flags & STATION_F_TUNNEL) {
		p->tunnel = 1;
		return LL_NEXT;
	}
	/* From a group: nothing that a bridge would send on. */
	if (!s->domain || data + 12 > end || ((__u8 *)data)[6] & 1)
		return LL_PASS;
	if (s->flags & STATION_F_GUARDED &&
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
	p->domain = s->flags & STATION_F_FLAT ? 0 : s->domain;
	return LL_NEXT;
}

/* Fills the domain of a packet that comes in. LL_PASS: it goes to nobody that we could
 * send it to.
 */
static __always_inline int domain_ingress(struct pkt *p)
{
	if (domain_may_bridge(p->skb->ifindex))
		return domain_of_port(p);
	if (p->vid)
		p->tagged = 1; /* for a device of the kernel on this one */
	return p->skb->pkt_type != PACKET_OTHERHOST ? LL_NEXT : LL_PASS;
}
