/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror_copy.h - takes copies of packets and sends them to the targets of mirrors. */
#pragma once

#include "maps.h"
#include "mirror_conn.h"
#include "mirror_match.h"
#include "pkt.h"
#include "tun_encap.h"

#define VLAN_TAG_LEN 4

/* Returns the length of a frame on the wire: the kernel keeps a VLAN tag outside the frame. */
static __always_inline __u32 mirror_frame_len(struct __sk_buff *skb)
{
	return skb->len + (skb->vlan_present ? VLAN_TAG_LEN : 0);
}

static __always_inline void mirror_count(__u32 slot, __u32 len, int sent)
{
	struct mirror_stats *s = bpf_map_lookup_elem(&ll_mirror_stats, &slot);

	if (!s)
		return;
	if (sent) {
		s->packet_count++;
		s->byte_count += len;
	} else {
		s->drop_count++;
	}
}

/* Sends a copy to the target of m. The target's egress hook, which runs before this returns, cuts and
 * encapsulates it. The packet itself is unchanged afterwards.
 */
static __always_inline void mirror_copy(struct __sk_buff *skb, const struct mirror *m, __u32 slot)
{
	__u32 out = m->target[config_netns & 1], cut = m->len_bytes, len = mirror_frame_len(skb);
	__u32 mark = skb->mark, word = skb->tc_index;
	long failed;

	if (!out)
		return;
	skb->mark = MARK_COPY;
	skb->tc_index = TC_INDEX_COPY | slot;
	failed = bpf_clone_redirect(skb, out, 0);
	skb->mark = mark;
	skb->tc_index = word;
	mirror_count(slot, cut && cut < len ? cut : len, !failed);
}

/* Reports whether the connection of a packet is one of m's, in a direction of m. */
static __always_inline int mirror_has_conn(const struct mirror *m, const struct mirror_conn *c)
{
	if (m->flags & MIRROR_F_SERVICE && (!c->service_id || c->service_id != m->id))
		return 0;
	if (m->flags & MIRROR_F_RULE && (!c->rule_id || c->rule_id != m->id))
		return 0;
	return m->flags & (c->reply ? MIRROR_F_OUT : MIRROR_F_IN);
}

/* Reports whether p arrives from the peer of m as a copy for a mirror of that peer: in the encapsulation
 * of its tunnel, with a VNI that no tunnel has. If two nodes mirrored their uplinks to each other, they
 * would otherwise copy such a packet endlessly.
 */
static __noinline int mirror_is_back(struct __sk_buff *skb, const struct pkt *p,
				     const struct mirror *m)
{
	struct peer *peer = underlay_peer(skb, m->peer);
	struct tunnel_key key = {};
	__be32 word = 0;
	__be16 port;

	if (config_netns || p->egress || p->fragment || !peer ||
	    !addr_equal(&p->saddr, &peer->remote))
		return 0;
	if (peer->type == TUNNEL_GRE)
		return p->proto == IPPROTO_GRE && !bpf_skb_load_bytes(skb, p->l4_off, &word, 4) &&
		       (bpf_ntohl(word) & 0xffff) == ETH_P_TEB;
	port = *(const __be16 *)&peer
			->header[(p->family == 4 ? TUNNEL_L4_OVER4 : TUNNEL_L4_OVER6) + 2];
	if (p->proto != IPPROTO_UDP || p->dport != port ||
	    bpf_skb_load_bytes(skb, p->l4_off + 12, &word, 4))
		return 0;
	key.local = p->daddr;
	key.vni = bpf_ntohl(word) >> 8;
	key.port = p->dport;
	key.proto = IPPROTO_UDP;
	return !bpf_map_lookup_elem(&ll_tunnel, &key);
}

/* Copies a packet for the mirror at slot if it matches. A global function, so that the verifier walks
 * it once.
 */
__noinline int mirror_consider(struct __sk_buff *skb, struct pkt *p, struct mirror_conn *c,
			       __u32 slot)
{
	struct mirror *m = bpf_map_lookup_elem(&ll_mirror, &slot);

	if (!m || !p || !c || !mirror_matches(m, p, c->parsed))
		return 0;
	if (m->flags & (MIRROR_F_SERVICE | MIRROR_F_RULE) && !mirror_has_conn(m, c))
		return 0;
	if (m->peer && mirror_is_back(skb, p, m))
		return 0;
	mirror_copy(skb, m, slot & TC_INDEX_MIRROR);
	return 0;
}

/* Copies a packet for each mirror in all; those in conn need its connection, and those in rule the
 * rule that allows it.
 */
static __always_inline void mirror_all(struct __sk_buff *skb, struct pkt *p, __u64 all, __u64 conn,
				       __u64 rule)
{
	struct mirror_conn c = {};

	if (!all)
		return;
	p->skb = skb;
	c.parsed = parse_packet(skb, p);
	p->skb = skb;
	if (conn) {
		mirror_connection(p, &c, rule != 0);
		p->skb = skb;
	}
	for (__u32 slot = 0; slot < MIRROR_COUNT; slot++) {
		if (!(all >> slot))
			break;
		if (all >> slot & 1)
			mirror_consider(skb, p, &c, slot);
	}
}

/* Returns the mirrors of the device at hand, or NULL. */
static __always_inline const struct mirror_port *mirror_port_of(struct __sk_buff *skb)
{
	struct device_key key = { .ifindex = skb->ifindex, .netns = config_netns };

	return bpf_map_lookup_elem(&ll_mirror_port, &key);
}

/* Reports whether the node itself redirected this packet to the ingress hook (route_back, answer_send,
 * announce_send): it did not arrive from the wire.
 */
static __always_inline int mirror_is_returned(struct __sk_buff *skb)
{
	return skb->mark == MARK_OURS && (skb->tc_index & 0xff00) == TC_INDEX_DONE_INGRESS;
}
